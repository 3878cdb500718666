# SPDX-License-Identifier: GPL-2.0-or-later
"""Bad input: one clear line that names the value, nothing allocated, no half-started domain."""

import re

import pytest

from ramtest import env, wait
from ramtest.domain import rr_memory
from ramtest.libvirt import PrivateLibvirt
from ramtest.rig import Rig
from ramtest.rmd import Rmd, six_channels

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST", "RR_BUILD")


def refused_start(rig, domain, *words):
    """`virsh start` fails with one line that has all `words`; nothing of it is left."""
    domain.define()
    result = rig.libvirt.virsh_result("start", domain.name)
    assert result.returncode != 0, f"it started: {result.stdout}"
    lines = result.stderr.strip().splitlines()
    # virsh says which domain failed in a line of its own, and then the reason in one.
    assert 1 <= len(lines) <= 2, f"more than one line:\n{result.stderr}"
    # Before that, libvirt names the hook and its environment: no value of ours.
    reason = lines[-1].rpartition("ramryder: ")[2]
    for word in words:
        assert re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.]*\d)", reason), f"{word!r} is not in: {reason}"
    assert rig.libvirt.state(domain.name) == "shut off"
    assert not rig.libvirt.qemu_pids()
    if rig.rmd.is_running():
        assert not rig.rmd.not_free(), f"still held: {rig.rmd.not_free()}"
        assert not rig.rmd.manager.domains()
    return reason


GIB4 = dict(capacity=2, minimum=1, maximum=4, tiers="dimm", base="512MiB")

ROWS = {
    "more capacity than exists": (dict(capacity=100, maximum=128), 128 * 1024, ["100 GiB"]),
    "more channels than exist": (dict(channels=9, channels_max=9), 4096, ["9"]),
    "more channels than the tier has": (dict(channels=5, channels_max=5), 4096, ["5"]),
    "capacity that is no whole chunk": (dict(capacity=2100, minimum=1024, maximum=4096, unit="MiB"), 4096, ["2100"]),
    "unknown tier": (dict(tiers="dimm hbm"), 4096, ["hbm"]),
    "unknown element": (dict(inside="<rr:colour>red</rr:colour>"), 4096, ["colour"]),
    "unknown unit": (dict(unit="bushel"), 4096, ["bushel"]),
    "no number": (dict(capacity="lots"), 4096, ["lots"]),
    "negative": (dict(capacity=-2), 4096, ["-2"]),
    "capacity above its maximum": (dict(capacity=5), 4096, ["5", "4"]),
    "maximum is not <memory>": (dict(), 3072, ["4", "3"]),
}


@pytest.mark.parametrize("row", ROWS)
def test_xml(rig, row):
    values, memory_mib, words = ROWS[row]
    refused_start(rig, rig.domain("bad", memory_mib=memory_mib, metadata=rr_memory(**{**GIB4, **values})), *words)


def test_virsh_create_leaves_nothing(rig):
    domain = rig.domain("bad", metadata=rr_memory(**{**GIB4, "tiers": "hbm"}))
    result = rig.libvirt.virsh_result("create", str(domain.write_xml()))
    assert result.returncode != 0 and "hbm" in result.stderr
    assert rig.libvirt.state("bad") is None and not rig.rmd.not_free()


def test_rmd_not_running(rig):
    rig.rmd.stop()
    line = refused_start(rig, rig.domain("bad"), "/run/rmd/bus")
    assert "rmd" in line
    rig.rmd.start()
    # Once it runs the same domain starts.
    domain = rig.domains[0]
    domain.start()
    domain.wait_ready()


@pytest.mark.parametrize("arguments, word", [
    (["show", "nosuch"], "nosuch"),
    (["resize", "nosuch", "--capacity", "2G"], "nosuch"),
    (["frobnicate"], "frobnicate"),
])
def test_rmctl(rig, arguments, word):
    result = rig.rmd.rmctl(*arguments, check=False)
    assert result.returncode != 0
    assert word in result.stderr and len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_rmctl_without_rmd(rig):
    rig.rmd.stop()
    for verb in (["channels"], ["list"], ["show", "vm1"], ["resize", "vm1", "--capacity", "2G"]):
        result = rig.rmd.rmctl(*verb, check=False)
        assert result.returncode != 0 and "/run/rmd/bus" in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    rig.rmd.start()


def test_resize(rig):
    domain = rig.domain().define().start()
    domain.wait_ready()
    rig.wait_capacity(domain)
    before = rig.check_books(domain)
    for arguments, word in [(["--capacity", "2100M"], "2100"), (["--capacity", "100G"], "100"), (["--capacity", "lots"], "lots"),
                            (["--capacity", "0"], "0"), (["--bandwidth", "9ch"], "9"), (["--bandwidth", "0ch"], "0"),
                            (["--bandwidth", "fast"], "fast"), (["--capacity", "8G"], "8"), ([], "")]:
        result = rig.rmd.rmctl("resize", domain.name, *arguments, check=False)
        assert result.returncode != 0, f"{arguments} was accepted: {result.stdout}"
        assert word in result.stderr and len(result.stderr.strip().splitlines()) == 1, f"{arguments}: {result.stderr}"
    assert rig.check_books(domain) == before
    shown = rig.rmd.manager.domain(domain.name)
    assert shown["capacity-bytes"] == shown["actual-bytes"] == 2 << 30


def test_store_with_too_little_room():
    """6 channels of 1 GiB on a file system of 1 GiB: said at the start of rmd, or of the domain; not a SIGBUS later."""
    with PrivateLibvirt("small_store", store_size="1G") as libvirt:
        rmd = Rmd(libvirt, six_channels("1G"), name="small_store.rmd")
        try:
            with open(rmd.log, "ab") as log:
                rmd.process = libvirt.popen([str(env.program("rmd")), "--config", "/etc/rmd/rmd.conf"],
                                            stdout=log, stderr=log)
            wait.until(lambda: not rmd.is_running() or rmd._answers(), 30, "rmd to answer or to end")
            if not rmd.is_running():
                lines = rmd.log.read_text().strip().splitlines()
                assert rmd.process.returncode != 0 and "/var/lib/rmd/store" in lines[-1]
                return
            rig = Rig(libvirt, rmd)
            refused_start(rig, rig.domain("bad"), "store")
            rig.clean()
        finally:
            rmd.stop()
