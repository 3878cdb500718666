# SPDX-License-Identifier: GPL-2.0-or-later
"""How the kernel moves pages: drains that cannot finish, several at once, cancels, limits, and memory that no fault moves.

Guest time runs by instructions and idle time is skipped (icount), so that a delay of the kernel costs the test nothing.
"""

import re

import pytest

from ramtest import bars, wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")

CNUMA = "/sys/kernel/mm/cnuma"
ICOUNT = ["-icount", "shift=0,sleep=off"]


class Channels(StaticChannels):
    """Three channels of 256 MiB and an empty fourth, in a guest of one CPU."""

    def __init__(self, folder, plugged=("dimm1", "dimm2"), **kwargs):
        super().__init__(folder, dimms=4, base_mib=384, window_mib=256, cpus=1,
                         plugged_mib={name: 256 for name in plugged}, **kwargs)

    def cnode(self, name, file):
        return f"{CNUMA}/cnode{self.node(name)}/{file}"


@pytest.fixture
def channels(folder):
    return Channels(folder)


@pytest.fixture
def guest(channels, test_name):
    with Guest(channels.arguments() + ICOUNT, name=test_name) as guest:
        guest.wait_ready()
        for name, mib in channels.plugged_mib.items():
            wait.until(lambda name=name, mib=mib: channels.plugged_bytes(guest, name) == mib * MIB, 60, f"{name} plugged")
        wait_idle(guest)
        yield guest


def wait_idle(guest, timeout=60):
    wait.until(lambda: guest.read(f"{CNUMA}/redistribute/state") == "idle", timeout, "idle redistribution", 0.3)


def wait_gone(guest, channels, *names):
    wait.until(lambda: not any(channels.plugged_bytes(guest, name) for name in names), 60, f"{names} unplugged", 0.3)


def uptime(guest):
    return float(guest.read("/proc/uptime").split()[0])


def hold(guest, kind, amount):
    guest.run(f"cnuma-hold {kind} {amount} >/run/hold.log 2>&1; for i in $(seq 100); do grep -q ready /run/hold.log && exit 0; "
              "sleep 0.1; done; cat /run/hold.log; exit 1")


def release(guest):
    """End cnuma-hold, which must find its memory unchanged."""
    guest.run("kill -TERM $(pidof cnuma-hold | tr ' ' '\\n' | sort -n | head -n 1)")
    wait.until(lambda: guest.try_run("pidof cnuma-hold").code, 20, "the end of cnuma-hold", 0.1)
    assert "verified" in guest.read("/run/hold.log")


def test_page_that_cannot_move(guest, channels):
    """It is named, the drain says partial and gives back the other blocks, and ends within a second of its release."""
    hold(guest, "pipe", 64)
    channels.request(guest, "dimm2", 0)
    state = channels.cnode("dimm2", "drain_state")
    wait.until(lambda: guest.read(state) == "partial", 30, "a partial drain", 0.2)
    assert int(guest.read(channels.cnode("dimm2", "drain_left"))) >= 1
    stuck = guest.read(channels.cnode("dimm2", "drain_stuck"))
    holder = guest.run("pidof cnuma-hold").strip()
    assert re.search(rf"^pfn 0x[0-9a-f]+ pages 1 type anonymous referenced process {holder} \(cnuma-hold\)$", stuck, re.M), stuck
    assert re.search(r"cNode \d: pfn 0x[0-9a-f]+ pages 1 type anonymous", guest.run("dmesg")), "dmesg names no page"
    # The pages lie in few blocks; the rest is given back meanwhile.
    assert channels.plugged_bytes(guest, "dimm2") <= 256 * MIB
    start = uptime(guest)
    release(guest)
    guest.run(f"for i in $(seq 300); do [ $(cat {channels.cnode('dimm2', 'size')}) = 0 ] && exit 0; sleep 0.01; done; exit 1")
    seconds = uptime(guest) - start
    wait_gone(guest, channels, "dimm2")
    assert seconds <= 2, f"gone {seconds:.1f} s after the release (the end of cnuma-hold included)"
    assert guest.read(channels.cnode("dimm2", "drain_stuck")) == ""


def test_two_channels_at_once(guest, channels):
    guest.load(96)
    before = guest.report("reset")
    channels.request(guest, "dimm1", 0)
    channels.request(guest, "dimm2", 0)
    wait_gone(guest, channels, "dimm1", "dimm2")
    after = guest.report()
    had = sum(before["pages"][str(channels.node(name))] for name in ("dimm1", "dimm2"))
    assert bars.nodes_with_pages(after) == [0]
    # A page may move to the second while only the first is seen to drain.
    assert had <= after["migrated"] <= 1.02 * had + bars.grain(after), (had, after)
    bars.check_verified(after)


def test_cancel(guest, channels):
    guest.load(128)
    draining = channels.cnode("dimm2", "draining")
    share = guest.read(channels.cnode("dimm2", "buckets"))
    guest.run(f"echo 1 >{draining}; echo 0 >{draining}")
    assert guest.read(channels.cnode("dimm2", "drain_state")) == "off"
    assert guest.read(channels.cnode("dimm2", "buckets")) == share
    bars.wait_even(guest, [0, 1, 2], 60)
    # By a new request of the hypervisor, with a page that keeps the channel from going.
    hold(guest, "pipe", 64)
    channels.request(guest, "dimm2", 0)
    wait.until(lambda: guest.read(channels.cnode("dimm2", "drain_state")) == "partial", 30, "a partial drain", 0.2)
    channels.request(guest, "dimm2", 256)
    wait.until(lambda: channels.plugged_bytes(guest, "dimm2") == 256 * MIB, 30, "dimm2 plugged again")
    wait.until(lambda: guest.read(channels.cnode("dimm2", "drain_state")) == "off", 10, "the end of the drain")
    bars.wait_even(guest, [0, 1, 2], 60)
    release(guest)
    bars.check_verified(guest.report())


def test_part_of_a_channel(guest, channels):
    """Half of a channel goes: its pages stay on the channel and move at most once."""
    guest.load(96)
    before = guest.report("reset")
    node = str(channels.node("dimm2"))
    channels.request(guest, "dimm2", 128)
    wait.until(lambda: channels.plugged_bytes(guest, "dimm2") == 128 * MIB, 60, "half of dimm2 unplugged")
    after = guest.report()
    assert after["pages"] == before["pages"], (before["pages"], after["pages"])
    assert after["moved_inside"] <= 1.02 * before["pages"][node]
    bars.check_verified(after)


def test_limit(guest, channels):
    """Tables that flip all the time cost no more than the limit allows, and a cgroup can be held back alone."""
    mbps, rounds = 16, 30
    guest.load(96)
    wait_idle(guest)
    draining = channels.cnode("dimm2", "draining")
    guest.run(f"echo {mbps} >{CNUMA}/redistribute/total_limit_mbps; echo 100 >{CNUMA}/redistribute/cold_delay_ms")
    had = guest.report("reset")["pages"][str(channels.node("dimm2"))]
    skipped = f"{CNUMA}/redistribute/skipped_limit"
    start, before, limited = uptime(guest), guest.vmstat(), int(guest.read(skipped))
    guest.run(f"for i in $(seq {rounds}); do echo 1 >{draining}; sleep 0.4; echo 0 >{draining}; sleep 0.4; done", 120)
    seconds, after = uptime(guest) - start, guest.vmstat()
    moved = after["cnuma_migrated"] - before["cnuma_migrated"]
    # What lay there at first leaves unlimited; one second may be saved up.
    allowed = had + (seconds + 1) * mbps * 256
    assert moved <= 1.05 * allowed, f"{moved} pages in {seconds:.0f} s"
    assert moved > had, "nothing has come back: this shows nothing"
    assert int(guest.read(skipped)) >= limited
    bars.check_verified(guest.report())


def test_limit_of_a_cgroup(guest, channels):
    guest.run("echo +memory >/sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/held; "
              "echo 0 >/sys/fs/cgroup/held/memory.cnuma.max")
    assert guest.read("/sys/fs/cgroup/held/memory.cnuma.max") == "0"
    guest.load(96, prefix="echo 0 >/sys/fs/cgroup/held/cgroup.procs;")
    guest.report("reset")
    guest.run(f"echo 100 >{CNUMA}/redistribute/cold_delay_ms")
    channels.request(guest, "dimm3", 256)
    wait.until(lambda: channels.plugged_bytes(guest, "dimm3") == 256 * MIB, 60, "dimm3 plugged")
    wait.until(lambda: int(guest.read(f"{CNUMA}/redistribute/skipped_limit")) > 1000, 30, "pages held back", 0.3)
    assert guest.report()["migrated"] == 0
    guest.run("echo max >/sys/fs/cgroup/held/memory.cnuma.max")
    bars.wait_even(guest, [0, 1, 2, 3], 60)
    stat = dict(line.split() for line in guest.read("/sys/fs/cgroup/held/memory.stat").splitlines())
    report = guest.report()
    assert int(stat["cnuma_migrated"]) >= report["migrated"] >= report["total"] / 4 - bars.grain(report)


def test_hugetlb(guest, channels):
    """Huge pages of a pool are drained, and follow a new channel."""
    guest.run("echo 60 >/proc/sys/vm/nr_hugepages")
    guest.load(96, kind="hugetlb")
    before = guest.report("reset")
    node = str(channels.node("dimm2"))
    assert before["pages"][node] > 0
    channels.request(guest, "dimm2", 0)
    wait_gone(guest, channels, "dimm2")
    drained = guest.report("reset")
    assert drained["migrated"] == before["pages"][node], (before, drained)
    wait_idle(guest)
    channels.request(guest, "dimm3", 256)
    wait.until(lambda: guest.report()["pages"].get(str(channels.node("dimm3")), 0), 60, "huge pages on dimm3", 0.5)
    wait_idle(guest)
    bars.check_verified(guest.report())


def test_shared_since_fork(guest, channels):
    """No fault moves what two processes share copy-on-write; kcnumad does."""
    hold(guest, "fork", 64)
    cold = f"{CNUMA}/redistribute/cold_moved"
    before = int(guest.read(cold))
    channels.request(guest, "dimm3", 256)
    wait.until(lambda: int(guest.read(cold)) - before >= 64 * 256 / 4 * 0.97, 60, "a quarter of the pages moved", 0.5)
    wait_idle(guest)
    moved = int(guest.read(cold)) - before
    release(guest)
    # Some belong to the tests' own tools.
    assert moved <= 64 * 256 / 4 * 1.1 + 512


@pytest.mark.parametrize("policy", ["--membind=0", "--interleave=all", "--preferred-many=0"])
@pytest.mark.parametrize("mover", ["faults", "kthread"])
def test_policies(guest, channels, policy, mover):
    """A policy chooses the sNode; inside of it pages follow all the same."""
    guest.load(64, prefix=f"numactl {policy}")
    if mover == "faults":
        guest.run(f"echo 0 >{CNUMA}/redistribute/rate_limit_mbps")
    else:
        guest.run(f"echo 0 >{CNUMA}/redistribute/cold_delay_ms; kill -STOP $(pidof cnuma-load)")
    counter = f"{CNUMA}/redistribute/{'fault' if mover == 'faults' else 'cold'}_moved"
    before = int(guest.read(counter))
    channels.request(guest, "dimm3", 256)
    wait.until(lambda: int(guest.read(counter)) - before >= 64 * 256 / 4 * 0.9, 60, "pages moved", 0.5)
    guest.run("kill -CONT $(pidof cnuma-load)")
    bars.wait_even(guest, [0, 1, 2, 3], 60)
    bars.check_verified(guest.report())


def test_full_channel(guest, channels):
    """A channel that has no room for its share ends redistribution all the same."""
    guest.run("mkdir -p /run/t; mount -t tmpfs -o size=400m t /run/t; dd if=/dev/zero of=/run/t/f bs=1M count=330 2>/dev/null")
    channels.request(guest, "dimm3", 128)
    wait.until(lambda: channels.plugged_bytes(guest, "dimm3") == 128 * MIB, 60, "dimm3 plugged")
    # It cannot hold its quarter beside what else lies there.
    guest.run("dd if=/dev/zero of=/run/t/g bs=1M count=40 2>/dev/null")
    wait_idle(guest, 120)
    marked = guest.vmstat()["cnuma_marked"]
    guest.run("sleep 60", 120)
    assert guest.vmstat()["cnuma_marked"] == marked
    assert guest.read(f"{CNUMA}/redistribute/state") == "idle"
