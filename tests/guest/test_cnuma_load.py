# SPDX-License-Identifier: GPL-2.0-or-later
"""cnuma-load on the host: its reading of CNUM and SRAT, and that it finds a page that was changed behind its back."""

import json
import pathlib
import re
import struct
import subprocess
import time

import pytest

GIB = 1 << 30
HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    out = tmp_path_factory.mktemp("bin") / "cnuma-load"
    subprocess.run(["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", out, HERE / "cnuma-load.c"], check=True)
    return out


def table(signature, body, revision=1):
    header = signature + struct.pack("<IBB6s8sI4sI", 36 + len(body), revision, 0, b"RAMRYD", b"TEST    ", 1, b"TEST", 1)
    data = bytearray(header + body)
    data[9] = -sum(data) & 0xFF
    return bytes(data)


def cnum(*channels):
    body = struct.pack("<II", len(channels), 56)
    for node, head, base, size in channels:
        body += struct.pack("<IIHBBIIIIIIIQQ", node, head, 0, 0, 0, node, node, node == head, 36000, 36000, 100, 0, base, size)
    return table(b"CNUM", body)


def srat(*ranges):
    body = bytes(12)
    for node, base, size in ranges:
        body += struct.pack("<BBIHQQIIQ", 1, 40, node, 0, base, size, 0, 1, 0)
    return table(b"SRAT", body)


def lookup(program, tmp_path, cnum_bytes, srat_bytes, *addresses):
    (tmp_path / "CNUM").write_bytes(cnum_bytes)
    (tmp_path / "SRAT").write_bytes(srat_bytes)
    return subprocess.run([program, "--map", tmp_path / "CNUM", tmp_path / "SRAT", *map(hex, addresses)],
                          capture_output=True, text=True)


def test_windows_win_and_the_rest_is_base_memory(program, tmp_path):
    c = cnum((0, 0, 4 * GIB, GIB), (1, 0, 5 * GIB, 2 * GIB), (2, 0, 0, 0))
    # The kernel's view of hot-pluggable windows is in SRAT too; here it is even wrong for the second one.
    s = srat((0, 0, GIB), (0, 4 * GIB, 3 * GIB))
    got = lookup(program, tmp_path, c, s, 0, GIB - 1, GIB, 4 * GIB, 5 * GIB - 1, 5 * GIB, 7 * GIB - 1, 7 * GIB)
    assert got.returncode == 0, got.stderr
    assert [line.split()[1] for line in got.stdout.splitlines()] == ["0", "0", "unknown", "0", "0", "1", "1", "unknown"]


@pytest.mark.parametrize("spoil, message", [
    (lambda t: t[:-1] + bytes([t[-1] ^ 1]), "bad checksum"),
    (lambda t: t[:-8], "length"),
    (lambda t: table(b"CNUM", t[36:], revision=2), "unknown revision"),
    (lambda t: table(b"CNUM", t[36:] + bytes(4)), "do not fill"),
    (lambda t: table(b"CNUN", t[36:]), "no such signature"),
])
def test_a_bad_table_is_refused(program, tmp_path, spoil, message):
    got = lookup(program, tmp_path, spoil(cnum((0, 0, 4 * GIB, GIB))), srat(), 0)
    assert got.returncode == 1 and message in got.stderr


def test_a_lost_write_is_found(program, tmp_path):
    sock = tmp_path / "s"
    process = subprocess.Popen([program, "--socket", sock, "--period", "20", "--kind", "shmem", "1"], stderr=subprocess.PIPE, text=True)
    try:
        def ask(command="report"):
            out = subprocess.run([program, "--socket", sock, command], capture_output=True, text=True)
            return json.loads(out.stdout) if out.returncode == 0 else {"passes": 0}

        deadline = time.monotonic() + 20
        while ask()["passes"] < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        before = ask("reset")
        assert before["ready"] and before["verify_errors"] == 0

        # Shared memory is easy to find in the maps, and nothing else of it is shared.
        maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        start = int(re.search(r"^([0-9a-f]+)-[0-9a-f]+ rw-s", maps, re.M)[1], 16)
        with open(f"/proc/{process.pid}/mem", "r+b", buffering=0) as mem:
            mem.seek(start + 7 * 4096)
            mem.write(bytes(4096))
        deadline = time.monotonic() + 20
        while ask().get("verify_errors", 0) == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ask()["verify_errors"] >= 1
        ask("quit")
        assert process.wait(10) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
