# SPDX-License-Identifier: GPL-2.0-or-later
"""No tenant ever reads what another wrote: each fills its chunks with a secret, the next one looks for it."""
import os
import signal

import pytest
from rmdtest import reconnect, wait_until

POINTS = ["take-back", "scrub", "prepare", "grant-send", "ledger-commit", "ledger-committed"]


def tenant(rmd, name, connect=True, **options):
    """One that looks for secrets in all that it is given, from its first chunk on, and leaves its own."""
    qemu = rmd.qemu(rmd.claim(name, **options), connect=False, name=name)
    qemu("set", secret=True)
    if connect:
        qemu("connect")
        rmd.wait_started(name)
    return qemu


def start_with(rmd, fault):
    os.environ["RMD_FAULT"] = fault
    try:
        rmd.start()
    finally:
        del os.environ["RMD_FAULT"]


def holds_all(rmd, qemu, name):
    """Every chunk of the tenant was looked at, and that is as many as it asked for."""
    return rmd.ledger(name) == qemu.held() and sum(map(len, qemu.held().values())) == 90


@pytest.fixture
def small(stopped_rmd):
    """A host that one tenant fills but for six chunks: the next gets what it had."""
    stopped_rmd.configure({f"dimm{i}": ("dimm", 24) for i in range(4)})
    stopped_rmd.start()
    return stopped_rmd


FULL = dict(capacity=90, minimum=8, maximum=90, bandwidth=4)


def test_the_witness_sees_a_secret(small):
    """Without this the other tests here would pass on a blind witness."""
    first = tenant(small, "first", **FULL)
    first.kill()
    wait_until("free", small.all_free)
    second = tenant(small, "second", capacity=8, minimum=8, maximum=24, bandwidth=1)
    assert second("dirty") == []
    second("look_again")
    assert len(second("dirty")) == 24  # its own, at three places of eight chunks


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_step(small, point):
    """rmd dies at each step of taking back and giving again, several times on the way."""
    first = tenant(small, "first", **FULL)
    small.kill()
    first.kill()
    for nth in (1, 2, 5, 9):
        start_fault(small, f"{point}:{nth}")
        small.kill()
    small.start()
    wait_until("free", small.all_free, 60)
    second = tenant(small, "second", connect=False, **FULL)
    for nth in (1, 2, 4):
        small.kill()
        if start_fault(small, f"{point}:{nth}"):
            reconnect(second)
            wait_quietly(small)
    small.kill()
    small.start()
    reconnect(second)
    wait_until("all of it", lambda: holds_all(small, second, "second"), 60)
    assert second("dirty") == []
    assert small.call("Check") == []


def start_fault(rmd, fault):
    """TRUE when it came up; it may die before that."""
    try:
        start_with(rmd, fault)
        return True
    except AssertionError:
        assert rmd.process.wait(5) == -signal.SIGKILL, rmd.log()[-500:]
        return False


def wait_quietly(rmd, seconds=1):
    """Until it dies by its fault, or some time has passed."""
    try:
        rmd.process.wait(seconds)
    except Exception:  # noqa: BLE001
        pass


@pytest.mark.parametrize("how", ["keeps", "pins", "reads"])
def test_a_tenant_that_does_not_let_go(small, tmp_path, how):
    """Its mappings, its pinned pages and its O_DIRECT reads in flight show and reach nothing of the next tenant."""
    first = tenant(small, "first", **FULL)
    if how == "keeps":
        first("set", keep=True)
    elif how == "pins":
        first("splice", channel="dimm3")
    else:
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret by DMA..." * (1 << 16))
        first("read_into", channel="dimm3", path=str(secret))
        wait_until("reads are under way", lambda: first("reads") > 50)
    small.wait_job(small.resize("first", bandwidth_channels=3, capacity_bytes=60 * (128 << 20)))
    wait_until("scrubbed", lambda: small.channel("dimm3")["free-chunks"] == 24, 60)
    second = tenant(small, "second", capacity=20, minimum=8, maximum=24, bandwidth=1)
    assert list(small.layout("second")) == ["dimm3"] and second("dirty") == []
    # Nothing of the first arrives later either: what the second wrote is what it reads.
    for _ in range(20):
        second("look_again")
    assert all(f"secret of {second.uuid}"[:40] in line for line in second("dirty"))
    assert first.process.poll() is None
    if how == "keeps":
        assert set(first("touch_kept")) == {signal.SIGBUS}
