#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures of rmd: planner, ledger, start with a thousand domains, zeroing, the shares of a growth, and a kill campaign.

Writes build/bench/rmd.json, build/bench/rmd-kill.log and a table with the bar of each figure. A figure that cannot be taken
fails the bench; a bar that is missed does not. BENCH_SEED=N makes the kill campaign the one run of that seed. BENCH_PARTS=a,b
takes only these parts (and then fails for the others). Needs root: it mounts a tmpfs, in a mount namespace of its own.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "harness"), str(TESTS / "component"), str(TESTS / "bench")]

from ramtest import env  # noqa: E402
import rmdtest  # noqa: E402
import rmd_kill  # noqa: E402

CHUNK = 128 << 20
BENCH = env.ROOT / "build" / "bench"
BUILD = env.ROOT / "build" / "rmd"
NAMESPACE = "RR_BENCH_NAMESPACE"
FLEET_VMS, FLEET_CHUNKS = 1000, 100
FLEET_CHANNELS = 32
IDLE_SECONDS = 20
START_ROUNDS = 5
ZERO_BYTES = 512 << 20
GROW_ROUNDS = 9
HOSTILE_WINDOWS, HOSTILE_REQUESTS, HOSTILE_SECONDS = 10, 100, 1.5

# name -> (bar as text, test)
BARS = {
    "plan_p99_usec": ("< 1000", lambda v: v < 1000),
    "plan_optimality": ("<= 1.02", lambda v: v <= 1.02),
    "ledger_ratio": (">= 0.7", lambda v: v >= 0.7),
    "reconcile_sec": ("< 1", lambda v: v < 1),
    "reconcile_rss_mb": ("< 64", lambda v: v < 64),
    "idle_cpu_percent": ("< 2", lambda v: v < 2),
    "scrub_ratio": (">= 0.9", lambda v: v >= 0.9),
    "grow_rmd_usec": ("< 5000", lambda v: v < 5000),
    "grow_qemu_usec": None,
    "grow_guest_usec": None,
    "kill_runs": (">= 1000", lambda v: v >= 1000),
    "kill_violations": ("0", lambda v: v == 0),
    "hostile_neighbour_p99_ratio": ("<= 1.2", lambda v: v <= 1.2),
}


class CannotMeasure(Exception):
    """A figure cannot be taken; says which and why."""


def program(name, *arguments, timeout=600):
    """Builds tests/bench/NAME.c and runs it; its JSON."""
    target = f"tests/bench-rmd-{name}"
    build = subprocess.run(["ninja", "-C", str(BUILD), target], capture_output=True, text=True, check=False)
    if build.returncode:
        raise CannotMeasure(f"{target} does not build: {build.stdout[-500:]}")
    run = subprocess.run([BUILD / target, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False)
    if run.returncode:
        raise CannotMeasure(f"{target} {' '.join(map(str, arguments))}: {run.stderr.strip() or run.returncode}")
    return run.stdout


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def plan(metrics, notes):
    notes["plan"] = json.loads(program("plan", "time", 1))
    metrics["plan_p99_usec"] = notes["plan"]["p99_usec"]
    notes["optimum"] = json.loads(program("plan", "optimum", 1))
    metrics["plan_optimality"] = notes["optimum"]["compacted"]


def ledger(metrics, notes, folder):
    notes["ledger"] = json.loads(program("ledger", "ratio", folder))
    metrics["ledger_ratio"] = notes["ledger"]["ratio"]


def zero(metrics, notes):
    threads = max(1, len(os.sched_getaffinity(0)))
    threads = 1 << (threads.bit_length() - 1)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(ZERO_BYTES)
        notes["zero"] = json.loads(program("zero", file.name, ZERO_BYTES, threads))
    metrics["scrub_ratio"] = notes["zero"]["ratio"]


# ---- a thousand domains ----


class Fleet:
    """rmd with FLEET_VMS domains whose hypervisors are one fake process."""

    def __init__(self, folder):
        self.folder = folder
        # As /run is: a tmpfs.
        self.run = pathlib.Path(tempfile.mkdtemp(prefix="rr", dir="/dev/shm"))
        self.config = folder / "fleet.conf"
        per_channel = -(-FLEET_VMS * FLEET_CHUNKS // FLEET_CHANNELS) + FLEET_CHUNKS
        text = (f"[daemon]\nruntime-dir={self.run}\nstate-dir={folder}/fleet-state\n[qemu]\nemulator=/bin/false\n"
                f"[store lab]\npath={folder}/fleet-store\n")
        for i in range(FLEET_CHANNELS):
            text += (f"[channel c{i}]\nstore=lab\ntier=dimm\ndax={i}\nsize={per_channel * 128}M\nread-bandwidth=36000\n"
                     "write-bandwidth=36000\nlatency=100\n")
        self.config.write_text(text)
        store = folder / "fleet-store"
        store.mkdir()
        # No limit, so that rmd finds room for 13 TiB of channels; nothing is ever written there.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=0,mode=0700", "rmd-bench", store], check=True)
        self.fleet = subprocess.Popen([sys.executable, TESTS / "bench/rmd_fleet.py", self.run, "1", str(FLEET_CHUNKS)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        pid, start = self.fleet.stdout.readline().split()
        lines = program("ledger", "fill", self.config, FLEET_VMS, FLEET_CHUNKS, pid, start)
        self.fleet.stdin.write(lines + "\n")
        self.fleet.stdin.flush()
        if self.fleet.stdout.readline() != "ready\n":
            raise CannotMeasure("the fake hypervisors did not start")
        self.process = self.bus = None

    def start(self):
        """Seconds from exec until every domain's hello is reconciled."""
        start = time.monotonic()
        self.process = subprocess.Popen([BUILD / "daemon/rmd", "--config", self.config], stderr=subprocess.PIPE, text=True)
        seen, end, tail = 0, None, []
        for line in self.process.stderr:
            tail = (tail + [line])[-5:]
            if "hello, machine complete" in line:
                seen += 1
            if seen == FLEET_VMS:
                end = time.monotonic()
                break
        if end is None:
            raise CannotMeasure(f"rmd ended with {seen} of {FLEET_VMS} domains: {''.join(tail)}")
        # The log must go on being read, or rmd would wait for us.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        return end - start

    def connect(self):
        from gi.repository import Gio
        self.bus = Gio.DBusConnection.new_for_address_sync(
            f"unix:path={self.run}/bus", Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT, None, None)

    def call(self, method):
        from gi.repository import Gio
        return self.bus.call_sync(None, "/org/ramryder/Manager1", "org.ramryder.Manager1", method, None, None,
                                  Gio.DBusCallFlags.NONE, 30000, None).unpack()[0]

    def status(self, key):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1])
        raise CannotMeasure(f"no {key} of rmd")

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)

    def close(self):
        self.stop()
        self.fleet.kill()
        self.fleet.wait()
        subprocess.run(["umount", self.folder / "fleet-store"], check=False)
        shutil.rmtree(self.run, ignore_errors=True)


def fleet(metrics, notes, folder):
    host = Fleet(folder)
    try:
        times, cpu = [], []
        for _ in range(START_ROUNDS):
            host.stop()
            times.append(host.start())
            cpu.append(host.cpu_seconds())
        host.connect()
        domains = host.call("ListDomains")
        held = sum(c["chunks"] for d in domains for c in d["channels"])
        if len(domains) != FLEET_VMS or held != FLEET_VMS * FLEET_CHUNKS or not all(d["ready"] for d in domains):
            raise CannotMeasure(f"{len(domains)} domains with {held} chunks: the books are not what was written")
        metrics["reconcile_sec"] = round(statistics.median(times), 3)
        metrics["reconcile_rss_mb"] = round(host.status("VmHWM") / 1024, 1)
        time.sleep(2)
        before, start = host.cpu_seconds(), time.monotonic()
        for i in range(IDLE_SECONDS):
            time.sleep(max(0, start + i + 1 - time.monotonic()))
            host.call("ListChannels")
        metrics["idle_cpu_percent"] = round(100 * (host.cpu_seconds() - before) / (time.monotonic() - start), 2)
        notes["fleet"] = {"start_sec": [round(t, 3) for t in times], "start_processor_sec": [round(t, 3) for t in cpu],
                          "load_average": os.getloadavg()[0],
                          "rss_mb_now": round(host.status("VmRSS") / 1024, 1)}
    finally:
        host.close()


# ---- the shares of one growth ----


def grow(metrics, notes, folder):
    import rmd_grow
    metrics.update(rmd_grow.measure(folder, GROW_ROUNDS, notes))


# ---- neighbours ----


def new_rmd(folder, channels):
    folder.mkdir()
    daemon = rmdtest.Rmd(folder, str(BUILD / "daemon/rmd"))
    daemon.configure(channels)
    daemon.start()
    return daemon


class Flooder(threading.Thread):
    """Makes a domain's QEMU flood for some seconds."""

    def __init__(self, qemu, seconds):
        super().__init__(daemon=True)
        self.qemu, self.seconds, self.attempts = qemu, seconds, 0

    def run(self):
        self.attempts = self.qemu("flood", seconds=self.seconds)


def request_times(daemon, n):
    """Round trips of a request about a normal domain, each of which goes through the whole planner."""
    from gi.repository import GLib
    times = []
    for i in range(n):
        options = {"capacity-bytes": GLib.Variant("t", (9 + i % 2) * CHUNK)}
        start = time.monotonic()
        daemon.call("PlanResize", "(sa{sv})", "normal", options)
        times.append(time.monotonic() - start)
        time.sleep(0.005)
    return times


def hostile(metrics, notes, folder):
    daemon = new_rmd(folder / "hostile", {f"dimm{i}": ("dimm", 24) for i in range(4)})
    try:
        bad = daemon.run_vm("bad", capacity=16, bandwidth=2)
        daemon.run_vm("normal", capacity=8, bandwidth=1)
        quiet, loud, floods = [], [], 0
        for _ in range(HOSTILE_WINDOWS):
            quiet += request_times(daemon, HOSTILE_REQUESTS)
            flooder = Flooder(bad, HOSTILE_SECONDS)
            flooder.start()
            while flooder.is_alive():
                loud += request_times(daemon, 10)
            floods += flooder.attempts
        if "it floods" not in daemon.log():
            raise CannotMeasure("the hostile QEMU did not flood")
        notes["hostile"] = {"requests": [len(quiet), len(loud)], "attempts": floods,
                            "quiet_p50_usec": round(1e6 * percentile(quiet, 0.5)), "quiet_p99_usec": round(1e6 * percentile(quiet, 0.99)),
                            "loud_p50_usec": round(1e6 * percentile(loud, 0.5)), "loud_p99_usec": round(1e6 * percentile(loud, 0.99)),
                            "cut_off": daemon.log().count("it floods"), "penalties": daemon.log().count("not listened to")}
        metrics["hostile_neighbour_p99_ratio"] = round(percentile(loud, 0.99) / percentile(quiet, 0.99), 3)
    finally:
        daemon.close()


def kill(metrics, notes, folder):
    seed = os.environ.get("BENCH_SEED")
    result = rmd_kill.campaign(folder / "kill", str(BUILD / "daemon/rmd"), BENCH / "rmd-kill.log",
                               [int(seed)] if seed else None)
    notes["kill"] = result
    metrics["kill_runs"] = result["runs"]
    metrics["kill_violations"] = result["violations"]


def table(metrics):
    for name, bar in BARS.items():
        value = metrics.get(name)
        verdict = "not measured" if value is None else "" if bar is None else "ok" if bar[1](value) else "MISSED"
        print(f"  {name:30} {value!s:>12}  {bar[0] if bar else 'reported':10} {verdict}")


def main():
    if NAMESPACE not in os.environ:
        os.execvpe("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv],
                   {**os.environ, NAMESPACE: "1"})
    BENCH.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rmd-bench-", dir=env.ROOT / "build"))
    metrics, notes, failures = {}, {"seconds": {}}, []
    parts = {"plan": lambda: plan(metrics, notes), "ledger": lambda: ledger(metrics, notes, folder),
             "zero": lambda: zero(metrics, notes), "fleet": lambda: fleet(metrics, notes, folder),
             "hostile": lambda: hostile(metrics, notes, folder), "grow": lambda: grow(metrics, notes, folder),
             "kill": lambda: kill(metrics, notes, folder)}
    wanted = os.environ.get("BENCH_PARTS", ",".join(parts)).split(",")
    try:
        for name, part in parts.items():
            if name not in wanted:
                continue
            start = time.monotonic()
            # Times of a machine that does other things too: ours first. The campaign is no time.
            os.setpriority(os.PRIO_PROCESS, 0, 0 if name == "kill" else -15)
            try:
                part()
            except (CannotMeasure, AssertionError, OSError, RuntimeError, ValueError, ImportError, KeyError, rmdtest.BusError, env.Missing,
                    subprocess.SubprocessError) as err:
                failures.append(f"{name}: {type(err).__name__}: {err}")
            notes["seconds"][name] = round(time.monotonic() - start, 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assumptions = {
        "priority": "all but the kill campaign runs at nice -15, so that what else the machine does disturbs less",
        "plan": "processor time of the whole plan (use of all channels added up from 500 domains, then the placement); the wall "
                "time is beside it in details",
        "plan_optimality": "200 small hosts: channels in use after the planner placed 2 to 5 domains as they came and compacted "
                           "them, over the exact optimum for all at once (GLPK); as_they_come is without compacting",
        "ledger": "one chunk granted in a transaction of its own, against one row of a table of the same columns updated in one; "
                  "both WAL and synchronous=FULL, taking turns",
        "fleet": f"{FLEET_VMS} domains with {FLEET_CHUNKS} chunks each are fake hypervisors: one process that says hello on a socket "
                 "for each as soon as rmd listens (a real QEMU waits 0.1 to 5 s between its attempts); from exec of rmd to the last "
                 "hello reconciled, median; a sample is one ListChannels a second",
        "zero": "a tmpfs file mapped and faulted in stands for the DAX mapping; the same threads; medians of turns",
        "grow": "one chunk of 128 MiB on a real QEMU with a real guest under TCG, medians: rmd from the call to the grant and from "
                "its answer to the resize; QEMU from each request to its answer; the guest from there until its MemTotal has grown "
                "(QEMU's work for the guest's plug requests is in it)",
        "kill": "fake hypervisors; one line a run in rmd-kill.log: seed, where rmd was killed, what was wrong",
        "hostile": "PlanResize of a normal domain, in windows that alternate without and with another domain's QEMU sending right "
                   "messages as fast as it can and coming back whenever it was cut off",
    }
    report = {"name": "rmd", "metrics": metrics, "assumptions": assumptions, "details": notes}
    (BENCH / "rmd.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    table(metrics)
    print(f"  seconds: {notes['seconds']}")
    failures += [f"{name} is missing" for name in BARS if name not in metrics]
    for failure in failures:
        print(f"cannot measure {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
