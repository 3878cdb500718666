# SPDX-License-Identifier: GPL-2.0-or-later
"""A QEMU that runs no guest code, and a scripted guest for it: the qtest protocol, PCI, and a driver for virtio-mem.

Requests are answered while QEMU handles the notification (ioeventfd=off), so that a test knows that everything that a
request causes has happened when it has the response.
"""

import json
import socket
import struct
import subprocess

ACK, NACK, BUSY, ERROR = range(4)
RESPONSES = ("ack", "nack", "busy", "error")
PLUG, UNPLUG, UNPLUG_ALL, STATE = range(4)

# Between the RAM below 4 GiB of both machines and the I/O APIC.
MMIO_BASE = 0xF0000000
# Rings and buffers, in base memory.
RING_BASE = 0x200000

EXIT_SECONDS = 20


class Died(AssertionError):
    """QEMU has ended when it should not."""


class Qemu:
    """`with Qemu(binary, [arguments]) as qemu:` has .qmp(), the qtest commands, and is killed by pid at the end."""

    def __init__(self, binary, arguments, pass_fds=(), stderr=None, accel="qtest", timeout=60):
        ours, theirs = zip(*(socket.socketpair() for _ in range(2)))
        self.qtest_socket, self.qmp_socket = ours
        for sock in ours:
            sock.settimeout(timeout)
        argv = [str(binary), "-accel", accel, "-display", "none", "-nodefaults", "-no-user-config",
                "-chardev", f"socket,id=qmp,fd={theirs[1].fileno()}", "-mon", "qmp,mode=control"]
        if accel == "qtest":
            argv += ["-chardev", f"socket,id=qtest,fd={theirs[0].fileno()}", "-qtest", "chardev:qtest", "-qtest-log", "none"]
        self.process = subprocess.Popen([*argv, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
                                        pass_fds=[s.fileno() for s in theirs] + list(pass_fds))
        for sock in theirs:
            sock.close()
        self.pid = self.process.pid
        self.events = []
        self.files = [sock.makefile("rb") for sock in ours]
        self.greeted = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        """Returns QEMU's exit code; a QEMU that does not obey is killed."""
        if self.alive():
            self.process.terminate()
        try:
            self.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for file in (*self.files, self.qtest_socket, self.qmp_socket):
            file.close()
        return self.process.returncode

    def _line(self, index):
        line = self.files[index].readline()
        if not line.endswith(b"\n"):
            self.process.wait(EXIT_SECONDS)
            raise Died(f"QEMU has ended with code {self.process.returncode}")
        return line

    def _send(self, sock, data):
        try:
            sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.process.wait(EXIT_SECONDS)
            raise Died(f"QEMU has ended with code {self.process.returncode}") from None

    # QMP

    def qmp(self, name, **arguments):
        if not self.greeted:
            json.loads(self._line(1))
            self.greeted = True
            self.qmp("qmp_capabilities")
        self._send(self.qmp_socket, json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = json.loads(self._line(1))
            if "event" in answer:
                self.events.append(answer)
            elif "error" in answer:
                raise AssertionError(f"QMP {name}: {answer['error']['desc']}")
            else:
                return answer["return"]

    def hmp(self, line):
        return self.qmp("human-monitor-command", **{"command-line": line})

    def wait_event(self, name):
        """The next event of that name; those before are dropped."""
        while True:
            for i, event in enumerate(self.events):
                if event["event"] == name:
                    del self.events[:i + 1]
                    return event
            answer = json.loads(self._line(1))
            if "event" in answer:
                self.events.append(answer)

    # qtest

    def commands(self, *lines):
        """Sends all lines at once; returns the value of each answer as text."""
        self._send(self.qtest_socket, "".join(f"{line}\n" for line in lines).encode())
        answers = []
        while len(answers) < len(lines):
            words = self._line(0).decode().split()
            if words[0] == "IRQ":
                continue
            if words[0] != "OK":
                raise AssertionError(f"qtest {lines[len(answers)]}: {' '.join(words)}")
            answers.append(words[1] if len(words) > 1 else "")
        return answers

    def read_uint(self, address, bits=64):
        name = {8: "readb", 16: "readw", 32: "readl", 64: "readq"}[bits]
        return int(self.commands(f"{name} {address:#x}")[0], 16)

    def write_uint(self, address, value, bits=64):
        name = {8: "writeb", 16: "writew", 32: "writel", 64: "writeq"}[bits]
        self.commands(f"{name} {address:#x} {value:#x}")

    def memset(self, address, size, value):
        # In parts: QEMU makes a buffer of each.
        part = 16 << 20
        for start in range(0, size, part):
            self.commands(f"memset {address + start:#x} {min(part, size - start):#x} {value:#x}")

    def pci_read(self, devfn, offset):
        return int(self.commands(f"outl 0xcf8 {0x80000000 | devfn << 8 | offset & 0xFC:#x}", "inl 0xcfc")[1], 16)

    def pci_write(self, devfn, offset, value):
        self.commands(f"outl 0xcf8 {0x80000000 | devfn << 8 | offset & 0xFC:#x}", f"outl 0xcfc {value:#x}")


class VirtioMem:
    """The driver's side of the virtio-mem-pci device in `slot` of the root bus (with ioeventfd=off)."""

    QUEUE_SIZE = 8

    def __init__(self, qemu, slot):
        self.qemu, self.devfn = qemu, slot << 3
        self.ring = RING_BASE + slot * 0x1000
        self.bar = MMIO_BASE + slot * 0x10000
        self.probe()

    def probe(self):
        """Sets up the PCI function as the firmware would, and the device; also after a system reset."""
        qemu = self.qemu
        self.where = {}
        at = qemu.pci_read(self.devfn, 0x34) & 0xFF
        while at:
            head = qemu.pci_read(self.devfn, at)
            if head & 0xFF == 0x09:
                kind, bar = head >> 24, qemu.pci_read(self.devfn, at + 4) & 0xFF
                if kind in (1, 2, 3, 4):
                    assert bar == 4, f"capability {kind} in BAR {bar}"
                    self.where[kind] = self.bar + qemu.pci_read(self.devfn, at + 8)
                if kind == 2:
                    self.notify_multiplier = qemu.pci_read(self.devfn, at + 16)
            at = head >> 8 & 0xFF
        assert {1, 2, 4} <= set(self.where), f"no modern virtio device at {self.devfn:#x}"
        qemu.pci_write(self.devfn, 0x20, self.bar)
        qemu.pci_write(self.devfn, 0x24, 0)
        qemu.pci_write(self.devfn, 0x04, 0x6)
        self.reset()

    def reset(self):
        """Resets the device and sets it up anew, as after a driver that failed."""
        qemu, common = self.qemu, self.where[1]
        desc, avail, used = self.ring, self.ring + 0x100, self.ring + 0x200
        self.request, self.response = self.ring + 0x300, self.ring + 0x340
        self.index = 0
        (features,) = struct.unpack("<Q", struct.pack("<II", *self._features()))
        assert features >> 32 & 1 and features >> 1 & 1, f"features {features:#x}"     # VERSION_1, UNPLUGGED_INACCESSIBLE
        qemu.commands(
            f"memset {self.ring:#x} 0x400 0x0",
            f"writeb {common + 20:#x} 0x0", f"writeb {common + 20:#x} 0x3",
            f"writel {common + 8:#x} 0x0", f"writel {common + 12:#x} 0x2",
            f"writel {common + 8:#x} 0x1", f"writel {common + 12:#x} 0x1",
            f"writeb {common + 20:#x} 0xb",
            f"writew {common + 22:#x} 0x0", f"writew {common + 24:#x} {self.QUEUE_SIZE:#x}",
            *(f"writel {common + offset + 4 * half:#x} {address >> 32 * half & 0xFFFFFFFF:#x}"
              for offset, address in ((32, desc), (40, avail), (48, used)) for half in (0, 1)),
            f"writew {common + 28:#x} 0x1",
            f"writeb {common + 20:#x} 0xf")
        self.notify = self.where[2] + qemu.read_uint(common + 30, 16) * self.notify_multiplier
        self.set_lengths(24, 10)
        assert qemu.read_uint(common + 20, 8) == 0xF

    def _features(self):
        common = self.where[1]
        answers = self.qemu.commands(f"writel {common:#x} 0x0", f"readl {common + 4:#x}",
                                     f"writel {common:#x} 0x1", f"readl {common + 4:#x}")
        return int(answers[1], 16), int(answers[3], 16)

    def set_lengths(self, request, response):
        chain = (struct.pack("<QIHH", self.request, request, 1, 1) +
                 struct.pack("<QIHH", self.response, response, 2, 0))
        self.qemu.commands(f"write {self.ring:#x} {len(chain):#x} 0x{chain.hex()}")

    def is_broken(self):
        return bool(self.qemu.read_uint(self.where[1] + 20, 8) & 0x40)

    def send(self, kind, address=0, blocks=0):
        """One request; its response type, or None if the device did not answer."""
        data = struct.pack("<HHHHQHHHH", kind, 0, 0, 0, address, blocks, 0, 0, 0)
        avail, used = self.ring + 0x100, self.ring + 0x200
        # Each buffer chain starts at descriptor 0: the ring's entries are all 0 already.
        self.index = self.index + 1 & 0xFFFF
        answers = self.qemu.commands(
            f"write {self.request:#x} 0x18 0x{data.hex()}", f"write {self.response:#x} 0xa 0x{'ff' * 10}",
            f"writew {avail + 2:#x} {self.index:#x}", f"writew {self.notify:#x} 0x0",
            f"readw {used + 2:#x}", f"read {self.response:#x} 0xa")
        if int(answers[4], 16) != self.index:
            return None
        kind, _, _, _, self.state = struct.unpack("<HHHHH", bytes.fromhex(answers[5][2:]))
        return kind

    def plug(self, first, blocks=1):
        return self.send(PLUG, self.address + first * self.block_size, blocks)

    def unplug(self, first, blocks=1):
        return self.send(UNPLUG, self.address + first * self.block_size, blocks)

    def unplug_all(self):
        return self.send(UNPLUG_ALL)

    def _config(self, offset):
        return self.qemu.read_uint(self.where[4] + offset)

    block_size = property(lambda self: self._constant("_block_size", 0))
    address = property(lambda self: self._constant("_address", 16))
    region_bytes = property(lambda self: self._constant("_region", 24))
    usable_bytes = property(lambda self: self._config(32))
    plugged_bytes = property(lambda self: self._config(40))
    requested_bytes = property(lambda self: self._config(48))

    def _constant(self, name, offset):
        if not hasattr(self, name):
            setattr(self, name, self._config(offset))
        return getattr(self, name)
