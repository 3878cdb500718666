# SPDX-License-Identifier: GPL-2.0-or-later
"""rmctl, the hook and the shim against the real rmd, on a file store and without a guest."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import uuid

import pytest

GIB = 1 << 30
ELEMENT = ("<rr:memory xmlns:rr='urn:ramryder:libvirt:1'><rr:capacity unit='GiB' min='1' max='4'>{capacity}</rr:capacity>"
           "<rr:bandwidth min='1' max='4'>{channels}</rr:bandwidth><rr:placement tiers='{tiers}'/></rr:memory>")


def domain_xml(name="web1", capacity=2, channels=2, tiers="dimm", memory=4):
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, name)
    element = ELEMENT.format(capacity=capacity, channels=channels, tiers=tiers)
    return f"""<domain type='qemu'><name>{name}</name><uuid>{identity}</uuid><metadata>{element}</metadata>
<memory unit='GiB'>{memory}</memory><vcpu>2</vcpu><os><type arch='x86_64' machine='pc-q35-10.0'>hvm</type></os>
<devices><emulator>/usr/bin/qemu-ramryder</emulator></devices></domain>"""


class Host:
    """An rmd of four DIMM channels and one CXL channel of 1 GiB, and programs that talk to it."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        (folder / "store").mkdir()
        lines = ["[daemon]", f"runtime-dir={folder}/run", f"state-dir={folder}/state", "[qemu]", "emulator=/bin/true",
                 "[store test]", "kind=file", f"path={folder}/store"]
        for number, name in enumerate(["dimm0", "dimm1", "dimm2", "dimm3", "cxl0"]):
            lines += [f"[channel {name}]", "store=test", f"tier={name[:-1]}", "socket=0", f"dax={number}", f"channel={number}",
                      "size=1G", "read-bandwidth=36000", "write-bandwidth=36000", "latency=100"]
        self.config = folder / "rmd.conf"
        self.config.write_text("\n".join(lines) + "\n")
        self.environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "RMD_CONFIG": str(self.config)}
        self.log = open(folder / "rmd.log", "w", encoding="utf-8")
        self.process = subprocess.Popen([program("rmd"), "--config", self.config], stdout=self.log, stderr=self.log)
        self.until(lambda: self.rmctl("version").returncode == 0)

    def until(self, condition, seconds=20):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, (self.folder / "rmd.log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.1)

    def run(self, name, *arguments, text=None):
        return subprocess.run([self.program(name), *arguments], input=text, env=self.environment, capture_output=True, text=True,
                              timeout=60, check=False)

    def rmctl(self, *arguments):
        return self.run("rmctl", *arguments)

    def json(self, *arguments):
        result = self.rmctl(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def hook(self, operation, sub, xml, name="web1"):
        return self.run("rmd-libvirt-hook", name, operation, sub, "-", text=xml)

    def free_chunks(self):
        return {channel["name"]: channel["free_chunks"] for channel in self.json("channels")["channels"]}

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.close()


@pytest.fixture
def host(program):
    # Not tmp_path: the path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="rmd-") as folder:
        host = Host(program, pathlib.Path(folder))
        yield host
        host.stop()


def one_line(result, code):
    assert result.returncode == code, result
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


ALL_FREE = {"dimm0": 8, "dimm1": 8, "dimm2": 8, "dimm3": 8, "cxl0": 8}


def test_an_idle_host(host):
    assert host.free_chunks() == ALL_FREE
    assert host.json("list") == {"vms": []}
    assert host.json("jobs") == {"jobs": []}
    assert host.json("version")["rmd"] == host.json("version")["rmctl"]
    assert one_line(host.rmctl("show", "web1"), 3) == "rmctl show: no VM 'web1': rmd holds channels for no VM at all"


def test_claim_and_release(host):
    xml = domain_xml()
    result = host.hook("prepare", "begin", xml)
    assert (result.returncode, result.stderr) == (0, "")
    vm = host.json("show", "web1")
    assert (vm["state"], vm["capacity_bytes"], vm["bandwidth_channels"]) == ("claimed", 2 * GIB, 2)
    held = {channel["name"]: channel["chunks"] for channel in vm["channels"]}
    assert sorted(count for count in held.values() if count) == [8, 8] and sum(held.values()) == 16
    assert sum(host.free_chunks().values()) == 40 - 16
    assert "web1" in host.rmctl("channels").stdout
    assert host.json("list")["vms"] == [vm]
    assert one_line(host.rmctl("show", "wbe1"), 3) == "rmctl show: no VM 'wbe1'; did you mean: web1"
    # Twice is once, whoever asks; what never ran is clean again.
    for _ in range(2):
        assert host.hook("release", "end", xml).returncode == 0
    host.until(lambda: host.free_chunks() == ALL_FREE)
    assert host.json("list") == {"vms": []}


@pytest.mark.parametrize("change,words", [
    (dict(channels=4, tiers="dimm cxl"), None),
    (dict(capacity=64, memory=64), ["64 GiB"]),
    (dict(channels=9), ["9"]),
    (dict(capacity=3, memory=3), ["3 GiB", "4 GiB"]),
])
def test_what_cannot_be_claimed(host, change, words):
    result = host.hook("prepare", "begin", domain_xml(**change))
    if words is None:
        assert result.returncode == 0, result.stderr
        return
    line = one_line(result, 1)
    assert line.startswith("ramryder: domain web1: ")
    for word in words:
        assert word in line
    assert host.free_chunks() == ALL_FREE and host.json("list") == {"vms": []}


def test_the_second_vm_finds_no_channel(host):
    assert host.hook("prepare", "begin", domain_xml(channels=3, capacity=3)).returncode == 0
    free = host.free_chunks()
    line = one_line(host.hook("prepare", "begin", domain_xml("web2", channels=2), "web2"), 1)
    assert line.startswith("ramryder: domain web2: ") and "2" in line
    assert host.free_chunks() == free
    assert [vm["name"] for vm in host.json("list")["vms"]] == ["web1"]


def test_the_shim_without_a_claim(host):
    result = host.run("qemu-ramryder", "-uuid", str(uuid.uuid4()))
    assert (result.returncode, result.stderr) == (0, "")  # /bin/true


def test_a_vm_that_ends_at_once_leaves_nothing(host):
    """The shim becomes /bin/true: it has the channel socket for a moment, as a QEMU that fails at its start."""
    xml = domain_xml()
    assert host.hook("prepare", "begin", xml).returncode == 0
    identity = host.json("show", "web1")["uuid"]
    assert host.run("qemu-ramryder", "-uuid", identity).returncode == 0
    assert host.hook("release", "end", xml).returncode == 0
    host.until(lambda: host.free_chunks() == ALL_FREE)


def test_a_vm_that_does_not_run_is_not_resized(host):
    assert host.hook("prepare", "begin", domain_xml()).returncode == 0
    before = host.json("show", "web1")
    for extra in ([], ["--dry-run"]):
        assert "not running" in one_line(host.rmctl("resize", "web1", "--capacity", "3G", *extra), 1)
    assert host.json("show", "web1") == before


def test_strangers_are_turned_away(host):
    """Not a hang, and not a word of GDBus."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    for folder in (host.folder, host.folder / "run"):
        folder.chmod(0o755)
    (host.folder / "run/bus").chmod(0o666)
    # A copy: the build may lie where a stranger cannot go.
    rmctl = shutil.copy(host.program("rmctl"), host.folder / "rmctl")
    result = subprocess.run([rmctl, "list"], env=host.environment, capture_output=True, text=True, timeout=60,
                            check=False, user=65534, group=65534, extra_groups=[])
    line = one_line(result, 5)
    assert line.startswith(f"rmctl list: cannot reach rmd on the socket {host.folder}/run/bus: ")
    assert line.endswith("only root and rmd's own user may use it")
