# SPDX-License-Identifier: GPL-2.0-or-later
"""DIMM and CXL sNodes together: capacity and bandwidth mode, and that every path places by the same function."""

import pytest

from ramtest import bars, wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")

MODE = "/sys/kernel/mm/cnuma/mode"
REDISTRIBUTE = "/sys/kernel/mm/cnuma/redistribute"
# A bucket of the table is less than a thousandth; the rest is what a few ten thousand pages deviate by.
TOLERANCE = 0.01


def boot(folder, name, append="", **channels):
    channels = StaticChannels(folder, **channels)
    return channels, Guest(channels.arguments(), append=append, name=name)


def wait_plugged(guest, channels, requested):
    for name, mib in requested.items():
        wait.until(lambda name=name, mib=mib: channels.plugged_bytes(guest, name) == mib * MIB, 120, f"{mib} MiB on {name}")


def shares(report):
    return {int(node): count / report["total"] for node, count in report["pages"].items() if count}


def error(report, expected):
    """Largest difference between a channel's share and {node: weight}."""
    total = sum(expected.values())
    found = shares(report)
    return max(abs(found.get(node, 0) - expected.get(node, 0) / total) for node in set(found) | set(expected))


def wait_shares(guest, expected, timeout=100):
    wait.until(lambda: error(guest.report(), expected) <= TOLERANCE, timeout,
               f"shares {expected}, last seen: {shares(guest.report())}", 1)


def wait_idle(guest, timeout=100):
    wait.until(lambda: guest.read(f"{REDISTRIBUTE}/state") == "idle", timeout, "idle redistribution", 0.5)


def check_nothing_to_move(guest):
    """kcnumad looks at every page again and finds that each lies where it belongs."""
    wait_idle(guest)

    def moves():
        vmstat = guest.vmstat()
        return [vmstat["cnuma_marked"], vmstat["cnuma_hint_faults"], vmstat["cnuma_migrated"],
                int(guest.read(f"{REDISTRIBUTE}/cold_moved"))]

    before = moves()
    # Writing the present mode changes no place.
    guest.run(f"cat {MODE} >/run/mode; cat /run/mode >{MODE}")
    wait_idle(guest)
    after = moves()
    assert after == before, f"marked, hint faults, migrated, moved cold: {before} became {after}"


def weights(guest):
    return [int(guest.read(f"/sys/kernel/mm/cnuma/snode{n}/weight")) for n in (0, 1)]


def test_bandwidth(folder, test_name):
    """72:27 GB/s gives 8:3; a third DIMM channel gives 4:1, and pages follow, each of them once; and back again."""
    plugged = {"dimm1": 512, "cxl0": 512}
    channels, guest = boot(folder, test_name, "cnuma=bandwidth", dimms=3, cxls=1, plugged_mib=plugged)
    dimm0, dimm1, dimm2, cxl0 = (channels.node(name) for name in ("dimm0", "dimm1", "dimm2", "cxl0"))
    with guest:
        guest.wait_ready()
        wait_plugged(guest, channels, plugged)
        assert guest.read(MODE) == "bandwidth"
        wait.until(lambda: weights(guest) == [8, 3], 20, "weights 8:3")
        # Nothing to balance: the weights say where a page lies.
        assert guest.read("/proc/sys/kernel/numa_balancing") == "0"

        guest.load(192)
        assert error(guest.report("reset"), {dimm0: 4, dimm1: 4, cxl0: 3}) <= TOLERANCE
        check_nothing_to_move(guest)

        channels.request(guest, "dimm2", 512)
        wait_plugged(guest, channels, {"dimm2": 512})
        wait_shares(guest, {dimm0: 4, dimm1: 4, dimm2: 4, cxl0: 3})
        assert weights(guest) == [4, 1]
        wait_idle(guest)
        grown = guest.report()
        bars.check_verified(grown)
        # CXL gives the difference to the DIMM channels, and these a third of what they had to the new one.
        necessary = (3 / 11 - 1 / 5) + 8 / 11 / 3
        assert abs(grown["migrated"] / grown["total"] - necessary) <= TOLERANCE, grown["migrated"]
        check_nothing_to_move(guest)

        guest.report("reset")
        channels.request(guest, "dimm2", 0)
        wait_plugged(guest, channels, {"dimm2": 0})
        wait_shares(guest, {dimm0: 4, dimm1: 4, cxl0: 3})
        wait_idle(guest)
        taken = guest.report()
        bars.check_verified(taken)
        # What lay on dimm2, and what the other two owe to CXL now.
        necessary = 4 / 15 + (3 / 11 - 1 / 5) * 2 / 3
        assert abs(taken["migrated"] / taken["total"] - necessary) <= TOLERANCE, taken["migrated"]


@pytest.mark.parametrize("kind", ["thp", "shmem"])
def test_bandwidth_other_memory(folder, test_name, kind):
    """Huge pages and shared memory are weighted alike, and follow when the mode changes."""
    plugged = {"dimm1": 512, "cxl0": 512}
    channels, guest = boot(folder, test_name, dimms=2, cxls=1, plugged_mib=plugged)
    expected = {channels.node("dimm0"): 4, channels.node("dimm1"): 4, channels.node("cxl0"): 3}
    with guest:
        guest.wait_ready()
        wait_plugged(guest, channels, plugged)
        # 96 huge pages: one is a hundredth.
        tolerance = 0.04 if kind == "thp" else TOLERANCE
        guest.load(192, kind=kind)
        assert channels.node("cxl0") not in bars.nodes_with_pages(guest.report("reset"))
        guest.run(f"echo bandwidth >{MODE}")
        wait.until(lambda: error(guest.report(), expected) <= tolerance, 100, f"{expected}, {shares(guest.report())}", 1)
        wait_idle(guest)
        report = guest.report()
        bars.check_verified(report)
        assert abs(report["migrated"] / report["total"] - 3 / 11) <= tolerance
        check_nothing_to_move(guest)


def test_own_policy_wins(folder, test_name):
    """Who has set a policy is left alone, whatever the mode; a cpuset is as good."""
    plugged = {"dimm1": 512, "cxl0": 512}
    channels, guest = boot(folder, test_name, dimms=2, cxls=1, plugged_mib=plugged)
    dimms, cxl = [channels.node("dimm0"), channels.node("dimm1")], [channels.node("cxl0")]
    prefixes = {
        "membind=0": ("numactl --membind=0", dimms),
        "membind=1": ("numactl --membind=1", cxl),
        "preferred=1": ("numactl --preferred=1", cxl),
        "localalloc": ("numactl --localalloc", dimms),
        "cpuset": ("mkdir -p /sys/fs/cgroup/c; echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control;"
                   "echo 0 >/sys/fs/cgroup/c/cpuset.mems; echo 0 >/sys/fs/cgroup/c/cgroup.procs;", dimms),
    }

    def report(name, command="report"):
        return guest.json(f"cnuma-load --socket /run/{name} {command}")

    with guest:
        guest.wait_ready()
        wait_plugged(guest, channels, plugged)
        guest.run(f"echo bandwidth >{MODE}")
        # cnuma=bandwidth or written: what was started before and what is started after behave alike.
        for name, (prefix, _) in prefixes.items():
            guest.run(f"( {prefix} cnuma-load --socket /run/{name} --background 24 )", 120)
        for name, (_, nodes) in prefixes.items():
            assert set(bars.nodes_with_pages(report(name, "reset"))) == set(nodes), name
        for mode in ("capacity", "bandwidth"):
            guest.run(f"echo {mode} >{MODE}")
            wait_idle(guest)
        check_nothing_to_move(guest)
        for name, (_, nodes) in prefixes.items():
            now = report(name)
            assert set(bars.nodes_with_pages(now)) == set(nodes), f"{name}: {now['pages']}"
            assert now["migrated"] == 0, f"{name}: {now['migrated']} pages moved"


def test_balancing_switch(folder, test_name):
    """NUMA balancing and demotion run while there is something to balance, unless the user has chosen."""
    channels, guest = boot(folder, test_name, dimms=2, cxls=1, plugged_mib={"dimm1": 256})
    with guest:
        guest.wait_ready()
        wait_plugged(guest, channels, {"dimm1": 256})

        def state():
            return (guest.read("/proc/sys/kernel/numa_balancing"), guest.read("/sys/kernel/mm/numa/demotion_enabled"))

        def becomes(expected):
            wait.until(lambda: state() == expected, 20, f"balancing and demotion {expected}", 0.2)

        becomes(("0", "false"))
        channels.request(guest, "cxl0", 256)
        wait_plugged(guest, channels, {"cxl0": 256})
        becomes(("2", "true"))
        guest.run(f"echo bandwidth >{MODE}")
        becomes(("0", "false"))
        guest.run(f"echo capacity >{MODE}")
        becomes(("2", "true"))
        channels.request(guest, "cxl0", 0)
        wait_plugged(guest, channels, {"cxl0": 0})
        becomes(("0", "false"))

        guest.run("echo 1 >/proc/sys/kernel/numa_balancing; echo 0 >/sys/kernel/mm/numa/demotion_enabled")
        channels.request(guest, "cxl0", 256)
        wait_plugged(guest, channels, {"cxl0": 256})
        wait.until(lambda: weights(guest)[1] > 0, 20, "CXL in use")
        for mode in ("bandwidth", "capacity"):
            guest.run(f"echo {mode} >{MODE}")
            assert state() == ("1", "false")
        assert guest.try_run(f"echo fast >{MODE}").code != 0


def test_capacity(folder, test_name):
    """Cold pages go down to the CXL channels, hot ones come back, each to the channel where it belongs."""
    plugged = {"dimm1": 256, "cxl0": 256, "cxl1": 256}
    channels, guest = boot(folder, test_name, dimms=2, cxls=2, plugged_mib=plugged)
    dimms = [channels.node("dimm0"), channels.node("dimm1")]
    cxls = [channels.node("cxl0"), channels.node("cxl1")]
    with guest:
        guest.wait_ready()
        wait_plugged(guest, channels, plugged)
        wait.until(lambda: guest.read("/sys/kernel/mm/numa/demotion_enabled") == "true", 20, "demotion")
        guest.run("mkdir /sys/fs/cgroup/t; echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
        guest.load(192, prefix="echo 0 >/sys/fs/cgroup/t/cgroup.procs;")
        bars.check_even(guest.report("reset"), dimms)

        # The load stops, or nothing would be cold.
        guest.run("kill -STOP $(pidof cnuma-load)")
        guest.try_run("echo 80M >/sys/fs/cgroup/t/memory.reclaim", 120)
        vmstat = guest.vmstat()
        demoted = sum(vmstat[name] for name in vmstat if name.startswith("pgdemote_"))
        assert demoted > 5000, f"{demoted} pages demoted"
        check_nothing_to_move(guest)
        guest.run("kill -CONT $(pidof cnuma-load)")
        report = guest.report()
        below = [report["pages"][str(node)] for node in cxls]
        assert sum(below) > 0 and abs(below[0] - below[1]) <= 0.1 * sum(below), report["pages"]

        wait.until(lambda: guest.vmstat()["pgpromote_success"] > 1000, 100, "1000 pages promoted", 1)
        bars.check_verified(guest.report())
        check_nothing_to_move(guest)


@pytest.mark.parametrize("mode", ["capacity", "bandwidth"])
def test_every_path_places_alike(folder, test_name, mode):
    """Copies, huge pages made of small ones, replaced bad pages: redistribution finds nothing to move."""
    plugged = {"dimm1": 512, "cxl0": 512}
    channels, guest = boot(folder, test_name, f"cnuma={mode} numa_balancing=disable", dimms=2, cxls=1,
                           plugged_mib=plugged)
    with guest:
        guest.wait_ready()
        wait_plugged(guest, channels, plugged)
        made = guest.json("cnuma-paths", 150)
        assert all(made.values()), made
        assert made["cow"] == 4096 and made["collapse"] >= 4096 and made["userfaultfd"] == 2048, made
        check_nothing_to_move(guest)


def test_swapped_pages_come_back_right(folder, test_name):
    """Anonymous and shared pages that were swapped out come back to where redistribution would put them."""
    plugged = {"dimm1": 512, "cxl0": 512}
    channels, guest = boot(folder, test_name, "cnuma=bandwidth brd.rd_size=131072", dimms=2, cxls=1, plugged_mib=plugged)
    with guest:
        guest.wait_ready()
        wait_plugged(guest, channels, plugged)
        guest.run("mkswap /dev/ram0 >/dev/null && swapon /dev/ram0")
        guest.run("mkdir /sys/fs/cgroup/t; echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
        for kind in ("anon", "shmem"):
            before = guest.vmstat()
            guest.load(64, kind=kind, prefix="echo 0 >/sys/fs/cgroup/t/cgroup.procs;")
            guest.run("kill -STOP $(pidof cnuma-load)")
            guest.try_run("echo 40M >/sys/fs/cgroup/t/memory.reclaim", 120)
            out = guest.vmstat()["pswpout"] - before["pswpout"]
            assert out > 4000, f"{out} pages swapped out"
            guest.run("kill -CONT $(pidof cnuma-load)")
            wait.until(lambda: guest.vmstat()["pswpin"] - before["pswpin"] > out * 0.9, 60, "most pages swapped in again", 0.5)
            check_nothing_to_move(guest)
            bars.check_verified(guest.report("quit"))
            wait.until(lambda: guest.try_run("pidof cnuma-load").code, 20, "the end of cnuma-load")
