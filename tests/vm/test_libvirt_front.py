# SPDX-License-Identifier: GPL-2.0-or-later
"""An unpatched libvirtd with our hook and shim, and a manager that answers as the test says: what libvirt asks, in which
order, and how a refusal at each step reaches virsh."""
import os
import pathlib
import socket
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "component"))

from fake_manager import Answer, FakeManager  # noqa: E402
from ramtest import env, wait  # noqa: E402
from ramtest.domain import Domain, rr_memory  # noqa: E402
from ramtest.libvirt import PrivateLibvirt  # noqa: E402

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST", "RR_BUILD")

ELEMENT = rr_memory(512, 256, 512, unit="MiB")
SOCKET = "/run/rmd/vm.sock"


@pytest.fixture(scope="module")
def libvirt():
    with PrivateLibvirt("libvirt_front", store_size="1M") as private:
        private.write("/etc/rmd/rmd.conf", f"[qemu]\nemulator={env.path('RR_QEMU')}\n")
        yield private


@pytest.fixture
def fake(libvirt):
    with FakeManager(libvirt.outside("/run/rmd")) as manager:
        yield manager


@pytest.fixture
def domain(libvirt):
    domain = Domain(libvirt, "front", 512, metadata=ELEMENT).define()
    yield domain
    libvirt.virsh_result("destroy", "front")
    libvirt.virsh_result("undefine", "front")
    domain.close()


def order(fake):
    return [name for name, _ in fake.calls]


def refusal(libvirt, domain):
    """The line with the reason when the domain does not start; nothing of it is left."""
    result = libvirt.virsh_result("start", domain.name)
    assert result.returncode == 1
    first, last = result.stderr.strip().splitlines()
    assert first == f"error: Failed to start domain '{domain.name}'"
    assert libvirt.state(domain.name) == "shut off" and not libvirt.qemu_pids()
    return last


def test_capabilities_need_no_rmd(libvirt):
    text = libvirt.virsh("domcapabilities", "--emulatorbin", str(env.program("qemu-ramryder")), "--virttype", "qemu")
    assert f"<path>{env.program('qemu-ramryder')}</path>" in text
    assert "<machine>pc-q35-" in libvirt.virsh("domcapabilities", "--emulatorbin", str(env.program("qemu-ramryder")),
                                                "--virttype", "qemu", "--machine", "q35")


def test_rmd_is_not_there(libvirt, domain):
    assert refusal(libvirt, domain).endswith(
        "exit status 1: ramryder: domain front: cannot reach rmd on the socket /run/rmd/bus: nobody listens there; start it with: "
        "systemctl start rmd")


def test_rmd_refuses_the_claim(libvirt, domain, fake):
    def refuse(xml):
        raise Answer("NoSpace", "512 MiB asked, 384 MiB are free; stop a VM or ask for less")
    fake.methods["Claim"] = refuse
    assert refusal(libvirt, domain).endswith(
        "exit status 1: ramryder: domain front: 512 MiB asked, 384 MiB are free; stop a VM or ask for less")
    assert "Start" not in order(fake)


def test_rmd_refuses_the_start(libvirt, domain, fake):
    def refuse(uuid):
        raise Answer("Busy", "process 12 runs this domain already; stop it first")
    fake.methods["Start"] = refuse
    assert refusal(libvirt, domain).endswith("qemu-ramryder: process 12 runs this domain already; stop it first")
    assert order(fake) == ["Claim", "Start", "Release"]


def test_a_domains_life(libvirt, domain, fake):
    peers = []

    def start(uuid):
        assert uuid == domain.uuid
        peers.append(fake.connections[-1].get_peer_credentials().get_unix_pid())
        return (["-fw_cfg", "name=opt/org.ramryder.test,string=@FD@"], str(env.path("RR_QEMU")), SOCKET)

    fake.methods["Start"] = start
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(libvirt.outside(SOCKET)))
        listener.listen()
        domain.start()
        connection, _ = listener.accept()
    with connection:
        # The process that asked is QEMU now, with the socket open and our arguments at the end.
        assert peers == [domain.pid]
        assert os.path.samefile(f"/proc/{domain.pid}/exe", env.path("RR_QEMU"))
        arguments = pathlib.Path(f"/proc/{domain.pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
        fd = arguments[-1].rpartition("=")[2]
        assert os.readlink(f"/proc/{domain.pid}/fd/{fd}").startswith("socket:")
        boot = domain.wait_ready()
        libvirt.virsh("reboot", "front")
        wait.until(lambda: domain.wait_ready() != boot, 120, "the second boot")
        assert libvirt.qemu_pid("front") == domain.pid
        assert "tainted: custom" not in libvirt.virsh("dominfo", "front")
        libvirt.virsh("shutdown", "front")
        domain.wait_gone()
        assert connection.recv(1) == b""
    libvirt.outside(SOCKET).unlink()
    assert order(fake) == ["Claim", "Start", "Release"]
    assert fake.called("Release") == [(domain.uuid,)]


def test_without_a_claim_the_shim_is_plain_qemu(libvirt, domain, fake):
    domain.metadata = None
    domain.define().start()
    assert order(fake) == ["Start"]
    domain.wait_ready()
    libvirt.virsh("destroy", "front")
    domain.wait_gone()
    assert order(fake) == ["Start", "Release"]


def test_restarting_libvirtd_harms_nobody(libvirt, domain, fake):
    domain.start()
    domain.wait_ready()
    libvirt.stop_daemon()
    fake.calls.clear()
    libvirt.start_daemon()
    assert libvirt.state("front") == "running" and order(fake) == []
    domain.destroy()
    assert order(fake) == ["Release"]
