# SPDX-License-Identifier: GPL-2.0-or-later
import pathlib
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))

from ramtest import env  # noqa: E402
from ramtest.libvirt import PrivateLibvirt  # noqa: E402
from ramtest.rig import Rig  # noqa: E402
from ramtest.rmd import Rmd, six_channels  # noqa: E402


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item):
    # By hand, a test without its parts is skipped and says what it misses; `make check` names all of them.
    try:
        for name in item.get_closest_marker("needs").args if item.get_closest_marker("needs") else ():
            env.path(name)
    except env.Missing as missing:
        pytest.skip(str(missing))
    yield


@pytest.fixture
def folder():
    """For the files of channels: memory, not disk, and gone with the test."""
    path = tempfile.mkdtemp(prefix="ramtest-", dir="/dev/shm")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def test_name(request):
    return request.node.name.replace("[", "-").replace("]", "").replace("/", "_")


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*variables): RR_* variables that name the parts under test")


@pytest.fixture(scope="module")
def machine(request):
    """Private libvirtd and rmd of one test file."""
    name = pathlib.Path(str(request.fspath)).stem
    with PrivateLibvirt(name, store_size="6G") as libvirt:
        rmd = Rmd(libvirt, six_channels("1G"), name=f"{name}.rmd")
        try:
            rmd.start()
            yield libvirt, rmd
        finally:
            libvirt.destroy_all()
            rmd.stop()


@pytest.fixture
def rig(machine):
    libvirt, rmd = machine
    if not rmd.is_running():
        rmd.start()
    rmd.wait_all_free()
    rig = Rig(libvirt, rmd)
    try:
        yield rig
    finally:
        rig.clean()
    if not rmd.is_running():
        rmd.start()
    rmd.wait_all_free()
