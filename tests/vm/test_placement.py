# SPDX-License-Identifier: GPL-2.0-or-later
"""Where pages go when channels differ, or are full. QEMU and the guest kernel alone."""

import pytest

from ramtest import bars, wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")

RECLAIM = ("pswpout", "pgscan_kswapd", "pgscan_direct", "oom_kill")


def wait_plugged(guest, channels):
    guest.wait_ready()
    for channel, mib in channels.plugged_mib.items():
        wait.until(lambda channel=channel, mib=mib: channels.plugged_bytes(guest, channel) == mib * MIB, 120,
                   f"{mib} MiB plugged on {channel}")


def test_shares_by_bandwidth(folder, test_name):
    """A channel with half the bandwidth of its siblings gets half as many pages."""
    channels = StaticChannels(folder, dimms=3, plugged_mib={"dimm1": 512, "dimm2": 512}, speeds={"dimm2": 18000})
    with Guest(channels.arguments(), name=test_name) as guest:
        wait_plugged(guest, channels)
        guest.load(384)
        report = guest.report()
        for name, share in {"dimm0": 2 / 5, "dimm1": 2 / 5, "dimm2": 1 / 5}.items():
            pages = report["pages"][str(channels.node(name))]
            assert abs(pages - share * report["total"]) <= 0.02 * share * report["total"], \
                f"{pages} of {report['total']} pages on {name}, not {share:.0%}: {report['pages']}"


def test_full_channel(folder, test_name):
    """What a full channel cannot take is spread over its siblings, without reclaim; that starts when all are full."""
    channels = StaticChannels(folder, dimms=4, plugged_mib={"dimm1": 128, "dimm2": 512, "dimm3": 512})
    small = channels.node("dimm1")
    with Guest(channels.arguments(), append="brd.rd_nr=1 brd.rd_size=524288", name=test_name) as guest:
        wait_plugged(guest, channels)
        guest.run("mkswap /dev/ram0 && swapon /dev/ram0")
        before = guest.vmstat()
        guest.load(640)
        report = guest.report()
        after = guest.vmstat()
        assert {name: after[name] - before[name] for name in RECLAIM} == dict.fromkeys(RECLAIM, 0), "memory was reclaimed"

        share = report["total"] / 4
        over = {node: report["pages"][str(node)] - share for node in range(4) if node != small}
        assert report["pages"][str(small)] < 0.9 * share, f"dimm1 is not full: {report['pages']}"
        mean = sum(over.values()) / 3
        assert all(abs(pages - mean) <= 0.15 * mean for pages in over.values()), \
            f"the siblings got {over} more than their share, not about {mean:.0f} each"

        # Nobody has room any more: now it is reclaimed.
        guest.run("mkdir -p /run/more && mount -t tmpfs -o size=2G none /run/more && "
                  "dd if=/dev/zero of=/run/more/file bs=1M count=1100 2>/dev/null", 240)
        end = guest.vmstat()
        assert end["pswpout"] > after["pswpout"], "nothing was swapped out though all memory was in use"
        assert end["pgscan_kswapd"] > after["pgscan_kswapd"], "no kswapd has done anything"
        assert end["oom_kill"] == 0, "somebody was killed though there was swap"
