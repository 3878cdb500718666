# SPDX-License-Identifier: GPL-2.0-or-later
"""User space sees sNodes and nothing else: the selftest cnuma_abi of the Linux series, and the proof that it can fail."""

import re

import pytest

from ramtest import env, wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST", "RR_SELFTESTS")


def wait_plugged(guest, channels):
    for name, mib in channels.plugged_mib.items():
        wait.until(lambda name=name, mib=mib: channels.plugged_bytes(guest, name) == mib * MIB, 120,
                   f"{mib} MiB plugged on {name}")


def run_abi(guest, *arguments):
    """-> {"ok": names, "not ok": names, "skip": names}, the whole output."""
    done = guest.try_run(f"/selftests/cnuma_abi {' '.join(arguments)}", 300)
    found = {"ok": [], "not ok": [], "skip": []}
    for verdict, name in re.findall(r"^(ok|not ok) \d+ (.*)$", done.output, re.M):
        found["skip" if "# SKIP" in name else verdict].append(name)
    planned = re.search(r"^1\.\.(\d+)", done.output, re.M)
    assert planned and sum(map(len, found.values())) == int(planned[1]), done.output
    return found, done.output


# What a minimal guest must have: none of these may be skipped.
NEEDED = ("node masks", "node directories and links", "links of memory blocks", "links of CPUs", "weighted interleave", "memory tiers",
          "slab", "effective cpuset", "memory.numa_stat", "hugetlb numa_stat", "zoneinfo", "buddyinfo", "pagetypeinfo",
          "vmallocinfo", "status of tasks", "numa_maps", "get_mempolicy", "move_pages", "getcpu", "node_id of rseq",
          "set_mempolicy", "mbind", "set_mempolicy_home_node", "migrate_pages", "bpf", "mount(tmpfs", "write to cpuset.mems",
          "write to numa_node")


def check(guest, *arguments):
    found, text = run_abi(guest, *arguments)
    assert not found["not ok"], text
    for name in NEEDED:
        assert any(ok.startswith(name) for ok in found["ok"]), f"{name} was not tested:\n{text}"
    return text


@pytest.mark.parametrize("sockets", [1, 2])
def test_only_snodes(folder, test_name, sockets):
    """Channels plugged, drained, plugged again, and those never plugged: no id of theirs anywhere."""
    channels = StaticChannels(folder, dimms=3, cxls=2, sockets=sockets, plugged_mib={"dimm1": 256, "cxl1": 256})
    with Guest(channels.arguments(), name=test_name, archives=[env.path("RR_SELFTESTS")]) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        check(guest)
        # The head of the CXL sNode comes after another of its channels; a channel goes.
        channels.request(guest, "cxl0", 128)
        channels.request(guest, "dimm1", 0)
        wait.until(lambda: channels.plugged_bytes(guest, "cxl0") == 128 * MIB, 120, "cxl0 plugged")
        wait.until(lambda: channels.plugged_bytes(guest, "dimm1") == 0, 120, "dimm1 unplugged")
        check(guest)
        channels.request(guest, "cxl1", 0)
        channels.request(guest, "dimm2", 256)
        wait.until(lambda: channels.plugged_bytes(guest, "dimm2") == 256 * MIB, 120, "dimm2 plugged")
        wait.until(lambda: channels.plugged_bytes(guest, "cxl1") == 0, 120, "cxl1 unplugged")
        check(guest)


def test_kernel_memory_on_channels(folder, test_name):
    """Somebody onlines channels for the kernel: then slab and vmalloc lie there too, and still name sNodes only."""
    channels = StaticChannels(folder, dimms=3, plugged_mib={"dimm1": 256, "dimm2": 256})
    with Guest(channels.arguments(), append="memhp_default_state=online_kernel", name=test_name,
               archives=[env.path("RR_SELFTESTS")]) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        check(guest)


# What names the nodes 1 and 2 where they are ordinary nodes: the test fails there, check by check.
MUST_FAIL = ("node masks: /sys/devices/system/node/possible", "node masks: /sys/devices/system/node/online",
             "node masks: /sys/devices/system/node/has_", "node directories and links", "links of memory blocks",
             "weighted interleave", "memory tiers", "slab", "effective cpuset", "memory.numa_stat", "hugetlb numa_stat",
             "zoneinfo", "buddyinfo", "pagetypeinfo", "vmallocinfo", "status of tasks", "numa_maps",
             "get_mempolicy(MPOL_F_MEMS_ALLOWED)", "get_mempolicy(MPOL_F_NODE | MPOL_F_ADDR)", "get_mempolicy\n",
             "get_mempolicy(MPOL_F_NODE)", "get_mempolicy(MPOL_F_ADDR)", "get_mempolicy(maxnode", "move_pages, query",
             "set_mempolicy(MPOL_PREFERRED)", "set_mempolicy(MPOL_BIND)", "set_mempolicy(MPOL_INTERLEAVE)",
             "set_mempolicy(MPOL_PREFERRED_MANY)", "set_mempolicy(MPOL_WEIGHTED_INTERLEAVE)",
             "set_mempolicy(MPOL_BIND | MPOL_F_STATIC_NODES)", "mbind(MPOL_PREFERRED)", "mbind(MPOL_BIND)", "mbind(MPOL_INTERLEAVE)",
             "mbind(MPOL_PREFERRED_MANY)", "mbind(MPOL_WEIGHTED_INTERLEAVE)", "mbind(MPOL_BIND | MPOL_F_STATIC_NODES)",
             "set_mempolicy_home_node", "move_pages: ", "migrate_pages", "bpf(BPF_MAP_CREATE)", "mount(tmpfs, mpol=)",
             "write to cpuset.mems", "write to numa_node")


def test_the_test_can_fail(folder, test_name):
    """Without the overlay the same nodes are ordinary ones: every check that can see them must say so."""
    channels = StaticChannels(folder, dimms=3, plugged_mib={"dimm1": 256, "dimm2": 256})
    with Guest(channels.arguments(), append="cnuma=off memhp_default_state=online_kernel", name=test_name,
               archives=[env.path("RR_SELFTESTS")]) as guest:
        guest.wait_ready()
        wait_plugged(guest, channels)
        found, text = run_abi(guest, "-H", "1,2")
        missed = [name for name in MUST_FAIL if not any((failed + "\n").startswith(name) for failed in found["not ok"])]
        assert not missed, f"did not fail: {missed}\n{text}"
