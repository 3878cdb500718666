# SPDX-License-Identifier: GPL-2.0-or-later
"""What the host's kernel says about a process: mappings of chunk files, resident pages. Never asks rmd or QEMU."""

import os
import re
import struct
import subprocess

CHUNK = 128 << 20
PAGE = 4096


class Mapping:
    def __init__(self, start, end, permissions, offset, inode, path, rss):
        self.start, self.end, self.permissions = start, end, permissions
        self.offset, self.inode, self.path, self.rss = offset, inode, path, rss

    @property
    def size(self):
        return self.end - self.start

    def __repr__(self):
        return f"{self.start:#x}-{self.end:#x} {self.permissions} {self.path} rss {self.rss}"


def mappings(pid, namespace=None):
    """All mappings of `pid` from smaps; `namespace`: pid of the mount namespace in which the paths make sense."""
    command = ["cat", f"/proc/{pid}/smaps"]
    if namespace:
        command = ["nsenter", "-t", str(namespace), "-m", *command]
    text = subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout
    found = []
    for line in text.splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) \S+ (\d+) *(.*)", line):
            start, end, permissions, offset, inode, path = match.groups()
            found.append(Mapping(int(start, 16), int(end, 16), permissions, int(offset, 16), int(inode), path, 0))
        elif match := re.match(r"Rss: +(\d+) kB", line):
            found[-1].rss = int(match[1]) << 10
    return found


def chunk_mappings(pid, store, namespace=None):
    """Mappings of chunk files: {channel: {chunk: mapped bytes}}. A chunk file is STORE/<channel>/<chunk>…"""
    result = {}
    pattern = re.compile(re.escape(str(store).rstrip("/")) + r"/([^/]+)/(\d+)[^/]*$")
    for mapping in mappings(pid, namespace):
        path = mapping.path.removesuffix(" (deleted)")
        if path.startswith(str(store).rstrip("/") + "/"):
            match = pattern.match(path)
            assert match, f"{mapping}: not the path of a chunk"
            chunks = result.setdefault(match[1], {})
            chunks[int(match[2])] = chunks.get(int(match[2]), 0) + mapping.size
    return result


def resident_bytes(pid, start, size):
    """Bytes of [start, start + size) that are resident or swapped out, from pagemap: exact where mappings are merged."""
    resident = 0
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        at, end = start // PAGE, (start + size) // PAGE
        while at < end:
            count = min(end - at, 1 << 16)
            data = os.pread(pagemap.fileno(), count * 8, at * 8)
            if not data:
                break
            resident += sum(1 for entry in struct.unpack(f"<{len(data) // 8}Q", data) if entry >> 62)
            at += len(data) // 8
    return resident * PAGE


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
