# SPDX-License-Identifier: GPL-2.0-or-later
"""The long campaigns of make check-all: sanitizer builds, a debugging kernel, every prefix of both series."""
import os
import pathlib
import shutil
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = TOP / "build"
JOBS = os.environ.get("JOBS", str(os.cpu_count()))
SPLATS = ("BUG:", "WARNING:", "KASAN:", "possible circular locking", "INFO: task")


def run(*argv, **kw):
    """Runs argv; its output is in the assertion when it fails."""
    done = subprocess.run([str(a) for a in argv], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **kw)
    assert done.returncode == 0, f"{argv}: exit code {done.returncode}\n{done.stdout[-8000:]}"
    return done.stdout


def worktree(target):
    """A worktree of the patch tree, at its base."""
    run(TOP / "tools/patches", "tree", target)
    path = BUILD / f"campaign-{target}"
    if not path.exists():
        run("git", "-C", BUILD / target, "worktree", "add", "--detach", path, "base")
    return path


def prefixes(target):
    return run("git", "-C", BUILD / target, "rev-list", "--reverse", "base..series").split()


def test_rmd_under_sanitizers():
    build = BUILD / "rmd-asan"
    if not (build / "build.ninja").exists():
        run("meson", "setup", build, TOP / "rmd", "-Db_sanitize=address,undefined", "-Db_lundef=false")
    run("ninja", "-C", build, "-j", JOBS)
    env = dict(os.environ, ASAN_OPTIONS="detect_leaks=1", UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1",
               RR_BUILD=str(build))
    run("meson", "test", "-C", build, "--print-errorlogs", env=env)
    run("/usr/bin/python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", TOP / "tests/component", env=env)


def test_every_linux_prefix_builds():
    tree = worktree("linux")
    for commit in prefixes("linux"):
        run("git", "-C", tree, "checkout", "-q", commit)
        run("make", "-s", "-C", tree, "O=b", "allnoconfig", f"KCONFIG_ALLCONFIG={TOP}/linux-patches/config.fragment")
        run("make", "-s", "-C", tree, "O=b", f"-j{JOBS}", "bzImage")


@pytest.mark.parametrize("shift", ["6", "10"])
def test_linux_builds_with_nodes_shift(shift):
    tree = worktree("linux")
    run("git", "-C", tree, "checkout", "-q", prefixes("linux")[-1])
    run("make", "-s", "-C", tree, "O=b", "allnoconfig", f"KCONFIG_ALLCONFIG={TOP}/linux-patches/config.fragment")
    run(tree / "scripts/config", "--file", tree / "b/.config", "--set-val", "NODES_SHIFT", shift)
    run("make", "-s", "-C", tree, "O=b", "olddefconfig")
    run("make", "-s", "-C", tree, "O=b", f"-j{JOBS}", "mm/", "drivers/acpi/numa/", "drivers/base/", "kernel/cgroup/")


def test_guests_on_a_debugging_kernel():
    """The VM tests that plug, move and unplug pages, on lockdep + KASAN + DEBUG_VM: no splat on any console."""
    tree = worktree("linux")
    run("git", "-C", tree, "checkout", "-q", prefixes("linux")[-1])
    fragment = BUILD / "debug.config"
    fragment.write_text((TOP / "linux-patches/config.fragment").read_text()
                        + (TOP / "linux-patches/debug.fragment").read_text())
    run("make", "-s", "-C", tree, "O=debug", "allnoconfig", f"KCONFIG_ALLCONFIG={fragment}")
    run("make", "-s", "-C", tree, "O=debug", f"-j{JOBS}", "bzImage")
    logs = BUILD / "test-logs/debug"
    shutil.rmtree(logs, ignore_errors=True)
    env = dict(os.environ, RR_KERNEL=str(tree / "debug/arch/x86/boot/bzImage"), RR_LOGS=str(logs), RR_SLOW="4")
    run("/usr/bin/python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", TOP / "tests/vm/test_boot.py",
        TOP / "tests/vm/test_channels_static.py", env=env)
    consoles = list(logs.glob("*.console.log"))
    assert consoles
    for console in consoles:
        text = console.read_text(errors="replace")
        for splat in SPLATS:
            assert splat not in text, f"{console.name}: {text[text.index(splat) - 200:][:3000]}"


def test_every_qemu_prefix_builds():
    tree = worktree("qemu")
    path = run(TOP / "tools/build", "meson-path").strip()
    env = dict(os.environ, PYTHONPATH=path) if path else dict(os.environ)
    options = run(TOP / "tools/build", "qemu-options").split()
    (tree / "b").mkdir(exist_ok=True)
    for commit in prefixes("qemu"):
        run("git", "-C", tree, "checkout", "-q", commit)
        if not (tree / "b/build.ninja").exists():
            run("../configure", "--python=/usr/bin/python3", *options, cwd=tree / "b", env=env)
        run("ninja", "-C", tree / "b", "-j", JOBS, "qemu-system-x86_64", env=env)


def test_qemu_under_sanitizers():
    tree = worktree("qemu")
    path = run(TOP / "tools/build", "meson-path").strip()
    env = dict(os.environ, PYTHONPATH=path) if path else dict(os.environ)
    options = run(TOP / "tools/build", "qemu-options").split()
    run("git", "-C", tree, "checkout", "-q", prefixes("qemu")[-1])
    (tree / "asan").mkdir(exist_ok=True)
    if not (tree / "asan/build.ninja").exists():
        run("../configure", "--python=/usr/bin/python3", *options, "--enable-asan", "--enable-ubsan",
            cwd=tree / "asan", env=env)
    tests = ["numa-test", "numa-channel-test", "channel-test"]
    run("ninja", "-C", tree / "asan", "-j", JOBS, "qemu-system-x86_64", *(f"tests/qtest/{t}" for t in tests), env=env)
    env.update(QTEST_QEMU_BINARY=str(tree / "asan/qemu-system-x86_64"), ASAN_OPTIONS="detect_leaks=0",
               UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")
    for test in tests:
        run(tree / "asan/tests/qtest" / test, "--tap", "-k", env=env)
