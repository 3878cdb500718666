# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU as Debian's libvirt runs it: not as root. It gets fds and its own socket, and nothing else of rmd."""
import os
import pathlib
import pwd
import shutil
import tempfile

import pytest

import ramtest.libvirt
from ramtest import env, wait
from ramtest.libvirt import PrivateLibvirt
from ramtest.rig import Rig
from ramtest.rmd import Rmd, six_channels

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST", "RR_BUILD")

USER = "libvirt-qemu"


@pytest.fixture
def open_parts(monkeypatch):
    """Copies of the parts under test where that user can read them, wherever the build put them."""
    with tempfile.TemporaryDirectory(prefix="ramtest-parts-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        for variable in ("RR_QEMU", "RR_KERNEL", "RR_GUEST"):
            monkeypatch.setenv(variable, str(shutil.copy(env.path(variable), folder / variable.lower())))
        for program in ("rmd", "rmctl", "qemu-ramryder", "rmd-libvirt-hook"):
            shutil.copy(env.program(program), folder / program)
        monkeypatch.setenv("RR_BUILD", name)
        yield folder


@pytest.fixture
def rig(open_parts, monkeypatch):
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        pytest.skip(f"there is no user {USER}")
    monkeypatch.setattr(ramtest.libvirt, "QEMU_CONF", ramtest.libvirt.QEMU_CONF.replace(
        'user = "root"', f'user = "{USER}"').replace('group = "root"', f'group = "+{user.pw_gid}"'))
    with PrivateLibvirt("libvirt_user", store_size="6G") as libvirt:
        os.chown(libvirt.folder, user.pw_uid, user.pw_gid)  # QEMU makes its serial socket there
        rmd = Rmd(libvirt, six_channels("1G"), name="libvirt_user.rmd")
        try:
            rmd.start()
            rig = Rig(libvirt, rmd)
            yield rig
            rig.clean()
        finally:
            libvirt.destroy_all()
            rmd.stop()


def test_a_qemu_that_is_not_root(rig):
    user = pwd.getpwnam(USER)
    domain = rig.domain(maximum=4)
    domain.console = rig.libvirt.folder / "console.log"
    domain.create()
    assert os.stat(f"/proc/{domain.pid}").st_uid == user.pw_uid
    domain.wait_ready()
    rig.wait_capacity(domain)
    rig.rmd.rmctl("resize", domain.name, "--bandwidth", "4ch")
    held = rig.check_books(domain)
    assert sorted(held.values()) == [0, 0, 4, 4, 4, 4]
    # The socket of the domain is its own; the store is closed.
    socket = rig.libvirt.outside(f"/run/rmd/vm/{domain.uuid}.sock")
    assert (socket.stat().st_uid, socket.stat().st_mode & 0o777) == (user.pw_uid, 0o600)
    result = rig.libvirt.run(["setpriv", "--reuid", USER, "--clear-groups", "ls", "/var/lib/rmd/store/dimm0"], check=False)
    assert "Permission denied" in result.stderr
    result = rig.libvirt.run(["setpriv", "--reuid", USER, "--clear-groups", str(env.program("rmctl")), "list"], check=False)
    assert result.returncode == 1
    assert result.stderr == f"rmctl list: user {user.pw_uid} may not call ListDomains: only root and the group ramryder may\n"
    # It finds rmd again as that user.
    rig.rmd.kill()
    rig.rmd.start()
    wait.until(lambda: rig.rmd.manager.domain(domain.name)["ready"], 60, "QEMU to connect again")
    assert rig.check_books(domain) == held
    domain.destroy()
    rig.rmd.wait_all_free()
