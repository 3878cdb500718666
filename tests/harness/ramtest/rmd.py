# SPDX-License-Identifier: GPL-2.0-or-later
"""One rmd on a file store, inside the namespace of a PrivateLibvirt. Owns its process and its configuration."""

import json
import signal
import subprocess

from . import env, host, wait
from .host_bus import BusError, Manager

GIB = 1 << 30
STORE = "/var/lib/rmd/store"

DIMM = {"tier": "dimm", "read-bandwidth": 36000, "write-bandwidth": 36000, "latency": 100}
CXL = {"tier": "cxl", "read-bandwidth": 27000, "write-bandwidth": 27000, "latency": 250}


def six_channels(size="2G"):
    """4 DIMM channels on one socket and 2 CXL channels, the machine of the tests and the demo."""
    channels = {}
    for i in range(4):
        channels[f"dimm{i}"] = {**DIMM, "socket": 0, "dax": i, "channel": i, "size": size}
    for i in range(2):
        channels[f"cxl{i}"] = {**CXL, "socket": 0, "dax": 4 + i, "channel": 4 + i, "size": size}
    return channels


class Rmd:
    def __init__(self, libvirt, channels=None, name="rmd", store=STORE):
        self.libvirt, self.name, self.store = libvirt, name, store
        self.channels = six_channels() if channels is None else channels
        self.log = env.logs() / f"{name}.log"
        self.log.write_bytes(b"")
        self.process = self._manager = None
        self.write_config()

    def write_config(self):
        emulator = env.path("RR_QEMU")
        lines = ["[daemon]", "runtime-dir=/run/rmd", "state-dir=/var/lib/rmd", "",
                 "[qemu]", f"emulator={emulator}", "",
                 "[store test]", "kind=file", f"path={self.store}", ""]
        for name, keys in self.channels.items():
            lines += [f"[channel {name}]", "store=test", *(f"{key}={value}" for key, value in keys.items()), ""]
        self.libvirt.write("/etc/rmd/rmd.conf", "\n".join(lines))

    def start(self, timeout=30):
        assert not self.is_running()
        with open(self.log, "ab") as log:
            self.process = self.libvirt.popen([str(env.program("rmd")), "--config", "/etc/rmd/rmd.conf"],
                                              stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait.until(self._answers, timeout, "rmd to answer on its bus", 0.1)
        return self

    def _answers(self):
        assert self.is_running(), f"rmd ended with {self.process.returncode}:\n{self.log.read_text()[-2000:]}"
        try:
            return bool(self.manager.channels())
        except Exception:  # not there yet, in whatever way
            self._forget_manager()
            return False

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self):
        return self.process.pid

    @property
    def manager(self):
        if self._manager is None:
            self._manager = Manager(self.libvirt.outside("/run/rmd/bus"))
        return self._manager

    def _forget_manager(self):
        if self._manager:
            self._manager.close()
        self._manager = None

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self._forget_manager()

    def stop(self):
        self._forget_manager()
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def rmctl(self, *arguments, timeout=120, check=True):
        """Run rmctl; with check the exit code must be 0 and the output is returned, else the CompletedProcess."""
        result = self.libvirt.run([str(env.program("rmctl")), *arguments], timeout=timeout, check=False)
        if not check:
            return result
        assert result.returncode == 0, f"rmctl {' '.join(arguments)}: exit {result.returncode}: {result.stdout}{result.stderr}"
        return result.stdout

    def rmctl_json(self, *arguments, timeout=120):
        return json.loads(self.rmctl(*arguments, "--json", timeout=timeout))

    # What the tests compare.

    def ledger_chunks(self, vm):
        """Chunks of `vm` on every channel, zeros too, as rmd's ledger says."""
        held = {channel["name"]: channel["chunks"] for channel in self.manager.domain(vm)["channels"]}
        return {name: held.get(name, 0) for name in self.channels}

    def qemu_chunks(self, pid):
        """The same from QEMU's mappings: every chunk is mapped as a whole and once."""
        mapped = host.chunk_mappings(pid, self.store, self.libvirt.holder.pid)
        for channel, chunks in mapped.items():
            for chunk, size in chunks.items():
                assert size == host.CHUNK, f"chunk {chunk} of {channel}: {size} bytes mapped"
        return {name: len(mapped.get(name, {})) for name in self.channels}

    def not_free(self):
        """Chunks that are not free and clean, by channel; empty when all are."""
        return {name: c["size-chunks"] - c["free-chunks"] for name, c in self.manager.channels().items()
                if c["size-chunks"] != c["free-chunks"]}

    def dirty_chunks(self):
        return sum(c["released-chunks"] + c["scrubbing-chunks"] for c in self.manager.channels().values())

    def wait_job(self, number, timeout=300):
        def ended():
            job = self.manager.job(number)
            return job["state"] not in ("running", "queued", "pending") and job
        job = wait.until(ended, timeout, f"the end of job {number}")
        assert job["state"] == "done", f"job {number}: {job}"
        return job

    def resize(self, vm, timeout=300, **options):
        return self.wait_job(self.manager.resize(vm, **options), timeout)

    def wait_all_free(self, timeout=60):
        try:
            wait.until(lambda: not self.not_free(), timeout, "every chunk free and clean")
        except wait.TimedOut:
            raise AssertionError(f"chunks are left behind: {self.not_free()}") from None


__all__ = ["BusError", "GIB", "Rmd", "STORE", "six_channels"]
