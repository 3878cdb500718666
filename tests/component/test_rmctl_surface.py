# SPDX-License-Identifier: GPL-2.0-or-later
"""Help, man page, completions and the bus contract of rmctl say the same."""
import os
import pathlib
import re
import subprocess

import pytest

from fake_manager import FakeManager

RMD = pathlib.Path(__file__).resolve().parents[2] / "rmd"
# Implied by every verb's common options; bash completes the long spellings only.
COMMON = {"--socket", "--help"}


@pytest.fixture(scope="module")
def help_of(program):
    def ask(*verb):
        return subprocess.run([program("rmctl"), *verb, "--help"], capture_output=True, text=True, check=True).stdout
    return ask


@pytest.fixture(scope="module")
def verbs(help_of):
    """name -> long options, as rmctl itself says."""
    names = re.findall(r"^  (\w+)", help_of().split("Verbs:")[1].split("Options:")[0], re.M)
    assert len(names) >= 6
    return {name: set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", help_of(name), re.M)) for name in names}


def man_text(name):
    return (RMD / "man" / name).read_text(encoding="utf-8").replace("\\-", "-")


def bash(script, **environment):
    return subprocess.run(["bash", "-c", f". {RMD}/data/rmctl.bash; {script}"], capture_output=True, text=True, check=True,
                          env={**os.environ, **environment}).stdout


def complete(program, words, socket=""):
    """What bash offers for the last of `words`."""
    listed = " ".join(f"'{word}'" for word in words)
    script = f"compopt() {{ :; }}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _rmctl; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    path = f"{pathlib.Path(program('rmctl')).parent}:{os.environ['PATH']}"
    return bash(script, PATH=path, RMD_BUS=str(socket)).split()


def test_each_verb_is_in_the_man_page(verbs):
    text = man_text("rmctl.1")
    sections = dict(re.findall(r"^\.SS rmctl (\w+)[^\n]*\n(.*?)(?=^\.S[SH] )", text, re.M | re.S))
    shared = text.split(".SH OPTIONS")[1].split(".SH JSON")[0]
    assert set(sections) == set(verbs)
    for verb, options in verbs.items():
        for option in options:
            assert option in sections[verb] or option in shared, f"{option} of {verb} is not in rmctl(1)"
    for option in re.findall(r"^\.BR? .*?(--[\w-]+)", text.split(".SH VERBS")[1], re.M):
        assert any(option in options for options in verbs.values()) or option == "--version", f"rmctl has no {option}"


def test_each_verb_is_in_the_bash_completion(verbs, program):
    offered = {word for word in complete(program, ["rmctl", ""]) if not word.startswith("-")}
    assert offered == set(verbs)
    for verb, options in verbs.items():
        assert set(complete(program, ["rmctl", verb, "--"])) == options, verb


def test_each_verb_is_in_the_zsh_completion(verbs):
    text = (RMD / "data/rmctl.zsh").read_text(encoding="utf-8")
    for verb, options in verbs.items():
        assert f"'{verb}[" in text and re.search(rf"^(\w+\|)*{verb}(\|\w+)*\)", text, re.M), verb
        for option in options:
            assert option in text, option


def test_columns_are_completed(help_of, program):
    for verb in ("channels", "list", "show", "jobs", "resize"):
        named = re.findall(r"^  [* ] ([A-Z-]+) ", help_of(verb), re.M)
        assert named and complete(program, ["rmctl", verb, "-o", ""]) == named


def test_live_names(tmp_path, program):
    with FakeManager(tmp_path) as fake:
        assert complete(program, ["rmctl", "show", ""], fake.socket) == ["web1", "web2", "db"]
        assert complete(program, ["rmctl", "resize", "w"], fake.socket) == ["web1", "web2"]
        assert complete(program, ["rmctl", "jobs", ""], fake.socket) == ["7"]
        assert complete(program, ["rmctl", "resize", "web1", "--layout", "d"], fake.socket) == ["dimm0=", "dimm1="]
        assert complete(program, ["rmctl", "--socket", str(fake.socket), "show", ""], "/nonexistent") == ["web1", "web2", "db"]
    assert complete(program, ["rmctl", "show", ""], "/nonexistent") == []


def test_exit_codes_are_documented(help_of):
    header = (RMD / "ctl/rmctl.h").read_text(encoding="utf-8")
    codes = set(re.findall(r"^\tRMCTL_\w+ = (\d+),", header, re.M))
    assert codes == set(re.findall(r"^\.B (\d)$", man_text("rmctl.1").split(".SH EXIT STATUS")[1], re.M))
    assert codes == set(re.findall(r"(\d) [a-z]", help_of().split("Exit codes:")[1].split("See")[0]))


def test_columns_exist_on_the_bus():
    contract = (RMD / "dbus/org.ramryder.Manager1.xml").read_text(encoding="utf-8")
    for file in (RMD / "ctl").glob("rmctl-*.c"):
        for key in re.findall(r'^\t\{"[A-Z-]+", "([a-z-]+)", RMCTL_', file.read_text(encoding="utf-8"), re.M):
            assert re.search(rf"\b{key} (s|u|t|i|b|d|x|as)\b|\b{key}, after u", contract), f"{file.name}: {key}"


@pytest.mark.parametrize("page", sorted(p.name for p in (RMD / "man").glob("*.[1-9]")))
def test_man_pages_format_without_a_warning(page):
    result = subprocess.run(["man", "--warnings", "-l", str(RMD / "man" / page)], capture_output=True, text=True, check=True,
                            env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"})
    assert result.stderr == ""
    for name, section in re.findall(r"([\w.-]+)\((\d)\)", result.stdout.split("SEE ALSO")[1].splitlines()[1]):
        assert (RMD / "man" / f"{name}.{section}").exists(), f"{page} refers to {name}({section})"


def test_reconcile_table_is_documented():
    """rmd(8) has the table of the code, word for word."""
    source = (RMD / "lib/rm-reconcile.c").read_text(encoding="utf-8")
    rules = re.findall(r'\[RM_CASE_\w+\] =\s*\{"([^"]+)",\s*RM_ACTION_(\w+),\s*"([^"]+)",\s*"([^"]+)"\}', source)
    assert len(rules) == source.count("[RM_CASE_") - source.count("rules[RM_CASE_N]") and len(rules) > 20
    section = man_text("rmd.8").split(".SH RECONCILING")[1].split(".SH ")[0]
    for name, action, when, then in rules:
        assert f'.BR {name} " ({action.lower().replace("_", "-")})"\n{when[0].upper()}{when[1:]}: {then}.\n' in section, name


def test_example_configuration_names_known_keys_only():
    known = man_text("rmd.conf.5")
    text = (RMD / "data/rmd.conf.example").read_text(encoding="utf-8")
    for key in set(re.findall(r"^([a-z-]+)=", text, re.M)):
        assert re.search(rf"^\.BR? .*\b{key}\b", known, re.M), key
