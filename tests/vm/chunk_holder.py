# SPDX-License-Identifier: GPL-2.0-or-later
"""A process with QEMU's user that does not let go: maps the file behind another process's mapping and keeps it.

usage: chunk_holder.py /proc/PID/map_files/START-END
Commands on stdin, one JSON answer each: `map` (first bytes through the mapping), `fd` (through the descriptor),
`beyond` (grow the mapping by mremap and touch what is behind the chunk). An access that is a SIGBUS is answered as
{"signal": 7}; it happens in a child, so that the holder lives on.
"""

import ctypes
import json
import mmap
import os
import sys

CHUNK = 128 << 20
MREMAP_MAYMOVE = 1

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]


def in_child(action):
    """Run `action` in a child; what it returns (bytes), or the signal that killed it."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        os.write(write_end, action())
        os._exit(0)
    os.close(write_end)
    data = b""
    while block := os.read(read_end, 1 << 16):
        data += block
    os.close(read_end)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"exit": os.WEXITSTATUS(status), "data": data.hex(), "zero": not any(data)}


def main():
    fd = os.open(sys.argv[1], os.O_RDWR)
    address = libc.mmap(None, CHUNK, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())

    def everywhere():
        return b"".join(ctypes.string_at(address + at, 8) for at in range(0, CHUNK, 1 << 20))

    def beyond():
        grown = libc.mremap(address, CHUNK, 2 * CHUNK, MREMAP_MAYMOVE)
        if grown == ctypes.c_void_p(-1).value:
            return b"refused"
        return ctypes.string_at(grown + CHUNK, 8)

    def descriptor():
        return b"".join(os.pread(fd, 8, at) for at in range(0, CHUNK, 1 << 20))

    actions = {"map": everywhere, "fd": descriptor, "beyond": beyond}
    print(json.dumps({"size": os.fstat(fd).st_size, "inode": os.fstat(fd).st_ino}), flush=True)
    for line in sys.stdin:
        print(json.dumps(in_child(actions[line.strip()])), flush=True)


main()
