#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A campaign against QEMU's channel memory: random requests of the manager and of the guest, right and wrong ones, and a
manager that dies at random. After each operation four books are compared:

  model    what must be by the protocol (sizes, plugged blocks, number of chunks, each answer)
  manager  what the manager knows from the messages alone (hello, released, progress)
  QEMU     query-memory-channels
  kernel   /proc/PID/maps (each chunk mapped exactly once, where QEMU says), /proc/PID/fd, and what the guest has written

An episode is one QEMU and one seed; it does the same again with the same seed.
Usage: qemu_fuzz.py [--seed N] [--ops N] [--episode-ops N]   (the QEMU is the one of RR_QEMU)
"""

import argparse
import collections
import os
import pathlib
import random
import re
import select
import shutil
import socket
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))

from ramtest import channel_manager, qtest  # noqa: E402
from ramtest.channel_manager import CHUNK  # noqa: E402

MIB = 1 << 20
USABLE_EXTENT = 256 * MIB           # how much more than requested virtio-mem lets a guest use
SETTLE_SECONDS = 5                  # for what QEMU does later: RCU, the thread that connects, progress of a guest that rests
LONGEST_LINE = MIB
BASE_CHUNKS = 2
WINDOWS = {"dimm0": 6, "dimm1": 16, "cxl0": 9}      # channel -> blocks
FIRST_SLOT = 0x1C


class Difference(AssertionError):
    """Two books differ, or an answer is not the one of the protocol."""


class File:
    """A file of the store; chunks: {offset in it: chunk number}."""

    def __init__(self, path, chunks):
        self.path, self.chunks = path, dict(chunks)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(self.fd, max(self.chunks, default=0) + CHUNK)
        self.inode = os.fstat(self.fd).st_ino

    def take_back(self):
        """As rmd does it: whoever still uses the memory gets SIGBUS."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)
        os.unlink(self.path)


class Window:
    """One region: the model, and the manager's book of it."""

    def __init__(self, channel, blocks):
        self.channel, self.blocks = channel, blocks
        self.requested = 0                  # in chunks, as all below
        self.plugged = set()
        self.usable = 0
        self.granted = 0
        self.book = {}                      # the manager's: chunk -> (file, offset)
        self.heard = {"requested": 0, "plugged": 0}
        self.at = {}                        # QEMU's, after the last operation: chunk in use -> block
        self.tags = {}                      # block -> what the guest has written there
        self.seen, self.since = 0, 0        # how many blocks were plugged after the last operation, and since when

    def free(self):
        return self.granted - len(self.plugged)

    def unplug(self, blocks):
        self.plugged -= set(blocks)
        for block in blocks:
            self.tags.pop(block, None)
        self.granted -= min(len(blocks), max(0, self.granted - self.requested))

    def resize(self, requested):
        less = requested < self.requested
        self.requested = requested
        usable = min(self.blocks, requested + USABLE_EXTENT // CHUNK) if requested else 0
        self.usable = max(self.usable, usable)
        if less:
            self.granted -= max(0, self.granted - max(requested, len(self.plugged)))

    def unplug_all(self):
        if self.plugged:
            self.unplug(list(self.plugged))
        self.usable = min(self.blocks, self.requested + USABLE_EXTENT // CHUNK) if self.requested else 0


class Episode:
    def __init__(self, qemu, seed, ops, log, folder):
        self.binary, self.seed, self.ops, self.log = qemu, seed, ops, log
        self.folder = pathlib.Path(folder)
        self.random = random.Random(seed)
        self.done = self.leaked_fds = self.leaked_mappings = 0
        self.kinds = collections.Counter()
        self.next_chunk = 0
        self.next_id = 0
        self.files = []
        self.windows = {name: Window(name, blocks) for name, blocks in WINDOWS.items()}
        self.connected = False

    # ---- start and end ----

    def run(self):
        """Returns the differences found, each one line of text."""
        try:
            self.manager = channel_manager.Manager(self.folder / "manager.sock", self.heard)
            arguments = ["-machine", "pc,memory-backend=base0", "-m", f"{BASE_CHUNKS * 128}M,maxmem=16G",
                         "-object", f"channel-manager,id=rr0,path={self.manager.path}",
                         "-object", f"memory-backend-channel,id=base0,size={BASE_CHUNKS * 128}M,manager=rr0,channel=dimm0,base=on"]
            for i, (name, blocks) in enumerate(WINDOWS.items()):
                arguments += ["-object", f"memory-backend-channel,id=win-{name},size={blocks * 128}M,manager=rr0,channel={name}",
                              "-device", f"virtio-mem-pci,id=chan-{name},memdev=win-{name},block-size=128M,requested-size=0,"
                                         f"ioeventfd=off,addr={FIRST_SLOT + i:#x}"]
            with open(self.folder / "stderr", "wb") as stderr, qtest.Qemu(self.binary, arguments, stderr=stderr) as self.qemu:
                self.start()
                while self.done < self.ops:
                    self.one()
                self.finish()
                code = self.qemu.stop()
                if code:
                    raise Difference(f"QEMU has ended with code {code}")
            return []
        except (Difference, qtest.Died, channel_manager.ProtocolError, OSError, AssertionError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            stderr = (self.folder / "stderr").read_text(errors="replace").strip().splitlines()
            noise = [line for line in stderr if "warning: channel-manager" not in line]
            self.log.write(f"seed={self.seed} op={self.done} DIFFERENCE {text} {' | '.join(noise[-40:])}\n")
            return [f"seed {self.seed} operation {self.done}: {text}"]
        finally:
            self.manager.close()
            for file in self.files:
                os.close(file.fd)

    def start(self):
        self.manager.accept().hello()
        file = self.new_file(BASE_CHUNKS)
        self.base = dict(enumerate(sorted(file.chunks)))
        chunks = [self.grant_member(file, offset, 0) for offset in sorted(file.chunks)]
        self.expect({"type": "grant", "channel": "dimm0", "base": True, "chunks": chunks}, [file.fd], "done")
        self.base_file = file
        hello = self.manager.hello()
        if not hello["ready"]:
            raise Difference(f"not ready: {hello}")
        self.connected = True
        self.devices = {name: qtest.VirtioMem(self.qemu, FIRST_SLOT + i) for i, name in enumerate(WINDOWS)}
        self.fds = self.count_fds()
        self.find_reserved()
        self.compare()

    def finish(self):
        """All is given back: nothing may be left."""
        if not self.connected:
            self.reconnect()
        for window in self.windows.values():
            deadline = time.monotonic() + SETTLE_SECONDS
            while window.heard["plugged"] != len(window.plugged) * CHUNK:
                if time.monotonic() > deadline:
                    raise Difference(f"{window.channel}: the manager was told {window.heard}, {len(window.plugged)} are plugged")
                time.sleep(0.02)
                self.manager.drain()
            self.resize(window, 0)
            if self.devices[window.channel].unplug_all() != qtest.ACK:
                raise Difference("unplug all refused at the end")
            window.unplug_all()
            self.manager.drain()
            if window.book:
                self.revoke(window, list(window.book))
            self.compare()
        # The scratch memory behind what was unmapped goes when RCU says so.
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            left = [area for area in self.maps() for start, end in self.reserved
                    if area.start < end and start < area.end and area.permissions != "---p"]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if left:
            self.leaked_mappings += len(left)
            raise Difference(f"{len(left)} mappings are left in empty windows, the first {left[0]}")

    # ---- one operation ----

    def one(self):
        choices = [(self.op_grant, 14), (self.op_resize, 12), (self.op_revoke, 6), (self.op_bad_grant, 12), (self.op_bad_fd, 5),
                   (self.op_bad_resize, 3), (self.op_bad_revoke, 5), (self.op_bad_message, 8), (self.op_mutated, 6),
                   (self.op_burst, 3), (self.op_long_line, 0.3)] if self.connected else [(self.op_reconnect, 14)]
        choices += [(self.op_plug, 20), (self.op_unplug, 10), (self.op_bad_plug, 6), (self.op_churn, 4), (self.op_unplug_all, 1),
                    (self.op_touch, 8), (self.op_state, 2), (self.op_reset, 0.5), (self.op_driver, 0.5)]
        if self.connected:
            choices += [(self.op_kill, 3), (self.op_kill_before_answer, 1), (self.op_kill_in_message, 1)]
        (op,) = self.random.choices([op for op, _ in choices], [weight for _, weight in choices])
        self.done += 1
        name = op.__name__.removeprefix("op_")
        self.kinds[name] += 1
        what = op(self.random.choice(list(self.windows.values())))
        if self.connected:
            self.manager.drain()
        self.compare()
        state = " ".join(f"{w.channel}={len(w.plugged)}/{w.requested}/{w.granted}" for w in self.windows.values())
        self.log.write(f"seed={self.seed} op={self.done} {name} {what} {state} same\n")

    def expect(self, members, fds, answer, cuts=(), **override):
        """Sends a request and checks its answer, "done" or the class of an error."""
        self.next_id += 1
        self.manager.request({**members, "id": self.next_id}, fds, cuts, **override)
        self.check_answer(answer, override.get("id", self.next_id), members)

    def check_answer(self, answer, number, what):
        got = self.manager.answer()
        if got != (answer, number):
            raise Difference(f"{what}: answered {got}, not {(answer, number)}")

    def cuts(self):
        return [self.random.randrange(1, 60) for _ in range(self.random.choice((0, 0, 1, 4)))]

    # ---- files ----

    def new_file(self, count, gap=0):
        chunks, offset = {}, self.random.choice((0, 0, 2 * MIB, 128 * MIB)) if gap else 0
        for _ in range(count):
            chunks[offset] = self.next_chunk
            self.next_chunk += 1
            offset += CHUNK + gap
        file = File(self.folder / str(self.next_chunk), chunks)
        self.files.append(file)
        return file

    def drop(self, file):
        if file in self.files:
            self.files.remove(file)
            file.take_back()

    @staticmethod
    def grant_member(file, offset, index):
        return {"chunk": file.chunks[offset], "fd": index, "offset": offset, "length": CHUNK}

    def chunks_gone(self, window, chunks):
        """The manager has heard that these are released: what nobody has any more is taken away from everybody."""
        for chunk in chunks:
            if chunk not in window.book:
                raise Difference(f"{window.channel}: chunk {chunk} is released that was not granted")
            file, offset = window.book.pop(chunk)
            del file.chunks[offset]
            if not file.chunks:
                self.drop(file)

    def heard(self, message):
        kind = message["type"]
        if kind == "hello":
            for region in message["regions"]:
                if region["base"]:
                    continue
                window = self.windows[region["channel"]]
                held = {c["chunk"] for c in region["chunks"]}
                if held - set(window.book):
                    raise Difference(f"hello: {window.channel} holds {held - set(window.book)}, never granted")
                self.chunks_gone(window, set(window.book) - held)
                window.heard = {"requested": region["requested"], "plugged": region["plugged"]}
        elif kind == "progress":
            self.windows[message["channel"]].heard = {k: message[k] for k in ("requested", "plugged")}
        elif kind == "released":
            if message["base"]:
                raise Difference(f"base memory is released: {message}")
            self.chunks_gone(self.windows[message["channel"]], message["chunks"])
        else:
            raise Difference(f"{message}")

    # ---- right requests ----

    def make_grant(self, window, count):
        """A right grant of `count` chunks: (members, fds, {chunk: (file, offset)})."""
        members, fds, book = [], [], {}
        while count:
            file = self.new_file(self.random.randint(1, min(3, count)), self.random.choice((0, 2 * MIB)))
            for offset in file.chunks:
                members.append(self.grant_member(file, offset, len(fds)))
                book[file.chunks[offset]] = (file, offset)
            fds.append(file.fd)
            count -= len(file.chunks)
        self.random.shuffle(members)
        return {"type": "grant", "channel": window.channel, "base": False, "chunks": members}, fds, book

    def op_grant(self, window):
        count = self.random.randint(0, min(5, window.blocks - window.granted))
        members, fds, book = self.make_grant(window, count)
        window.book.update(book)
        window.granted += count
        self.expect(members, fds, "done", self.cuts())
        return f"{window.channel} +{count}"

    def resize(self, window, requested):
        window.resize(requested)
        self.expect({"type": "resize", "channel": window.channel, "requested": requested * CHUNK, "drain": not requested}, [],
                    "done", self.cuts())

    def op_resize(self, window):
        requested = self.random.randint(0, window.blocks)
        self.resize(window, requested)
        return f"{window.channel} {requested}"

    def unused(self, window):
        return [chunk for chunk in window.book if chunk not in window.at]

    def revoke(self, window, chunks):
        window.granted -= len(chunks)
        self.expect({"type": "revoke", "channel": window.channel, "chunks": chunks}, [], "done", self.cuts())
        if set(chunks) & set(window.book):
            raise Difference(f"{window.channel}: revoke was done, but not all of {chunks} were released before")

    def op_revoke(self, window):
        unused = self.unused(window)
        chunks = self.random.sample(unused, self.random.randint(0, len(unused)))
        self.revoke(window, chunks)
        return f"{window.channel} {chunks}"

    def op_burst(self, window):
        """Many requests before the first answer is read."""
        answers = []
        for _ in range(self.random.randint(2, 8)):
            self.next_id += 1
            if self.random.random() < 0.5 and window.granted < window.blocks:
                members, fds, book = self.make_grant(window, 1)
                window.book.update(book)
                window.granted += 1
                answers.append(("done", self.next_id))
            elif self.random.random() < 0.5:
                requested = self.random.randint(window.requested, window.blocks)
                window.resize(requested)
                members, fds = {"type": "resize", "channel": window.channel, "requested": requested * CHUNK}, []
                answers.append(("done", self.next_id))
            else:
                members, fds = {"type": "revoke", "channel": "dimm9", "chunks": []}, []
                answers.append(("UnknownChannel", self.next_id))
            self.manager.request({**members, "id": self.next_id}, fds)
        for answer, number in answers:
            self.check_answer(answer, number, "burst")
        return f"{window.channel} {len(answers)} requests"

    # ---- wrong requests: the books stay as they are ----

    def op_bad_grant(self, window):
        kind = self.random.choice(("granted", "twice", "overlap", "offset", "beyond", "length", "index", "unused", "none", "number",
                                   "room", "channel", "base", "base full", "last"))
        members, fds, book = self.make_grant(window, self.random.randint(1, 3))
        chunk = self.random.choice(members["chunks"])
        answer, extra = "BadChunk", None
        if kind in ("granted", "overlap") and not window.book:
            kind = "length"
        if kind == "granted":
            chunk["chunk"] = self.random.choice(list(window.book))
        elif kind == "twice":
            members["chunks"].append(dict(chunk, chunk=self.random.choice((chunk["chunk"], 10 ** 6))))
        elif kind == "overlap":
            file, offset = window.book[self.random.choice(list(window.book))]
            fds.append(file.fd)
            members["chunks"].append({"chunk": 10 ** 6, "fd": len(fds) - 1, "offset": offset, "length": CHUNK})
            os.ftruncate(file.fd, max(file.chunks) + 2 * CHUNK)
            members["chunks"][-1]["offset"] += self.random.choice((0, 2 * MIB, CHUNK - 2 * MIB))
        elif kind == "offset":
            chunk["offset"] = self.random.choice((4096, MIB, 1, 2 * MIB - 1, (1 << 63) - 2 * MIB, (1 << 64) - 2 * MIB, 1 << 63))
        elif kind == "beyond":
            chunk["offset"] += 64 * CHUNK
            answer = "BadFd"
        elif kind == "length":
            chunk["length"] = self.random.choice((0, 4096, CHUNK - 1, CHUNK * 2, (1 << 64) - 1))
        elif kind == "index":
            chunk["fd"] = self.random.choice((len(fds), 253, (1 << 32) - 1))
            answer = "BadFd"
        elif kind == "unused":
            extra = self.new_file(1)
            fds.insert(self.random.choice((len(fds), len(fds))), extra.fd)
            answer = "BadFd"
        elif kind == "none":
            fds, answer = [], "BadFd"
        elif kind == "number":
            chunk["chunk"] = self.random.choice((1 << 63, (1 << 64) - 1))
        elif kind == "room":
            count = window.blocks - window.granted + 1
            extra = self.new_file(count)
            members["chunks"] = [self.grant_member(extra, offset, 0) for offset in extra.chunks]
            fds = [extra.fd]
        elif kind == "channel":
            members["channel"] = self.random.choice(("", "dimm9", "DIMM0", "dimm0 ", "d" * 70000))
            answer = "UnknownChannel"
        elif kind == "base":
            members.update(channel=self.random.choice(("dimm1", "cxl0")), base=True)
            answer = "UnknownChannel"
        elif kind == "base full":
            members.update(channel="dimm0", base=True)
        elif kind == "last":                # all are right but the last: none may stay
            members["chunks"][-1]["length"] = 1
        self.expect(members, fds, answer, self.cuts())
        for file in {file for file, _ in book.values()} | {extra} - {None}:
            self.drop(file)
        return f"{window.channel} {kind}: {answer}"

    def op_bad_fd(self, window):
        kind = self.random.choice(("directory", "pipe", "socket", "null", "zero", "small", "read-only", "sealed", "write-only",
                                   "qemu itself", "too many"))
        name, close, answer = str(self.folder / "bad"), [], "BadFd"
        if kind == "directory":
            fd = os.open(self.folder, os.O_RDONLY)
        elif kind == "pipe":
            fd, other = os.pipe()
            close.append(other)
        elif kind == "socket":
            fd = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach()
        elif kind in ("null", "zero"):
            fd = os.open(f"/dev/{kind}", os.O_RDWR)
        elif kind == "qemu itself":
            fd = self.manager.connection.dup().detach()
        else:
            fd = os.memfd_create("bad", os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, CHUNK - 4096 if kind == "small" else CHUNK)
            if kind == "sealed":
                import fcntl
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
            elif kind in ("read-only", "write-only"):
                close.append(fd)
                fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY if kind == "read-only" else os.O_WRONLY)
        good = self.new_file(1)
        members = [self.grant_member(good, 0, 0), {"chunk": 10 ** 6, "fd": 1, "offset": 0, "length": CHUNK}]
        if window.blocks - window.granted < 2:
            answer = "BadChunk" if kind in ("read-only", "sealed", "write-only", "too many") else answer
        fds = [good.fd, fd]
        if kind == "too many":
            fds += [fd] * (channel_manager.MAX_FDS - 2)
            answer = "BadFd"
        self.expect({"type": "grant", "channel": window.channel, "base": False, "chunks": members}, fds, answer, self.cuts())
        for other in (fd, *close):
            os.close(other)
        self.drop(good)
        pathlib.Path(name).unlink(missing_ok=True)
        return f"{window.channel} {kind}: {answer}"

    def op_bad_resize(self, window):
        size, drain, answer = self.random.choice((
            (1, False, "GenericError"), (CHUNK - 1, False, "GenericError"), (2 * MIB, False, "GenericError"),
            ((window.blocks + 1) * CHUNK, False, "GenericError"), ((1 << 64) - CHUNK, False, "GenericError"),
            (CHUNK, True, "BadMessage"), (-CHUNK, False, "GenericError"), ("128M", False, "BadMessage"), (1.5, False, "BadMessage"),
            (None, False, "BadMessage"), (1 << 64, False, "BadMessage"), (0, 0, "BadMessage"), (0, "fds", "BadFd")))
        fds = []
        if drain == "fds":
            drain, fds = True, [self.base_file.fd] * self.random.choice((1, 253))
        self.expect({"type": "resize", "channel": window.channel, "requested": size, "drain": drain}, fds, answer, self.cuts())
        return f"{window.channel} {size!r} {drain}: {answer}"

    def op_bad_revoke(self, window):
        kind = self.random.choice(("in use", "unknown", "twice", "fds", "base", "list"))
        chunks, fds, answer = self.random.sample(self.unused(window), min(2, len(self.unused(window)))), [], "BadChunk"
        if kind == "in use" and not window.at or kind == "twice" and not chunks:
            kind = "unknown"
        if kind == "in use":
            chunks.append(self.random.choice(list(window.at)))
            answer = "Busy"
        elif kind == "unknown":
            chunks.append(self.random.choice((10 ** 9, (1 << 64) - 1, -1)))
        elif kind == "twice":
            chunks.append(chunks[0])
        elif kind == "fds":
            fds, answer = [self.base_file.fd], "BadFd"
        elif kind == "base":
            chunks.append(self.base_file.chunks[0])
        elif kind == "list":
            chunks, answer = self.random.choice((7, "7", {"chunk": 7}, [[7]], ["7"], [None])), "BadMessage"
        self.expect({"type": "revoke", "channel": window.channel, "chunks": chunks}, fds, answer, self.cuts())
        return f"{window.channel} {kind}: {answer}"

    def op_bad_message(self, window):
        """Not JSON, not an object, not of the schema, out of order."""
        manager, number = self.manager, self.next_id + 1
        self.next_id = number
        good = {"type": "resize", "channel": window.channel, "requested": window.requested * CHUNK, "id": number}
        fds = self.random.choice(([], [], [self.base_file.fd]))
        kind = self.random.choice(("text", "schema", "lower", "higher", "no seq", "no id"))
        if kind == "text":
            body, number = self.random.choice((b"", b"{", b"}", b"[]", b"null", b"17", b'"resize"', b"{}", b'{"seq":', b"\0", b"\xff\xfe",
                                               b'{"seq":1}{"seq":2}', b"[" * 1025, b'{"a":' * 500, b"%s%n", b"'", b'{"seq":1,"seq":2}',
                                               b'{"type":"grant"\0}', "{\"ä\":\"\\ud800\"}".encode())), 0
            manager.tx_seq += 1
            if body in (b'{"seq":1}{"seq":2}', b'{"seq":1,"seq":2}'):
                body = body.replace(b"1", str(manager.tx_seq).encode()).replace(b"2", str(manager.tx_seq).encode())
            manager.send_raw(body + b"\n", fds)
        elif kind == "schema":
            change = self.random.choice((
                {"type": "hello"}, {"type": "free"}, {"type": 7}, {"type": None}, {"channel": 7}, {"more": 1}, {"chunks": []},
                {"id": 0}, {"id": "1"}, {"id": 1.5}, {"id": 1 << 64}))
            if "id" in change:
                number = 0
            manager.request({**good, **change}, fds)
        elif kind == "lower":
            manager.request(good, fds, seq=self.random.choice((0, max(0, manager.tx_seq))))
            manager.tx_seq -= 1
        elif kind == "higher":
            jump = manager.tx_seq + self.random.choice((2, 1000))
            manager.request(good, fds, seq=jump)
            manager.tx_seq = jump
        elif kind == "no seq":
            manager.tx_seq += 1
            import json
            manager.send_raw(json.dumps(good).encode() + b"\n", fds)
        else:
            del good["id"]
            number = 0
            manager.request(good, fds)
        self.check_answer("BadMessage", number, kind)
        return kind

    def op_mutated(self, window):
        """A right request with a few bytes changed. What it is then, only QEMU knows; but whatever is not done changes nothing,
        and what is done is what the line says."""
        import json
        manager = self.manager
        self.next_id += 1
        if self.random.random() < 0.5:
            good, fds = {"type": "resize", "channel": window.channel, "requested": window.requested * CHUNK, "drain": False}, []
        else:
            good, fds = {"type": "revoke", "channel": window.channel, "chunks": []}, []
        line = bytearray(manager.line({**good, "id": self.next_id})[:-1])
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(len(line))
            kind = self.random.random()
            if kind < 0.4:
                line[at] = self.random.choice(b'0123456789{}[]",:\\ etrue\x00\xff\x80')
            elif kind < 0.7:
                del line[at:at + self.random.randint(1, 9)]
            else:
                line[at:at] = self.random.choice((b'"', b"\\u0000", b"[" * 40, b"1e309", b"-", b"null,", bytes([self.random.randrange(256)])))
            line = bytearray(byte for byte in line if byte != 10) or bytearray(b"{")
        manager.send_raw(bytes(line) + b"\n", fds)
        answer, _ = manager.answer()
        try:
            request = json.loads(bytes(line))
        except ValueError:
            request = {}
        if isinstance(request, dict) and isinstance(request.get("seq"), int) and request["seq"] > manager.tx_seq:
            manager.tx_seq = request["seq"]
            if answer == "done":
                raise Difference(f"{bytes(line)}: done, out of order")
        elif not isinstance(request, dict) or request.get("seq") != manager.tx_seq:
            seq = request.get("seq") if isinstance(request, dict) else None
            if isinstance(seq, int) and 0 <= seq < manager.tx_seq:
                manager.tx_seq -= 1             # a number of the past does not count
        if answer == "done":
            if request.get("type") == "resize" and request["channel"] in self.windows:
                self.windows[request["channel"]].resize(request["requested"] // CHUNK)
            elif request.get("type") != "revoke" or request["chunks"]:
                raise Difference(f"{bytes(line)}: done")
        return answer

    def op_long_line(self, window):
        """Too long by one byte; and the longest that is allowed."""
        self.manager.tx_seq += 1
        length = self.random.choice((LONGEST_LINE + 1, 3 * LONGEST_LINE))
        self.manager.send_raw(b" " * length + b"\n", [self.base_file.fd])
        self.check_answer("BadMessage", 0, "a long line")
        self.next_id += 1
        line = self.manager.line({"type": "revoke", "channel": window.channel, "chunks": [], "id": self.next_id})
        self.manager.send_raw(line[:-1] + b" " * (LONGEST_LINE + 1 - len(line)) + b"\n")
        self.check_answer("done", self.next_id, "the longest line")
        return str(length)

    # ---- the guest ----

    def plug(self, window, first, count):
        blocks = set(range(first, first + count))
        if not count or first < 0 or first + count > window.usable:
            answer = qtest.ERROR
        elif len(window.plugged) + count > window.requested:
            answer = qtest.NACK
        elif blocks & window.plugged:
            answer = qtest.ERROR
        elif window.free() < count:
            answer = qtest.BUSY
        else:
            answer = qtest.ACK
            window.plugged |= blocks
        self.check_response(self.devices[window.channel].plug(first, count), answer)
        return answer

    def unplug(self, window, first, count):
        blocks = set(range(first, first + count))
        valid = count and 0 <= first and first + count <= window.usable and blocks <= window.plugged
        if valid:
            window.unplug(blocks)
        answer = qtest.ACK if valid else qtest.ERROR
        self.check_response(self.devices[window.channel].unplug(first, count), answer)
        return answer

    @staticmethod
    def check_response(got, expected):
        if got != expected:
            raise Difference(f"the device says {got if got is None else qtest.RESPONSES[got]}, not {qtest.RESPONSES[expected]}")

    def runs(self, window, plugged):
        """(first, count) of each run of blocks that are plugged, or not."""
        runs, start = [], None
        for block in range(window.blocks + 1):
            inside = block < window.blocks and (block in window.plugged) == plugged
            if inside and start is None:
                start = block
            elif not inside and start is not None:
                runs.append((start, block - start))
                start = None
        return runs

    def part_of_run(self, window, plugged):
        runs = self.runs(window, plugged)
        if not runs:
            return 0, 1
        first, count = self.random.choice(runs)
        skip = self.random.randrange(count)
        return first + skip, self.random.randint(1, min(count - skip, 4))

    def op_plug(self, window):
        first, count = self.part_of_run(window, False)
        return f"{window.channel} {first}+{count}: {qtest.RESPONSES[self.plug(window, first, count)]}"

    def op_unplug(self, window):
        first, count = self.part_of_run(window, True)
        return f"{window.channel} {first}+{count}: {qtest.RESPONSES[self.unplug(window, first, count)]}"

    def op_bad_plug(self, window):
        """Any range, and addresses that are none."""
        device = self.devices[window.channel]
        if self.random.random() < 0.6:
            first, count = self.random.randint(-2, window.blocks + 2), self.random.choice((0, 1, 2, window.blocks, 0xFFFF))
            do = self.random.choice((self.plug, self.unplug))
            return f"{window.channel} {do.__name__} {first}+{count}: {qtest.RESPONSES[do(window, first, count)]}"
        address = self.random.choice((0, 1 << 63, (1 << 64) - CHUNK, device.address + 4096, device.address + CHUNK // 2))
        kind = self.random.choice((qtest.PLUG, qtest.UNPLUG, qtest.STATE))
        self.check_response(device.send(kind, address, 1), qtest.ERROR)
        return f"{window.channel} request {kind} at {address:#x}: error"

    def op_churn(self, window):
        """The guest lets go of blocks and takes them again, at full speed: the manager hears of it, but gets nothing back."""
        if not window.plugged or window.granted > window.requested:
            return f"{window.channel} nothing to churn"
        first, count = self.part_of_run(window, True)
        before = dict(window.book)
        for _ in range(self.random.randint(1, 5)):
            self.unplug(window, first, count)
            if self.plug(window, first, count) != qtest.ACK:
                raise Difference("churn")
        if self.connected:
            self.manager.drain()
        if window.book != before:
            raise Difference(f"{window.channel}: chunks were released by churn")
        return f"{window.channel} {first}+{count}"

    def op_unplug_all(self, window):
        window.unplug_all()
        self.check_response(self.devices[window.channel].unplug_all(), qtest.ACK)
        return window.channel

    def op_state(self, window):
        first, count = self.random.randrange(window.blocks), 1
        if first + count > window.usable:
            return "nothing"
        device = self.devices[window.channel]
        self.check_response(device.send(qtest.STATE, device.address + first * CHUNK, count), qtest.ACK)
        if (device.state == 0) != (first in window.plugged):
            raise Difference(f"block {first} has state {device.state}")
        return f"{window.channel} {first}"

    def op_touch(self, window):
        """The guest writes to a block, plugged or not; what it writes must be in the chunk that QEMU says, and nowhere else."""
        block = self.random.randrange(window.blocks)
        address = self.devices[window.channel].address + block * CHUNK + self.random.choice((0, 4096, CHUNK - 8))
        tag = self.random.getrandbits(64) | 1
        self.qemu.write_uint(address, tag)
        value = self.qemu.read_uint(address)
        if block in window.plugged:
            window.tags.setdefault(block, {})[address % CHUNK] = tag
            if value != tag:
                raise Difference(f"{window.channel} block {block}: read {value:#x}, not {tag:#x}")
        elif value:
            raise Difference(f"{window.channel} block {block} is not plugged, but holds {value:#x}")
        return f"{window.channel} {block}"

    def op_reset(self, _):
        """The machine is reset: all is unplugged, and what is requested stays granted."""
        self.qemu.events.clear()
        self.qemu.qmp("system_reset")
        self.qemu.wait_event("RESET")
        for window in self.windows.values():
            window.unplug_all()
            self.devices[window.channel].probe()
        return ""

    def op_driver(self, window):
        """A driver that breaks the device, or is loaded anew: the blocks stay as they are."""
        device = self.devices[window.channel]
        kind = self.random.choice(("type", "short request", "short response", "reload"))
        if kind == "type":
            answer = device.send(self.random.choice((4, 0xFFFF)))
        elif kind == "short request":
            device.set_lengths(8, 10)
            answer = device.send(qtest.UNPLUG_ALL)
        elif kind == "short response":
            device.set_lengths(24, 4)
            answer = device.send(qtest.UNPLUG_ALL)
        else:
            answer = None
        if answer is not None or kind != "reload" and not device.is_broken():
            raise Difference(f"{kind}: answered {answer}")
        device.reset()
        return f"{window.channel} {kind}"

    # ---- the manager dies, and comes back ----

    def op_kill(self, _):
        self.manager.hang_up()
        self.connected = False
        if self.random.random() < 0.3:
            self.manager.stop_listening()
        return "listening" if self.manager.listener else "gone"

    def op_kill_before_answer(self, window):
        """Whether that was carried out, only the next hello tells."""
        self.next_id += 1
        requested = self.random.randint(0, window.blocks)
        self.manager.request({"type": "resize", "channel": window.channel, "requested": requested * CHUNK, "id": self.next_id})
        if self.random.random() < 0.5:
            # So that both come to be: it is in QEMU's hands now, or it is not.
            select.select([self.manager.connection], [], [], 1)
        self.manager.hang_up()
        self.connected = False
        self.reconnect()
        if window.heard["requested"] == requested * CHUNK:
            window.resize(requested)
        return f"{window.channel} {requested}: {'done' if window.requested == requested else 'not done'}"

    def op_kill_in_message(self, window):
        """Half a grant, with its file descriptors."""
        members, fds, book = self.make_grant(window, 2)
        line = self.manager.line({**members, "id": 1})
        self.manager.send_raw(line[:self.random.randrange(1, len(line))], fds)
        self.manager.hang_up()
        self.connected = False
        self.reconnect()
        for file in {file for file, _ in book.values()}:
            self.drop(file)
        return window.channel

    def op_reconnect(self, _):
        self.reconnect()
        return ""

    def reconnect(self):
        if not self.manager.listener:
            self.manager.listen()
        self.manager.accept()
        hello = self.manager.hello()
        self.connected = True
        if not hello["ready"]:
            raise Difference(f"not ready: {hello}")

    # ---- the books ----

    Area = collections.namedtuple("Area", "start end permissions offset inode")

    def maps(self):
        areas = []
        with open(f"/proc/{self.qemu.pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                start, end, permissions, offset, inode = re.match(r"(\w+)-(\w+) (\S+) (\w+) \S+ (\d+)", line).groups()
                areas.append(self.Area(int(start, 16), int(end, 16), permissions, int(offset, 16), int(inode)))
        return areas

    def find_reserved(self):
        """The address ranges of the windows, which are empty yet. The kernel joins neighbours."""
        least = sum(WINDOWS.values()) * CHUNK
        found = [(a.start, a.end) for a in self.maps()      # much larger ones belong to a sanitizer
                 if a.permissions == "---p" and not a.inode and CHUNK < a.end - a.start < 4 * least]
        size = sum(end - start for start, end in found)
        if size < least:
            raise Difference(f"{size} bytes of address space are reserved for windows of {least} bytes")
        self.reserved = found

    def count_fds(self):
        return len(os.listdir(f"/proc/{self.qemu.pid}/fd"))

    def compare(self):
        regions = {(r["channel"], r["base"]): r for r in self.qemu.qmp("query-memory-channels")}
        inodes = {file.inode: file for file in self.files}
        mapped = collections.defaultdict(list)
        for area in self.maps():
            if area.inode in inodes:
                mapped[area.inode].append(area)

        base = regions["dimm0", True]
        if [c["chunk"] for c in base["chunks"]] != [self.base_file.chunks[o] for o in sorted(self.base_file.chunks)]:
            raise Difference(f"base memory: {base}")
        expected = {self.base_file.inode: BASE_CHUNKS * CHUNK}
        for window in self.windows.values():
            region = regions[window.channel, False]
            self.compare_window(window, region, mapped)
            for chunk in region["chunks"]:
                file, _ = window.book[chunk["chunk"]]
                expected[file.inode] = expected.get(file.inode, 0) + CHUNK
        for inode, areas in mapped.items():
            size = sum(area.end - area.start for area in areas)
            if size != expected.get(inode, 0):
                self.leaked_mappings += abs(size - expected.get(inode, 0)) // CHUNK or 1
                raise Difference(f"{size} bytes of {inodes[inode].path} are mapped, not {expected.get(inode, 0)}")
        if self.connected:
            deadline = time.monotonic() + SETTLE_SECONDS
            while (count := self.count_fds()) != self.fds:
                if time.monotonic() > deadline:
                    self.leaked_fds += max(1, count - self.fds)
                    raise Difference(f"{count} file descriptors, {self.fds} at the start")
                time.sleep(0.01)

    def compare_window(self, window, region, mapped):
        name = window.channel
        held = {c["chunk"]: c.get("block") for c in region["chunks"]}
        at = {chunk: block for chunk, block in held.items() if block is not None}
        if len(held) != len(region["chunks"]) or len(held) != window.granted:
            raise Difference(f"{name}: QEMU has {len(region['chunks'])} chunks, {window.granted} by the protocol")
        if sorted(at.values()) != sorted(window.plugged):
            raise Difference(f"{name}: QEMU has blocks {sorted(at.values())}, plugged are {sorted(window.plugged)}")
        sizes = (window.requested * CHUNK, len(window.plugged) * CHUNK)
        if len(window.plugged) != window.seen:
            window.seen, window.since = len(window.plugged), time.monotonic()
        if (region["requested"], region["plugged"]) != sizes:
            raise Difference(f"{name}: QEMU says {region['requested']}, {region['plugged']}; right is {sizes}")
        if self.connected:
            if set(held) != set(window.book):
                raise Difference(f"{name}: QEMU has chunks {sorted(held)}, the manager's book says {sorted(window.book)}")
            # What a guest plugs and unplugs by its own will, QEMU may tell when the guest rests.
            if window.heard["requested"] != sizes[0] or window.heard["plugged"] != sizes[1] and \
                    time.monotonic() - window.since > SETTLE_SECONDS:
                raise Difference(f"{name}: the manager was told {window.heard}, right is {sizes}")
        elif not set(held) <= set(window.book):
            raise Difference(f"{name}: QEMU has chunks that it was not granted")
        for chunk in set(at) & set(window.at):
            if window.at[chunk] != at[chunk] and window.at[chunk] in window.tags:
                raise Difference(f"{name}: chunk {chunk} has moved from block {window.at[chunk]} to {at[chunk]}")
        window.at = at
        host = set()
        for chunk, block in held.items():
            file, offset = window.book[chunk]
            areas = [a for a in mapped[file.inode] if a.offset <= offset and offset + CHUNK <= a.offset + a.end - a.start]
            if len(areas) != 1 or areas[0].permissions != "rw-s":
                raise Difference(f"{name}: chunk {chunk} is mapped {areas}")
            if block is not None:
                host.add(areas[0].start + offset - areas[0].offset - block * CHUNK)
                for where, tag in window.tags.get(block, {}).items():
                    if int.from_bytes(os.pread(file.fd, 8, offset + where), "little") != tag:
                        raise Difference(f"{name}: what the guest wrote to block {block} is not in chunk {chunk}")
        if len(host) > 1:
            raise Difference(f"{name}: blocks are not where they belong: {sorted(map(hex, host))}")


def campaign(qemu, ops, log_path, seed=None, episode_ops=600, deadline_seconds=420, folder="/dev/shm"):
    """Episodes until `ops` operations are done; with a seed, the one episode of it. Returns the metrics."""
    first = seed if seed is not None else int.from_bytes(os.urandom(4), "little")
    result = {"fuzz_ops": 0, "fuzz_differences": 0, "leaked_fds": 0, "leaked_mappings": 0}
    differences, kinds, start = [], collections.Counter(), time.monotonic()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with open(log_path, "w", encoding="utf-8") as log:
        number = first
        while result["fuzz_ops"] < ops and time.monotonic() - start < deadline_seconds:
            work = tempfile.mkdtemp(prefix="ramtest-fuzz-", dir=folder)
            try:
                episode = Episode(qemu, number, episode_ops, log, work)
                found = episode.run()
            finally:
                shutil.rmtree(work)
            differences += found
            kinds += episode.kinds
            result["fuzz_ops"] += episode.done
            result["fuzz_differences"] += len(found)
            result["leaked_fds"] += episode.leaked_fds
            result["leaked_mappings"] += episode.leaked_mappings
            if seed is not None:
                break
            number += 1
    return result, differences, kinds, (first, number)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--ops", type=int, default=10000)
    parser.add_argument("--episode-ops", type=int, default=600)
    parser.add_argument("--log", type=pathlib.Path, default=pathlib.Path("build/bench/qemu-fuzz.log"))
    args = parser.parse_args()
    result, differences, kinds, seeds = campaign(os.environ["RR_QEMU"], args.ops, args.log, args.seed, args.episode_ops)
    print(result, f"seeds {seeds[0]}..{seeds[1]}")
    print(dict(kinds))
    print("\n".join(differences))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
