# SPDX-License-Identifier: GPL-2.0-or-later
"""The built QEMU boots the built kernel with the test image, and the harness can talk to it."""

import pytest

from ramtest import wait
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")


def test_boot(test_name):
    with Guest(["-m", "512M", "-smp", "2"], name=test_name) as guest:
        guest.wait_ready()
        assert guest.run("uname -r").startswith("6.12.")
        assert guest.run("nproc").strip() == "2"
        result = guest.try_run("echo out; echo err >&2; exit 3")
        assert (result.code, result.output) == (3, "out\nerr\n")
        long = "x" * 20000
        assert guest.run(f"echo {long}").strip() == long
        assert guest.try_run("sleep 30", timeout=1).code != 0
        assert guest.run("echo still here").strip() == "still here"


def test_load_counts_its_pages(test_name):
    with Guest(["-m", "512M", "-smp", "2"], name=test_name) as guest:
        guest.wait_ready()
        guest.load(64)
        wait.until(lambda: guest.report()["passes"] >= 2, 60, "two passes over the working set")
        report = guest.report("reset")
        assert report["ready"] and report["total"] == 64 << 8
        assert sum(report["pages"].values()) == report["total"]
        assert report["verified_pages"] >= 2 * report["total"]
        assert report["verify_errors"] == 0
        assert report["migrated"] == 0
        assert guest.report()["verified_pages"] < report["verified_pages"]
        guest.run("cnuma-load quit")


def test_reset_and_power_button(test_name):
    with Guest(["-m", "256M"], name=test_name) as guest:
        first = guest.wait_ready()
        guest.qmp.command("system_reset")
        wait.until(lambda: guest.wait_ready() != first, 60, "the second boot")
        guest.qmp.command("system_powerdown")
        assert guest.wait_exit() == 0
