# SPDX-License-Identifier: GPL-2.0-or-later
"""Growing, shrinking, moving: always grow first, always even, always as the fake guest has it."""
import mmap
import os

import pytest
from rmdtest import CHUNK, GIB, BusError, wait_until


def test_capacity(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    job = rmd.wait_job(rmd.resize("vm", capacity_bytes=4 * GIB))
    assert job["progress"] == 1 and job["vm"] == "vm" and job["kind"] == "resize"
    assert rmd.layout("vm") == {"dimm0": 16, "dimm1": 16}
    assert qemu.plugged() == {"dimm0": 8, "dimm1": 16}
    rmd.wait_job(rmd.resize("vm", capacity_bytes=GIB + 3 * CHUNK))
    assert rmd.layout("vm") == {"dimm0": 8, "dimm1": 3}  # the head keeps its base memory
    assert rmd.ledger("vm") == qemu.held()
    wait_until("clean", lambda: rmd.channel("dimm1")["free-chunks"] == 21)
    assert rmd.files() == [f"{c}/{n:05}" for (c, _), s in sorted(qemu.held().items()) for n in sorted(s)]


def test_bandwidth_grows_first(rmd):
    qemu = rmd.run_vm(capacity=32, bandwidth=3)
    assert sorted(rmd.layout("vm").values()) == [10, 11, 11]
    before = len(qemu("log"))
    rmd.wait_job(rmd.resize("vm", bandwidth_channels=4))
    assert rmd.layout("vm") == {f"dimm{i}": 8 for i in range(4)}
    assert rmd.ledger("vm") == qemu.held()
    steps = [(m["type"], m["channel"], m.get("requested")) for m in qemu("log")[before:]]
    assert steps[0] == ("grant", "dimm3", None)
    assert steps[1] == ("resize", "dimm3", GIB)
    assert {s[1] for s in steps[2:]} == {"dimm0", "dimm1", "dimm2"}

    rmd.wait_job(rmd.resize("vm", bandwidth_channels=3))
    assert sorted(rmd.layout("vm").values()) == [10, 11, 11]
    drain = [m for m in qemu("log") if m["type"] == "resize" and m["channel"] == "dimm3"][-1]
    assert drain["requested"] == 0 and drain["drain"]
    wait_until("clean", lambda: rmd.channel("dimm3")["free-chunks"] == 24)


def test_layout_by_hand(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    rmd.wait_job(rmd.resize("vm", layout={"cxl0": 5}))
    assert rmd.layout("vm") == {"dimm0": 8, "dimm1": 8, "cxl0": 5}
    assert qemu.plugged()["cxl0"] == 5
    rmd.wait_job(rmd.resize("vm", layout={"cxl0": 0}))
    assert rmd.layout("vm") == {"dimm0": 8, "dimm1": 8}
    wait_until("clean", lambda: rmd.channel("cxl0")["free-chunks"] == 32)
    for layout, name, text in [
        ({"dimm0": 7}, "Invalid", "less than its base memory of 8"),
        ({"dimm1": 25}, "Invalid", "more than this domain can have on it, 24"),
        ({"nope": 1}, "NotFound", "channel nope"),
        ({"dimm1": 24, "dimm2": 24}, "Invalid", "not within its min of 1 GiB and max of 4 GiB"),
    ]:
        with pytest.raises(BusError) as e:
            rmd.resize("vm", layout=layout)
        assert e.value.name.endswith(name) and text in e.value.message


def test_plan_and_dry_run(rmd):
    rmd.run_vm(capacity=16, bandwidth=2)
    generation = rmd.domain("vm")["generation"]
    from gi.repository import GLib
    plan = rmd.call("PlanResize", "(sa{sv})", "vm", {"bandwidth-channels": GLib.Variant("u", 4)})
    assert {p["name"]: (p["before"], p["after"]) for p in plan} == {
        "dimm0": (8, 8), "cxl0": (0, 0), "dimm1": (8, 3), "dimm2": (0, 3), "dimm3": (0, 2)}
    assert rmd.resize("vm", bandwidth_channels=4, dry_run=True) == 0
    assert rmd.domain("vm")["generation"] == generation
    assert rmd.resize("vm", bandwidth_channels=2) == 0  # nothing to do


def test_errors(rmd):
    rmd.run_vm("other", capacity=16, bandwidth=2, placement='tiers="dimm"')
    rmd.run_vm(capacity=16, bandwidth=2, bandwidth_max=3)
    for options, name, text in [
        ({"capacity_bytes": 1000}, "Invalid", "1000"),
        ({"capacity_bytes": 64 * GIB}, "Invalid", "64 GiB is not within its min of 1 GiB and max"),
        ({"bandwidth_channels": 4}, "Invalid", "4 channels is not within its min of 1 and max of 3"),
        ({"bandwidth_channels": 1, "capacity_bytes": 4 * GIB}, "NoSpace", "needs 32 chunks"),
        ({"bandwidth_channels": 3, "expected_generation": 99}, "Stale", "99"),
        ({}, "Invalid", "nothing to change"),
    ]:
        with pytest.raises(BusError) as e:
            rmd.resize("vm", **options)
        assert e.value.name == "org.ramryder.Error." + name, e.value
        assert text in e.value.message and "\n" not in e.value.message
    with pytest.raises(BusError, match="NotFound.*nobody"):
        rmd.resize("nobody", bandwidth_channels=1)
    with pytest.raises(BusError, match="NotFound.*no job 77"):
        rmd.job(77)


def test_no_space_names_what_fits(rmd):
    rmd.run_vm("other", capacity=16, bandwidth=2, placement='tiers="dimm"')
    rmd.run_vm(capacity=16, bandwidth=2, placement='tiers="dimm"')
    with pytest.raises(BusError) as e:
        rmd.resize("vm", bandwidth_channels=3)
    assert e.value.name == "org.ramryder.Error.NoSpace"
    assert "of other" in e.value.message and "2 GiB on 2 would fit" in e.value.message or \
        "2 GiB on 2 channels would fit" in e.value.message


def test_cancel(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    qemu("set", guest="hold")
    job = rmd.resize("vm", capacity_bytes=4 * GIB)
    wait_until("granted", lambda: len(rmd.ledger("vm").get(("dimm1", False), ())) == 16)
    rmd.call("CancelJob", "(t)", job)
    assert rmd.job(job)["state"] == "cancelled"
    wait_until("given back", lambda: rmd.ledger("vm") == qemu.held() and
               rmd.layout("vm") == {"dimm0": 8, "dimm1": 8})
    assert rmd.domain("vm")["capacity-bytes"] == 16 * CHUNK
    with pytest.raises(BusError, match="Invalid.*is over: cancelled"):
        rmd.call("CancelJob", "(t)", job)


def test_newer_target_replaces_the_older(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    qemu("set", guest="hold")
    first = rmd.resize("vm", capacity_bytes=4 * GIB)
    second = rmd.resize("vm", capacity_bytes=3 * GIB)
    qemu("set", guest="follow")
    rmd.wait_job(second)
    assert rmd.job(first)["state"] == "cancelled"
    wait_until("3 GiB", lambda: rmd.layout("vm") == {"dimm0": 12, "dimm1": 12})
    assert rmd.ledger("vm") == qemu.held()


def test_guest_that_does_not_follow(stopped_rmd):
    rmd = stopped_rmd
    rmd.configure({"dimm0": ("dimm", 24), "dimm1": ("dimm", 24)}, job_timeout=2)
    rmd.start()
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    qemu("set", guest="hold")
    job = rmd.wait_job(rmd.resize("vm", capacity_bytes=4 * GIB), state="failed")
    assert "no progress for 2 s" in job["message"]
    wait_until("back", lambda: rmd.layout("vm") == {"dimm0": 8, "dimm1": 8})


def test_refused_grant(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    qemu("set", refuse={"grant": "BadFd"})
    job = rmd.wait_job(rmd.resize("vm", bandwidth_channels=3), state="failed")
    assert "QEMU refuses a grant of channel dimm2: told to (BadFd)" == job["message"]
    qemu("set", refuse={})
    wait_until("clean", lambda: rmd.channel("dimm2")["free-chunks"] == 24)
    rmd.wait_job(rmd.resize("vm", bandwidth_channels=3))
    assert rmd.ledger("vm") == qemu.held()


def test_store_that_is_full(rmd, tmp_path):
    """Room that somebody else took: an error of the job, nothing granted."""
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    # A folder where the file should be made: fails as a full disk does, also for root.
    (rmd.store / "dimm2" / "00001.new").mkdir()
    job = rmd.wait_job(rmd.resize("vm", bandwidth_channels=3), state="failed")
    assert "dimm2/00001" in job["message"]
    assert rmd.layout("vm") == {"dimm0": 8, "dimm1": 8}
    assert rmd.ledger("vm") == qemu.held()


def test_released_chunks_are_taken_away(rmd):
    """A QEMU that keeps its mapping loses it; the next owner reads zeros and shares nothing."""
    qemu = rmd.run_vm(capacity=16, bandwidth=3, placement='tiers="dimm"')
    qemu("write", channel="dimm2", base=False, text="secret")
    path = rmd.store / "dimm2" / "00000"
    fd = os.open(path, os.O_RDWR)
    old = mmap.mmap(fd, CHUNK)
    assert old[:6] == b"secret"
    qemu("set", keep=True)
    rmd.wait_job(rmd.resize("vm", bandwidth_channels=2))
    wait_until("clean", lambda: rmd.channel("dimm2")["free-chunks"] == 24)
    assert set(qemu("touch_kept")) == {7}  # SIGBUS
    # Grown again by the one who kept it, and given to the next.
    os.ftruncate(fd, CHUNK)
    other = rmd.run_vm("other", capacity=16, bandwidth=1)
    assert other.held() == {("dimm2", True): set(range(8)), ("dimm2", False): set(range(8, 16))}
    assert set(other("read", channel="dimm2", base=True, length=6).values()) == {"00" * 6}
    other("write", channel="dimm2", base=True, text="theirs")
    assert old[:6] == bytes(6) and os.pread(fd, 6, 0) == bytes(6)
    old.close()
    os.close(fd)


def test_growth_comes_in_steps(rmd):
    """Never more than 2 GiB beyond what the guest has taken: it needs memory for what describes memory."""
    qemu = rmd.run_vm(capacity=8, bandwidth=1, maximum=48, placement='tiers="dimm cxl" base="128MiB"')
    rmd.wait_job(rmd.resize("vm", layout={"cxl0": 32}))
    asked = [m["requested"] // CHUNK for m in qemu("log") if m["type"] == "resize" and m["channel"] == "cxl0"]
    assert asked[0] == 16 and asked[-1] == 32 and len(asked) > 2
    assert rmd.layout("vm")["cxl0"] == 32 and qemu.plugged()["cxl0"] == 32
