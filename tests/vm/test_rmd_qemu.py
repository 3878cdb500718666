# SPDX-License-Identifier: GPL-2.0-or-later
"""rmd and QEMU against each other: restarts, lost connections, and a process that does not let go of a chunk."""

import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from ramtest import bars, host, wait
from ramtest.rmd import BusError

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST", "RR_BUILD")


def chunk_files(rig, domain):
    """{channel: {chunk: inode}} of QEMU's mappings."""
    store, result = rig.rmd.store + "/", {}
    for mapping in host.mappings(domain.pid, rig.libvirt.holder.pid):
        if mapping.path.startswith(store):
            channel, chunk = mapping.path.removeprefix(store).removesuffix(" (deleted)").split("/")
            result.setdefault(channel, {})[int(chunk)] = mapping.inode
    return result


@pytest.mark.parametrize("delay", [0.0, 0.5, 2.0])
def test_kill_9_of_rmd_during_a_resize(rig, delay):
    """The running job goes on, the books are right, nothing is given out twice."""
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    domain.load(256)
    job = rig.rmd.manager.resize(domain.name, bandwidth_channels=4)
    time.sleep(delay)
    rig.rmd.kill()
    before = chunk_files(rig, domain)
    assert domain.run("echo here").strip() == "here"
    rig.rmd.start()

    wait.until(lambda: rig.rmd.manager.domain(domain.name)["connected"], 30, "QEMU to come back")
    rig.rmd.wait_job(job)
    held = rig.check_books(domain)
    assert [held[f"dimm{i}"] for i in range(4)] == [4, 4, 4, 4]
    # A chunk that QEMU held all the time is still the same file.
    after = chunk_files(rig, domain)
    kept = [(c, n) for c in before for n in before[c] if n in after.get(c, {})]
    assert kept and all(before[c][n] == after[c][n] for c, n in kept)

    bars.wait_even(domain, [0, 1, 2, 3])
    bars.check_verified(domain.report())
    domain.destroy()
    rig.rmd.wait_all_free()


def test_rmd_restart_gives_nothing_out_twice(rig):
    one = rig.domain("vm1", memory_mib=2048, capacity=1, maximum=2, channels=2).define().start()
    one.wait_ready()
    rig.wait_capacity(one)
    held = rig.check_books(one)
    rig.rmd.kill()
    rig.rmd.start()
    assert rig.rmd.ledger_chunks("vm1") == held
    two = rig.domain("vm2", memory_mib=2048, capacity=1, maximum=2, channels=2).define().start()
    two.wait_ready()
    rig.wait_capacity(two)
    assert rig.check_books(one) == held
    inodes = [{i for chunks in chunk_files(rig, d).values() for i in chunks.values()} for d in (one, two)]
    assert not inodes[0] & inodes[1]


def test_a_domain_that_dies_while_rmd_is_down(rig):
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.rmd.kill()
    os.kill(domain.pid, signal.SIGKILL)
    wait.until(lambda: not domain.is_running(), 20, "the end of QEMU")
    rig.rmd.start()
    rig.rmd.wait_all_free()


def rpc_socket(pid, path):
    """A duplicate of QEMU's end of the channel RPC, without QEMU's help."""
    pidfd = os.pidfd_open(pid)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            if not os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                continue
            copy = syscall(438, pidfd, int(number), 0)
            assert copy >= 0, os.strerror(ctypes.get_errno())
            candidate = socket.socket(fileno=copy)
            try:
                if candidate.getpeername() == path:
                    return candidate
            except OSError:
                pass
            candidate.close()
    finally:
        os.close(pidfd)
    raise AssertionError(f"QEMU {pid} has no connection to {path}")


def test_a_lost_connection_frees_nothing(rig):
    """EOF means unknown, not dead."""
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    held, files = rig.check_books(domain), chunk_files(rig, domain)
    with rpc_socket(domain.pid, f"/run/rmd/vm/{domain.uuid}.sock") as connection:
        connection.shutdown(socket.SHUT_RDWR)
    assert rig.rmd.ledger_chunks(domain.name) == held
    wait.until(lambda: rig.rmd.manager.domain(domain.name)["connected"], 30, "QEMU to come back")
    assert rig.check_books(domain) == held and chunk_files(rig, domain) == files
    # The new connection works.
    rig.rmd.resize(domain.name, bandwidth_channels=4)
    rig.check_books(domain)


class Holder:
    """See chunk_holder.py."""

    def __init__(self, pid, mapping):
        script = pathlib.Path(__file__).with_name("chunk_holder.py")
        self.process = subprocess.Popen([sys.executable, str(script), f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.file = json.loads(self.process.stdout.readline())

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


def mapping_of(rig, domain, channel):
    return next(m for m in host.mappings(domain.pid, rig.libvirt.holder.pid) if m.path.startswith(f"{rig.rmd.store}/{channel}/"))


def test_who_keeps_a_chunk_loses_it(rig):
    """Its mapping is a SIGBUS before anybody else gets the chunk, and neither it nor the old fd shows the next content."""
    domain = rig.domain(channels=4).define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    domain.load(512)
    mapping = mapping_of(rig, domain, "dimm3")
    holders = [Holder(domain.pid, m) for m in host.mappings(domain.pid, rig.libvirt.holder.pid)
               if m.path.startswith(f"{rig.rmd.store}/dimm3/")]
    try:
        assert len(holders) == 4 and mapping.size == host.CHUNK
        assert all(h.file["size"] == host.CHUNK for h in holders)
        assert all(h.ask("map").get("exit") == 0 for h in holders), "a granted chunk can be read"
        assert not all(h.ask("map")["zero"] for h in holders), "the working set lies on it"
        for holder in holders:
            assert holder.ask("beyond")["signal"] == signal.SIGBUS, "mremap reached beyond the chunk"

        rig.rmd.resize(domain.name, bandwidth_channels=3)
        assert rig.check_books(domain)["dimm3"] == 0
        wait.until(lambda: rig.rmd.dirty_chunks() == 0, 60, "the scrubber")

        def lost():
            return all(h.ask("map").get("signal") == signal.SIGBUS and h.ask("fd").get("data") == "" for h in holders)
        assert lost(), "a free chunk is still held"

        # The next owner's content shows nowhere.
        rig.rmd.resize(domain.name, bandwidth_channels=4)
        bars.wait_even(domain, [0, 1, 2, 3])
        next_inodes = set(chunk_files(rig, domain)["dimm3"].values())
        assert not next_inodes & {h.file["inode"] for h in holders} or lost()
        assert lost(), "the next content shows through an old mapping or fd"
        bars.check_verified(domain.report())
    finally:
        for holder in holders:
            holder.close()


def test_chunks_are_zero_for_the_next_owner(rig):
    first = rig.domain("vm1").define().start()
    first.wait_ready()
    rig.wait_capacity(first)
    first.load(512)
    used = chunk_files(rig, first)
    first.destroy()
    rig.rmd.wait_all_free()
    # A guest that is never started (-S by virsh start --paused) has touched nothing beyond its firmware.
    second = rig.domain("vm2").define()
    rig.libvirt.virsh("start", "vm2", "--paused")
    second.started()
    files = chunk_files(rig, second)
    assert any(set(files[c]) & set(used.get(c, {})) for c in files), "no chunk is used again: nothing was tested"
    for mapping in host.mappings(second.pid, rig.libvirt.holder.pid):
        if mapping.path.startswith(f"{rig.rmd.store}/") and "/dimm0/" not in mapping.path:
            assert mapping.rss == 0


def test_only_the_domains_process_may_connect(rig):
    """Another process of the same user gets no grant."""
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    held = rig.check_books(domain)
    with socket.socket(socket.AF_UNIX) as intruder:
        intruder.connect(str(rig.libvirt.outside(f"/run/rmd/vm/{domain.uuid}.sock")))
        intruder.settimeout(5)
        hello = {"type": "hello", "seq": 1, "version": 1, "uuid": domain.uuid, "ready": True, "regions": []}
        try:
            intruder.sendall(json.dumps(hello).encode() + b"\n")
            data, fds, _, _ = socket.recv_fds(intruder, 4096, 16)
            assert data == b"" and not fds, f"rmd answered an intruder: {data!r}"
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert rig.rmd.manager.domain(domain.name)["connected"]
    assert rig.check_books(domain) == held


def test_stale_generation(rig):
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    generation = rig.rmd.manager.domain(domain.name)["generation"]
    with pytest.raises(BusError) as error:
        rig.rmd.manager.resize(domain.name, bandwidth_channels=4, expected_generation=generation + 7)
    assert error.value.name == "Stale"
    rig.rmd.resize(domain.name, bandwidth_channels=4, expected_generation=generation)


def test_by_hand(rig):
    """A layout named by hand is granted and taken back, on a CXL channel too."""
    domain = rig.domain(tiers="dimm cxl").define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    before = rig.check_books(domain)
    rig.rmd.resize(domain.name, layout={"cxl0": 2})
    assert rig.check_books(domain) == {**before, "cxl0": 2}
    assert "available: 2 nodes (0-1)" in domain.run("numactl -H")
    rig.rmd.resize(domain.name, layout={"cxl0": 0})
    assert rig.check_books(domain) == before
