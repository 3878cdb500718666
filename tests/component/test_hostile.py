# SPDX-License-Identifier: GPL-2.0-or-later
"""A QEMU that floods or comes again and again costs nobody but itself."""
import contextlib
import json
import socket
import time

from rmdtest import CHUNK, wait_until


def flood(rmd, qemu, n):
    """n messages, each right by itself."""
    seq = qemu("seq")
    lines = [json.dumps({"type": "progress", "seq": seq + 1 + i, "channel": "dimm1",
                         "requested": 8 * CHUNK, "plugged": 8 * CHUNK}) for i in range(n)]
    with contextlib.suppress(OSError):  # cut off while it writes
        qemu("raw", text="\n".join(lines) + "\n")


def test_flood(rmd):
    a = rmd.run_vm("a", capacity=16, bandwidth=2)
    b = rmd.run_vm("b", capacity=8, bandwidth=1)
    before = rmd.ledger("a")
    flood(rmd, a, 8000)
    wait_until("cut off", lambda: not rmd.domain("a")["connected"])
    assert "it floods: more than" in rmd.log()
    assert rmd.ledger("a") == before and rmd.ledger("b") == b.held()
    wait_until("noticed", lambda: not a("state")["connected"])
    a("connect")
    wait_until("ready", lambda: rmd.domain("a")["ready"])
    # The second time it waits.
    flood(rmd, a, 8000)
    wait_until("cut off again", lambda: not rmd.domain("a")["connected"])
    assert "not listened to for 1 s" in rmd.log()
    wait_until("noticed", lambda: not a("state")["connected"])
    start = time.monotonic()
    a("connect")
    assert not rmd.domain("a")["connected"]
    wait_until("ready", lambda: rmd.domain("a")["ready"])
    assert time.monotonic() - start > 0.5
    kinds = [e["kind"] for e in rmd.call("ListEvents", "(su)", a.uuid, 100)]
    assert kinds.count("penalty") == 1
    # The neighbour never noticed.
    rmd.wait_job(rmd.resize("b", capacity_bytes=10 * CHUNK))


def test_many_slow_messages_are_fine(rmd):
    """What a large guest says while it plugs is no flood."""
    a = rmd.run_vm("a", capacity=16, bandwidth=2)
    for _ in range(4):
        flood(rmd, a, 700)
        a("set", seq=a("seq") + 700)  # the fake's own numbers go on after ours
        time.sleep(0.8)
        assert a("state")["connected"]
    assert rmd.domain("a")["connected"]


def test_strangers_do_not_lock_the_owner_out(rmd):
    """Connections of processes that are not the domain's are refused and cost it nothing."""
    a = rmd.run_vm("a", capacity=16, bandwidth=2)
    path = str(rmd.run / "vm" / f"{a.uuid}.sock")
    for _ in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.setblocking(False)
            try:
                s.connect(path)
            except BlockingIOError:
                pass
    wait_until("refused", lambda: "is refused: it is not the process" in rmd.log())
    a("disconnect")
    a("connect")
    wait_until("ready", lambda: rmd.domain("a")["ready"])
