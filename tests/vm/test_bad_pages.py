# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages that go bad on a machine with channels."""

import re

import pytest

from ramtest import wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")

CNUMA = "/sys/kernel/mm/cnuma"


def wait_plugged(guest, channels):
    for name, mib in channels.plugged_mib.items():
        wait.until(lambda name=name, mib=mib: channels.plugged_bytes(guest, name) == mib * MIB, 120,
                   f"{mib} MiB plugged on {name}")


def poison(guest, command):
    """Send a command to the cnuma-poison that runs; return its answer."""
    lines = int(guest.run("wc -l </run/poison.out"))
    guest.run(f"echo '{command}' >/run/poison.in")
    wait.until(lambda: int(guest.run("wc -l </run/poison.out")) > lines, 240, f"the answer to {command}")
    return guest.json("tail -n 1 /run/poison.out")


def start_poison(guest, mib):
    guest.run("rm -f /run/poison.in; mkfifo /run/poison.in; "
              f"(cnuma-poison {mib} </run/poison.in >/run/poison.out 2>&1 &) ; (sleep 100000 >/run/poison.in &)")
    wait.until(lambda: "ready" in guest.run("cat /run/poison.out"), 120, "cnuma-poison")


def test_bad_pages(folder, test_name):
    """A page that goes bad is replaced where it belongs and does not move again; one that is lost says so."""
    channels = StaticChannels(folder, dimms=3, plugged_mib={"dimm1": 256})
    with Guest(channels.arguments(), name=test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        # A channel comes and nothing moves yet: a third of the pages lies wrong.
        guest.run(f"echo 0 >{CNUMA}/redistribute/rate_limit_mbps")
        guest.run("dmesg -n 1")  # a line for each page, on a slow console
        start_poison(guest, 16)
        channels.request(guest, "dimm2", 256)
        wait.until(lambda: channels.plugged_bytes(guest, "dimm2") == 256 * MIB, 120, "dimm2 plugged")
        wait.until(lambda: int(guest.read(f"{CNUMA}/cnode{channels.node('dimm2')}/buckets")) > 0, 60, "buckets of dimm2")
        answer = poison(guest, "soft 1")
        assert answer == {"failed": 0, "changed": 16 * 256, "errors": 0}, answer
        guest.run(f"echo 1024 >{CNUMA}/redistribute/rate_limit_mbps")
        wait.until(lambda: guest.read(f"{CNUMA}/redistribute/state") == "idle", 180, "the end of redistribution")
        # All of them were replaced where they belong by now, so none has to move.
        assert poison(guest, "where") == {"moved": 0}

        # Pages that are lost say so; the rest is whole.
        answer = poison(guest, "hard 64")
        assert answer == {"failed": 0, "readable": 0}, answer
        assert int(re.search(r"HardwareCorrupted: +(\d+)", guest.read("/proc/meminfo"))[1]) >= 64 * 4
