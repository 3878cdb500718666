# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel without the series boots on a machine with channels: it sees plain NUMA nodes, plugs and unplugs."""

import re

import pytest

from ramtest import env, wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_GUEST")


@pytest.fixture
def stock_kernel():
    try:
        return env.path("RR_KERNEL_STOCK")
    except (env.Missing, FileNotFoundError) as error:
        pytest.skip(f"{error}: tools/build linux-stock builds it")


def node_mib(guest, node):
    found = re.search(r"MemTotal: +(\d+)", guest.try_run(f"cat /sys/devices/system/node/node{node}/meminfo").output)
    return int(found[1]) // 1024 if found else 0


def test_plain_nodes(folder, test_name, stock_kernel):
    channels = StaticChannels(folder, dimms=2, cxls=2, plugged_mib={"dimm1": 256})
    with Guest(channels.arguments(), kernel=stock_kernel, append="memhp_default_state=online_movable",
               name=test_name) as guest:
        guest.wait_ready()
        assert guest.try_run("ls /sys/kernel/mm/cnuma").code, "this kernel has the series"
        wait.until(lambda: channels.plugged_bytes(guest, "dimm1") == 256 * MIB, 120, "256 MiB plugged on dimm1")
        channels.request(guest, "cxl1", 384)
        wait.until(lambda: channels.plugged_bytes(guest, "cxl1") == 384 * MIB, 120, "384 MiB plugged on cxl1")
        assert guest.read("/sys/devices/system/node/possible") == "0-3"
        # Each channel's memory is on its own node, and on no other.
        expected = {"dimm1": 256, "cxl1": 384, "cxl0": 0}
        for name, mib in expected.items():
            wait.until(lambda name=name, mib=mib: node_mib(guest, channels.node(name)) == mib, 60, f"{mib} MiB on {name}")
        for name in ("dimm1", "cxl1"):
            channels.request(guest, name, 0)
            wait.until(lambda name=name: channels.plugged_bytes(guest, name) == 0, 120, f"{name} unplugged")
            wait.until(lambda name=name: node_mib(guest, channels.node(name)) == 0, 60, f"no memory on {name}")
        assert guest.run("echo alive").strip() == "alive"
        assert "BUG" not in guest.run("dmesg") and "WARNING" not in guest.run("dmesg")
