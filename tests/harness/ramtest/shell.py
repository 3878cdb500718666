# SPDX-License-Identifier: GPL-2.0-or-later
"""The command channel to a guest: ttyS1 on a UNIX socket, and the loop in tests/guest/init at its other end."""

import base64
import json
import socket
import time

from . import wait


class CommandFailed(AssertionError):
    pass


class Result:
    def __init__(self, command, code, output):
        self.command, self.code, self.output = command, code, output

    def __repr__(self):
        return f"exit {self.code} of {self.command!r}: {self.output!r}"


class GuestShell:
    """Runs commands in a guest. `alive` says whether there is still a guest to wait for."""

    def __init__(self, socket_path, alive=lambda: True, log=None):
        self.path, self.alive, self.log = str(socket_path), alive, log
        self.socket, self.buffer, self.next_id = None, b"", 1

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket, self.buffer = None, b""

    def _connect(self, deadline):
        while self.socket is None:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                s.connect(self.path)
                self.socket = s
            except (FileNotFoundError, ConnectionRefusedError):
                s.close()
                self._check(deadline, "its serial socket")
                time.sleep(0.1)

    def _check(self, deadline, what):
        if not self.alive():
            raise CommandFailed(f"the guest is gone while waiting for {what}")
        if time.monotonic() > deadline:
            raise wait.TimedOut(f"no answer from the guest in time: {what}")

    def _lines(self, seconds):
        """Complete lines that come within `seconds`."""
        self.socket.settimeout(seconds)
        try:
            data = self.socket.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return []
        except ConnectionError:
            data = b""
        if not data:
            self.close()
            return []
        if self.log:
            self.log.write(data)
            self.log.flush()
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [line.rstrip(b"\r").decode("ascii", "replace") for line in lines]

    def try_run(self, command, timeout=60, resend=None):
        """Run a shell command and return its Result.

        `resend`: send it again after so many seconds, and then ever less often, until somebody listens; only for
        commands that may run twice. A slow guest may find several copies in its UART: each answer is as good.
        """
        timeout = int(timeout * wait.SLOW)
        deadline = time.monotonic() + timeout + 5
        numbers, body, sent = set(), None, 0
        while True:
            self._connect(deadline)
            if not numbers or (body is None and resend and time.monotonic() - sent > resend):
                number, sent = self.next_id, time.monotonic()
                resend = resend and resend * 1.5
                numbers.add(str(number))
                self.next_id += 1
                encoded = base64.b64encode(command.encode()).decode()
                # The first newline ends whatever half line lies in the UART.
                try:
                    self.socket.settimeout(5)
                    self.socket.sendall(f"\nR {number} {timeout} {encoded} E\n".encode())
                except (TimeoutError, ConnectionError):
                    self.close()
                    if not resend:
                        raise CommandFailed(f"the guest does not take {command!r}") from None
                    self._check(deadline, command)
                    continue
            for line in self._lines(0.2):
                mark = line.split(" ")
                if mark[0] == "@@READY":
                    # A boot: what was under way before it gets no answer any more, not even the rest of one.
                    if not resend and body is not None:
                        raise CommandFailed(f"the guest was reset during {command!r}")
                    body, sent = None, 0
                elif mark[0] == "@@B" and len(mark) == 2:
                    body = [] if mark[1] in numbers else None
                elif mark[0] == "@@E" and len(mark) == 3 and body is not None and mark[1] in numbers:
                    text = base64.b64decode("".join(body)).decode("utf-8", "replace")
                    return Result(command, int(mark[2]), text)
                elif body is not None:
                    body.append(line)
            self._check(deadline, command)

    def run(self, command, timeout=60):
        """Run a shell command, return its output; a non-zero exit is an error with all that it printed."""
        result = self.try_run(command, timeout)
        if result.code:
            raise CommandFailed(repr(result))
        return result.output

    def wait_ready(self, timeout=120):
        """Wait until the guest runs commands; return its boot id."""
        result = self.try_run("cat /proc/sys/kernel/random/boot_id", timeout, resend=1)
        return result.output.strip()

    def json(self, command, timeout=60):
        return json.loads(self.run(command, timeout))

    # What most tests ask.

    def read(self, path):
        return self.run(f"cat {path}").strip()

    def vmstat(self):
        return {name: int(value) for name, value in (line.split() for line in self.run("cat /proc/vmstat").splitlines())}

    def load(self, mib, kind="anon", prefix="", timeout=180):
        """Start cnuma-load; returns when its working set is filled."""
        self.run(f"{prefix} cnuma-load --kind {kind} --background {mib} >/run/load.log 2>&1 || {{ cat /run/load.log; false; }}",
                 timeout)

    def report(self, command="report", timeout=60):
        """The witness's figures since the last `reset`; see tests/guest/cnuma-load.c."""
        return self.json(f"cnuma-load {command}", timeout)
