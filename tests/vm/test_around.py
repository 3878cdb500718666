# SPDX-License-Identifier: GPL-2.0-or-later
"""What stands around channels: hibernation, DAMON, reclaim on request."""

import pytest

from ramtest import bars, wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")

CNUMA = "/sys/kernel/mm/cnuma"


def wait_plugged(guest, channels):
    for name, mib in channels.plugged_mib.items():
        wait.until(lambda name=name, mib=mib: channels.plugged_bytes(guest, name) == mib * MIB, 120,
                   f"{mib} MiB plugged on {name}")


def test_hibernation_is_refused(folder, test_name):
    """virtio-mem cannot be restored; the refusal leaves everything as it was."""
    channels = StaticChannels(folder, dimms=3, plugged_mib={"dimm1": 256})
    with Guest(channels.arguments(), name=test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        guest.load(192)
        bars.check_even(guest.report(), [0, 1])
        assert "disk" in guest.read("/sys/power/state")
        refused = guest.try_run("echo disk >/sys/power/state", 120)
        assert refused.code, refused
        assert "not permitted" in refused.output or "not supported" in guest.run("dmesg | tail -40"), refused
        # What was frozen works again.
        channels.request(guest, "dimm2", 256)
        wait.until(lambda: channels.plugged_bytes(guest, "dimm2") == 256 * MIB, 120, "dimm2 plugged")
        bars.wait_even(guest, [0, 1, 2])
        bars.check_verified(guest.report())


def test_damon_moves_to_snodes(folder, test_name):
    """DAMON's target is an sNode: cold pages go to all of its channels, each to its place."""
    channels = StaticChannels(folder, dimms=2, cxls=2, plugged_mib={"dimm1": 256, "cxl0": 256, "cxl1": 256})
    damon = "/sys/kernel/mm/damon/admin/kdamonds"
    with Guest(channels.arguments(), append="numa_balancing=disable", name=test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        guest.load(128, prefix="numactl --membind=0")
        report = guest.report()
        bars.check_even(report, channels.nodes("dimm0"))
        # All of physical memory; every region that was not accessed goes to sNode 1.
        top = max(int(line.split("-")[1].split()[0], 16) + 1 for line in guest.run(f"cat {CNUMA}/cnode*/window").splitlines())
        guest.run(f"""set -e
            echo 1 >{damon}/nr_kdamonds; cd {damon}/0; echo 1 >contexts/nr_contexts; cd contexts/0
            echo paddr >operations; echo 1 >targets/nr_targets; echo 1 >targets/0/regions/nr_regions
            echo 0 >targets/0/regions/0/start; echo {top} >targets/0/regions/0/end
            echo 1 >schemes/nr_schemes; cd schemes/0; echo migrate_cold >action; echo 1 >target_nid
            echo 0 >access_pattern/sz/min; echo 18446744073709551615 >access_pattern/sz/max
            echo 0 >access_pattern/nr_accesses/min; echo 1000 >access_pattern/nr_accesses/max
            echo 0 >access_pattern/age/min; echo 1000000 >access_pattern/age/max
            echo on >{damon}/0/state""")
        cxl = channels.nodes("cxl0")
        wait.until(lambda: sum(guest.report()["pages"].get(str(node), 0) for node in cxl) >= 0.95 * report["total"], 240,
                   "the pages on the CXL sNode", 2)
        guest.run(f"echo off >{damon}/0/state")
        moved = guest.report()
        on_cxl = {"total": sum(moved["pages"][str(node)] for node in cxl), "pages": {str(n): moved["pages"][str(n)] for n in cxl}}
        bars.check_even(on_cxl, cxl)


def test_reclaim_on_request(folder, test_name):
    """memory.reclaim of a group takes pages from all channels, and they come back to their places."""
    channels = StaticChannels(folder, dimms=3, plugged_mib={"dimm1": 256, "dimm2": 256})
    with Guest(channels.arguments(), append="brd.rd_nr=1 brd.rd_size=262144", name=test_name) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        guest.run("mkswap /dev/ram0 && swapon /dev/ram0")
        guest.run("echo +memory >/sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/t")
        guest.load(128, prefix="echo 0 >/sys/fs/cgroup/t/cgroup.procs; sh -c 'echo $$ >/sys/fs/cgroup/t/cgroup.procs; exec \"$@\"' sh")
        bars.check_even(guest.report(), [0, 1, 2])
        guest.run("kill -STOP $(pidof cnuma-load)")
        before = guest.run("cat /sys/fs/cgroup/t/memory.numa_stat | grep ^anon")
        guest.run("echo 64M >/sys/fs/cgroup/t/memory.reclaim", 240)
        swapped = int(guest.read("/sys/fs/cgroup/t/memory.swap.current"))
        assert swapped >= 48 * MIB, (swapped, before)
        guest.run("kill -CONT $(pidof cnuma-load)")
        bars.wait_even(guest, [0, 1, 2])
        bars.check_verified(guest.report())
