# SPDX-License-Identifier: GPL-2.0-or-later
"""The manager's side of the channel RPC, scripted: what rmd says, and what rmd would never say. Owns its socket only; the
books are the caller's. docs/specs/channel-manager.rst of the QEMU series is the protocol."""

import array
import json
import os
import select
import socket
import time

CHUNK = 128 << 20
MAX_FDS = 253


class ProtocolError(AssertionError):
    """QEMU has said what the protocol does not allow, or nothing where it must."""


class Manager:
    """Listens on `path`; .accept() waits for QEMU. `heard(message)` is called for each message but done and error."""

    def __init__(self, path, heard=lambda message: None, timeout=30):
        self.path, self.heard, self.timeout = str(path), heard, timeout
        self.listener = self.connection = None
        self.listen()

    def listen(self):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(4)
        self.listener.settimeout(self.timeout)

    def stop_listening(self):
        """Nobody is there any more: QEMU's attempts to connect fail."""
        self.listener.close()
        self.listener = None
        os.unlink(self.path)

    def accept(self):
        try:
            self.connection, _ = self.listener.accept()
        except TimeoutError:
            raise ProtocolError(f"QEMU did not connect for {self.timeout} s") from None
        self.tx_seq = self.rx_seq = 0
        self.buffer = b""
        return self

    def hang_up(self):
        if self.connection:
            self.connection.close()
            self.connection = None

    def close(self):
        self.hang_up()
        if self.listener:
            self.stop_listening()

    # Receiving

    def receive(self, timeout=None):
        """The next message; None if there is none within `timeout` seconds."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while b"\n" not in self.buffer:
            if not select.select([self.connection], [], [], max(0, deadline - time.monotonic()))[0]:
                return None
            data = self.connection.recv(1 << 16)
            if not data:
                raise ProtocolError("QEMU has closed the connection")
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        message = json.loads(line)
        self.rx_seq += 1
        if message["seq"] != self.rx_seq:
            raise ProtocolError(f"seq {message['seq']}, {self.rx_seq} is next: {message}")
        return message

    def drain(self):
        """Hears all that is there already."""
        while message := self.receive(timeout=0):
            if message["type"] in ("done", "error"):
                raise ProtocolError(f"an answer to nothing: {message}")
            self.heard(message)

    def answer(self):
        """The next answer: ("done", id) or (error class, id)."""
        while True:
            message = self.receive()
            if message is None:
                raise ProtocolError(f"no answer for {self.timeout} s")
            if message["type"] == "done":
                return "done", message["id"]
            if message["type"] == "error":
                return message["class"], message["id"]
            self.heard(message)

    def hello(self):
        message = self.receive()
        if message is None or message["type"] != "hello":
            raise ProtocolError(f"no hello but {message}")
        self.heard(message)
        return message

    # Sending

    def send_raw(self, data, fds=(), cuts=()):
        """Sends bytes, descriptors with the first; `cuts`: where the bytes are cut into separate writes."""
        edges = [0, *sorted(set(cuts) - {0, len(data)}), len(data)]
        for start, end in zip(edges, edges[1:]):
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds and start == 0 else []
            sent = self.connection.sendmsg([data[start:end]], ancillary)
            self.connection.sendall(data[start + sent:end])

    def line(self, members, **override):
        """The bytes of a request; sequence number first, which is counted."""
        self.tx_seq += 1
        return json.dumps({"seq": self.tx_seq, **members, **override}).encode() + b"\n"

    def request(self, members, fds=(), cuts=(), **override):
        self.send_raw(self.line(members, **override), fds, cuts)
