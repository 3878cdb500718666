# SPDX-License-Identifier: GPL-2.0-or-later
"""The kill campaign: rmd dies at each step of its journal and at random moments while domains start, change and end.

An episode (one seed) is a fresh host with three domains on fake hypervisors; it has KILLS runs, each of which starts rmd,
puts load on it and ends with its death: at a named point (RMD_FAULT) or by kill -9 at a random moment. After every death,
before anything else runs, the books on disk are compared with what the hypervisors hold, and the hypervisors tell whether a
chunk that they were given was not zero; each fills its chunks with a secret of its own. At the end of an episode rmd runs
undisturbed until all has settled, and everything must be as asked for, the ledger's own check included.
"""
import contextlib
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import time

import rmdtest
from rmdtest import CHUNK, BusError

KILLS = 25
EPISODES = 41
POINTS = ["ledger-commit", "ledger-committed", "prepare", "grant-send", "take-back", "scrub", "any"]
SETTLE_SECONDS = 60


class Episode:
    def __init__(self, folder, program, seed, log):
        self.rng, self.seed, self.log_file = random.Random(seed), seed, log
        folder.mkdir(parents=True)
        self.rmd = rmdtest.Rmd(folder, program)
        self.rmd.configure({"dimm0": ("dimm", 24), "dimm1": ("dimm", 24), "dimm2": ("dimm", 24), "dimm3": ("dimm", 24),
                            "cxl0": ("cxl", 32)}, job_timeout=60)
        self.qemus = {}
        self.violations = []
        self.runs = 0
        self.points = {}

    # ---- rmd ----

    def start(self, fault):
        """TRUE when it answers; a fault may end it before that."""
        env = dict(os.environ)
        if fault:
            env["RMD_FAULT"] = fault
        with open(self.rmd.folder / "rmd.log", "a", encoding="utf-8") as out:
            self.rmd.process = subprocess.Popen([self.rmd.program, "--config", self.rmd.config], stderr=out, env=env)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            code = self.rmd.process.poll()
            if code is not None:
                if code != -signal.SIGKILL:
                    self.violations.append(f"rmd ended by itself with {code}: {self.rmd.log()[-300:]}")
                return False
            with contextlib.suppress(AssertionError):
                if self.rmd.is_up():
                    return True
            time.sleep(0.005)
        raise RuntimeError("rmd does not answer")

    def alive(self):
        return self.rmd.process.poll() is None

    # ---- load ----

    def connect(self):
        for qemu in self.qemus.values():
            with contextlib.suppress(OSError):
                if not qemu("state")["connected"]:
                    qemu("connect")

    def step(self):
        """One random request. Being refused, or rmd's death meanwhile, is fine."""
        name = self.rng.choice("abc")
        qemu = self.qemus.get(name)
        try:
            if not qemu:
                # Of one UUID: a claim whose answer was lost is replaced, as when libvirt starts it again.
                uuid = self.rmd.claim(name, uuid=f"{ord(name):08x}-0000-4000-8000-{self.seed:012x}", capacity=self.rng.randint(8, 24), bandwidth=1)
                qemu = self.rmd.qemu(uuid, connect=False)
                qemu("set", secret=True)
                self.qemus[name] = qemu
                with contextlib.suppress(OSError):
                    qemu("connect")
            elif self.rng.random() < 0.12:
                self.qemus.pop(name).kill()
                self.rmd.qemus.remove(qemu)
            else:
                self.rmd.resize(name, capacity_bytes=self.rng.randint(8, 32) * CHUNK,
                                bandwidth_channels=self.rng.randint(1, 3))
        except (BusError, RuntimeError) as err:
            if self.alive() and not any(word in str(err) for word in ("NoSpace", "Busy", "Invalid", "NotFound", "closed",
                                                                      "Disconnected", "no claim", "process", "NoReply")):
                self.violations.append(f"unexpected answer: {err}")

    # ---- checks ----

    def check(self):
        """What must be true at any moment, whatever died."""
        bad, owners = [], {}
        books = {name: self.rmd.ledger(name) for name in self.qemus}
        for name, qemu in self.qemus.items():
            held = qemu.held()
            for key, chunks in held.items():
                for chunk in chunks:
                    if owners.setdefault((key[0], chunk), name) != name:
                        bad.append(f"chunk {chunk} of {key[0]} is held by {owners[key[0], chunk]} and {name}")
                if not chunks <= books[name].get(key, set()):
                    bad.append(f"{name} holds {sorted(chunks - books[name].get(key, set()))} of {key}, which the books deny")
            dirty = qemu("dirty")
            if dirty:
                bad.append(f"{name} was given chunks that are not zero: {dirty}")
        db = sqlite3.connect(self.rmd.state / "ledger.db")
        problems = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        db.close()
        return bad + [f"ledger: {p}" for p in problems]

    def settled(self):
        self.connect()
        for name, qemu in self.qemus.items():
            if self.rmd.ledger(name) != qemu.held() or self.rmd.layout(name) != self.rmd.layout(name, "target-chunks"):
                return False
        return all(j["state"] != "running" for j in self.rmd.call("ListJobs"))

    # ---- runs ----

    def run(self, number):
        rng = self.rng
        fault = f"{rng.choice(POINTS)}:{rng.randint(1, 12)}" if rng.random() < 0.75 else None
        delay = rng.random() * 0.4
        if self.start(fault):
            self.connect()
            end = time.monotonic() + delay
            for _ in range(rng.randint(1, 5)):
                if not self.alive():
                    break
                self.step()
            while fault and self.alive() and time.monotonic() < end + 0.5 or not fault and time.monotonic() < end:
                time.sleep(0.005)
        died = "by itself" if not self.alive() else "kill -9"
        self.rmd.kill()
        before = len(self.violations)
        self.violations += self.check()
        found = self.violations[before:]
        self.runs += 1
        where = fault if died == "by itself" and fault else "random"
        self.points[where.split(":")[0]] = self.points.get(where.split(":")[0], 0) + 1
        self.log_file.write(f"seed={self.seed} run={number} fault={fault or '-'} died={where} domains={len(self.qemus)} "
                            f"{'; '.join(found) if found else 'ok'}\n")
        self.log_file.flush()

    def finish(self):
        """Undisturbed, all comes to rest as it was asked for; then all ends and every chunk is free again."""
        if not self.start(None):
            raise RuntimeError("rmd does not start")
        for uuid in {d["name"]: d["uuid"] for d in self.rmd.call("ListDomains") if d["state"] == "claimed"}.values():
            self.rmd.call("Release", "(s)", uuid)  # what libvirt's hook does when a start came to nothing
        rmdtest.wait_until("all has settled", self.settled, SETTLE_SECONDS)
        self.violations += self.check()
        self.violations += [f"check: {p}" for p in self.rmd.call("Check")]
        for qemu in self.qemus.values():
            qemu.kill()
        rmdtest.wait_until("all is free", self.rmd.all_free, SETTLE_SECONDS)
        if self.rmd.files():
            self.violations.append(f"files are left: {self.rmd.files()[:3]}")

    def close(self):
        for qemu in self.rmd.qemus:
            qemu.kill()
        if self.rmd.process and self.alive():
            self.rmd.kill()
        shutil.rmtree(self.rmd.run, ignore_errors=True)
        shutil.rmtree(self.rmd.folder, ignore_errors=True)


def campaign(folder, program, log_path, seeds=None, episodes=EPISODES):
    """Runs the episodes; {runs, violations, …}. One line a run goes to log_path, and one an episode that ends badly."""
    result = {"runs": 0, "violations": 0, "episodes": 0, "points": {}, "first": None, "seconds": 0}
    begun = time.monotonic()
    with open(log_path, "w", encoding="utf-8") as log:
        for seed in seeds if seeds is not None else range(1, episodes + 1):
            episode = Episode(pathlib.Path(folder) / str(seed), program, seed, log)
            try:
                for number in range(KILLS):
                    episode.run(number)
                episode.finish()
            except (AssertionError, RuntimeError, OSError, BusError) as err:
                episode.violations.append(f"the episode did not end: {type(err).__name__}: {err}")
            finally:
                if episode.violations:
                    kept = log_path.with_name(f"rmd-kill-{seed}.rmd.log")
                    with contextlib.suppress(OSError):
                        shutil.copy(episode.rmd.folder / "rmd.log", kept)
                    log.write(f"seed={seed} end: {'; '.join(episode.violations)[:2000]}\n")
                else:
                    log.write(f"seed={seed} end: settled, all free\n")
                log.flush()
                episode.close()
            result["runs"] += episode.runs
            result["episodes"] += 1
            result["violations"] += len(episode.violations)
            for point, count in episode.points.items():
                result["points"][point] = result["points"].get(point, 0) + count
            if episode.violations and not result["first"]:
                result["first"] = f"seed {seed}: {episode.violations[0]}"
    result["seconds"] = round(time.monotonic() - begun)
    return result
