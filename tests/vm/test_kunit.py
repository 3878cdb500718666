# SPDX-License-Identifier: GPL-2.0-or-later
"""The KUnit suites of the Linux series, run inside the test guest's kernel."""
import re

import pytest

from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")


def test_kunit(test_name):
    with Guest(["-m", "512M", "-smp", "2"], append="kunit.enable=1 kunit.filter_glob=cnuma*", name=test_name) as guest:
        guest.wait_ready()
        log = guest.run("dmesg")
    cases = re.findall(r"(ok|not ok) \d+ (cnuma\w*)\s*$", log, re.M)
    assert cases, "no KUnit suite of the series has run"
    assert all(verdict == "ok" for verdict, _ in cases), log[-6000:]
    assert not re.search(r"not ok \d+", log), log[-6000:]
