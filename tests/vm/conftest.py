# SPDX-License-Identifier: GPL-2.0-or-later
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))

from ramtest import env  # noqa: E402


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
def test_name(request):
    return request.node.name.replace("[", "-").replace("]", "").replace("/", "_")


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*variables): RR_* variables that name the parts under test")
