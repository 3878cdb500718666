#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A fake QEMU: no machine at all, only the QEMU side of the channel RPC.

Does what the shim does (Start on rmd's bus), then speaks the RPC as the real one: maps the chunks it
is granted, lets a "guest" plug and unplug them block by block, gives chunks back. A test drives it by
JSON lines on stdin and reads one JSON line as the answer to each on stdout.

	fake_qemu.py BUS_PATH UUID
"""
import array
import contextlib
import ctypes
import json
import mmap
import os
import selectors
import socket
import sys
import threading
import time

import gi

gi.require_version("Gio", "2.0")
from gi.repository import Gio, GLib  # noqa: E402

CHUNK = 128 << 20
TICK = 0.01


def start(bus_path, uuid):
    """Start(uuid) on the private bus; this process is then the domain's."""
    bus = Gio.DBusConnection.new_for_address_sync(
        "unix:path=" + bus_path, Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT, None, None)
    reply = bus.call_sync(None, "/org/ramryder/Manager1", "org.ramryder.Manager1", "Start",
                          GLib.Variant("(s)", (uuid,)), None, Gio.DBusCallFlags.NONE, -1, None)
    bus.close_sync(None)
    return reply.unpack()


def parse_options(text):
    return dict(part.partition("=")[::2] for part in text.split(",") if "=" in part)


class Region:
    def __init__(self, channel, base, size):
        self.channel, self.base, self.size = channel, base, size
        self.requested = 0
        self.chunks = {}  # chunk -> block or None
        self.maps = {}  # chunk -> mmap
        self.queue = []

    @property
    def plugged(self):
        if self.base:
            return len(self.chunks) * CHUNK
        return sum(b is not None for b in self.chunks.values()) * CHUNK

    def describe(self):
        chunks = [{"chunk": c} if b is None else {"chunk": c, "block": b}
                  for c, b in sorted(self.chunks.items())]
        requested = self.plugged if self.base else self.requested
        return {"channel": self.channel, "base": self.base, "size": self.size,
                "requested": requested, "plugged": self.plugged, "chunks": chunks}


class FakeQemu:
    def __init__(self, uuid, path, arguments):
        self.uuid, self.path, self.arguments = uuid, path, arguments
        self.regions = {}
        for option, value in zip(self.arguments[::2], self.arguments[1::2]):
            o = parse_options(value)
            if option == "-object" and value.startswith("memory-backend-channel"):
                base = o.get("base") == "on"
                size = int(o["size"][:-1]) << 20
                self.regions[o["channel"], base] = Region(o["channel"], base, size)
        self.ready = False
        self.guest = "follow"  # or "hold"
        self.answer = True
        self.keep = False  # keep the mappings of released chunks
        self.kept = []
        self.secret = False  # look for others' secrets in every new chunk and leave one of ours
        self.found = []
        self.reads = 0
        self.refuse = {}  # request type -> error class
        self.log = []
        self.sock = None
        self.buffer = b""
        self.fds = []
        self.selector = selectors.DefaultSelector()
        self.selector.register(sys.stdin, selectors.EVENT_READ)

    # ---- connection ----

    def connect(self):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self.path)
        except OSError:
            sock.close()
            raise
        self.sock = sock
        self.seq = 0
        self.buffer = b""
        self.selector.register(self.sock, selectors.EVENT_READ)
        self.hello()

    def disconnect(self):
        if self.sock:
            self.selector.unregister(self.sock)
            self.sock.close()
            self.sock = None

    def send(self, **message):
        if not self.sock:
            return
        self.seq += 1
        line = json.dumps({"type": message.pop("type"), "seq": self.seq, **message}) + "\n"
        try:
            self.sock.sendall(line.encode())
        except OSError:
            self.disconnect()

    def hello(self):
        regions = [r.describe() for r in self.regions.values() if r.base or self.ready]
        self.send(type="hello", version=1, uuid=self.uuid, ready=self.ready, regions=regions)

    def receive(self):
        try:
            data, ancillary, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(253 * 4))
        except OSError:
            data, ancillary = b"", []
        if not data:
            self.disconnect()
            return
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[:len(payload) - len(payload) % fds.itemsize])
                self.fds.extend(fds)
        self.buffer += data
        while b"\n" in self.buffer:
            line, self.buffer = self.buffer.split(b"\n", 1)
            self.request(json.loads(line))

    # ---- requests ----

    def request(self, m):
        self.log.append(m)
        if not self.answer:
            return
        if m["type"] in self.refuse:
            for fd in self.fds:
                os.close(fd)
            self.fds = []
            self.send(type="error", id=m["id"], desc="told to", **{"class": self.refuse[m["type"]]})
            return
        error = getattr(self, "do_" + m["type"])(m)
        if error:
            self.send(type="error", id=m["id"], desc=error[1], **{"class": error[0]})
        else:
            self.send(type="done", id=m["id"])
        if not self.ready and all(r.plugged == r.size for r in self.regions.values() if r.base):
            self.ready = True
            self.hello()

    def do_grant(self, m):
        region = self.regions[m["channel"], m["base"]]
        fds, self.fds = self.fds, []
        assert len(fds) == len(m["chunks"]), "as many fds as chunks"
        for entry in m["chunks"]:
            assert entry["length"] == CHUNK
            fd = fds[entry["fd"]]
            assert os.fstat(fd).st_size == entry["offset"] + CHUNK, "the file ends with the chunk"
            assert entry["chunk"] not in region.chunks
            region.maps[entry["chunk"]] = mmap.mmap(fd, CHUNK, offset=entry["offset"])
            region.chunks[entry["chunk"]] = None
            if self.secret:
                self.look(m["channel"], entry["chunk"], region.maps[entry["chunk"]])
        for fd in fds:
            os.close(fd)
        return None

    def look(self, channel, chunk, mapping):
        for offset in (0, CHUNK // 2 + 4096, CHUNK - 4096):
            seen = mapping[offset:offset + 64]
            if seen != bytes(64):
                self.found.append(f"{channel}:{chunk}+{offset}: {seen[:48]!r}")
            mapping[offset:offset + 48] = f"secret of {self.uuid}".ljust(48)[:48].encode()

    def do_resize(self, m):
        region = self.regions[m["channel"], False]
        if m["requested"] > region.size:
            return "GenericError", "larger than the window"
        region.requested = m["requested"]
        self.progress(region)
        self.give_back(region)
        return None

    def do_revoke(self, m):
        region = self.regions[m["channel"], False]
        if any(region.chunks.get(c) is not None for c in m["chunks"]):
            return "Busy", "in use"
        self.release(region, m["chunks"])
        return None

    def progress(self, region):
        self.send(type="progress", channel=region.channel, requested=region.requested,
                  plugged=region.plugged)

    def release(self, region, chunks):
        for chunk in chunks:
            del region.chunks[chunk]
            mapping = region.maps.pop(chunk)
            if self.keep or mapping in self.kept:
                self.kept.append(mapping)
            else:
                mapping.close()
        if chunks:
            self.send(type="released", channel=region.channel, base=region.base, chunks=chunks)

    def give_back(self, region):
        excess = len(region.chunks) - max(region.requested, region.plugged) // CHUNK
        unused = [c for c, b in region.chunks.items() if b is None]
        if excess > 0:
            self.release(region, unused[:excess])

    # ---- the guest ----

    def tick(self):
        if self.guest != "follow" or not self.ready:
            return
        for region in self.regions.values():
            if region.base:
                continue
            if region.plugged < region.requested:
                free = [c for c, b in region.chunks.items() if b is None]
                used = set(region.chunks.values())
                if free:
                    region.chunks[free[0]] = next(b for b in range(1 << 20) if b not in used)
                    self.progress(region)
            elif region.plugged > region.requested:
                chunk = next(c for c, b in region.chunks.items() if b is not None)
                region.chunks[chunk] = None
                self.progress(region)
                if len(region.chunks) * CHUNK > region.requested:
                    self.release(region, [chunk])

    # ---- commands of the test ----

    def cmd_state(self):
        return {"ready": self.ready, "connected": self.sock is not None,
                "regions": [r.describe() for r in self.regions.values()]}

    def cmd_arguments(self):
        return self.arguments

    def cmd_seq(self):
        return self.seq

    def cmd_log(self):
        return self.log

    def cmd_set(self, **values):
        for name, value in values.items():
            setattr(self, name, value)

    def cmd_connect(self):
        self.connect()

    def cmd_disconnect(self):
        self.disconnect()

    def cmd_write(self, channel, base, text):
        for mapping in self.regions[channel, base].maps.values():
            mapping[:len(text)] = text.encode()

    def cmd_read(self, channel, base, length):
        return {str(c): m[:length].hex() for c, m in self.regions[channel, base].maps.items()}

    def cmd_reset(self):
        """System reset: all unplugged, chunks up to requested are kept, the guest plugs again."""
        for region in self.regions.values():
            if not region.base:
                for chunk in region.chunks:
                    region.chunks[chunk] = None
                self.progress(region)
                self.give_back(region)

    def cmd_start_another(self, uuid):
        try:
            start(sys.argv[1], uuid)
        except GLib.Error as e:
            raise OSError(e.message) from None

    def cmd_raw(self, text):
        self.sock.sendall(text.encode())

    def cmd_flood(self, seconds):
        """Right messages as fast as the socket takes them; back at once when cut off. Tells how often it was."""
        end, cuts = time.monotonic() + seconds, 0
        region = next(r for r in self.regions.values() if not r.base and r.requested)
        while time.monotonic() < end:
            self.disconnect()
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.settimeout(0.05)
            with s, contextlib.suppress(OSError):
                s.connect(self.path)
                s.settimeout(1)
                regions = [r.describe() for r in self.regions.values()]
                s.sendall(json.dumps({"type": "hello", "seq": 1, "version": 1, "uuid": self.uuid, "ready": True,
                                      "regions": regions}).encode() + b"\n")
                for seq in range(2, 1 << 30, 200):
                    s.sendall("".join(json.dumps(
                        {"type": "progress", "seq": seq + i, "channel": region.channel,
                         "requested": region.requested, "plugged": region.plugged}) + "\n"
                        for i in range(200)).encode())
                    if time.monotonic() > end:
                        break
            cuts += 1
        return cuts

    def cmd_read_into(self, channel, path):
        """O_DIRECT reads of a file into every chunk of a channel's window, for ever or until the memory is gone."""
        for mapping in self.regions[channel, False].maps.values():
            self.kept.append(mapping)
            threading.Thread(target=self.read_into, args=(mapping, path), daemon=True).start()

    def read_into(self, mapping, path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        size, view = os.fstat(fd).st_size, memoryview(mapping)
        with contextlib.suppress(OSError):
            while True:
                os.preadv(fd, [view[:size]], 0)
                self.reads += 1

    def cmd_reads(self):
        return self.reads

    def cmd_splice(self, channel):
        """Pins the first page of every chunk in a pipe (vmsplice) and keeps it."""
        libc = ctypes.CDLL(None, use_errno=True)
        for mapping in self.regions[channel, False].maps.values():
            mapping[:16] = b"pinned secret 00"
            pipe = os.pipe()
            iov = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.c_char.from_buffer(mapping)), 4096)
            if libc.vmsplice(pipe[1], ctypes.byref(iov), 1, 0) != 4096:
                raise OSError(ctypes.get_errno(), "vmsplice")
            self.kept.append(pipe)

    def cmd_look_again(self):
        for region in self.regions.values():
            for chunk, mapping in region.maps.items():
                self.look(region.channel, chunk, mapping)

    def cmd_map(self, path):
        """A file that is none of ours to have; kept for ever."""
        with open(path, "r+b") as file:
            self.kept.append(mmap.mmap(file.fileno(), CHUNK))

    def cmd_dirty(self):
        return self.found

    def cmd_touch_kept(self):
        """Reads every kept mapping in a child; tells how each child ended (signal number)."""
        ends = []
        for mapping in self.kept:
            pid = os.fork()
            if pid == 0:
                mapping[0]
                os._exit(0)
            status = os.waitpid(pid, 0)[1]
            ends.append(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
        return ends

    def command(self, line):
        m = json.loads(line)
        try:
            answer = {"result": getattr(self, "cmd_" + m.pop("cmd"))(**m)}
        except OSError as e:
            answer = {"error": str(e)}
        print(json.dumps(answer), flush=True)

    def run(self):
        print(json.dumps({"result": "started"}), flush=True)
        pending = b""
        while True:
            for key, _ in self.selector.select(TICK):
                if key.fileobj is sys.stdin:
                    data = os.read(0, 65536)
                    if not data:
                        return
                    pending += data
                else:
                    self.receive()
            while b"\n" in pending:
                line, pending = pending.split(b"\n", 1)
                self.command(line)
            self.tick()


def main():
    # Whoever started us is gone: so are we (PR_SET_PDEATHSIG, SIGKILL).
    ctypes.CDLL(None).prctl(1, 9)
    if len(sys.argv) == 3:
        try:
            arguments, _, path = start(sys.argv[1], sys.argv[2])
        except GLib.Error as e:
            print(json.dumps({"error": Gio.DBusError.get_remote_error(e) or e.message}), flush=True)
            return 1
        # As the shim does: the same process, with the command line of a QEMU.
        os.execv(sys.executable, [sys.executable, *sys.argv, path, "-name", "guest=" + os.environ.get("FAKE_NAME", "vm"),
                                  "-uuid", sys.argv[2], "-smp", "2", *arguments])
    at = sys.argv.index("-smp") + 2
    FakeQemu(sys.argv[2], sys.argv[3], sys.argv[at:]).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
