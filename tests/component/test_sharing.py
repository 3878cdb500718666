# SPDX-License-Identifier: GPL-2.0-or-later
"""Domains that share channels or ask for GB/s; channels that are taken out of use; compacting."""
import pytest
from rmdtest import BusError, wait_until


def claim(rmd, name, bandwidth, capacity=8, minimum=1, maximum=32):
    """bandwidth: the whole <rr:bandwidth> element."""
    uuid, xml = rmd.xml(name, capacity=capacity, minimum=minimum, maximum=maximum, placement='tiers="dimm" base="128MiB"')
    start, end = xml.index("<rr:bandwidth"), xml.index("</rr:bandwidth>") + len("</rr:bandwidth>")
    rmd.call("Claim", "(s)", xml[:start] + bandwidth + xml[end:])
    return uuid


def run(rmd, name, bandwidth, **options):
    qemu = rmd.qemu(claim(rmd, name, bandwidth, **options), name=name)
    rmd.wait_started(name)
    return qemu


SHARED = '<rr:bandwidth unit="channels" share="shared">1</rr:bandwidth>'


def test_shared_channel(rmd):
    a, b = run(rmd, "a", SHARED), run(rmd, "b", SHARED)
    assert list(rmd.layout("a")) == list(rmd.layout("b")) == ["dimm0"]
    assert not set.union(*a.held().values()) & set.union(*b.held().values())
    assert rmd.channel("dimm0")["vms"] == ["a", "b"] or set(rmd.channel("dimm0")["vms"]) == {"a", "b"}
    assert rmd.domain("a")["share"] == "shared"
    # One for itself goes elsewhere, and those that share do not follow it.
    rmd.run_vm("alone", capacity=8, bandwidth=1)
    assert list(rmd.layout("alone")) == ["dimm1"]
    rmd.restart()
    for q in (a, b):
        wait_until("connected", lambda q=q: q("state")["connected"] or q("connect") is not None)
    assert rmd.domain("b")["share"] == "shared"


def test_mbps(rmd):
    """Channels have 36,000 MB/s: 50 GB/s take two, 80 three."""
    run(rmd, "a", '<rr:bandwidth unit="GB/s" min="1" max="200">50</rr:bandwidth>')
    assert len(rmd.layout("a")) == 2 and rmd.domain("a")["bandwidth-mbps"] == 50000
    rmd.wait_job(rmd.call("Resize", "(sa{sv})", "a", {"bandwidth-mbps": rmd.variant("u", 80000)}))
    assert len(rmd.layout("a")) == 3 and rmd.domain("a")["bandwidth-mbps"] == 80000
    with pytest.raises(BusError, match="would fit") as error:
        rmd.call("Resize", "(sa{sv})", "a", {"bandwidth-mbps": rmd.variant("u", 150000)})
    assert error.value.name.endswith("NoSpace")
    with pytest.raises(BusError, match="not within its min of 1000 and max of 200000"):
        rmd.call("Resize", "(sa{sv})", "a", {"bandwidth-mbps": rmd.variant("u", 300000)})


def test_shared_mbps_are_never_promised_twice(rmd):
    for name in "abc":
        run(rmd, name, '<rr:bandwidth unit="GB/s" share="shared">20</rr:bandwidth>', capacity=2)
    layouts = [list(rmd.layout(name)) for name in "abc"]
    assert all(len(x) == 1 for x in layouts) and len({x[0] for x in layouts}) == 3


def test_drain_and_offline(rmd):
    a = rmd.run_vm("a", capacity=16, bandwidth=2)
    assert rmd.layout("a") == {"dimm0": 8, "dimm1": 8}
    moves, jobs, _ = rmd.call("SetChannelState", "(ssb)", "dimm1", "draining", True)
    assert jobs == [] and {(m["name"], m["before"], m["after"]) for m in moves} == {("dimm1", 8, 0), ("dimm2", 0, 8)}
    assert rmd.channel("dimm1")["state"] == "online"
    with pytest.raises(BusError, match="set it draining first"):
        rmd.call("SetChannelState", "(ssb)", "dimm1", "offline", False)
    _, jobs, _ = rmd.call("SetChannelState", "(ssb)", "dimm1", "draining", False)
    assert rmd.job(jobs[0])["kind"] == "drain"
    rmd.wait_job(jobs[0])
    assert rmd.layout("a") == {"dimm0": 8, "dimm2": 8} and rmd.ledger("a") == a.held()
    wait_until("scrubbed", lambda: rmd.channel("dimm1")["free-chunks"] == 24)
    rmd.call("SetChannelState", "(ssb)", "dimm1", "offline", False)
    rmd.restart()
    assert rmd.channel("dimm1")["state"] == "offline"
    with pytest.raises(BusError, match="dimm1 closed"):
        rmd.claim("b", capacity=16, bandwidth=3)
    # Base memory does not move.
    wait_until("connected", lambda: a("state")["connected"] or a("connect") is not None)
    assert rmd.call("SetChannelState", "(ssb)", "dimm0", "draining", False)[:2] == ([], [])
    with pytest.raises(BusError, match="8 of them base memory, which leaves only by migration"):
        rmd.call("SetChannelState", "(ssb)", "dimm0", "offline", False)
    rmd.call("SetChannelState", "(ssb)", "dimm0", "online", False)
    rmd.call("SetChannelState", "(ssb)", "dimm1", "online", False)
    rmd.claim("b", capacity=16, bandwidth=2)


def test_compact(rmd):
    """Two that share were put on two channels each; one can go to the other's."""
    a = run(rmd, "a", '<rr:bandwidth unit="channels" share="shared">2</rr:bandwidth>', capacity=8)
    rmd.wait_job(rmd.resize("a", layout={"dimm1": 0, "dimm2": 4}))
    b = run(rmd, "b", '<rr:bandwidth unit="channels" share="shared">2</rr:bandwidth>', capacity=8)
    rmd.wait_job(rmd.resize("b", layout={"dimm2": 0, "dimm3": 4})) if "dimm2" in rmd.layout("b") else None
    used = {c for n in "ab" for c in rmd.layout(n)}
    assert len(used) == 3
    moves, jobs, freed = rmd.call("Compact", "(b)", True)
    assert freed == 1 and jobs == [] and moves
    assert {c for n in "ab" for c in rmd.layout(n)} == used
    _, jobs, freed = rmd.call("Compact", "(b)", False)
    assert freed == 1 and jobs
    for job in jobs:
        rmd.wait_job(job)
    assert len({c for n in "ab" for c in rmd.layout(n)}) == 2
    assert sum(rmd.layout("a").values()) == sum(rmd.layout("b").values()) == 8
    assert rmd.ledger("a") == a.held() and rmd.ledger("b") == b.held()
    assert rmd.call("Compact", "(b)", True)[2] == 0


def test_check_backup_events(rmd, tmp_path):
    rmd.run_vm("a", capacity=16, bandwidth=2)
    assert rmd.call("Check") == []
    rmd.call("Backup", "(s)", str(tmp_path / "copy.db"))
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    with pytest.raises(BusError, match="no absolute path"):
        rmd.call("Backup", "(s)", "copy.db")
    kinds = [e["kind"] for e in rmd.call("ListEvents", "(su)", rmd.domain("a")["uuid"], 100)]
    assert kinds[:2] == ["claim", "start"]
    assert len(rmd.call("ListEvents", "(su)", "", 1)) == 1
    progress = rmd.call("GetScrubProgress")
    assert progress["left-chunks"] == 0 and progress["threads"] == 2 and progress["done-chunks"] > 0


def test_chunk_size_of_a_rate(stopped_rmd):
    """A rate of one chunk a second: the rest waits, is seen to, and a restart half-way loses nothing."""
    rmd = stopped_rmd
    rmd.configure({"dimm0": ("dimm", 6)}, scrub_rate="256M", scrub_threads=3)
    rmd.start()
    first = rmd.channel("dimm0")
    assert first["free-chunks"] < 6
    rmd.restart()
    wait_until("all is free", rmd.all_free, 30)
    assert rmd.call("Check") == []
