# SPDX-License-Identifier: GPL-2.0-or-later
"""Waiting for a condition with a deadline. The only place that sleeps."""

import os
import time

# A kernel that watches itself, or a machine that is busy, makes everything slow: all deadlines are multiplied by this.
SLOW = float(os.environ.get("RR_SLOW", "1"))


class TimedOut(AssertionError):
    pass


def until(condition, seconds, what, interval=0.2):
    """Call `condition` until it returns something true; return that. `what` says what was waited for."""
    deadline = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimedOut(f"waited {seconds * SLOW} s for {what}; last: {value!r}")
        time.sleep(interval)


def stays(condition, seconds, what, interval=0.5):
    """Assert that `condition` stays true for `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        assert value, f"{what} did not hold for {seconds} s"
        time.sleep(interval)
