# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs of rmd, tried without a guest."""
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "harness")]

from ramtest import env  # noqa: E402


@pytest.fixture(scope="session")
def program():
    """program("rmctl") is the path of a built program; by hand, without RR_BUILD, the test is skipped."""
    def find(name):
        try:
            return str(env.program(name))
        except env.Missing as missing:
            pytest.skip(str(missing))
    return find


def make_rmd(folder):
    from rmdtest import Rmd, find_rmd
    path = find_rmd()
    if not path:
        pytest.skip("no rmd: RR_BUILD is not set and build/rmd has none")
    return Rmd(folder, path)


@pytest.fixture
def rmd(tmp_path):
    """A running rmd with four DIMM channels of 24 chunks and a CXL channel of 32."""
    daemon = make_rmd(tmp_path)
    daemon.configure({"dimm0": ("dimm", 24), "dimm1": ("dimm", 24), "dimm2": ("dimm", 24),
                      "dimm3": ("dimm", 24), "cxl0": ("cxl", 32)})
    daemon.start()
    yield daemon
    daemon.close()


@pytest.fixture
def stopped_rmd(tmp_path):
    """One that the test configures and starts itself."""
    daemon = make_rmd(tmp_path)
    yield daemon
    daemon.close()
