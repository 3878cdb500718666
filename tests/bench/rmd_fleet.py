#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A thousand fake hypervisors in one process: only hello and answers of the channel RPC, no memory behind it.

	rmd_fleet.py RUNTIME_DIR BASE_CHUNKS WINDOW_CHUNKS

Prints "PID START"; reads on stdin the lines that `bench-rmd-ledger fill` prints and an empty line; prints "ready". Then it
connects to the socket of every domain as soon as that listens, says hello with all that the domain holds, and connects
again whenever the connection ends. It never asks for anything: what it holds is what the ledger says.
"""
import json
import os
import selectors
import socket
import sys
import time

CHUNK = 128 << 20


def start_time(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[19]


def hello(uuid, held, base_chunks, window_chunks):
    regions = {}
    for word in held:
        channel, chunk, base = word.split(":")
        regions.setdefault((channel, base == "1"), []).append(int(chunk))
    for channel in {c for c, _ in regions}:
        regions.setdefault((channel, False), [])
    message = {"type": "hello", "seq": 1, "version": 1, "uuid": uuid, "ready": True, "regions": [
        {"channel": channel, "base": base, "size": (base_chunks if base else window_chunks) * CHUNK,
         "requested": len(chunks) * CHUNK, "plugged": len(chunks) * CHUNK,
         "chunks": [{"chunk": c, "block": b} for b, c in enumerate(chunks)]}
        for (channel, base), chunks in regions.items()]}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def main():
    runtime, base_chunks, window_chunks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(os.getpid(), start_time(os.getpid()), flush=True)
    waiting, hellos = [], {}
    for line in sys.stdin:
        words = line.split()
        if not words:
            break
        path = f"{runtime}/vm/{words[0]}.sock"
        hellos[path] = hello(words[0], words[1:], base_chunks, window_chunks)
        waiting.append(path)
    print("ready", flush=True)
    selector = selectors.DefaultSelector()
    out = {}
    while True:
        still = []
        for path in waiting:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.setblocking(False)
            try:
                s.connect(path)
            except OSError:
                s.close()
                still.append(path)
                # They are listened to in one go: who is not ready yet, is it for all.
                if len(still) > 8:
                    still += waiting[waiting.index(path) + 1:]
                    break
                continue
            data = hellos[path]
            sent = s.send(data)
            out[s] = data[sent:]
            selector.register(s, selectors.EVENT_READ | (selectors.EVENT_WRITE if out[s] else 0), path)
        waiting = still
        for key, events in selector.select(0.005 if waiting else None):
            s = key.fileobj
            try:
                if events & selectors.EVENT_WRITE:
                    out[s] = out[s][s.send(out[s]):]
                    if not out[s]:
                        selector.modify(s, selectors.EVENT_READ, key.data)
                if events & selectors.EVENT_READ:
                    data = s.recv(65536)
                    if not data:
                        raise ConnectionResetError
                    for line in data.splitlines():
                        print(f"unexpected request: {line[:200]!r}", file=sys.stderr, flush=True)
            except OSError:
                selector.unregister(s)
                out.pop(s)
                s.close()
                waiting.append(key.data)
        if waiting:
            time.sleep(0.002)


main()
