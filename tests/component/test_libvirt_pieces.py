# SPDX-License-Identifier: GPL-2.0-or-later
"""The hook and the shim alone, as libvirt calls them."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from fake_manager import Answer, FakeManager

UUID = "b1f9d6a2-5c0e-4b62-9b0e-0c9aa7a3f1d4"
ELEMENT = "<rr:memory xmlns:rr='urn:ramryder:libvirt:1'><rr:capacity unit='GiB'>4</rr:capacity></rr:memory>"

# Stands in for QEMU: tells what it was started with. (Python itself ignores SIGPIPE, so a shell looks first.)
SHELL = f"""#!/bin/sh
IGNORED=$(sed -n 's/^SigIgn:.//p' /proc/$$/status) exec {sys.executable} "${{0%/*}}/stub.py" "$0" "$@"
"""
STUB = """
import json, os, resource, socket, stat, sys
fds = {}
for fd in range(3, 200):
    try:
        fds[fd] = stat.S_IFMT(os.fstat(fd).st_mode) == stat.S_IFSOCK
    except OSError:
        pass
peers = [socket.socket(fileno=fd).getpeername() for fd, is_socket in fds.items() if is_socket]
print(json.dumps({"argv": sys.argv[1:], "pid": os.getpid(), "fds": fds, "peers": peers, "ignored": os.environ["IGNORED"],
                  "files": resource.getrlimit(resource.RLIMIT_NOFILE)}))
"""


def domain_xml(metadata=ELEMENT, emulator="/usr/bin/qemu-ramryder", memory=8):
    return f"""<domain type='kvm'><name>web1</name><uuid>{UUID}</uuid><metadata>{metadata}</metadata>
<memory unit='GiB'>{memory}</memory><vcpu>2</vcpu><os><type arch='x86_64' machine='pc-q35-10.0'>hvm</type></os>
<devices><emulator>{emulator}</emulator></devices></domain>"""


@pytest.fixture
def fake(tmp_path):
    with FakeManager(tmp_path) as manager:
        yield manager


def run(command, bus, text="", config=None):
    """As libvirt runs them: with next to no environment."""
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "RMD_CONFIG": str(config or "/nonexistent")}
    if bus:
        environment["RMD_BUS"] = str(bus)
    return subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True, timeout=60,
                          check=False, env=environment)


# ---- hook ----

@pytest.fixture
def hook(program, fake):
    def call(operation, sub="begin", text=domain_xml(), bus=None):
        return run([program("rmd-libvirt-hook"), "web1", operation, sub, "-"], bus or fake.socket, text)
    return call


def test_prepare_claims(hook, fake):
    result = hook("prepare")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert fake.called("Claim") == [(domain_xml(),)]


def test_prepare_leaves_other_domains_alone(hook, fake):
    for metadata in ("", "<x:memory xmlns:x='urn:other'/>"):
        result = hook("prepare", text=domain_xml(metadata, "/usr/bin/kvm"))
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not fake.connections


def test_prepare_of_another_domain_needs_no_rmd(hook, tmp_path):
    assert hook("prepare", text=domain_xml(""), bus=tmp_path / "nobody").returncode == 0


def test_prepare_says_what_is_wrong_with_the_xml(hook, fake):
    result = hook("prepare", text=domain_xml(memory=2))
    assert result.returncode == 1
    assert result.stderr == ("ramryder: domain web1: <rr:capacity> is 4 GiB but <memory> is 2 GiB: <memory> is the most that the "
                             "VM may get; raise it, or lower the capacity\n")
    assert not fake.connections


def test_prepare_passes_on_what_rmd_says(hook, fake):
    def refuse(xml):
        raise Answer("NoSpace", "4 GiB asked, 3 GiB are free; stop a VM or ask for less")
    fake.methods["Claim"] = refuse
    result = hook("prepare")
    assert result.returncode == 1
    assert result.stderr == "ramryder: domain web1: 4 GiB asked, 3 GiB are free; stop a VM or ask for less\n"


def test_prepare_without_rmd_fails_closed(hook, tmp_path):
    result = hook("prepare", bus=tmp_path / "nobody")
    assert result.returncode == 1
    assert result.stderr == (f"ramryder: domain web1: cannot reach rmd on the socket {tmp_path}/nobody: nobody listens there; "
                             "start it with: systemctl start rmd\n")


def test_prepare_with_an_rmd_that_hangs(hook, tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "silent"))
        listener.listen()
        begun = time.monotonic()
        result = hook("prepare", bus=tmp_path / "silent")
    assert result.returncode == 1
    assert "no answer within 5 s" in result.stderr
    assert time.monotonic() - begun < 15


def test_release(hook, fake):
    assert hook("release", "end").returncode == 0
    assert fake.called("Release") == [(UUID,)]


def test_release_of_a_domain_that_lost_its_element(hook, fake):
    assert hook("release", "end", domain_xml("")).returncode == 0
    assert fake.called("Release") == [(UUID,)]


def test_release_of_another_domain(hook, fake):
    assert hook("release", "end", domain_xml("", "/usr/bin/kvm")).returncode == 0
    assert not fake.connections


def test_release_never_fails(hook, fake, tmp_path):
    def refuse(uuid):
        raise Answer("Failed", "the ledger is read-only")
    fake.methods["Release"] = refuse
    result = hook("release", "end")
    assert (result.returncode, result.stderr) == (0, "ramryder: domain web1: the ledger is read-only\n")
    assert hook("release", "end", bus=tmp_path / "nobody").returncode == 0
    assert hook("release", "end", text="<domain").returncode == 0


@pytest.mark.parametrize("operation,sub", [("start", "begin"), ("started", "begin"), ("stopped", "end"), ("reconnect", "begin"),
                                           ("migrate", "begin"), ("restore", "begin"), ("attach", "begin"), ("new-thing", "x")])
def test_other_operations_do_nothing(hook, fake, operation, sub):
    result = hook(operation, sub)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not fake.connections


def test_hook_by_hand(program):
    result = run([program("rmd-libvirt-hook")], None)
    assert result.returncode == 2
    assert result.stderr.startswith("Usage: ")


# ---- shim ----

@pytest.fixture
def emulator(tmp_path):
    script = tmp_path / "qemu-fake"
    script.write_text(SHELL)
    (tmp_path / "stub.py").write_text(STUB)
    script.chmod(0o755)
    return script


@pytest.fixture
def config(tmp_path, emulator):
    file = tmp_path / "rmd.conf"
    file.write_text(f"[daemon]\nruntime-dir={tmp_path}/none\n[qemu]\nemulator={emulator}\n")
    return file


@pytest.mark.parametrize("arguments", [
    ["-version"], ["-help"], [],
    ["-S", "-no-user-config", "-nodefaults", "-nographic", "-machine", "none,accel=kvm:tcg", "-qmp", "unix:x,server=on",
     "-pidfile", "x", "-daemonize"],
    ["-name", "-uuid"], ["-uuid"], ["-uuid", "not-one"],
])
def test_probes_pass_straight_through(program, config, emulator, arguments):
    result = run([program("qemu-ramryder"), *arguments], None, config=config)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["argv"] == [str(emulator), *arguments]
    assert said["fds"] == {}


def test_domain_with_a_claim(program, fake, emulator, tmp_path):
    path = tmp_path / "vm.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        fake.methods["Start"] = lambda uuid: (["-object", "channel-manager,id=rr0,fd=@FD@,path=x", "-m", "1G"], str(emulator),
                                              str(path))
        result = run(["prlimit", "--nofile=256:2048", program("qemu-ramryder"), "-name", "guest=web1", "-uuid", UUID.upper(), "-m",
                      "8192"], fake.socket)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    (fd, is_socket), = said["fds"].items()
    assert is_socket and said["peers"] == [str(path)]
    assert said["argv"] == [str(emulator), "-name", "guest=web1", "-uuid", UUID.upper(), "-m", "8192", "-object",
                            f"channel-manager,id=rr0,fd={fd},path=x", "-m", "1G"]
    assert int(said["ignored"], 16) & (1 << 12) == 0, "SIGPIPE is ignored in QEMU"
    assert said["files"] == [2048, 2048], "the soft limit of open files is not raised"
    assert fake.called("Start") == [(UUID,)]


def test_the_process_stays_the_same(program, fake, emulator, tmp_path):
    pids = []
    path = tmp_path / "vm.sock"

    def start(uuid):
        credentials = fake.connections[-1].get_peer_credentials()
        pids.append(credentials.get_unix_pid())
        return ([], str(emulator), str(path))
    fake.methods["Start"] = start
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        result = run([program("qemu-ramryder"), "-uuid", UUID], fake.socket)
    assert pids == [json.loads(result.stdout)["pid"]]


def test_domain_without_a_claim_runs_unchanged(program, fake, config, emulator):
    result = run([program("qemu-ramryder"), "-uuid", UUID, "-m", "8192"], fake.socket, config=config)
    assert json.loads(result.stdout)["argv"] == [str(emulator), "-uuid", UUID, "-m", "8192"]


@pytest.mark.parametrize("case,said", [
    ("no rmd", "cannot reach rmd on the socket {bus}: nobody listens there; start it with: systemctl start rmd"),
    ("refused", "the domain is running already as process 12; stop it first"),
    ("no socket", "cannot connect to rmd's channel socket {tmp}/vm.sock: No such file or directory"),
    ("long socket", "the socket path {long} is longer than 107 bytes; shorten [daemon] runtime-dir in rmd.conf"),
    ("no emulator", "cannot execute {tmp}/nothing: No such file or directory; [qemu] emulator in rmd.conf names the patched QEMU"),
])
def test_shim_errors_are_one_line(program, fake, tmp_path, emulator, case, said):
    long = f"{tmp_path}/{'x' * 110}"
    bus = tmp_path / "nobody" if case == "no rmd" else fake.socket

    def start(uuid):
        if case == "refused":
            raise Answer("Busy", "the domain is running already as process 12; stop it first")
        return ([], str(tmp_path / "nothing" if case == "no emulator" else emulator),
                long if case == "long socket" else str(tmp_path / "vm.sock"))
    fake.methods["Start"] = start
    with socket.socket(socket.AF_UNIX) as listener:
        if case == "no emulator":
            listener.bind(str(tmp_path / "vm.sock"))
            listener.listen()
        result = run([program("qemu-ramryder"), "-uuid", UUID], bus)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == f"qemu-ramryder: {said.format(bus=bus, tmp=tmp_path, long=long)}\n"
