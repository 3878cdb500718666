# SPDX-License-Identifier: GPL-2.0-or-later
"""rmd is killed; the domains live; the next rmd goes on from the books."""
import random
import signal
import sqlite3

import pytest
from rmdtest import CHUNK, GIB, reconnect, wait_until


def test_idle(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    rmd.restart()
    assert rmd.domain("vm")["state"] == "running" and not rmd.domain("vm")["connected"]
    assert rmd.ledger("vm") == qemu.held()
    reconnect(qemu)
    wait_until("ready", lambda: rmd.domain("vm")["ready"])
    assert rmd.ledger("vm") == qemu.held()
    assert rmd.domain("vm")["actual-bytes"] == 16 * CHUNK


@pytest.mark.parametrize("seed", range(6))
def test_job_goes_on(rmd, seed):
    """Killed at a random moment of a growth and a shrink, several times."""
    rng = random.Random(seed)
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    other = rmd.run_vm("other", capacity=16, bandwidth=1)
    job = rmd.resize("vm", bandwidth_channels=3, capacity_bytes=3 * GIB)
    for _ in range(3):
        try:
            wait_until("a moment", lambda: rng.random() < 0.1)
        finally:
            rmd.restart()
        reconnect(qemu)
        reconnect(other)
    rmd.wait_job(job)
    assert sorted(rmd.layout("vm").values()) == [8, 8, 8]
    wait_until("equal", lambda: rmd.ledger("vm") == qemu.held())
    assert rmd.ledger("other") == other.held()
    assert not any(qemu.held().get(k, set()) & v for k, v in other.held().items())
    rmd.wait_job(rmd.resize("vm", bandwidth_channels=2, capacity_bytes=2 * GIB))
    for q in (qemu, other):
        q.process.send_signal(signal.SIGKILL)
    wait_until("all free", rmd.all_free)
    assert rmd.files() == []


def test_grant_that_was_never_sent(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    qemu("disconnect")
    job = rmd.resize("vm", bandwidth_channels=3)
    wait_until("written", lambda: rmd.domain("vm")["generation"] == 2)
    rmd.restart()
    assert rmd.job(job)["state"] == "running"
    reconnect(qemu)
    rmd.wait_job(job)
    assert rmd.ledger("vm") == qemu.held()


def test_released_while_away(rmd):
    """QEMU gives chunks back while nobody listens: its next hello lacks them."""
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    qemu("set", guest="hold")
    rmd.resize("vm", capacity_bytes=GIB + 2 * CHUNK)
    wait_until("asked", lambda: qemu("log")[-1].get("requested") == 2 * CHUNK)
    rmd.kill()
    wait_until("noticed", lambda: not qemu("state")["connected"])
    qemu("set", guest="follow")
    wait_until("given back", lambda: qemu.plugged() == {"dimm1": 2})
    rmd.start()
    reconnect(qemu)
    wait_until("books follow", lambda: rmd.layout("vm") == {"dimm0": 8, "dimm1": 2})
    assert rmd.ledger("vm") == qemu.held()
    wait_until("clean", lambda: rmd.channel("dimm1")["free-chunks"] == 22)


def test_process_ended_while_away(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    rmd.kill()
    qemu.kill()
    rmd.start()
    wait_until("all is free", rmd.all_free)
    assert rmd.files() == [] and rmd.call("ListDomains") == []


def test_pid_used_again(rmd):
    """A process with the recorded pid and another start time is not the domain's."""
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    rmd.kill()
    db = sqlite3.connect(rmd.state / "ledger.db")
    db.execute("UPDATE vm SET start_time = start_time + 1")
    db.commit()
    db.close()
    rmd.start()
    wait_until("all is free", rmd.all_free)
    assert qemu.process.poll() is None


def test_host_was_booted(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    rmd.kill()
    db = sqlite3.connect(rmd.state / "ledger.db")
    db.execute("UPDATE meta SET value = 'another boot' WHERE key = 'boot-id'")
    db.commit()
    db.close()
    rmd.start()
    wait_until("all is free", rmd.all_free)
    assert rmd.files() == []
    assert "the host was booted" in rmd.log()
    assert qemu.process.poll() is None


def test_scrubbing_is_begun_again(rmd):
    rmd.kill()
    db = sqlite3.connect(rmd.state / "ledger.db")
    db.execute("UPDATE chunk SET state = 'released' WHERE chunk < 3")
    db.execute("UPDATE chunk SET state = 'scrubbing' WHERE chunk < 2")
    db.commit()
    db.close()
    (rmd.store / "dimm0" / "00001").write_bytes(b"secret")
    rmd.start()
    wait_until("all is free", rmd.all_free)
    assert rmd.files() == []


def test_held_but_not_in_the_books(rmd):
    """A chunk that nobody has in the ledger is set aside until that domain ends."""
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    rmd.kill()
    db = sqlite3.connect(rmd.state / "ledger.db")
    for state in ("released", "scrubbing"):
        db.execute("UPDATE chunk SET state = ? WHERE chunk = 3 AND channel ="
                   " (SELECT id FROM channel WHERE name = 'dimm1')", (state,))
    db.execute("UPDATE chunk SET state = 'free', vm = NULL, base = 0, phase = 0 WHERE chunk = 3"
               " AND state = 'scrubbing'")
    db.commit()
    db.close()
    rmd.start()
    reconnect(qemu)
    wait_until("set aside", lambda: rmd.channel("dimm1")["quarantined-chunks"] == 1)
    assert rmd.channel("dimm1")["state"] == "failed"
    assert "says it holds chunk 3 of dimm1, which is free in the ledger" in rmd.log()
    qemu.kill()
    wait_until("all is free", rmd.all_free)
