# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest on a QEMU that this process starts by itself, without libvirt. Owns that QEMU and kills it by pid."""

import json
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile

from . import env, wait
from .shell import GuestShell


class Qmp:
    """A QMP connection; events are kept in `events`."""

    def __init__(self, path, timeout=30):
        self.events = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        wait.until(lambda: self._connect(path), timeout, f"QMP on {path}", 0.05)
        self.file = self.socket.makefile("rwb")
        json.loads(self.file.readline())
        self.command("qmp_capabilities")

    def _connect(self, path):
        try:
            self.socket.connect(str(path))
            return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False

    def command(self, name, **arguments):
        self.file.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        self.file.flush()
        while True:
            answer = json.loads(self.file.readline())
            if "event" in answer:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise AssertionError(f"QMP {name}: {answer['error']['desc']}")
            return answer["return"]

    def close(self):
        self.file.close()
        self.socket.close()


class Guest(GuestShell):
    """`with Guest(["-m", "1G"]) as guest: guest.run("uname -r")`.

    extra: arguments for QEMU; append: words for the kernel's command line; pass_fds: descriptors QEMU inherits;
    archives: cpio archives that are unpacked over the guest image.
    The console's log stays in the folder of env.logs().
    """

    MACHINE = ["-machine", "q35", "-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none", "-cpu", "max"]

    def __init__(self, extra=(), append="", name="guest", qemu=None, kernel=None, image=None, pass_fds=(), machine=None,
                 archives=()):
        self.name, self.append, self.pass_fds = name, append, tuple(pass_fds)
        self.qemu = qemu or env.path("RR_QEMU")
        self.kernel = kernel or env.path("RR_KERNEL")
        self.image = image or env.path("RR_GUEST")
        self.extra = list(extra)
        self.machine = self.MACHINE if machine is None else machine
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ramtest-"))
        if archives:
            # The kernel unpacks one after the other; one that is not compressed has to be aligned.
            parts = [pathlib.Path(part).read_bytes() for part in (self.image, *archives)]
            whole = self.folder / "initrd"
            whole.write_bytes(b"".join(part + bytes(-len(part) % 4) for part in parts))
            self.image = whole
        self.console = env.logs() / f"{name}.console.log"
        self.stderr = env.logs() / f"{name}.qemu.log"
        self.process = self._qmp = None
        super().__init__(self.folder / "shell.sock", self.is_running, open(env.logs() / f"{name}.shell.log", "wb"))

    def arguments(self):
        return [str(self.qemu), *self.machine,
                "-kernel", str(self.kernel), "-initrd", str(self.image),
                "-append", env.kernel_words(self.append),
                "-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console",
                "-chardev", f"socket,id=shell,path={self.path},server=on,wait=off", "-serial", "chardev:shell",
                "-qmp", f"unix:{self.folder}/qmp.sock,server=on,wait=off",
                *self.extra]

    def start(self):
        with open(self.stderr, "wb") as log:
            self.process = subprocess.Popen(self.arguments(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            pass_fds=self.pass_fds)
        return self

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self):
        return self.process.pid

    @property
    def qmp(self):
        if self._qmp is None:
            self._qmp = Qmp(self.folder / "qmp.sock")
        return self._qmp

    def wait_ready(self, timeout=120):
        try:
            return super().wait_ready(timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.stderr.read_text()[-2000:]}\nend of {self.console}:\n"
                                 f"{self.console.read_text(errors='replace')[-2000:] if self.console.exists() else ''}"
                                 ) from None

    def wait_exit(self, timeout=60):
        wait.until(lambda: not self.is_running(), timeout, f"the end of {self.name}")
        return self.process.returncode

    def stop(self):
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.close()
        if self._qmp:
            self._qmp.close()
            self._qmp = None
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
