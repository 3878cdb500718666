# SPDX-License-Identifier: GPL-2.0-or-later
"""rmd is killed at random moments while domains come, change and go. RR_KILL_RUNS makes it longer."""
import os
import random
import time

import pytest
from rmdtest import CHUNK, BusError, wait_until

RUNS = int(os.environ.get("RR_KILL_RUNS", "12"))


class Load:
    """Three domains and what was asked for them last."""

    def __init__(self, rmd, rng):
        self.rmd, self.rng = rmd, rng
        self.qemus = {}

    def connect(self):
        for qemu in self.qemus.values():
            try:
                if not qemu("state")["connected"]:
                    qemu("connect")
            except OSError:
                pass  # rmd is not listening yet

    def step(self):
        """One random request. Being refused is fine; being wrong is not."""
        name = self.rng.choice("abc")
        qemu = self.qemus.get(name)
        try:
            if not qemu:
                uuid = self.rmd.claim(name, capacity=self.rng.randint(8, 24), bandwidth=1)
                self.qemus[name] = self.rmd.qemu(uuid)
            elif self.rng.random() < 0.2:
                self.qemus.pop(name).kill()
                self.rmd.qemus.remove(qemu)
            else:
                self.rmd.resize(name, capacity_bytes=self.rng.randint(8, 32) * CHUNK,
                                bandwidth_channels=self.rng.randint(1, 3))
        except (BusError, RuntimeError) as e:
            assert "NoSpace" in str(e) or "Busy" in str(e) or "Invalid" in str(e), e

    def check_never_twice(self):
        seen = {}
        for name, qemu in self.qemus.items():
            for (channel, _), chunks in qemu.held().items():
                for chunk in chunks:
                    assert seen.setdefault((channel, chunk), name) == name, "given out twice"

    def settled(self):
        self.connect()
        for name, qemu in self.qemus.items():
            if self.rmd.ledger(name) != qemu.held():
                return False
            if self.rmd.layout(name) != self.rmd.layout(name, "target-chunks"):
                return False
        return all(j["state"] != "running" for j in self.rmd.call("ListJobs"))


@pytest.mark.parametrize("seed", range(RUNS))
def test_kill(rmd, seed):
    rng = random.Random(seed)
    load = Load(rmd, rng)
    for _ in range(4):
        for _ in range(rng.randint(1, 4)):
            load.step()
            load.check_never_twice()
        time.sleep(rng.random() * 0.15)
        rmd.restart()
        load.connect()
        load.check_never_twice()
    wait_until("settled", load.settled, 30)
    load.check_never_twice()
    files = sum(len(chunks) for q in load.qemus.values() for chunks in q.held().values())
    wait_until("clean", lambda: len(rmd.files()) == files)
    for qemu in load.qemus.values():
        qemu.kill()
    wait_until("all free", rmd.all_free)
    assert rmd.files() == []
