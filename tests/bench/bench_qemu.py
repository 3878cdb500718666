#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures of QEMU's channel memory: plug and release times, what fragmentation costs, and a fuzz campaign (qemu_fuzz.py).

Writes build/bench/qemu.json and a table with the bar of each figure. A figure that cannot be taken fails the bench; a bar
that is missed does not. BENCH_SEED=N makes the campaign the one episode of that seed. Needs root: it mounts tmpfs, in a
mount namespace of its own. No guest code runs and no KVM is used: requests come from a scripted driver (ramtest.qtest).
"""

import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))

import qemu_fuzz  # noqa: E402
from ramtest import channel_manager, env, qtest  # noqa: E402
from ramtest.channel_manager import CHUNK, Manager  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30
BENCH = env.ROOT / "build" / "bench"
NAMESPACE = "RR_BENCH_NAMESPACE"

PLUG_BLOCKS, PLUG_ROUNDS = 32, 40
RELEASE_BLOCKS, RELEASE_ROUNDS = 8, 13
START_CHUNKS, START_ROUNDS = 512, 15
PMD_BASE_CHUNKS, PMD_WINDOW_CHUNKS = 8, 8
FUZZ_OPS = 10000
FUZZ_SECONDS = 420
SLOTS = (0x1E, 0x1D)

# name -> (bar as text, test)
BARS = {
    "plug_p99_usec": None,
    "plug_ratio": ("<= 1.5", lambda v: v <= 1.5),
    "release_p99_usec": None,
    "start_fragmented_ratio": ("<= 1.2", lambda v: v <= 1.2),
    "fragmented_extra_regions": ("0", lambda v: v == 0),
    "fragmented_pmd_share": (">= 0.99", lambda v: v >= 0.99),
    "fuzz_ops": (">= 10000", lambda v: v >= 10000),
    "fuzz_differences": ("0", lambda v: v == 0),
    "leaked_fds": ("0", lambda v: v == 0),
    "leaked_mappings": ("0", lambda v: v == 0),
}


class CannotMeasure(Exception):
    """A figure cannot be taken; says which and why."""


def p99(values):
    return sorted(values)[max(0, -(-len(values) * 99 // 100) - 1)]


def mount_tmpfs(folder, *options):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(("size=100g", *options)), "tmpfs", folder], check=False,
                          capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None


class Store:
    """A file store as rmd's: one file a chunk. Sparse: memory is used when it is touched."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        folder.mkdir(exist_ok=True)
        self.files = []

    def chunks(self, count):
        """Opens `count` new files; returns their descriptors in an order that is not the one of their making."""
        fds = []
        for _ in range(count):
            path = self.folder / f"chunk{self.count}"
            self.count += 1
            fds.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            os.ftruncate(fds[-1], CHUNK)
            self.files.append(path)
        random.Random(self.count).shuffle(fds)
        return fds

    @staticmethod
    def close(fds):
        for fd in fds:
            os.close(fd)

    def clear(self):
        for path in self.files:
            path.unlink()
        self.files.clear()


class Rpc:
    """The manager's side, where all goes well. Knows the numbers of requests and chunks."""

    def __init__(self, folder):
        self.heard = []
        self.manager = Manager(folder / "manager.sock", self.heard.append)
        self.id = self.chunk = 0

    def call(self, members, fds=()):
        self.id += 1
        self.manager.request({**members, "id": self.id}, fds)
        answer = self.manager.answer()
        assert answer == ("done", self.id), f"{members}: {answer}"

    def grant_lines(self, channel, base, fds):
        """(members, fds) of as many messages as the descriptors need."""
        lines = []
        for start in range(0, len(fds), channel_manager.MAX_FDS):
            part = fds[start:start + channel_manager.MAX_FDS]
            chunks = [{"chunk": self.chunk + i, "fd": i, "offset": 0, "length": CHUNK} for i in range(len(part))]
            self.chunk += len(part)
            lines.append(({"type": "grant", "channel": channel, "base": base, "chunks": chunks}, part))
        return lines

    def grant(self, channel, fds, base=False):
        for members, part in self.grant_lines(channel, base, fds):
            self.call(members, part)

    def resize(self, channel, chunks):
        self.call({"type": "resize", "channel": channel, "requested": chunks * CHUNK, "drain": not chunks})

    def close(self):
        self.manager.close()


# ---- plug and release ---------------------------------------------------------------------------------------------


def read_trace(path, start=0):
    """(seconds, event) of each trace line from offset `start`."""
    with open(path, encoding="utf-8", errors="replace") as trace:
        trace.seek(start)
        return [(float(m[1]), m[2]) for m in re.finditer(r"^\d+@(\d+\.\d+):(\w+)", trace.read(), re.M)]


def spans(events, first, last):
    """Microseconds from each event `first` to the next `last`."""
    found, start = [], None
    for when, event in events:
        if event == first:
            start = when
        elif event == last and start is not None:
            found.append((when - start) * 1e6)
            start = None
    return found


def plug_and_release(folder, binary, metrics, notes):
    rpc, store, trace = Rpc(folder), Store(folder / "plug"), folder / "trace"
    size = PLUG_BLOCKS * 128
    arguments = ["-machine", "pc", "-m", f"256M,maxmem={4 * size}M", "-msg", "timestamp=on", "-D", trace,
                 *(word for event in ("virtio_mem_plug_request", "virtio_mem_unplug_request", "virtio_mem_send_response")
                   for word in ("-trace", event)),
                 "-object", f"channel-manager,id=rr0,path={rpc.manager.path}",
                 "-object", f"memory-backend-channel,id=win0,size={size}M,manager=rr0,channel=dimm0",
                 "-device", f"virtio-mem-pci,memdev=win0,block-size=128M,requested-size=0,ioeventfd=off,addr={SLOTS[0]:#x}",
                 "-object", f"memory-backend-memfd,id=mem1,size={size}M",
                 "-device", f"virtio-mem-pci,id=stock,memdev=mem1,block-size=128M,requested-size={size}M,dynamic-memslots=on,"
                            f"ioeventfd=off,addr={SLOTS[1]:#x}"]
    with qtest.Qemu(binary, arguments) as qemu:
        rpc.manager.accept().hello()
        rpc.manager.hello()
        ours, stock = (qtest.VirtioMem(qemu, slot) for slot in SLOTS)
        times = {"ours": [], "stock": []}
        at = 0

        def one(device, name, block):
            nonlocal at
            assert device.plug(block) == qtest.ACK, f"{name}: block {block}"
            found = spans(read_trace(trace, at), "virtio_mem_plug_request", "virtio_mem_send_response")
            assert len(found) == 1, f"trace of one plug: {found}"
            at = trace.stat().st_size
            times[name].append(found[0])

        def fresh(blocks):
            fds = store.chunks(blocks)
            rpc.grant("dimm0", fds)
            store.close(fds)
            rpc.resize("dimm0", blocks)

        for _ in range(PLUG_ROUNDS):
            fresh(PLUG_BLOCKS)
            at = trace.stat().st_size if trace.exists() else 0
            for block in range(PLUG_BLOCKS):
                one(ours, "ours", block)
                one(stock, "stock", block)
            rpc.resize("dimm0", 0)
            for block in reversed(range(PLUG_BLOCKS)):
                assert ours.unplug(block) == stock.unplug(block) == qtest.ACK
            rpc.manager.drain()
            store.clear()
        metrics["plug_p99_usec"] = p99(times["ours"])
        metrics["plug_ratio"] = p99(times["ours"]) / p99(times["stock"])
        notes["plug"] = {name: {"p50_usec": statistics.median(v), "p99_usec": p99(v), "max_usec": max(v), "samples": len(v)}
                         for name, v in times.items()}

        released = []
        inside = []
        for _ in range(RELEASE_ROUNDS):
            fresh(RELEASE_BLOCKS)
            for block in range(RELEASE_BLOCKS):
                assert ours.plug(block) == qtest.ACK
                qemu.memset(ours.address + block * CHUNK, CHUNK, 0x5A)
            rpc.resize("dimm0", 0)
            rpc.manager.drain()
            at = trace.stat().st_size
            for block in reversed(range(RELEASE_BLOCKS)):
                rpc.heard.clear()
                # In a thread: the guest's driver waits for its response meanwhile.
                told = []
                listener = threading.Thread(target=lambda told=told: told.append((rpc.manager.receive(), time.time())))
                listener.start()
                assert ours.unplug(block) == qtest.ACK
                listener.join(60)
                assert told and told[0][0]["type"] == "released", f"no released but {told}"
                rpc.manager.drain()
                events = read_trace(trace, at)
                at = trace.stat().st_size
                (asked,) = [when for when, event in events if event == "virtio_mem_unplug_request"]
                released.append((told[0][1] - asked) * 1e6)
                inside += spans(events, "virtio_mem_unplug_request", "virtio_mem_send_response")
            store.clear()
        metrics["release_p99_usec"] = p99(released)
        notes["release"] = {"p50_usec": statistics.median(released), "max_usec": max(released), "samples": len(released),
                            "request_to_response_p99_usec": p99(inside)}
    rpc.close()


# ---- fragmentation ------------------------------------------------------------------------------------------------


def ram_ranges(qemu):
    """RAM ranges of the guest's memory, by HMP info mtree -f."""
    tree = qemu.hmp("info mtree -f")
    for view in tree.split("FlatView #")[1:]:
        if re.search(r'^ AS "memory"', view, re.M):
            return re.findall(r"^ +([0-9a-f]+)-([0-9a-f]+) \(prio \d+, (ram|rom|romd|ramd)\)", view, re.M)
    raise CannotMeasure("fragmented_extra_regions: info mtree -f shows no FlatView of the memory address space")


def start_one(binary, arguments, server=None):
    """Seconds from the start of the process until QMP says that the machine is there, and its RAM ranges."""
    start = time.monotonic()
    with qtest.Qemu(binary, arguments, accel="tcg") as qemu:
        thread = None
        if server:
            thread = threading.Thread(target=server)
            thread.start()
        qemu.qmp("query-status")
        seconds = time.monotonic() - start
        if thread:
            thread.join(60)
        return seconds, ram_ranges(qemu)


def fragmented_start(folder, binary, metrics, notes):
    rpc, store = Rpc(folder), Store(folder / "start")
    gib = START_CHUNKS * CHUNK // GIB
    fds = store.chunks(START_CHUNKS)
    lines = rpc.grant_lines("dimm0", True, fds)
    single = folder / "single"
    with open(single, "wb") as file:
        os.ftruncate(file.fileno(), START_CHUNKS * CHUNK)
    common = ["-machine", "q35,memory-backend=base0", "-cpu", "max", "-smp", "2", "-m", f"{gib}G", "-S"]
    ours = [*common, "-object", f"channel-manager,id=rr0,path={rpc.manager.path}",
            "-object", f"memory-backend-channel,id=base0,size={gib}G,manager=rr0,channel=dimm0,base=on"]
    stock = [*common, "-object", f"memory-backend-file,id=base0,size={gib}G,mem-path={single},share=on"]

    # Ready to be sent, as a daemon's would be: the time to make them in Python is not QEMU's.
    lines = [(json.dumps({"seq": i, "id": i, **members}).encode() + b"\n", part) for i, (members, part) in enumerate(lines, 1)]

    def serve():
        rpc.manager.accept().hello()
        for line, part in lines:
            rpc.manager.send_raw(line, part)
        for i in range(1, len(lines) + 1):
            answer = rpc.manager.answer()
            assert answer == ("done", i), answer
        rpc.manager.hello()

    seconds, ranges = {"ours": [], "stock": []}, {}
    for number in range(START_ROUNDS + 1):
        for name, arguments, server in (("ours", ours, serve), ("stock", stock, None)):
            took, ranges[name] = start_one(binary, arguments, server)
            rpc.manager.hang_up()
            if number:                      # the first start of each warms the caches
                seconds[name].append(took)
    rpc.close()
    store.close(fds)
    store.clear()
    metrics["start_fragmented_ratio"] = statistics.median(seconds["ours"]) / statistics.median(seconds["stock"])
    notes["start"] = {name: {"median_s": statistics.median(v), "min_s": min(v), "max_s": max(v), "starts": len(v)}
                      for name, v in seconds.items()}
    extra = len(ranges["ours"]) - len(ranges["stock"])
    notes["regions_base"] = {name: len(v) for name, v in ranges.items()}

    # The same for memory that is plugged: a window of as many chunks, against virtio-mem on one file.
    rpc = Rpc(folder)
    common = ["-machine", "pc", "-m", f"256M,maxmem={4 * gib}G"]
    device = f"memdev=mem0,block-size=128M,ioeventfd=off,addr={SLOTS[0]:#x}"
    ours = [*common, "-object", f"channel-manager,id=rr0,path={rpc.manager.path}",
            "-object", f"memory-backend-channel,id=mem0,size={gib}G,manager=rr0,channel=dimm0",
            "-device", f"virtio-mem-pci,{device},requested-size=0"]
    stock = [*common, "-object", f"memory-backend-file,id=mem0,size={gib}G,mem-path={single},share=on",
             "-device", f"virtio-mem-pci,{device},requested-size={gib}G"]
    with qtest.Qemu(binary, ours) as qemu:
        fds = store.chunks(START_CHUNKS)
        rpc.manager.accept().hello()
        rpc.manager.hello()
        rpc.grant("dimm0", fds)
        rpc.resize("dimm0", START_CHUNKS)
        device = qtest.VirtioMem(qemu, SLOTS[0])
        blocks = list(range(START_CHUNKS))
        random.Random(1).shuffle(blocks)
        for block in blocks:
            assert device.plug(block) == qtest.ACK
        window = {"ours": len(ram_ranges(qemu))}
        store.close(fds)
    with qtest.Qemu(binary, stock) as qemu:
        assert qtest.VirtioMem(qemu, SLOTS[0]).plug(0, START_CHUNKS) == qtest.ACK
        window["stock"] = len(ram_ranges(qemu))
    rpc.close()
    store.clear()
    single.unlink()
    notes["regions_window"] = window
    metrics["fragmented_extra_regions"] = max(extra, window["ours"] - window["stock"])


def pmd_share(folder, binary, metrics, notes):
    huge = folder / "huge"
    error = mount_tmpfs(huge, "huge=always")
    if error:
        raise CannotMeasure(f"fragmented_pmd_share: this kernel has no huge pages in tmpfs: {error}")
    rpc, store = Rpc(folder), Store(huge / "store")
    base, window = store.chunks(PMD_BASE_CHUNKS), store.chunks(PMD_WINDOW_CHUNKS)
    arguments = ["-machine", "pc,memory-backend=base0", "-m", f"{PMD_BASE_CHUNKS * 128}M,maxmem=16G",
                 "-object", f"channel-manager,id=rr0,path={rpc.manager.path}",
                 "-object", f"memory-backend-channel,id=base0,size={PMD_BASE_CHUNKS * 128}M,manager=rr0,channel=dimm0,base=on",
                 "-object", f"memory-backend-channel,id=win0,size={PMD_WINDOW_CHUNKS * 128}M,manager=rr0,channel=dimm0",
                 "-device", f"virtio-mem-pci,memdev=win0,block-size=128M,requested-size=0,ioeventfd=off,addr={SLOTS[0]:#x}"]
    with qtest.Qemu(binary, arguments) as qemu:
        rpc.manager.accept().hello()
        rpc.grant("dimm0", base, base=True)
        rpc.manager.hello()
        rpc.grant("dimm0", window)
        rpc.resize("dimm0", PMD_WINDOW_CHUNKS)
        device = qtest.VirtioMem(qemu, SLOTS[0])
        for block in range(PMD_WINDOW_CHUNKS):
            assert device.plug(block) == qtest.ACK
        # All but the first MiB, which is not all RAM, and where the rings of the driver lie.
        qemu.memset(4 * MIB, PMD_BASE_CHUNKS * CHUNK - 4 * MIB, 0x5A)
        qemu.memset(device.address, PMD_WINDOW_CHUNKS * CHUNK, 0x5A)
        text = pathlib.Path(f"/proc/{qemu.pid}/smaps").read_text(encoding="utf-8", errors="replace")
    rpc.close()
    store.close(base + window)
    store.clear()
    subprocess.run(["umount", huge], check=True)
    resident = huge_kb = 0
    inside = False
    for line in text.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = f"{huge}/store/" in line
        elif inside and line.startswith("Rss:"):
            resident += int(line.split()[1])
        elif inside and line.startswith("ShmemPmdMapped:"):
            huge_kb += int(line.split()[1])
    if "ShmemPmdMapped" not in text:
        raise CannotMeasure("fragmented_pmd_share: this kernel's smaps has no ShmemPmdMapped")
    touched = (PMD_BASE_CHUNKS + PMD_WINDOW_CHUNKS) * CHUNK - 4 * MIB
    if resident < touched >> 10:
        raise CannotMeasure(f"fragmented_pmd_share: only {resident} of {touched >> 10} KiB are resident")
    metrics["fragmented_pmd_share"] = huge_kb / resident
    notes["pmd"] = {"touched_kb": touched >> 10, "resident_kb": resident, "pmd_mapped_kb": huge_kb}


# ---- all ----------------------------------------------------------------------------------------------------------


def fuzz(binary, metrics, notes):
    seed = os.environ.get("BENCH_SEED")
    found, differences, kinds, seeds = qemu_fuzz.campaign(binary, FUZZ_OPS, BENCH / "qemu-fuzz.log", int(seed) if seed else None,
                                                          deadline_seconds=FUZZ_SECONDS, folder="/dev/shm")
    metrics.update(found)
    notes["fuzz"] = {"first_seed": seeds[0], "last_seed": seeds[1], "operations": dict(kinds), "differences": differences}


def table(metrics):
    print(f"{'metric':28} {'value':>12}  {'bar':>9}")
    for name, bar in BARS.items():
        value = metrics.get(name)
        shown = "not measured" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        verdict = "" if bar is None or value is None else "ok" if bar[1](value) else "missed"
        print(f"{name:28} {shown:>12}  {bar[0] if bar else 'reported':>9}  {verdict}")


def main():
    binary = env.path("RR_QEMU")
    if os.environ.get(NAMESPACE) != "1":
        os.environ[NAMESPACE] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    BENCH.mkdir(parents=True, exist_ok=True)
    metrics, notes, failures = {}, {}, []
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ramtest-bench-"))
    try:
        error = mount_tmpfs(folder / "store")
        if error:
            raise CannotMeasure(f"all: cannot mount tmpfs: {error}")
        for part in (plug_and_release, fragmented_start, pmd_share):
            start = time.monotonic()
            try:
                part(folder / "store", binary, metrics, notes)
            except (CannotMeasure, AssertionError, OSError, subprocess.SubprocessError) as err:
                failures.append(f"{part.__name__}: {type(err).__name__}: {err}")
            notes.setdefault("seconds", {})[part.__name__] = round(time.monotonic() - start, 1)
        start = time.monotonic()
        fuzz(binary, metrics, notes)
        notes["seconds"]["fuzz"] = round(time.monotonic() - start, 1)
        subprocess.run(["umount", folder / "store"], check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assumptions = {
        "accelerator": "qtest, but for the starts: no vCPU runs, so no memory slots of KVM and no TLBs of TCG are part of the times",
        "guest": "a scripted driver of the virtio-mem queue; both devices in one process, their plugs one after the other",
        "plug": f"QEMU's trace points virtio_mem_plug_request to virtio_mem_send_response, {PLUG_BLOCKS} blocks of 128 MiB from the "
                f"lowest to the highest, {PLUG_ROUNDS} times; ours with chunks that were granted but never plugged before, one sparse "
                "tmpfs file each; stock: memory-backend-memfd, dynamic-memslots=on, block-size=128M, memory not touched",
        "release": "from the trace point of the guest's unplug request until this process has read the message 'released'; "
                   "all of the block was written before",
        "start": "q35, TCG, two vCPUs that do not run yet: process start until QMP answers query-status, medians of starts that alternate; base memory of sparse files, granted "
                 "in three messages after the hello, in an order of no relation to their making",
        "regions": "RAM and ROM ranges of the FlatView of the address space 'memory'; each is one KVM slot by KVM's rule; the larger "
                   "difference of base memory and of a window plugged in random order",
        "pmd": "ShmemPmdMapped / Rss of all chunk files, all memory written by the scripted guest, tmpfs mounted huge=always",
        "fuzz": "tests/bench/qemu_fuzz.py; each line of qemu-fuzz.log is one operation and the comparison after it",
    }
    report = {"name": "qemu", "metrics": metrics, "assumptions": assumptions, "details": notes}
    (BENCH / "qemu.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    table(metrics)
    for name in ("plug", "release", "start", "regions_base", "regions_window", "pmd"):
        print(f"  {name}: {notes.get(name)}")
    print(f"  fuzz: seeds {notes['fuzz']['first_seed']}..{notes['fuzz']['last_seed']}; seconds: {notes['seconds']}")
    for difference in notes["fuzz"]["differences"]:
        print(f"  difference: {difference}")
    failures += [f"{name} is missing" for name in BARS if name not in metrics]
    for failure in failures:
        print(f"cannot measure {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
