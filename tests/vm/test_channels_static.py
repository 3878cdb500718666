# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU and the guest kernel alone, without rmd and libvirt: static channels, resized over QMP."""

import re

import pytest

from ramtest import bars, wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")

# Files of the channels: memory, not disk, and gone with the test.
SHM = "/dev/shm"


@pytest.fixture
def folder(tmp_path_factory):
    import shutil
    import tempfile
    path = tempfile.mkdtemp(prefix="ramtest-", dir=SHM)
    yield path
    shutil.rmtree(path)


def start(channels, name):
    return Guest(channels.arguments(), name=name)


def wait_plugged(guest, channels, timeout=120):
    for name, mib in channels.plugged_mib.items():
        wait.until(lambda name=name, mib=mib: channels.plugged_bytes(guest, name) == mib * MIB, timeout,
                   f"{mib} MiB plugged on {name}")


def test_one_snode(folder, test_name):
    """Applications see the sNode only, and 4 KB pages lie evenly over its three channels."""
    channels = StaticChannels(folder, dimms=4, plugged_mib={"dimm1": 512, "dimm2": 512})
    with start(channels, test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        assert "available: 1 nodes (0)" in guest.run("numactl -H")
        assert guest.run("ls -d /sys/devices/system/node/node*").split() == ["/sys/devices/system/node/node0"]
        for mask in ("online", "possible", "has_memory", "has_normal_memory"):
            text = guest.run(f"cat /sys/devices/system/node/{mask} 2>/dev/null || echo 0").strip()
            assert text in ("0", ""), f"{mask}: {text}"
        # All of its memory is on this one node.
        meminfo = int(re.search(r"MemTotal: +(\d+)", guest.read("/proc/meminfo"))[1])
        node0 = int(re.search(r"MemTotal: +(\d+)", guest.read("/sys/devices/system/node/node0/meminfo"))[1])
        assert node0 == meminfo > 1400 * 1024

        guest.load(384)
        report = guest.report()
        bars.check_even(report, [0, 1, 2])
        numa_maps = guest.run("cat /proc/$(pidof cnuma-load)/numa_maps")
        assert set(re.findall(r" N(\d+)=", numa_maps)) == {"0"}
        pages = sum(int(n) for n in re.findall(r" N0=(\d+)", numa_maps))
        assert pages >= report["total"]
        assert re.search(r"Mems_allowed_list:\s+0$", guest.run("cat /proc/self/status"), re.M)
        wait.until(lambda: guest.report()["passes"] >= 2, 120, "two passes")
        bars.check_verified(guest.report())


def test_two_snodes(folder, test_name):
    """A DIMM sNode and a CXL sNode, each of two channels: the ordinary policy chooses between them."""
    channels = StaticChannels(folder, dimms=2, cxls=2, plugged_mib={"dimm1": 512, "cxl0": 512, "cxl1": 512})
    with start(channels, test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        assert "available: 2 nodes (0-1)" in guest.run("numactl -H")
        assert guest.run("ls -d /sys/devices/system/node/node*").split() == [f"/sys/devices/system/node/node{i}" for i in (0, 1)]
        # In the middle of the id space: 2 and 3 exist, and nobody may name them.
        refused = guest.try_run("numactl --membind=2 true")
        assert refused.code != 0, "a channel that is no head was accepted as a node"

        guest.load(256, prefix="numactl --membind=1")
        bars.check_even(guest.report(), [channels.node("cxl0"), channels.node("cxl1")])
        numa_maps = guest.run("cat /proc/$(pidof cnuma-load)/numa_maps")
        assert "bind:1" in numa_maps and set(re.findall(r" N(\d+)=", numa_maps)) <= {"0", "1"}
        guest.report("quit")
        wait.until(lambda: guest.try_run("pidof cnuma-load").code, 20, "the end of cnuma-load")

        guest.load(256, prefix="numactl --membind=0")
        bars.check_even(guest.report(), [channels.node("dimm0"), channels.node("dimm1")])
        guest.report("quit")
        wait.until(lambda: guest.try_run("pidof cnuma-load").code, 20, "the end of cnuma-load")

        # Interleaving between sNodes, and inside each of them.
        guest.load(256, prefix="numactl --interleave=all")
        bars.check_even(guest.report(), [0, 1, 2, 3])


@pytest.mark.parametrize("kind, slack", [("shmem", 1), ("thp", None)])
def test_other_memory_is_spread(folder, test_name, kind, slack):
    channels = StaticChannels(folder, dimms=3, plugged_mib={"dimm1": 512, "dimm2": 512})
    with start(channels, test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        guest.load(384, kind=kind)
        report = guest.report()
        assert bars.nodes_with_pages(report) == [0, 1, 2]
        if slack:
            bars.check_even(report, [0, 1, 2])
        else:
            # 192 huge pages: no channel is off by more than an eighth of its share.
            share = report["total"] / 3
            assert all(abs(report["pages"][str(n)] - share) < share / 8 for n in (0, 1, 2)), report["pages"]


def test_grow_and_take_back(folder, test_name):
    """Pages follow: a fourth channel gets its quarter once and no more; taken back, its pages move once."""
    channels = StaticChannels(folder, dimms=4, plugged_mib={"dimm1": 512, "dimm2": 512})
    with start(channels, test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        guest.load(384)
        bars.check_even(guest.report("reset"), [0, 1, 2])

        faults = guest.vmstat()["cnuma_hint_faults"]
        channels.request(guest, "dimm3", 512)
        _, grown = bars.settle(guest, [0, 1, 2, 3])
        bars.check_verified(grown)
        bars.check_even(grown, [0, 1, 2, 3])
        bars.check_grown(grown, 3, guest.vmstat()["cnuma_hint_faults"] - faults)
        guest.report("reset")

        channels.request(guest, "dimm3", 0)
        wait.until(lambda: channels.plugged_bytes(guest, "dimm3") == 0, 120, "dimm3 unplugged")
        _, taken = bars.settle(guest, [0, 1, 2])
        bars.check_verified(taken)
        bars.check_even(taken, [0, 1, 2])
        bars.check_taken_back(grown, taken, channels.node("dimm3"))


def test_blocks_without_chunk_are_not_in_the_guest(folder, test_name):
    """Reading an unplugged part of a window by the monitor neither shows memory nor kills QEMU."""
    channels = StaticChannels(folder, dimms=2, plugged_mib={"dimm1": 256})
    with start(channels, test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        devices = {d["data"]["id"]: d["data"] for d in guest.qmp.command("query-memory-devices")}
        window = devices["chan-dimm1"]["memaddr"]
        for offset in range(0, channels.window_mib, 128):
            guest.qmp.command("human-monitor-command", **{"command-line": f"xp /4gx {window + offset * MIB:#x}"})
        tree = guest.qmp.command("human-monitor-command", **{"command-line": "info mtree -f"})
        plugged = sum(int(end, 16) - int(begin, 16) + 1 for begin, end in
                      set(re.findall(r"^ +([0-9a-f]{16})-([0-9a-f]{16}) .*win-dimm1", tree, re.M)))
        assert plugged == 256 * MIB
        assert guest.run("echo alive").strip() == "alive"


def test_off_switch(folder, test_name):
    """cnuma=off: every channel is an ordinary NUMA node again."""
    channels = StaticChannels(folder, dimms=2, plugged_mib={"dimm1": 512})
    with Guest(channels.arguments(), append="cnuma=off memhp_default_state=online_movable", name=test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        assert "available: 2 nodes (0-1)" in guest.run("numactl -H")
