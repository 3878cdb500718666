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
