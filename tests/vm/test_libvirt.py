# SPDX-License-Identifier: GPL-2.0-or-later
"""The whole chain under an unpatched libvirtd: a domain's life leaves no chunk behind, and its pages follow its channels."""

import os
import re
import signal

import pytest

from ramtest import bars, host, wait
from ramtest.rmd import GIB

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST", "RR_BUILD")

NODES3, NODES4 = [0, 1, 2], [0, 1, 2, 3]


def guest_memory(domain):
    return int(re.search(r"MemTotal: +(\d+)", domain.read("/proc/meminfo"))[1]) << 10


def test_a_domains_life(rig):
    """define, start, reboot, shutdown, start, destroy: all memory in chunks, and no chunk left."""
    domain = rig.domain().define()
    domain.start()
    boot = domain.wait_ready()
    rig.wait_capacity(domain)
    held = rig.check_books(domain)
    assert sum(held.values()) * host.CHUNK == 2 * GIB
    assert [held[f"dimm{i}"] for i in range(4)] == [6, 5, 5, 0] and held["cxl0"] == held["cxl1"] == 0
    assert guest_memory(domain) > 1.85 * GIB
    assert "available: 1 nodes (0)" in domain.run("numactl -H")
    assert domain.pc_ram_resident_bytes() == 0

    rig.libvirt.virsh("reboot", domain.name)
    wait.until(lambda: domain.wait_ready() != boot, 120, "the second boot")
    rig.wait_capacity(domain)
    wait.until(lambda: guest_memory(domain) > 1.85 * GIB, 60, "the memory in the guest")
    assert rig.check_books(domain) == held
    assert domain.pc_ram_resident_bytes() == 0

    rig.libvirt.virsh("shutdown", domain.name)
    domain.wait_gone()
    rig.rmd.wait_all_free()

    domain.start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    rig.check_books(domain)
    domain.destroy()
    rig.rmd.wait_all_free()


def test_reset_by_the_guest_keeps_its_chunks(rig):
    domain = rig.domain().define().start()
    boot = domain.wait_ready()
    rig.wait_capacity(domain)
    held = rig.check_books(domain)
    domain.run("(sleep 1; reboot -f) >/dev/null 2>&1 &")
    wait.until(lambda: domain.wait_ready() != boot, 120, "the second boot")
    rig.wait_capacity(domain)
    assert rig.check_books(domain) == held


def test_bandwidth_at_constant_capacity(rig):
    """3 -> 4 -> 3 channels while a program writes and verifies."""
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    domain.load(512)
    start = domain.report("reset")
    bars.check_even(start, NODES3)

    faults = domain.vmstat()["cnuma_hint_faults"]
    rig.rmd.resize(domain.name, bandwidth_channels=4)
    _, grown = bars.settle(domain, NODES4)
    held = rig.check_books(domain)
    assert [held[f"dimm{i}"] for i in range(4)] == [4, 4, 4, 4]
    bars.check_verified(grown)
    bars.check_even(grown, NODES4)
    bars.check_grown(grown, 3, domain.vmstat()["cnuma_hint_faults"] - faults)
    domain.report("reset")

    rig.rmd.resize(domain.name, bandwidth_channels=3)
    _, taken = bars.settle(domain, NODES3)
    held = rig.check_books(domain)
    assert [held[f"dimm{i}"] for i in range(4)] == [6, 5, 5, 0]
    bars.check_verified(taken)
    bars.check_even(taken, NODES3)
    bars.check_taken_back(grown, taken, 3)
    wait.until(lambda: rig.rmd.dirty_chunks() == 0, 60, "the scrubber")
    domain.destroy()


def test_capacity(rig):
    """2 -> 3 -> 2 GiB by rmctl; success means that the guest has it."""
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    rig.rmd.rmctl("resize", domain.name, "--capacity", "3G")
    rig.wait_capacity(domain)
    assert sum(rig.check_books(domain).values()) == 24
    wait.until(lambda: guest_memory(domain) > 2.8 * GIB, 30, "3 GiB in the guest")
    rig.rmd.rmctl("resize", domain.name, "--capacity", "2G")
    rig.wait_capacity(domain)
    assert sum(rig.check_books(domain).values()) == 16
    assert guest_memory(domain) < 2.05 * GIB


def test_rmctl_shows_it(rig):
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    channels, listed = rig.rmd.rmctl("channels"), rig.rmd.rmctl("list")
    assert all(name in channels for name in rig.rmd.channels) and domain.name in channels
    assert domain.name in listed and "dimm1" in rig.rmd.rmctl("show", domain.name)
    rig.rmd.rmctl_json("channels")
    rig.rmd.rmctl_json("list")
    assert domain.uuid in rig.rmd.rmctl("show", domain.name, "--json")
    # A dry run changes nothing and says what it would do.
    before = rig.rmd.manager.domain(domain.name)
    rig.rmd.rmctl_json("resize", domain.name, "--bandwidth", "4ch", "--dry-run")
    after = rig.rmd.manager.domain(domain.name)
    assert before["generation"] == after["generation"] and before["channels"] == after["channels"]


def test_two_domains_never_share_a_channel(rig):
    one = rig.domain("vm1", memory_mib=2048, capacity=1, maximum=2, channels=2).define().start()
    two = rig.domain("vm2", memory_mib=2048, capacity=1, maximum=2, channels=2).define().start()
    for domain in (one, two):
        domain.wait_ready()
        rig.wait_capacity(domain)
    held = {domain.name: {name for name, n in rig.check_books(domain).items() if n} for domain in (one, two)}
    assert len(held["vm1"]) == len(held["vm2"]) == 2 and not held["vm1"] & held["vm2"]
    three = rig.domain("vm3", memory_mib=2048, capacity=1, maximum=2, channels=1).define()
    result = rig.libvirt.virsh_result("start", "vm3")
    assert result.returncode != 0
    assert rig.libvirt.state("vm3") == "shut off" and not three.is_running()
    one.destroy()
    three.start()
    three.wait_ready()
    rig.wait_capacity(three)
    assert {name for name, n in rig.check_books(three).items() if n} <= held["vm1"]


def test_qemu_killed(rig):
    domain = rig.domain().define().start()
    domain.wait_ready()
    os.kill(domain.pid, signal.SIGKILL)
    domain.wait_gone()
    rig.rmd.wait_all_free()


def test_libvirtd_restart_keeps_the_domain(rig):
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    held = rig.check_books(domain)
    rig.libvirt.stop_daemon()
    rig.libvirt.start_daemon()
    assert rig.libvirt.state(domain.name) == "running"
    assert rig.check_books(domain) == held
    assert domain.run("echo here").strip() == "here"
    domain.destroy()
    rig.rmd.wait_all_free()


def test_a_domain_without_channels_is_left_alone(rig):
    """Even with rmd down: the hook is none of its business."""
    rig.rmd.stop()
    domain = rig.domain("plain", memory_mib=512, metadata=None, emulator=os.environ["RR_QEMU"]).define().start()
    domain.wait_ready()
    domain.destroy()
    rig.rmd.start()
