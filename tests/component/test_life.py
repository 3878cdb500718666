# SPDX-License-Identifier: GPL-2.0-or-later
"""A domain from its claim to its end."""
import os
import signal

import pytest
from rmdtest import CHUNK, BusError, wait_until


def test_start(rmd):
    uuid = rmd.claim(capacity=16, bandwidth=2)
    assert rmd.domain("vm")["state"] == "claimed"
    assert rmd.layout("vm") == {"dimm0": 8, "dimm1": 8}
    assert rmd.files() == [f"dimm{c}/{n:05}" for c in (0, 1) for n in range(8)]

    qemu = rmd.qemu(uuid)
    rmd.wait_started("vm")
    domain = rmd.domain(uuid)
    assert domain["state"] == "running"
    assert domain["pid"] == qemu.process.pid
    assert domain["connected"] and domain["ready"]
    assert domain["actual-bytes"] == domain["capacity-bytes"] == 16 * CHUNK
    # max 4 GiB: base memory is 1 GiB on the head, which is all of its share here.
    assert qemu.held() == {("dimm0", True): set(range(8)), ("dimm1", False): set(range(8))}
    assert rmd.ledger("vm") == qemu.held()


def test_arguments(rmd):
    uuid = rmd.claim(capacity=16, bandwidth=2)
    arguments = rmd.qemu(uuid)("arguments")
    assert "size=1024M" in arguments[arguments.index("-m") + 1]
    manager = next(a for a in arguments if a.startswith("channel-manager"))
    assert manager == f"channel-manager,id=rr0,path={rmd.run}/vm/{uuid}.sock,fd=@FD@"
    assert "node,nodeid=0,cpus=0-1,memdev=base-dimm0" in arguments
    # The CXL head has the next number, then the other channels.
    assert [a.split(",")[1:6] for a in arguments if a.startswith("channel,")] == [
        ["node-id=0", "snode=0", "socket=0", "tier=dimm", "dax=0"],
        ["node-id=1", "snode=1", "socket=0", "tier=cxl", "dax=4"],
        ["node-id=2", "snode=0", "socket=0", "tier=dimm", "dax=1"],
        ["node-id=3", "snode=0", "socket=0", "tier=dimm", "dax=2"],
        ["node-id=4", "snode=0", "socket=0", "tier=dimm", "dax=3"]]


def test_process_death_frees_and_scrubs(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    socket = rmd.run / "vm" / f"{qemu.uuid}.sock"
    assert socket.exists()
    qemu.process.send_signal(signal.SIGKILL)
    wait_until("all is free", rmd.all_free)
    assert rmd.files() == []
    assert rmd.call("ListDomains") == []
    assert not socket.exists()
    with pytest.raises(BusError, match="NotFound.*no domain vm"):
        rmd.domain("vm")


def test_eof_frees_nothing(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    before = rmd.ledger("vm")
    qemu("disconnect")
    wait_until("disconnected", lambda: not rmd.domain("vm")["connected"])
    assert rmd.ledger("vm") == before == qemu.held()
    assert rmd.domain("vm")["state"] == "running"
    qemu("connect")
    wait_until("ready again", lambda: rmd.domain("vm")["ready"])
    assert rmd.ledger("vm") == before == qemu.held()


def test_other_process_is_refused(rmd):
    import socket
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    qemu("disconnect")
    wait_until("disconnected", lambda: not rmd.domain("vm")["connected"])
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(rmd.run / "vm" / f"{qemu.uuid}.sock"))
        assert s.recv(1) == b""
    assert f"a connection of process {os.getpid()} is refused" in rmd.log()
    assert not rmd.domain("vm")["connected"]


def test_second_connection_is_refused(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    with pytest.raises(BusError, match="Busy.*runs already as process"):
        rmd.claim("vm", uuid=qemu.uuid)
    with pytest.raises(RuntimeError, match="Busy"):
        rmd.qemu(qemu.uuid)  # Start by another process
    assert rmd.domain("vm")["connected"]


def test_release(rmd):
    rmd.call("Release", "(s)", "6e2f9a4c-0000-4000-8000-000000000001")  # never claimed: nothing
    uuid = rmd.claim(capacity=16)
    rmd.call("Release", "(s)", uuid)
    assert rmd.all_free() and rmd.files() == []
    with pytest.raises(RuntimeError, match="NotFound"):
        rmd.qemu(uuid)


def test_release_waits_for_the_process(rmd):
    qemu = rmd.run_vm(capacity=16)
    with pytest.raises(BusError):
        rmd.call("Release", "(s)", qemu.uuid, timeout=1)
    assert rmd.ledger("vm") == qemu.held()
    qemu.process.send_signal(signal.SIGKILL)
    rmd.call("Release", "(s)", qemu.uuid)
    assert rmd.all_free() and rmd.files() == []


def test_claim_times_out(stopped_rmd):
    rmd = stopped_rmd
    rmd.configure({"dimm0": ("dimm", 16)}, claim_timeout=1)
    rmd.start()
    rmd.claim(capacity=16, bandwidth=1)
    wait_until("the claim is dropped", rmd.all_free)
    assert rmd.call("ListDomains") == []


def test_claim_again_replaces(rmd):
    uuid = rmd.claim(capacity=16)
    rmd.claim(uuid=uuid, capacity=24)
    assert sum(rmd.layout("vm").values()) == 24


def test_start_again_after_the_end(rmd):
    qemu = rmd.run_vm(capacity=40, maximum=48, minimum=8, bandwidth=4)
    qemu.kill()
    # At once: it waits until the chunks of before are clean.
    uuid = rmd.claim(uuid=qemu.uuid, capacity=40, maximum=48, bandwidth=4)
    rmd.qemu(uuid)
    rmd.wait_started("vm")


def test_reset(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=3)
    before = rmd.layout("vm")
    qemu("reset")
    wait_until("plugged again", lambda: rmd.domain("vm")["actual-bytes"] == 16 * CHUNK)
    assert rmd.layout("vm") == before
    assert rmd.ledger("vm") == qemu.held()


def test_two_domains_share_no_channel(rmd):
    a, b = rmd.run_vm("a", capacity=16), rmd.run_vm("b", capacity=16)
    assert set(rmd.layout("a")) == {"dimm0", "dimm1"}
    assert set(rmd.layout("b")) == {"dimm2", "dimm3"}
    assert a.held().keys().isdisjoint(b.held().keys())
    assert rmd.channel("dimm2")["vms"] == ["b"]
    with pytest.raises(BusError) as e:
        rmd.claim("c", capacity=16)
    assert e.value.name.endswith("NoSpace")
    assert "of a" in e.value.message and "of b" in e.value.message


def test_bad_claims(rmd):
    for options, name, text in [
        ({"capacity": 200, "maximum": 200}, "NoSpace", "25 GiB on 2 channels needs 100 chunks"),
        ({"bandwidth": 9}, "NoSpace", "9 channels are wanted, the placement allows 5"),
        ({"placement": 'tiers="dimm nvram"'}, "Invalid", "nvram"),
        ({"placement": 'tiers="dimm" sockets="3"'}, "Invalid", "socket 3"),
        ({"placement": 'tiers="cxl"'}, "Invalid", "base memory"),
        ({"machine": "microvm"}, "Invalid", "microvm"),
    ]:
        with pytest.raises(BusError) as e:
            rmd.claim("bad", **options)
        assert e.value.name == "org.ramryder.Error." + name, options
        assert text in e.value.message and "\n" not in e.value.message
    with pytest.raises(BusError, match="Invalid"):
        rmd.call("Claim", "(s)", "<domain")
    assert rmd.all_free() and rmd.files() == [] and rmd.call("ListDomains") == []
