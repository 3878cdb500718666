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
CCACHE = "ccache " if shutil.which("ccache") else ""
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


def kernel(tree, folder, fragment, *options):
    """Configures and builds a kernel of the tree below tree/folder; returns the bzImage."""
    make = ("make", "-s", "-C", tree, f"O={folder}", f"CC={CCACHE}gcc")
    run(*make, "allnoconfig", f"KCONFIG_ALLCONFIG={fragment}")
    if options:
        run(tree / "scripts/config", "--file", tree / folder / ".config", *options)
        run(*make, "olddefconfig")
    run(*make, f"-j{JOBS}", "bzImage")
    return tree / folder / "arch/x86/boot/bzImage"


def test_every_linux_prefix_builds_and_boots():
    tree = worktree("linux")
    for commit in prefixes("linux"):
        run("git", "-C", tree, "checkout", "-q", commit)
        image = kernel(tree, "b", TOP / "linux-patches/config.fragment")
        run("/usr/bin/python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", TOP / "tests/vm/test_boot.py",
            env=dict(os.environ, RR_KERNEL=str(image)))


@pytest.mark.parametrize("shift", ["6", "10"])
def test_linux_builds_with_nodes_shift(shift):
    tree = worktree("linux")
    run("git", "-C", tree, "checkout", "-q", prefixes("linux")[-1])
    kernel(tree, f"shift{shift}", TOP / "linux-patches/config.fragment", "--set-val", "NODES_SHIFT", shift)
    assert f"CONFIG_NODES_SHIFT={shift}\n" in (tree / f"shift{shift}/.config").read_text()


def debugging_kernel():
    """lockdep + KASAN + DEBUG_VM + PAGE_POISONING"""
    tree = worktree("linux")
    run("git", "-C", tree, "checkout", "-q", prefixes("linux")[-1])
    fragment = BUILD / "debug.config"
    fragment.write_text((TOP / "linux-patches/config.fragment").read_text()
                        + (TOP / "linux-patches/debug.fragment").read_text())
    image = kernel(tree, "debug", fragment)
    # EXPERT asks for what is on without it: SWAP once was off in silence.
    config = (tree / "debug/.config").read_text().splitlines()
    missing = [line for line in fragment.read_text().splitlines() if line.startswith("CONFIG_") and line not in config]
    assert not missing, f"options that did not take: {missing}"
    return image


def test_guests_on_a_debugging_kernel():
    """The VM tests that plug, move and unplug pages: no splat on any console."""
    image = debugging_kernel()
    logs = BUILD / "test-logs/debug"
    shutil.rmtree(logs, ignore_errors=True)
    env = dict(os.environ, RR_KERNEL=str(image), RR_LOGS=str(logs), RR_SLOW="4", RR_BASE_MIB="1536")
    run("/usr/bin/python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", TOP / "tests/vm/test_boot.py",
        TOP / "tests/vm/test_channels_static.py", TOP / "tests/vm/test_abi.py", env=env)
    consoles = list(logs.glob("*.console.log"))
    assert consoles
    for console in consoles:
        text = console.read_text(errors="replace")
        for splat in SPLATS:
            assert splat not in text, f"{console.name}: {text[text.index(splat) - 200:][:3000]}"


def test_kernel_soak():
    """2,000 cycles (RR_SOAK_CYCLES) of everything at once, a guest for each 100; BENCH_SEED= repeats one of them."""
    image = debugging_kernel()
    cycles = 1 if "BENCH_SEED" in os.environ else int(os.environ.get("RR_SOAK_CYCLES", "2000"))
    env = dict(os.environ, RR_KERNEL=str(image), RR_SLOW=os.environ.get("RR_SLOW", "6"), RR_BASE_MIB="1536",
               PYTHONPATH=str(TOP / "tests/harness"))
    run("/usr/bin/python3", "-m", "ramtest.soak", str(cycles), BUILD / "bench/kernel-soak.log", env=env)


def qemu(tree, folder, *options, targets):
    """Configures QEMU below tree/folder, once, and builds the targets; returns the folder."""
    path = run(TOP / "tools/build", "meson-path").strip()
    env = dict(os.environ, CCACHE_NOHASHDIR="1")
    if path:
        env["PYTHONPATH"] = path
    build = tree / folder
    build.mkdir(exist_ok=True)
    if not (build / "build.ninja").exists():
        run("../configure", "--python=/usr/bin/python3", f"--cc={CCACHE}gcc", *run(TOP / "tools/build", "qemu-options").split(),
            *options, cwd=build, env=env)
    run("ninja", "-C", build, "-j", JOBS, *targets, env=env)
    return build


def test_every_qemu_prefix_builds():
    tree = worktree("qemu")
    for commit in prefixes("qemu"):
        run("git", "-C", tree, "checkout", "-q", commit)
        qemu(tree, "b", targets=["qemu-system-x86_64"])


def test_qemu_under_sanitizers():
    tree = worktree("qemu")
    run("git", "-C", tree, "checkout", "-q", prefixes("qemu")[-1])
    tests = ["numa-test", "numa-channel-test", "channel-test"]
    build = qemu(tree, "asan", "--enable-asan", "--enable-ubsan",
                 targets=["qemu-system-x86_64", *(f"tests/qtest/{t}" for t in tests)])
    # libqtest takes the name of a program, not arguments; machines with default devices want boot ROMs.
    program = build / "qemu-with-roms"
    program.write_text(f'#!/bin/sh\nexec {build}/qemu-system-x86_64 -L /usr/share/qemu -L /usr/share/seabios -L /usr/lib/ipxe/qemu "$@"\n')
    program.chmod(0o755)
    env = dict(os.environ, QTEST_QEMU_BINARY=str(program), ASAN_OPTIONS="detect_leaks=0",
               UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1", G_TEST_SRCDIR=str(BUILD), PYTHON="/usr/bin/python3")
    for test in tests:
        run(build / "tests/qtest" / test, "--tap", "-k", env=env)
