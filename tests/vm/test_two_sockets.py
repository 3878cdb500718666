# SPDX-License-Identifier: GPL-2.0-or-later
"""The largest machine that we sell: two sockets with 12 DIMM channels each, and 4 CXL channels. Small channels, TCG."""

import pytest

from ramtest import bars, wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")


def test_28_channels(folder, test_name):
    """It boots, each sNode spreads over all of its channels, and one channel of each is drained at once."""
    names = [f"dimm{i}" for i in range(24)] + [f"cxl{i}" for i in range(4)]
    channels = StaticChannels(folder, sockets=2, dimms=12, cxls=4, window_mib=256, plugged_mib=dict.fromkeys(names, 128))
    heads = ("dimm0", "dimm12", "cxl0")
    with Guest(channels.arguments(), name=test_name) as guest:
        guest.wait_ready(240)
        for name in names:
            wait.until(lambda name=name: channels.plugged_bytes(guest, name) == 128 * MIB, 240, f"128 MiB plugged on {name}")
        assert "available: 3 nodes (0-2)" in guest.run("numactl -H")
        assert "node 0 cpus: 0\n" in guest.run("numactl -H") and "node 1 cpus: 1\n" in guest.run("numactl -H")

        for node, head in enumerate(heads):
            guest.load(192, prefix=f"numactl --membind={node}", timeout=300)
            bars.check_even(guest.report(), channels.nodes(head))
            guest.report("quit")
            wait.until(lambda: guest.try_run("pidof cnuma-load").code, 60, "the end of cnuma-load")

        # All of it: interleaved over the sNodes, even inside each of them.
        guest.load(384, prefix="numactl --interleave=all", timeout=300)
        before = guest.report("reset")
        for head in heads:
            nodes = channels.nodes(head)
            inside = {"total": sum(before["pages"][str(node)] for node in nodes),
                      "pages": {str(node): before["pages"][str(node)] for node in nodes}}
            assert abs(inside["total"] - before["total"] / 3) < before["total"] / 100, before["pages"]
            bars.check_even(inside, nodes)

        gone = ("dimm7", "dimm20", "cxl3")
        for name in gone:
            channels.request(guest, name, 0)
        for name in gone:
            wait.until(lambda name=name: channels.plugged_bytes(guest, name) == 0, 240, f"{name} unplugged")
        report = guest.report()
        bars.check_verified(report)
        assert not any(report["pages"].get(str(channels.node(name))) for name in gone), report["pages"]
        # Nobody went to another sNode.
        for head in heads:
            had = sum(before["pages"][str(node)] for node in channels.nodes(head))
            assert sum(report["pages"].get(str(node), 0) for node in channels.nodes(head)) == had, report["pages"]
