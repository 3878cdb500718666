# SPDX-License-Identifier: GPL-2.0-or-later
"""The real rmd on a private bus, with fake QEMUs as domains: what the tests here share."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid as uuid_module

import pytest

gi = pytest.importorskip("gi")
gi.require_version("Gio", "2.0")
from gi.repository import Gio, GLib  # noqa: E402

HERE = pathlib.Path(__file__).parent
CHUNK = 128 << 20
GIB = 1 << 30


def find_rmd():
    """RR_RMD, or rmd in RR_BUILD, or in the default build folder."""
    candidates = [os.environ.get("RR_RMD")]
    if os.environ.get("RR_BUILD"):
        build = pathlib.Path(os.environ["RR_BUILD"])
        candidates += [build / "rmd", build / "daemon/rmd"]
    candidates.append(HERE / "../../build/rmd/daemon/rmd")
    for c in candidates:
        if c and pathlib.Path(c).is_file():
            return str(c)
    return None


class BusError(Exception):
    def __init__(self, error):
        self.name = Gio.DBusError.get_remote_error(error)
        Gio.DBusError.strip_remote_error(error)
        self.message = error.message
        super().__init__(f"{self.name}: {self.message}")


def wait_until(what, check, seconds=20):
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.02)


class FakeQemu:
    """A fake_qemu.py process."""

    def __init__(self, rmd, uuid, connect=True, user=None, name="vm"):
        self.uuid = uuid
        self.process = subprocess.Popen(
            [sys.executable, HERE / "fake_qemu.py", rmd.run / "bus", uuid],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=user,
            env={**os.environ, "FAKE_NAME": name})
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            self.process.wait()
            raise RuntimeError(answer["error"])
        if connect:
            self("connect")

    def __call__(self, cmd, **arguments):
        self.process.stdin.write(json.dumps({"cmd": cmd, **arguments}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise OSError(answer["error"])
        return answer["result"]

    def held(self):
        """{(channel, base): set of chunks}"""
        return {(r["channel"], r["base"]): {c["chunk"] for c in r["chunks"]}
                for r in self("state")["regions"] if r["chunks"]}

    def plugged(self):
        return {r["channel"]: r["plugged"] // CHUNK
                for r in self("state")["regions"] if not r["base"] and r["plugged"]}

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Rmd:
    def __init__(self, folder, program):
        self.folder, self.program = folder, program
        # The paths of sockets are short; those of a test's folder are not.
        self.run = pathlib.Path(tempfile.mkdtemp(prefix="rr"))
        self.state, self.store = folder / "state", folder / "store"
        self.config = folder / "rmd.conf"
        self.process = None
        self.qemus = []
        self.channels = {}
        self.daemon_options = {}
        self.qemu_options = ""

    def configure(self, channels=None, **daemon):
        """channels: {name: (tier, chunks)}"""
        if channels is not None:
            self.channels = channels
        self.daemon_options.update(daemon)
        text = f"[daemon]\nruntime-dir={self.run}\nstate-dir={self.state}\n"
        for key, value in self.daemon_options.items():
            text += f"{key.replace('_', '-')}={value}\n"
        text += f"[qemu]\nemulator=/bin/false\n{self.qemu_options}[store lab]\npath={self.store}\n"
        for dax, (name, (tier, chunks)) in enumerate(self.channels.items()):
            text += (f"[channel {name}]\nstore=lab\ntier={tier}\ndax={dax}\nsize={chunks * 128}M\n"
                     + ("read-bandwidth=36000\nwrite-bandwidth=36000\nlatency=100\n"
                        if tier == "dimm" else
                        "read-bandwidth=27000\nwrite-bandwidth=27000\nlatency=250\n"))
        self.config.write_text(text)

    def start(self, expect_failure=False):
        log = open(self.folder / "rmd.log", "a", encoding="utf-8")
        self.process = subprocess.Popen([self.program, "--config", self.config, "-l", "debug"],
                                        stderr=log)
        log.close()
        if expect_failure:
            assert self.process.wait(20) == 1
            return self.log().strip().splitlines()[-1]
        wait_until("rmd is there", self.is_up)
        return None

    def is_up(self):
        assert self.process.poll() is None, self.log()
        with contextlib.suppress(GLib.Error):
            self.bus = Gio.DBusConnection.new_for_address_sync(
                f"unix:path={self.run}/bus", Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT,
                None, None)
            return True
        return False

    def log(self):
        return (self.folder / "rmd.log").read_text(encoding="utf-8")

    def kill(self):
        """As a crash: nothing is said to anyone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def close(self):
        for qemu in self.qemus:
            qemu.kill()
        self.close_process()
        shutil.rmtree(self.run)
        shutil.rmtree(self.store, ignore_errors=True)

    def close_process(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                code = self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
            assert code == 0, self.log()[-3000:]

    # ---- the bus ----

    def call(self, method, signature="()", *arguments, timeout=30):
        try:
            reply = self.bus.call_sync(
                None, "/org/ramryder/Manager1", "org.ramryder.Manager1", method,
                GLib.Variant(signature, arguments), None, Gio.DBusCallFlags.NONE, timeout * 1000,
                None)
        except GLib.Error as e:
            raise BusError(e) from None
        values = reply.unpack()
        return values[0] if len(values) == 1 else values

    @staticmethod
    def variant(signature, value):
        return GLib.Variant(signature, value)

    def domain(self, name):
        return self.call("GetDomain", "(s)", name)

    def channel(self, name):
        return next(c for c in self.call("ListChannels") if c["name"] == name)

    def layout(self, name, key="chunks"):
        return {c["name"]: c[key] for c in self.domain(name)["channels"] if c[key]}

    def resize(self, name, **options):
        types = {"capacity_bytes": "t", "bandwidth_channels": "u", "layout": "a{su}",
                 "dry_run": "b", "expected_generation": "t"}
        vardict = {k.replace("_", "-"): GLib.Variant(types[k], v) for k, v in options.items()}
        return self.call("Resize", "(sa{sv})", name, vardict)

    def job(self, number):
        return self.call("GetJob", "(t)", number)

    def wait_job(self, number, state="done", seconds=30):
        job = wait_until(f"job {number}", lambda: self.finished(number), seconds)
        assert job["state"] == state, job
        return job

    def finished(self, number):
        job = self.job(number)
        return job if job["state"] != "running" else None

    def wait_started(self, name):
        jobs = [j for j in self.call("ListJobs") if j["vm"] == name and j["kind"] == "start"]
        return self.wait_job(jobs[-1]["id"])

    def all_free(self):
        return all(c["free-chunks"] == c["size-chunks"] for c in self.call("ListChannels"))

    # ---- domains ----

    def xml(self, name="vm", uuid=None, capacity=16, minimum=8, maximum=32, bandwidth=2,
            bandwidth_max=None, placement='tiers="dimm cxl"', vcpus=2,
            machine="pc-q35-7.2"):
        uuid = uuid or str(uuid_module.uuid4())
        most = f' max="{bandwidth_max}"' if bandwidth_max else ""
        return uuid, f"""<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid>
  <memory unit='MiB'>{maximum * 128}</memory><vcpu>{vcpus}</vcpu>
  <os><type arch='x86_64' machine='{machine}'>hvm</type></os>
  <metadata><rr:memory xmlns:rr="urn:ramryder:libvirt:1">
    <rr:capacity unit="MiB" min="{minimum * 128}" max="{maximum * 128}">{capacity * 128}</rr:capacity>
    <rr:bandwidth unit="channels" min="1"{most}>{bandwidth}</rr:bandwidth>
    <rr:placement {placement}/></rr:memory></metadata>
  <devices><emulator>/usr/bin/qemu-ramryder</emulator></devices></domain>"""

    def claim(self, name="vm", **options):
        uuid, xml = self.xml(name, **options)
        self.call("Claim", "(s)", xml)
        return uuid

    def qemu(self, uuid, **options):
        qemu = FakeQemu(self, uuid, **options)
        self.qemus.append(qemu)
        return qemu

    def run_vm(self, name="vm", **options):
        """A domain that has all it asked for."""
        qemu = self.qemu(self.claim(name, **options), name=name)
        self.wait_started(name)
        return qemu

    # ---- the books, read past rmd ----

    def ledger(self, name=None):
        """{(channel, base): set of chunks} that are granted to @name (or anybody)."""
        db = sqlite3.connect(self.state / "ledger.db")
        held = {}
        rows = db.execute(
            "SELECT c.name, k.base, k.chunk FROM chunk k JOIN channel c ON c.id = k.channel"
            " JOIN vm v ON v.id = k.vm WHERE k.state = 'granted' AND (?1 IS NULL OR v.name = ?1)",
            (name,))
        for channel, base, chunk in rows:
            held.setdefault((channel, bool(base)), set()).add(chunk)
        db.close()
        return held

    def files(self):
        return sorted(str(p.relative_to(self.store)) for p in self.store.glob("*/*"))


def reconnect(qemu):
    """As the back-off of the real one; a fake that was not connected yet finds no socket."""
    def attempt():
        try:
            if not qemu("state")["connected"]:
                qemu("connect")
            return True
        except OSError:
            return False
    wait_until("connected", attempt)
