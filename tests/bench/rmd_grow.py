# SPDX-License-Identifier: GPL-2.0-or-later
"""The shares of one growth by a chunk, from the call to the moment at which a real guest on a real QEMU has the memory.

rmd's log at level debug carries CLOCK_MONOTONIC and says when it sends a request and how long QEMU took to answer; the call
and the guest's answer are taken here, on the same clock. The guest spins on its MemTotal.
"""
import os
import pathlib
import re
import statistics
import threading
import time

import rmdtest
from ramtest import env
from ramtest.guest import Guest
from rmdtest import CHUNK

# No fork in the loop: a process costs a guest under TCG more than what is measured.
SPIN = ('read -r _ m _ </proc/meminfo; n=$m; while [ "$n" -le "$m" ]; do read -r _ n _ </proc/meminfo; done; '
        'echo "$m $n"')
LINE = re.compile(r"^rmd: \[([0-9.]+)\] debug: domain grow: (grant|resize|request \d+ is done after (\d+) us)")


def timeline(lines):
    """[(kind, seconds, µs of the answer)] of rmd's log."""
    found = []
    for line in lines:
        match = LINE.match(line)
        if match:
            kind = "done" if match.group(3) else match.group(2)
            found.append((kind, float(match.group(1)), int(match.group(3) or 0)))
    return found


def shares(call, usable, events):
    """µs of rmd, QEMU and the guest of one growth."""
    kinds = [kind for kind, _, _ in events]
    if kinds[:4] != ["grant", "done", "resize", "done"]:
        raise RuntimeError(f"one growth is grant, done, resize, done; rmd's log says {kinds}")
    (_, grant, _), (_, granted, grant_usec), (_, resize, _), (_, resized, resize_usec) = events[:4]
    return {"rmd": (grant - call + resize - granted) * 1e6, "qemu": grant_usec + resize_usec, "guest": (usable - resized) * 1e6,
            "whole": (usable - call) * 1e6}


def sync_usec(folder):
    """What one small write to this disk costs, which rmd pays for its journal."""
    times = []
    with open(folder / "sync", "wb", buffering=0) as file:
        for _ in range(30):
            start = time.monotonic()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - start)
    return round(statistics.median(times) * 1e6)


def measure(folder, rounds, notes):
    folder = pathlib.Path(folder) / "grow"
    folder.mkdir()
    daemon = rmdtest.Rmd(folder, str(env.program("rmd")))
    daemon.configure({"dimm0": ("dimm", 24), "dimm1": ("dimm", 24)})
    daemon.config.write_text(daemon.config.read_text().replace("/bin/false", str(env.path("RR_QEMU"))))
    daemon.start()
    os.environ["RMD_CONFIG"] = str(daemon.config)
    result = []
    try:
        uuid = daemon.claim("grow", capacity=8, minimum=8, maximum=24, bandwidth=1, bandwidth_max=1, vcpus=2)
        extra = ["-uuid", uuid, "-name", "guest=grow", "-smp", "2"]
        with Guest(extra, name="bench-grow", qemu=env.program("qemu-ramryder")) as guest:
            guest.wait_ready()
            rmdtest.wait_until("the start is done", lambda: daemon.domain("grow")["ready"], 60)
            for i in range(rounds):
                answer = []

                def spin():
                    answer.append(guest.run(SPIN, 120))
                    answer.append(time.monotonic())

                thread = threading.Thread(target=spin)
                thread.start()
                time.sleep(1)  # the guest spins by then
                offset = len(daemon.log())
                call = time.monotonic()
                job = daemon.resize("grow", capacity_bytes=(9 + i) * CHUNK)
                thread.join(120)
                if len(answer) < 2:
                    raise RuntimeError("the guest's MemTotal did not grow in 120 s")
                rmdtest.wait_until("the job is over", lambda: daemon.job(job)["state"] != "running", 60)
                if daemon.job(job)["state"] != "done":
                    raise RuntimeError(f"the growth failed: {daemon.job(job)['message']}")
                result.append(shares(call, answer[1], timeline(daemon.log()[offset:].splitlines())))
    finally:
        daemon.close()
    notes["grow"] = {"rounds": [{k: round(v) for k, v in r.items()} for r in result], "sync_usec": sync_usec(folder)}
    return {f"grow_{part}_usec": round(statistics.median(r[part] for r in result)) for part in ("rmd", "qemu", "guest")}
