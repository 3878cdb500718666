# SPDX-License-Identifier: GPL-2.0-or-later
"""A QEMU that does not keep to the protocol is cut off; nothing else happens."""
import json

import pytest
from rmdtest import CHUNK, wait_until


@pytest.mark.parametrize("line, reason", [
    ("not json", "not JSON"),
    ('{"type":"progress"}', 'has no "seq"'),
    ("[" * 200000, "nested deeper"),
    ('{"type":"done","seq":@,"id":4711}', "request 4711, which is not under way"),
    ('{"type":"released","seq":@,"channel":"nope","base":false,"chunks":[1]}', "channel nope"),
    ('{"type":"released","seq":@,"channel":"dimm1","base":false,"chunks":[4000]}', "no chunk 4000"),
    ('{"type":"progress","seq":@,"channel":"dimm1","requested":0,"plugged":1}', "multiple of 128"),
    ('{"type":"progress","seq":1,"channel":"dimm1","requested":0,"plugged":0}', "came as number"),
    ("x" * (1 << 20), "longer than"),
], ids=["text", "no-seq", "nested", "answer", "channel", "chunk", "size", "seq", "long"])
def test_violation(rmd, line, reason):
    qemu = rmd.run_vm(capacity=16, bandwidth=2)
    before = rmd.ledger("vm")
    qemu("raw", text=line.replace("@", str(next_seq(qemu))) + "\n")
    wait_until("cut off", lambda: not rmd.domain("vm")["connected"])
    assert reason in rmd.log()
    assert rmd.ledger("vm") == before
    wait_until("noticed", lambda: not qemu("state")["connected"])
    qemu("connect")
    wait_until("ready", lambda: rmd.domain("vm")["ready"])


def next_seq(qemu):
    return qemu("seq") + 1


def test_wrong_uuid(rmd):
    uuid = rmd.claim(capacity=16)
    qemu = rmd.qemu(uuid, connect=False)
    qemu("set", uuid="6e2f9a4c-0000-4000-8000-000000000001")
    qemu("connect")
    wait_until("cut off", lambda: "hello: UUID 6e2f9a4c" in rmd.log())
    assert not rmd.domain("vm")["connected"]


def test_chunks_of_another(rmd):
    """Releasing what is not yours changes nothing."""
    a, b = rmd.run_vm("a", capacity=16), rmd.run_vm("b", capacity=16)
    message = {"type": "released", "seq": next_seq(a), "channel": "dimm2", "base": False,
               "chunks": [0, 1]}
    a("raw", text=json.dumps(message) + "\n")
    wait_until("reported", lambda: "domain a releases chunk 1 of dimm2" in rmd.log())
    assert rmd.ledger("b") == b.held()
    assert rmd.domain("b")["actual-bytes"] == 16 * CHUNK


def test_too_many_lies(rmd):
    a = rmd.run_vm("a", capacity=16)
    rmd.run_vm("b", capacity=16)
    message = {"type": "released", "seq": next_seq(a), "channel": "dimm2", "base": False,
               "chunks": [0] * 200}
    a("raw", text=json.dumps(message) + "\n")
    wait_until("cut off", lambda: not rmd.domain("a")["connected"])
    assert "more than 100 claims that the ledger denies" in rmd.log()
    assert rmd.log().count("does not have") == 100
