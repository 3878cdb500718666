# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases of the reconcile table that need a daemon; the table itself is tests/unit/test-reconcile.c."""
import json
import mmap
import os
import sqlite3
import subprocess

import pytest
from rmdtest import CHUNK, reconnect, wait_until


def lines(rmd, dry_run=True):
    return rmd.call("Reconcile", "(b)", dry_run)


def cases(rmd, vm=None):
    """{(channel, case): chunks}, of one domain or of all."""
    return {(x["channel"], x["case"]): x["chunks"] for x in lines(rmd) if vm is None or x["vm"] == vm}


def sql(rmd, *statements):
    db = sqlite3.connect(rmd.state / "ledger.db")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def lose_ledger(rmd):
    for path in rmd.state.glob("ledger.db*"):
        path.unlink()


def test_agreed_silent_behind(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    assert cases(rmd, "vm") == {("", "agreed"): 16}
    qemu("disconnect")
    wait_until("noticed", lambda: cases(rmd, "vm") == {("", "silent"): 16})
    qemu("connect")
    wait_until("ready", lambda: rmd.domain("vm")["ready"])
    qemu("set", guest="hold")
    rmd.resize("vm", capacity_bytes=20 * CHUNK)
    wait_until("behind", lambda: ("", "behind") in cases(rmd, "vm"))
    actions = {x["case"]: x["action"] for x in lines(rmd)}
    assert actions == {"behind": "roll-forward"}


def test_claim(rmd):
    rmd.claim("vm", capacity=16)
    assert cases(rmd, "vm") == {("", "claim-young"): 16}


def test_old_claim_on_demand(stopped_rmd):
    rmd = stopped_rmd
    rmd.configure({"dimm0": ("dimm", 24)})
    rmd.start()
    rmd.claim("vm", capacity=16, bandwidth=1)
    rmd.kill()
    sql(rmd, "UPDATE vm SET claimed_usec = claimed_usec - 1000 * 1000000")
    rmd.start()
    wait_until("all is free", rmd.all_free)
    assert "older than claim-timeout" in rmd.log()


@pytest.mark.parametrize("change, case", [
    (None, "process is gone"),
    ("UPDATE vm SET start_time = start_time + 1", "belongs to a younger process"),
], ids=["gone", "reused"])
def test_process(rmd, change, case):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    rmd.kill()
    if change:
        sql(rmd, change)
    else:
        qemu.kill()
    rmd.start()
    wait_until("all is free", rmd.all_free)
    assert case in rmd.log() and rmd.files() == []


def test_held_free_is_shown(rmd):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    rmd.kill()
    where = "WHERE chunk = 3 AND channel = (SELECT id FROM channel WHERE name = 'dimm1')"
    sql(rmd, "UPDATE chunk SET state = 'released' " + where, "UPDATE chunk SET state = 'scrubbing' " + where,
        "UPDATE chunk SET state = 'free', vm = NULL, base = 0, phase = 0 " + where)
    rmd.start()
    reconnect(qemu)
    wait_until("set aside", lambda: cases(rmd, "vm").get(("dimm1", "held-free")) == 1)


def test_dry_run_changes_nothing(rmd):
    rmd.run_vm(capacity=16, bandwidth=2)
    sizes = [(c["name"], c["granted-chunks"]) for c in rmd.call("ListChannels")]
    first = lines(rmd)
    assert lines(rmd) == first == lines(rmd, dry_run=False)
    assert sizes == [(c["name"], c["granted-chunks"]) for c in rmd.call("ListChannels")]


@pytest.mark.parametrize("damage", [False, True], ids=["lost", "damaged"])
def test_books_are_made_again(rmd, damage):
    """Two domains run, the ledger is gone or garbage: both are in the books again with what they have."""
    a = rmd.run_vm("a", capacity=16, bandwidth=2)
    b = rmd.run_vm("b", capacity=9, bandwidth=1)
    before = rmd.domain("a"), rmd.domain("b")
    rmd.kill()
    if damage:
        path = rmd.state / "ledger.db"
        sql(rmd, "PRAGMA wal_checkpoint(TRUNCATE)")
        data = bytearray(path.read_bytes())
        data[4096:12288] = os.urandom(8192)
        path.write_bytes(data)
    else:
        lose_ledger(rmd)
    rmd.start()
    assert len(list(rmd.state.glob("ledger.db.damaged-*"))) == (1 if damage else 0)
    for q in (a, b):
        reconnect(q)
    wait_until("both are ready", lambda: all(rmd.domain(n)["ready"] for n in "ab"))
    assert rmd.ledger("a") == a.held() and rmd.ledger("b") == b.held()
    for old, name in zip(before, "ab"):
        new = rmd.domain(name)
        for key in ("uuid", "pid", "capacity-bytes", "bandwidth-channels", "actual-bytes"):
            assert new[key] == old[key], key
        assert [(c["name"], c["cnode"], c["snode"], c["base-chunks"], c["chunks"]) for c in new["channels"]] == \
            [(c["name"], c["cnode"], c["snode"], c["base-chunks"], c["chunks"]) for c in old["channels"]]
    assert rmd.call("Check") == []
    # They are domains as before: one grows, and nothing is given out twice.
    rmd.wait_job(rmd.resize("a", capacity_bytes=20 * CHUNK))
    wait_until("equal", lambda: rmd.ledger("a") == a.held())
    assert not any(a.held().get(k, set()) & v for k, v in b.held().items())
    c = rmd.run_vm("c", capacity=8, bandwidth=1)
    assert not any(c.held().get(k, set()) & v for q in (a, b) for k, v in q.held().items())
    for q in (a, b, c):
        q.kill()
    wait_until("all is free", rmd.all_free)


def test_a_chunk_of_nobody_that_is_in_use(rmd):
    """The ledger is lost, and a process that is no domain's has a chunk: nobody gets it."""
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    with open(rmd.store / "dimm1" / "00002", "r+b") as file:
        mapping = mmap.mmap(file.fileno(), CHUNK)
        rmd.kill()
        qemu.kill()
        lose_ledger(rmd)
        rmd.start()
        wait_until("set aside", lambda: rmd.channel("dimm1")["quarantined-chunks"] == 1)
        wait_until("the rest is free", lambda: rmd.channel("dimm1")["free-chunks"] == 23)
        assert cases(rmd)[("dimm1", "in-use")] == 1
        mapping.close()


def test_two_domains_with_one_chunk(rmd):
    """The ledger is lost, and a second QEMU maps a chunk of the first: neither is believed."""
    a = rmd.run_vm("a", capacity=16, bandwidth=2)
    b = rmd.run_vm("b", capacity=8, bandwidth=1)
    b("map", path=str(rmd.store / "dimm1" / "00002"))
    rmd.kill()
    lose_ledger(rmd)
    rmd.start()
    assert rmd.channel("dimm1")["quarantined-chunks"] == 1
    for q in (a, b):
        reconnect(q)
    wait_until("both are there", lambda: all(rmd.domain(n)["connected"] for n in "ab"))
    held = rmd.ledger("a").get(("dimm1", False))
    assert held >= {0, 1, 3, 4, 5, 6, 7} and 2 not in held
    assert 2 not in rmd.ledger("b").get(("dimm1", False), set())


def test_rmctl(rmd, program):
    rmd.run_vm(capacity=16, bandwidth=2)
    run = [program("rmctl"), "--socket", str(rmd.run / "bus"), "reconcile", "--dry-run"]
    text = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert "agreed" in text and "keep" in text and text.splitlines()[0].split()[0] == "VM"
    found = json.loads(subprocess.run([*run, "--json"], capture_output=True, text=True, check=True).stdout)
    assert found["lines"] == [{"vm": "vm", "channel": "", "chunks": 16, "case": "agreed", "action": "keep",
                               "when": "it has what it is to have", "then": "nothing"}]
