# SPDX-License-Identifier: GPL-2.0-or-later
"""Without a table the kernel behaves as without the series: the mm kselftests say the same on both; and with channels."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))

from ramtest import env, wait  # noqa: E402
from ramtest.channels import MIB, StaticChannels  # noqa: E402
from ramtest.guest import Guest  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = TOP / "build"

# Those that need no more than a small guest has, with sources other than their own and vm_util.c.
TESTS = {"compaction_test": [], "cow": ["thp_settings.c"], "gup_longterm": [], "hugepage-mmap": [], "hugepage-mremap": [],
         "hugepage-shm": [], "hugepage-vmemmap": [], "hugetlb-madvise": [], "hugetlb_dio": [], "hugetlb_fault_after_madv": [],
         "hugetlb_madv_vs_map": [], "khugepaged": ["thp_settings.c"], "ksm_functional_tests": [], "madv_populate": [],
         "map_fixed_noreplace": [], "map_hugetlb": [], "map_populate": [], "mdwe_test": [], "mkdirty": [], "mlock2-tests": [],
         "mrelease_test": [], "mremap_dontunmap": [], "mremap_test": [], "mseal_test": [], "pagemap_ioctl": [], "soft-dirty": ["thp_settings.c"],
         "split_huge_page_test": [], "thuge-gen": [], "transhuge-stress": [], "uffd-unit-tests": ["uffd-common.c"]}
ARGUMENTS = {"khugepaged": "all:anon", "transhuge-stress": "-d 20", "mremap_test": "-t 0"}
SECONDS = 240


def build(folder):
    """-> an archive of the tests in /kselftests. A test of the kernel's tree that does not build is an error."""
    tree = BUILD / "linux"
    source, root = tree / "tools/testing/selftests/mm", folder / "root"
    (root / "kselftests").mkdir(parents=True)
    subprocess.run([TOP / "tools/patches", "tree", "linux"], check=True)
    # The kernel's own makefile finds out what the libraries can; here they can nothing.
    (folder / "local_config.h").write_text("")
    subprocess.run(["make", "-s", "-C", tree, "O=b", "headers"], check=True)
    for name, more in TESTS.items():
        subprocess.run(["gcc", "-O2", "-w", "-static", "-pthread", "-D_GNU_SOURCE=", "-U_FORTIFY_SOURCE",
                        "-isystem", tree / "b/usr/include", "-I", tree, "-I", tree / "tools/include", "-I", folder,
                        "-include", source / "../kselftest.h", "-o", root / "kselftests" / name,
                        source / f"{name}.c", source / "vm_util.c", *(source / file for file in more), "-lrt", "-lm"], check=True)
    archive = folder / "kselftests.cpio"
    names = "kselftests\n" + "".join(f"kselftests/{name}\n" for name in TESTS)
    with open(archive, "wb") as out:
        subprocess.run(["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"], input=names.encode(), stdout=out, cwd=root, check=True)
    return archive


def verdicts(result):
    """What a test said, without what differs from run to run: its exit code, and how often it said what."""
    counts = {}
    for verdict in re.findall(r"^(ok|not ok)\b.*?(# SKIP|# XFAIL|$)", result.output, re.M):
        key = " ".join(verdict).strip()
        counts[key] = counts.get(key, 0) + 1
    return {"exit": result.code, **counts}


def run(guest):
    """-> {test: verdicts}"""
    guest.run("dmesg -n 1; echo 64 >/proc/sys/vm/nr_hugepages; mkdir -p /dev/hugepages; "
              "mount -t hugetlbfs none /dev/hugepages; echo always >/sys/kernel/mm/transparent_hugepage/enabled")
    found, said = {}, {}
    for name in TESTS:
        result = guest.try_run(f"cd /kselftests; timeout {int(SECONDS * wait.SLOW)} ./{name} {ARGUMENTS.get(name, '')} 2>&1", SECONDS + 60)
        found[name], said[name] = verdicts(result), result.output
    guest.run("dmesg | grep -E 'BUG:|WARNING:|Oops' && exit 1 || exit 0")
    return found, said


@pytest.fixture(scope="module")
def results():
    """The three runs; what each test printed stays in build/test-logs/kselftests."""
    for name in ("RR_QEMU", "RR_KERNEL", "RR_KERNEL_STOCK", "RR_GUEST"):
        env.path(name)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ramtest-", dir="/dev/shm"))
    logs = env.logs() / "kselftests"
    try:
        archive = build(folder)
        channels = StaticChannels(folder, dimms=3, plugged_mib={"dimm1": 512, "dimm2": 512}, base_mib=1024)
        plain = ["-smp", "2", "-m", "2G"]
        found = {}
        for kind, kernel, arguments in (("stock", "RR_KERNEL_STOCK", plain), ("no table", "RR_KERNEL", plain),
                                        ("channels", "RR_KERNEL", channels.arguments())):
            with Guest(arguments, kernel=env.path(kernel), name=f"kselftests-{kind.replace(' ', '-')}", archives=[archive]) as guest:
                guest.wait_ready()
                if kind == "channels":
                    for name, mib in channels.plugged_mib.items():
                        wait.until(lambda name=name, mib=mib: channels.plugged_bytes(guest, name) == mib * MIB, 120, f"{name} plugged")
                found[kind], said = run(guest)
            (logs / kind).mkdir(parents=True, exist_ok=True)
            for name, text in said.items():
                (logs / kind / name).write_text(text)
        (logs / "verdicts.json").write_text(json.dumps(found, indent=1))
        yield found
    finally:
        shutil.rmtree(folder)


def differences(found, kind):
    return {name: (found["stock"][name], found[kind][name]) for name in TESTS if found["stock"][name] != found[kind][name]}


def test_they_test_something(results):
    """On the stock kernel most of them pass: else equal verdicts would mean nothing."""
    passed = [name for name, said in results["stock"].items() if said["exit"] == 0]
    assert len(passed) >= len(TESTS) * 2 // 3, results["stock"]


def test_no_table_is_stock(results):
    assert not differences(results, "no table")


def test_channels_are_stock(results):
    assert not differences(results, "channels")
