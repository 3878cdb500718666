# SPDX-License-Identifier: GPL-2.0-or-later
"""What must hold for the repository itself, whatever it builds."""
import pathlib
import re
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]


def tracked():
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=TOP, check=True,
                         capture_output=True, text=True).stdout
    return [TOP / name for name in out.split("\0") if name and (TOP / name).is_file()]


def text_of(path):
    return path.read_text(encoding="utf-8", errors="strict")


FILES = tracked()


def test_every_file_names_its_licence():
    bad = [str(f.relative_to(TOP)) for f in FILES
           if f.parent.name != "LICENSES" and f.suffix not in (".patch", ".bin")
           and f.name != "series" and "SPDX-License-Identifier:" not in "\n".join(text_of(f).splitlines()[:12])]
    assert not bad, f"no SPDX-License-Identifier in the first lines of: {bad}"


def test_licences_are_there():
    used = set()
    for f in FILES:
        if f.parent.name != "LICENSES" and f.suffix != ".bin":
            used |= set(re.findall(r"^\W*SPDX-License-Identifier: (GPL-2\.0-(?:only|or-later))\b", text_of(f), re.M))
    for name in used:
        assert (TOP / "LICENSES" / f"{name}.txt").exists(), f"LICENSES/{name}.txt is missing"


def test_no_path_of_a_machine():
    pattern = re.compile(r"(?<![\w.$}])/(?:work|root|home/\w+)/")
    bad = [f"{f.relative_to(TOP)}: {line.strip()}" for f in FILES
           if f.suffix in (".md", ".sh", ".py", ".c", ".h", ".patch") or f.name in ("Makefile", "patches", "build", "run")
           for line in text_of(f).splitlines() if pattern.search(line) and f != pathlib.Path(__file__).resolve()]
    assert not bad, bad


def test_nothing_large_or_binary():
    for f in FILES:
        assert f.stat().st_size < 1_000_000, f"{f} is large"
        assert b"\0" not in f.read_bytes(), f"{f} is binary"


@pytest.mark.parametrize("target", ["qemu", "linux"])
def test_series_names_each_patch(target):
    folder = TOP / f"{target}-patches"
    named = [line for line in text_of(folder / "series").splitlines() if line and not line.startswith("#")]
    there = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.patch"))
    assert sorted(named) == there
    assert len(named) == len(set(named))


def test_shell_scripts_parse():
    for f in FILES:
        if f.suffix != ".patch" and text_of(f).startswith(("#!/usr/bin/env bash", "#!/bin/bash", "#!/bin/sh")):
            subprocess.run(["bash", "-n", str(f)], check=True)


def test_readme_names_the_two_commands():
    readme = text_of(TOP / "README.md")
    for command in ("make demo", "make check"):
        assert command in readme


def test_bare_make_explains_itself():
    out = subprocess.run(["make", "-s"], cwd=TOP, check=True, capture_output=True, text=True).stdout
    for target in ("demo", "check", "check-all", "bench", "paths"):
        assert f"make {target}" in out


def test_patches_refuses_nonsense():
    for argv in ([], ["frobnicate"], ["tree"], ["tree", "windows"]):
        run = subprocess.run([TOP / "tools/patches", *argv], check=False, capture_output=True, text=True)
        assert run.returncode == 1 and "Usage:" in run.stderr, argv
