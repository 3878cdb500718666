#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel series costs and what it is worth: build/bench/kernel.json.

Where instructions are counted, QEMU runs with -icount shift=0,sleep=off on one virtual CPU: a guest nanosecond is an
instruction, whatever the load of this machine. BENCH_ONLY=METRIC[,METRIC...] measures these only (into
kernel-part.json); a metric that cannot be measured fails the benchmark, a bar that is missed does not.
"""

import json
import pathlib
import shutil
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/harness"))

from ramtest import env, wait  # noqa: E402
from ramtest.channels import MIB, StaticChannels  # noqa: E402
from ramtest.figures import Bar, Figures  # noqa: E402
from ramtest.guest import Guest  # noqa: E402

# Without the fast string instructions the kernel clears and copies a page by 512 moves; icount would count each byte.
CPU = "max,-erms,-fsrm"
TCG = ["-machine", "q35", "-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none", "-cpu", CPU]
ICOUNT = [*TCG, "-icount", "shift=0,sleep=off"]
APPEND = "nokaslr numa_balancing=disable memhp_default_state=online_movable"

BARS = {
    "fault_4k_extra_insns": Bar(most=60),
    "fault_4k_off_extra_insns": Bar(most=12),
    "fault_thp_extra_insns": Bar(most=60),
    "page_cache_extra_insns": Bar(most=60),
    "shmem_extra_insns": Bar(most=60),
    "fork_cow_extra_insns": Bar(most=60),
    "munmap_extra_insns": Bar(most=60),
    "spread_max_error": Bar(most=0.02),
    "grow_moved_excess": Bar(most=0.02),
    "drain_migrations_per_page": Bar(most=1.02),
    "idle_marked_per_min": Bar(most=0),
    "hint_faults_per_page": Bar(most=0.5),
    "redistribute_fault_p50_usec": Bar(),
    "redistribute_fault_p99_usec": Bar(),
    "redistribute_fault_p999_usec": Bar(),
    "redistribute_fault_p99_ratio": Bar(most=3),
    "redistribute_vs_numa_balancing": Bar(least=2),
    "redistribute_vs_move_pages": Bar(least=0.8),
    "tlb_flush_ipis_per_page": Bar(most=0.0625),
    "drain_insns_vs_virtio_mem": Bar(least=1.7),
    "drain_sec": Bar(),
    "drain_sec_virtio_mem": Bar(),
    "drain_sec_pc_dimm": Bar(),
    "drain_retry_sec": Bar(most=1),
}

ASSUMPTIONS = [
    "QEMU -icount shift=0,sleep=off, one vCPU, nokaslr, CPU " + CPU + ": a repeated string instruction counts once for each "
    "8 bytes; clearing or copying a page is 512 instructions in both kernels",
    "stock is the base of the series with the same configuration without CONFIG_CNUMA*; both run with numa_balancing=disable "
    "and memhp_default_state=online_movable on the same machine: 2 GiB of base memory and 3 channels of 512 MiB",
    "page cache: read(2) of 4 KiB of a hole in a sparse ext2 file on brd, with readahead: pages are taken and cleared, nothing "
    "is read or written",
    "fault_thp_extra_insns: the slope over 500 faults, that is 256,000 base pages, of which each is cleared",
    "kernel instructions of redistribution, NUMA balancing and move_pages: all that the process that touches the pages does "
    "not get, without the time that it waits; both balance 4 KiB pages of one process, move_pages(2) takes all in one call",
    "redistribute_fault_p99_ratio: against the median fault of stock's NUMA balancing that moves one 4 KiB page",
    "grow, drain and idle: three processes that write and verify all their memory (4 KiB, THP, shmem) meanwhile; moves are "
    "counted by looking at frame numbers each 100 ms, not by the kernel",
    "drain_*: 960 MiB of 4 KiB pages fill the 1 GiB channel and a third of them, in pieces of 64 KiB, is freed again, so that "
    "640 MiB in use lie scattered; stock's pages are bound to the channel's node, ours are what lies on it",
    "no KVM: seconds and microseconds are those of a machine that executes one instruction a nanosecond",
]


def kernels():
    return {"ours": env.path("RR_KERNEL"), "stock": env.path("RR_KERNEL_STOCK")}


class Machine:
    """A guest with channels (or, with channels=False, without a table) whose memory is all online."""

    def __init__(self, name, kernel, channels=True, append="", machine=None, **shape):
        self.folder = tempfile.mkdtemp(prefix="ramtest-", dir="/dev/shm")
        if channels:
            self.channels = StaticChannels(self.folder, **{"cpus": 1, **shape})
            arguments = self.channels.arguments()
        else:
            self.channels = None
            arguments = ["-smp", "1", "-m", "2048M"]
        self.guest = Guest(arguments, append=f"{APPEND} {append}", name=f"bench-{name}", kernel=kernel,
                           machine=machine or ICOUNT)

    def __enter__(self):
        self.guest.start()
        try:
            self.guest.wait_ready(300)
            for name, mib in self.channels.plugged_mib.items() if self.channels else ():
                self.wait_plugged(name, mib)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.guest.stop()
        shutil.rmtree(self.folder)

    def wait_plugged(self, name, mib, timeout=300):
        wait.until(lambda: self.channels.plugged_bytes(self.guest, name) == mib * MIB, timeout, f"{mib} MiB plugged on {name}")


# ---- what one operation costs ----

# kind: metric, two sizes, rounds; the median round counts: once in a while the kernel has something else to do.
COSTS = {
    "anon": ("fault_4k_extra_insns", 10000, 45000, 3),
    "thp": ("fault_thp_extra_insns", 50, 150, 5),
    "file": ("page_cache_extra_insns", 10000, 45000, 3),
    "shmem": ("shmem_extra_insns", 10000, 45000, 3),
    "cow": ("fork_cow_extra_insns", 10000, 45000, 3),
    "munmap": ("munmap_extra_insns", 10000, 45000, 3),
}


def cost(guest, kind):
    _, small, large, rounds = COSTS[kind]
    return guest.json(f"cnuma-bench cost {kind} {small} {large} {rounds}", 1200)


def costs(figures, name, kernel, kinds, **machine):
    """Instructions per operation of each kind on one machine."""
    raw = figures.raw.setdefault("cost", {}).setdefault(name, {})
    missing = [kind for kind in kinds if kind not in raw]
    if missing:
        with Machine(f"cost-{name}", kernel, **machine) as m:
            if "file" in missing:
                m.guest.run("mkdir -p /run/bench && mke2fs -q /dev/ram0 && mount -t ext2 /dev/ram0 /run/bench")
            for kind in missing:
                raw[kind] = cost(m.guest, kind)
                figures.progress(f"  {name} {kind}: {raw[kind]['insns_per_operation']:.1f} instructions")
    return {kind: raw[kind]["insns_per_operation"] for kind in kinds}


FOUR = {"dimms": 4, "base_mib": 2048, "window_mib": 512, "plugged_mib": {"dimm1": 512, "dimm2": 512, "dimm3": 512}}


def fault_costs(figures):
    kinds = [kind for kind, (metric, *_) in COSTS.items() if figures.wants(metric)]
    stock = costs(figures, "stock", kernels()["stock"], kinds, **FOUR)
    ours = costs(figures, "ours", kernels()["ours"], kinds, **FOUR)
    for kind in kinds:
        figures.give(COSTS[kind][0], ours[kind] - stock[kind])


def off_cost(figures):
    k = kernels()
    no_table = (costs(figures, "ours-no-table", k["ours"], ["anon"], channels=False)["anon"]
                - costs(figures, "stock-no-table", k["stock"], ["anon"], channels=False)["anon"])
    off = (costs(figures, "ours-off", k["ours"], ["anon"], append="cnuma=off", **FOUR)["anon"]
           - costs(figures, "stock", k["stock"], ["anon"], **FOUR)["anon"])
    figures.raw["off"] = {"no table": no_table, "cnuma=off": off}
    figures.give("fault_4k_off_extra_insns", max(no_table, off))


# ---- where pages lie ----

def share_error(report, shares):
    """shares: {node: share of the pages}. The worst |pages / expected - 1|; a page elsewhere is an error as well."""
    total = report["total"]
    counted = {int(node): pages for node, pages in report["pages"].items()}
    worst = max(abs(counted.get(node, 0) / (share * total) - 1) for node, share in shares.items())
    stray = sum(pages for node, pages in counted.items() if node not in shares)
    missing = total - sum(counted.values())
    return max(worst, (stray + missing) / (total / len(shares)))


WEIGHTS = "/sys/kernel/mm/mempolicy/weighted_interleave"
THP = "/sys/kernel/mm/transparent_hugepage"
POOL = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
HUGE = 512                              # base pages


def spread(figures):
    """k = 2..12 DIMM channels and 2 CXL channels, all kinds of memory and policies."""
    shape = {"dimms": 12, "cxls": 2, "base_mib": 1024, "window_mib": 512, "cpus": 2,
             "plugged_mib": {"dimm1": 512, "cxl0": 512, "cxl1": 512}}
    raw = figures.raw["spread"] = {}
    weights = (3, 1)
    with Machine("spread", kernels()["ours"], machine=TCG, **shape) as m:
        guest, cxls = m.guest, [m.channels.node("cxl0"), m.channels.node("cxl1")]
        guest.run("; ".join(f"echo {w} >{WEIGHTS}/node{i}" for i, w in enumerate(weights)))
        for k in range(2, 13):
            if k > 2:
                m.channels.request(guest, f"dimm{k - 1}", 512)
                m.wait_plugged(f"dimm{k - 1}", 512)
                wait_idle(guest)
            dimms = {m.channels.node(f"dimm{i}"): 1 / k for i in range(k)}

            def both(dimm, cxl, dimms=dimms):
                return {**{node: share * dimm for node, share in dimms.items()}, **{node: cxl / len(cxls) for node in cxls}}

            cases = [(kind, "default", pages * k, dimms) for kind, pages in
                     (("anon", 8192), ("mthp", 8192), ("shmem", 8192), ("thp", 128 * HUGE), ("hugetlb", 128 * HUGE))]
            cases += [("anon", "bind:0", 8192 * k, dimms), ("anon", "bind:1", 16384, both(0, 1, {})),
                      ("anon", "interleave:0,1", 8192 * k, both(0.5, 0.5)),
                      ("anon", "weighted:0,1", 8192 * k, both(weights[0] / sum(weights), weights[1] / sum(weights)))]
            for kind, policy, pages, shares in cases:
                # The pool that every node has a part of is not what is asked about, and a huge page is preferred to smaller ones.
                if kind == "hugetlb":
                    guest.run(f"echo {pages // HUGE} >{POOL}")
                    assert int(guest.read(POOL)) == pages // HUGE, "the hugetlb pool of node 0 did not grow"
                if kind == "mthp":
                    guest.run(f"echo always >{THP}/hugepages-64kB/enabled; echo never >{THP}/hugepages-2048kB/enabled")
                report = guest.json(f"cnuma-bench spread {kind} {policy} {pages}", 300)
                guest.run(f"echo 0 >{POOL}; echo never >{THP}/hugepages-64kB/enabled; echo inherit >{THP}/hugepages-2048kB/enabled")
                raw[f"{kind} {policy} k={k}"] = {"error": share_error(report, shares), **report}
            errors = {name: entry["error"] for name, entry in raw.items() if name.endswith(f" k={k}")}
            name = max(errors, key=errors.get)
            figures.progress(f"  k={k}: worst share error {errors[name]:.4f} ({name}); all: "
                             + ", ".join(f"{n.split(' k=')[0]} {e:.4f}" for n, e in errors.items()))
    figures.give("spread_max_error", max(entry["error"] for entry in raw.values()))


def wait_idle(guest, timeout=300):
    wait.until(lambda: guest.read("/sys/kernel/mm/cnuma/redistribute/state") == "idle", timeout, "the end of redistribution", 1)


# ---- growing and draining under load ----

LOADS = {"anon": 128, "thp": 384, "shmem": 128}
SETTLE = 30


def loads_report(guest, command="report"):
    return {kind: guest.json(f"cnuma-load --socket /run/{kind}.sock {command}", 120) for kind in LOADS}


def check_verified(reports):
    for kind, report in reports.items():
        assert report["verify_errors"] == 0 and report["verified_pages"] > 0, f"{kind}: {report}"


def follow(figures):
    """3 channels become 4, nothing happens for a minute, and the 4th is taken back; three loads run all the time."""
    shape = {"dimms": 4, "base_mib": 1024, "window_mib": 512, "cpus": 2, "plugged_mib": {"dimm1": 512, "dimm2": 512}}
    raw = figures.raw["follow"] = {}
    with Machine("follow", kernels()["ours"], machine=TCG, **shape) as m:
        guest, node = m.guest, str(m.channels.node("dimm3"))
        for kind, mib in LOADS.items():
            guest.run(f"cnuma-load --kind {kind} --socket /run/{kind}.sock --background {mib}", 300)
        wait_idle(guest)
        loads_report(guest, "reset")

        m.channels.request(guest, "dimm3", 512)
        m.wait_plugged("dimm3", 512)
        wait_idle(guest)
        time.sleep(SETTLE)
        grown = raw["grown"] = loads_report(guest, "reset")
        check_verified(grown)
        excess = {}
        for kind, report in grown.items():
            had_to = report["pages"][node]
            assert abs(had_to / (report["total"] / 4) - 1) < 0.1, f"{kind}: redistribution has not done its work: {report}"
            excess[kind] = report["migrated"] / had_to - 1
        raw["grow excess"] = excess
        if figures.wants("grow_moved_excess"):
            figures.give("grow_moved_excess", max(excess.values()))

        if figures.wants("idle_marked_per_min"):
            marked, uptime = guest.vmstat()["cnuma_marked"], guest_seconds(guest)
            time.sleep(60)
            minutes = (guest_seconds(guest) - uptime) / 60
            figures.give("idle_marked_per_min", (guest.vmstat()["cnuma_marked"] - marked) / minutes)
            loads_report(guest, "reset")

        if figures.wants("drain_migrations_per_page"):
            before = loads_report(guest, "reset")
            m.channels.request(guest, "dimm3", 0)
            m.wait_plugged("dimm3", 0)
            time.sleep(SETTLE)
            drained = raw["drained"] = loads_report(guest)
            check_verified(drained)
            for kind, report in drained.items():
                assert not report["pages"].get(node), f"{kind}: pages are left on the channel: {report}"
            figures.give("drain_migrations_per_page", max(drained[kind]["migrated"] / before[kind]["pages"][node] for kind in LOADS))


def guest_seconds(guest):
    return float(guest.read("/proc/uptime").split()[0])


# ---- moving pages ----

TWO = {"dimms": 2, "base_mib": 1024, "window_mib": 1024, "plugged_mib": {"dimm1": 1024}}
PAGES = 65536


def per_page(report, pages):
    assert pages > 0.9 * PAGES / 2, f"too few pages were moved: {report}"
    return report["kernel_insns"] / pages


def stock_balance(figures):
    """Stock's NUMA balancing moves one page a fault; also what one migration takes."""
    if "balance" not in figures.raw:
        with Machine("balance", kernels()["stock"], **TWO) as m:
            m.guest.run("echo 1 >/proc/sys/kernel/numa_balancing")
            report = m.guest.json(f"cnuma-bench balance 1 {PAGES}", 900)
            assert report["migrated"] > 0.9 * PAGES, f"NUMA balancing moved too few pages: {report}"
            figures.raw["balance"] = report
    return figures.raw["balance"]


def moving_rate(figures):
    report = figures.raw["redistribute"] = {}
    with Machine("redistribute", kernels()["ours"], **TWO) as m:
        report.update(m.guest.json(f"cnuma-bench redistribute 1 anon {2 * PAGES} 1 1", 900))
    ours = per_page(report, report["migrated"])
    if figures.wants("redistribute_vs_numa_balancing"):
        stock = stock_balance(figures)
        figures.give("redistribute_vs_numa_balancing", per_page(stock, stock["migrated"]) / ours)
    if figures.wants("redistribute_vs_move_pages"):
        with Machine("move-pages", kernels()["stock"], **TWO) as m:
            report = figures.raw["move_pages"] = m.guest.json(f"cnuma-bench move 1 0 {PAGES} {PAGES}", 600)
        figures.give("redistribute_vs_move_pages", per_page(report, report["moved"]) / ours)


FAULTS = 100_000


def fault_latency(figures):
    """Only faults move pages; as often as it takes for 100,000 of them."""
    with Machine("latency", kernels()["ours"], **TWO) as m:
        m.guest.run("echo 0 >/sys/kernel/mm/cnuma/redistribute/rate_limit_mbps")
        report = figures.raw["latency"] = m.guest.json(f"cnuma-bench redistribute 1 anon {2 * PAGES} {FAULTS} 1", 3600)
    assert report["samples"] >= FAULTS, report
    if figures.wants("hint_faults_per_page"):
        figures.give("hint_faults_per_page", report["hint_faults"] / report["by_faults"])
    for name in ("p50", "p99", "p999"):
        if figures.wants(f"redistribute_fault_{name}_usec"):
            figures.give(f"redistribute_fault_{name}_usec", report[name] / 1000)
    if figures.wants("redistribute_fault_p99_ratio"):
        figures.give("redistribute_fault_p99_ratio", report["p99"] / stock_balance(figures)["p50"])


def flush_ipis(figures):
    shape = {**TWO, "cpus": 2}
    with Machine("ipis", kernels()["ours"], machine=TCG, **shape) as m:
        before = flush_counters(m.guest)
        report = figures.raw["ipis"] = m.guest.json(f"cnuma-bench redistribute 1 anon {2 * PAGES} 1 2", 900)
        after = flush_counters(m.guest)
    report.update({name: after[name] - before[name] for name in after})
    figures.give("tlb_flush_ipis_per_page", report["tlb_ipis"] / report["cnuma_migrated"])


def flush_counters(guest):
    folder = "/sys/kernel/mm/cnuma/redistribute"
    return {**{name: int(guest.read(f"{folder}/{name}")) for name in ("tlb_flushes", "tlb_ipis")},
            "cnuma_migrated": guest.vmstat()["cnuma_migrated"]}


# ---- giving a channel back ----

# Pages on the 1 GiB channel, of which each third piece is freed again: 640 MiB stay in use, scattered over the channel.
# Packed, stock would move each page once; scattered, it moves some into blocks of the same channel that go next.
FILL, EVERY = 960 * 256, 3


def watched(m, request):
    """What the kernel does from `request`() until 1 GiB of memory is gone."""
    m.guest.run("cnuma-bench watch 1024 900 >/run/watch 2>&1 &")
    wait.until(lambda: "ready" in m.guest.read("/run/watch"), 60, "the watcher")
    request()
    # Not to disturb: the guest is asked only when QEMU has the memory back.
    done = lambda: m.guest.read("/run/watch").splitlines()[1:]      # noqa: E731
    lines = wait.until(done, 900, "the end of the drain", 5)
    assert lines[0].startswith("{"), lines
    return json.loads(lines[0])


def drain(figures, name, kernel, policy, pages):
    raw = figures.raw.setdefault("drain", {})
    if name not in raw:
        shape = {"dimms": 2, "base_mib": 2048, "window_mib": 1024, "plugged_mib": {"dimm1": 1024}}
        with Machine(f"drain-{name}", kernel, **shape) as m:
            m.guest.run(f"cnuma-bench hold anon {policy} {pages} {EVERY}", 300)
            raw[name] = watched(m, lambda: m.channels.request(m.guest, "dimm1", 0))
            assert m.channels.plugged_bytes(m.guest, "dimm1") == 0
        figures.progress(f"  {name}: {raw[name]}")
    return raw[name]


def drains(figures):
    k = kernels()
    ours = drain(figures, "ours", k["ours"], "default", 2 * FILL)
    if figures.wants("drain_sec"):
        figures.give("drain_sec", ours["seconds"])
    if figures.wants("drain_insns_vs_virtio_mem", "drain_sec_virtio_mem"):
        stock = drain(figures, "stock", k["stock"], "bind:1", FILL)
        if figures.wants("drain_sec_virtio_mem"):
            figures.give("drain_sec_virtio_mem", stock["seconds"])
        if figures.wants("drain_insns_vs_virtio_mem"):
            figures.give("drain_insns_vs_virtio_mem", stock["kernel_insns"] / ours["kernel_insns"])


class PcDimm(Machine):
    def __init__(self, name, kernel):
        super().__init__(name, kernel, channels=False)
        self.guest.extra = ["-smp", "1", "-m", "2048M,slots=2,maxmem=8G",
                            "-object", "memory-backend-ram,id=base0,size=2048M", "-numa", "node,nodeid=0,cpus=0,memdev=base0",
                            "-numa", "node,nodeid=1", "-object", "memory-backend-ram,id=dimm,size=1024M",
                            "-device", "pc-dimm,id=d1,memdev=dimm,node=1"]


def pc_dimm(figures):
    with PcDimm("pc-dimm", kernels()["stock"]) as m:
        m.guest.run(f"cnuma-bench hold anon bind:1 {FILL} {EVERY}", 300)
        report = figures.raw["pc-dimm"] = watched(m, lambda: m.guest.qmp.command("device_del", id="d1"))
    figures.give("drain_sec_pc_dimm", report["seconds"])


def drain_retry(figures):
    with Machine("retry", kernels()["ours"], **TWO) as m:
        report = figures.raw["retry"] = m.guest.json("cnuma-bench retry 1 20000", 300)
    figures.give("drain_retry_sec", report["seconds"])


def main():
    figures = Figures("kernel", BARS, ASSUMPTIONS)
    figures.measure([metric for metric, *_ in COSTS.values() if figures.wants(metric)], fault_costs)
    figures.measure(["fault_4k_off_extra_insns"], off_cost)
    figures.measure(["redistribute_vs_numa_balancing", "redistribute_vs_move_pages"], moving_rate)
    figures.measure(["drain_insns_vs_virtio_mem", "drain_sec", "drain_sec_virtio_mem"], drains)
    figures.measure(["drain_sec_pc_dimm"], pc_dimm)
    figures.measure(["drain_retry_sec"], drain_retry)
    figures.measure(["tlb_flush_ipis_per_page"], flush_ipis)
    figures.measure(["grow_moved_excess", "drain_migrations_per_page", "idle_marked_per_min"], follow)
    figures.measure(["spread_max_error"], spread)
    figures.measure(["hint_faults_per_page", "redistribute_fault_p50_usec", "redistribute_fault_p99_usec",
                     "redistribute_fault_p999_usec", "redistribute_fault_p99_ratio"], fault_latency)
    return figures.finish()


if __name__ == "__main__":
    sys.exit(main())
