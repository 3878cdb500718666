# SPDX-License-Identifier: GPL-2.0-or-later
"""The soak: guests that do everything to their memory and verify it, while channels come and go below them.

A cycle is two processes of tests/guest/cnuma-soak.c and some changes of channels, all of it made from one seed.
"""

import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

from . import env, wait
from .channels import MIB, StaticChannels
from .guest import Guest

SPLATS = ("BUG:", "WARNING:", "KASAN:", "possible circular locking", "INFO: task", "Bad page", "Oops", "cnuma-soak:",
          "general protection", "rcu: INFO", "Kernel panic", "Out of memory", "possible recursive locking", "suspicious RCU")
WINDOW = 256
# What a channel may be asked for; the CXL head keeps some, or its sNode is not there.
SIZES = {"dimm1": (0, 128, 256), "dimm2": (0, 128, 256), "dimm3": (0, 128, 256), "cxl0": (128, 256), "cxl1": (0, 128, 256)}
WORKING_SET = 8                         # MiB, of each of the two processes
CYCLES_OF_A_GUEST = 100


class Failed(AssertionError):
    pass


class Soak:
    """`with Soak("name", log) as soak: soak.run(seed)`"""

    def __init__(self, name, log, first=0, demotion=True):
        self.folder = tempfile.mkdtemp(prefix="ramtest-", dir="/dev/shm")
        plugged = {"dimm1": 256, "dimm2": 128, "cxl0": 256}
        self.channels = StaticChannels(self.folder, dimms=4, cxls=2, base_mib=max(768, env.base_mib()), window_mib=WINDOW, plugged_mib=plugged)
        self.wanted = {**{name: 0 for name in SIZES}, **plugged}
        self.guest = Guest(self.channels.arguments(), append="brd.rd_nr=1 brd.rd_size=131072", name=name)
        self.log, self.cycles, self.seen, self.demotion = log, first, 0, demotion

    def __enter__(self):
        self.guest.start()
        try:
            self.guest.wait_ready(300)
            self.settle()
            self.guest.run("mkswap /dev/ram0 >/dev/null && swapon /dev/ram0 && cd /sys/kernel/mm/ksm"
                           " && echo 20 >sleep_millisecs && echo 1000 >pages_to_scan && echo 1 >run")
            if not self.demotion:
                self.guest.run("echo false >/sys/kernel/mm/numa/demotion_enabled")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.guest.stop()
        shutil.rmtree(self.folder)

    def settle(self, timeout=180):
        """Everything that was asked for is there."""
        for name, mib in self.wanted.items():
            wait.until(lambda name=name, mib=mib: self.channels.plugged_bytes(self.guest, name) == mib * MIB, timeout,
                       f"{mib} MiB on {name}, with {self.console_tail()}")

    def console_tail(self):
        text = self.guest.console.read_text(errors="replace")
        return "the console at " + repr(text[-300:])

    def request(self, name, mib):
        self.channels.request(self.guest, name, mib)
        self.wanted[name] = mib

    def check_console(self):
        text = self.guest.console.read_text(errors="replace")
        fresh, self.seen = text[self.seen:], len(text)
        for splat in SPLATS:
            if splat in fresh:
                at = fresh.index(splat)
                raise Failed(f"the guest's console says:\n{fresh[max(0, at - 300):at + 6000]}")

    def change(self, dice, done):
        """Grow, shrink, drain or cancel: one change, sometimes taken back at once."""
        name = dice.choice(sorted(SIZES))
        before, size = self.wanted[name], dice.choice(SIZES[name])
        self.request(name, size)
        done.append(f"{name}={size}")
        time.sleep(dice.choice((0, 0.05, 0.3)))
        if dice.random() < 0.3:
            self.request(name, before)
            done.append(f"{name}={before}")
        elif dice.random() < 0.3:
            wait.until(lambda: self.channels.plugged_bytes(self.guest, name) == self.wanted[name] * MIB, 120, f"{size} MiB on {name}")

    def run(self, seed):
        """One cycle; writes its line, raises when something was wrong."""
        dice, start, changes = random.Random(seed), time.monotonic(), []
        self.cycles += 1
        result = "failed"
        try:
            self.guest.run("cd /run; rm -f soak.*; for i in 1 2; do "
                           f"{{ cnuma-soak $(( {seed} * 2 + i )) {WORKING_SET} >soak.$i 2>&1; echo $? >soak.$i.rc; }} & done")
            for _ in range(dice.randrange(1, 5)):
                self.change(dice, changes)
                time.sleep(dice.random() / 2)
            wait.until(lambda: self.guest.try_run("ls /run/soak.1.rc /run/soak.2.rc").code == 0, 240, "the end of the cycle", 0.3)
            results = [json.loads(text) if code == "0" else text for text, code in
                       ((self.guest.read(f"/run/soak.{i}"), self.guest.read(f"/run/soak.{i}.rc")) for i in (1, 2))]
            bad = [text for text in results if isinstance(text, str)]
            if bad:
                raise Failed(f"seed {seed}: {bad}")
            if self.cycles % 8 == 0:
                self.settle()
            self.check_console()
            pages = sum(entry["verified"] for entry in results)
            result = f"ok, {pages} pages verified, steps {' / '.join(entry['steps'] for entry in results)}"
        except Exception as error:
            result = f"FAILED {type(error).__name__}: " + str(error).split("\n", maxsplit=1)[0]
            try:
                self.check_console()
            except Failed as splat:
                raise splat from error
            raise
        finally:
            self.log.write(f"cycle {self.cycles} seed {seed} {time.monotonic() - start:.1f} s, {' '.join(changes)}: {result}\n")
            self.log.flush()


def campaign(name, log_path, cycles, demotion=True):
    """As many cycles, a new guest for each 100; BENCH_SEED=SEED: that cycle alone. Returns the number done."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    dice = random.Random()
    seeds = [int(os.environ["BENCH_SEED"])] if "BENCH_SEED" in os.environ else [dice.getrandbits(32) for _ in range(cycles)]
    with open(log_path, "w", encoding="utf-8") as log:
        for first in range(0, len(seeds), CYCLES_OF_A_GUEST):
            with Soak(f"{name}-{first}", log, first, demotion) as soak:
                for seed in seeds[first:first + CYCLES_OF_A_GUEST]:
                    soak.run(seed)
                soak.settle()
                soak.check_console()
    return len(seeds)


if __name__ == "__main__":
    print(campaign("kernel-soak", pathlib.Path(sys.argv[2]), int(sys.argv[1])), "cycles")
