#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The first slice as a story: one VM on real channels, from libvirt XML to every chunk free and clean again.

`make demo` runs this after it has built everything. It starts a libvirtd and an rmd of its own, prints what it does with
the numbers as they are measured, writes OUT/report.json, and fails if a promise is not kept.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import textwrap
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))

from ramtest import bars, env, host, wait  # noqa: E402
from ramtest.domain import Domain, rr_memory  # noqa: E402
from ramtest.libvirt import PrivateLibvirt  # noqa: E402
from ramtest.rmd import GIB, Rmd, six_channels  # noqa: E402

WORKING_SET_MIB = 1024
CAPACITY_GIB = 4
NAME = "demo"


def say(text=""):
    print(text, flush=True)


def tell(text):
    say(textwrap.fill(" ".join(text.split()), 100))


def title(text):
    say(f"\n== {text} " + "=" * max(0, 96 - len(text)))


def show(command, output):
    say(f"\n  $ {command}")
    for line in output.rstrip().splitlines():
        say(f"  {line}")
    say()


class Demo:
    def __init__(self, out):
        self.out, self.steps, self.failures = out, [], []
        self.libvirt = self.rmd = self.domain = None
        self.faults, self.clock = 0, time.monotonic()

    # What is measured.

    def hint_faults(self):
        now = self.domain.vmstat().get("cnuma_hint_faults", 0)
        before, self.faults = self.faults, now
        return now - before

    def step(self, name, pages, report, seconds, hint_faults, mapped):
        """One entry of report.json. `report`: the witness's figures since the step before."""
        self.steps.append({
            "name": name,
            "pages": pages,
            **{key: report.get(key, 0) for key in ("verified_pages", "verify_errors", "migrated", "moved_inside")},
            "hint_faults": hint_faults,
            "seconds": round(seconds, 1),
            "dirty_chunks": self.rmd.dirty_chunks(),
            "chunks_ledger": self.ledger(),
            "chunks_qemu": mapped,
        })
        return self.steps[-1]

    def ledger(self):
        if not self.rmd.manager.domains():
            return dict.fromkeys(self.rmd.channels, 0)
        return self.rmd.ledger_chunks(NAME)

    def mapped(self):
        return self.rmd.qemu_chunks(self.domain.pid)

    def promise(self, kept, text):
        say(f"  [{'kept' if kept else 'MISSED'}] {text}")
        if not kept:
            self.failures.append(text)

    # The picture: one line a channel, one character a chunk.

    def picture(self, pages=None):
        domain = next(iter(self.rmd.manager.domains()), {"channels": []})
        mine = {channel["name"]: channel for channel in domain["channels"]}
        most = max([*(pages or {}).values(), 1])
        say()
        for name, channel in self.rmd.manager.channels().items():
            own = mine.get(name, {"chunks": 0, "base-chunks": 0, "cnode": None})
            dirty = channel["released-chunks"] + channel["scrubbing-chunks"]
            row = "B" * own["base-chunks"] + "#" * (own["chunks"] - own["base-chunks"]) + "x" * dirty
            line = f"  {name:>6} [{row:.<{channel['size-chunks']}}] {own['chunks']:>2} chunks"
            if pages is not None and own["cnode"] is not None:
                count = pages.get(str(own["cnode"]), 0)
                line += f"  {count:>6} pages {'=' * round(24 * count / most)}"
            say(line)
        say("         B base memory   # granted   x released, not yet clean   . free        a chunk is 128 MiB")

    # The story.

    def run(self):
        title("a host with 4 DIMM channels and 2 CXL channels")
        tell("""rmd keeps the books of the channels, each cut into chunks of 128 MiB. Here a channel is a folder of files on
             tmpfs; on a server it is a DIMM channel or a CXL device. libvirtd is the distribution's own, unpatched.""")
        self.rmd.start()
        show("rmctl channels", self.rmd.rmctl("channels"))
        self.start()
        self.spread()
        self.grow()
        self.shrink()
        self.destroy()
        self.summary()

    def start(self):
        title("a VM from libvirt XML: 4 GiB over 3 channels")
        element = self.domain.metadata.replace("><", ">\n<").replace("</rr:memory", "\n</rr:memory").replace("\n\n", "\n")
        show("virsh dumpxml demo   (the one element that is ours)", element)
        began = time.monotonic()
        self.domain.define()
        show("virsh define demo.xml && virsh start demo", self.libvirt.virsh("start", NAME, timeout=300))
        self.domain.started()
        self.domain.wait_ready(300)
        wait.until(self.has_its_memory, 300, "the guest to have its 4 GiB")
        seconds = time.monotonic() - began
        self.faults = self.domain.vmstat().get("cnuma_hint_faults", 0)

        tell("Inside, applications see server-level NUMA nodes and nothing of the channels behind them:")
        show("numactl -H   (in the guest)", self.domain.run("numactl -H"))
        show("cat /sys/devices/system/node/{possible,online,has_memory}   (in the guest)",
             self.domain.run("cd /sys/devices/system/node; ls -d node*; cat possible online has_memory"))
        show("rmctl show demo", self.rmd.rmctl("show", NAME))
        self.picture()

        mapped, memory = self.mapped(), self.guest_bytes()
        nodes = {str(channel["cnode"]): 0 for channel in self.rmd.manager.domain(NAME)["channels"]}
        step = self.step("start", nodes, {}, seconds, 0, mapped)
        say()
        self.promise(sum(step["chunks_ledger"].values()) * host.CHUNK == CAPACITY_GIB * GIB,
                     f"the VM has 4 GiB: {sum(step['chunks_ledger'].values())} chunks (MemTotal {memory >> 20} MiB after "
                     "the kernel's own)")
        self.promise(memory > 0.95 * CAPACITY_GIB * GIB, "the guest sees it")
        self.promise(self.domain.pc_ram_resident_bytes() == 0, "RSS of libvirt's pc.ram is 0: all memory of the VM lies in its chunks")
        self.check_books(step)

    def has_its_memory(self):
        shown = self.rmd.manager.domain(NAME)
        return shown["ready"] and shown["actual-bytes"] == shown["capacity-bytes"]

    def guest_bytes(self):
        return int(re.search(r"MemTotal: +(\d+)", self.domain.read("/proc/meminfo"))[1]) << 10

    def check_books(self, step):
        self.promise(step["chunks_ledger"] == step["chunks_qemu"],
                     "rmd's ledger and QEMU's mappings name the same number of chunks on every channel")

    def nodes(self, count):
        """The cNodes that hold chunks; there must be `count`."""
        nodes = [channel["cnode"] for channel in self.rmd.manager.domain(NAME)["channels"] if channel["chunks"]]
        assert len(nodes) == count, f"{len(nodes)} channels hold chunks, not {count}"
        return nodes

    def spread(self):
        title("a working set of 1 GiB, written and verified all the time")
        began = time.monotonic()
        self.domain.load(WORKING_SET_MIB, timeout=600)
        seconds = time.monotonic() - began
        wait.until(lambda: self.domain.report()["passes"] >= 1, 300, "one pass over the working set", 1)
        nodes, faults = self.nodes(3), self.hint_faults()
        report = self.domain.report("reset")
        self.picture(report["pages"])
        step = self.step("spread", report["pages"], report, seconds, faults, self.mapped())
        say()
        self.promise(bars.is_even(report, nodes), f"{report['total']} pages of 4 KB over 3 channels, equal to within 1/256 of them "
                     f"({bars.grain(report):.0f} pages): off by {bars.unevenness(report, nodes):.2f}/256 at most")
        self.verified(report)
        self.check_books(step)

    def verified(self, report):
        self.promise(report["verified_pages"] > 0 and report["verify_errors"] == 0,
                     f"{report['verified_pages']} pages verified, {report['verify_errors']} errors")

    def resize(self, channels, nodes_after):
        """Ask for `channels`, show the pages on their way, and count until 30 s after they look balanced."""
        began = time.monotonic()
        job = self.rmd.manager.resize(NAME, bandwidth_channels=channels)
        say(f"\n  $ rmctl resize demo --bandwidth {channels}ch\n")
        shown = 0

        def arrived():
            nonlocal shown
            state = self.rmd.manager.job(job) if job else {"state": "done", "message": ""}
            assert state["state"] not in ("failed", "cancelled"), f"the resize {state['state']}: {state['message']}"
            report = self.domain.report()
            done = state["state"] == "done" and bars.is_even(report, nodes_after)
            if time.monotonic() - shown > 2 or done:
                shown = time.monotonic()
                counts = "  ".join(f"{node}:{count:>6}" for node, count in report["pages"].items())
                say(f"  {shown - began:5.1f} s  pages on cNode {counts}   moved {report['migrated']:>6}   "
                    f"verified {report['verified_pages']:>9}")
            return done

        try:
            wait.until(arrived, 600, "the pages to be where they belong", 0.5)
        except wait.TimedOut as error:
            self.promise(False, str(error))
        seconds = time.monotonic() - began
        say(f"  balanced after {seconds:.1f} s; still counting for {bars.SETTLE_SECONDS} s")
        time.sleep(bars.SETTLE_SECONDS)
        faults = self.hint_faults()
        return seconds, faults, self.domain.report("reset")

    def grow(self):
        title("a fourth channel at constant capacity")
        tell("""Three channels give 108 GB/s, four give 144. The VM keeps its 4 GiB: chunks come on the new channel, the same
             number leaves the old ones, and only the pages that now lie wrong move, as they are used.""")
        nodes = sorted(channel["cnode"] for channel in self.rmd.manager.domain(NAME)["channels"] if channel["tier"] == "dimm")
        seconds, faults, report = self.resize(4, nodes)
        self.picture(report["pages"])
        step = self.step("grow", report["pages"], report, seconds, faults, self.mapped())
        expected, grain = report["total"] / 4, bars.grain(report)
        say()
        self.promise(bars.is_even(report, nodes), f"even over 4 channels: off by {bars.unevenness(report, nodes):.2f}/256 at most")
        self.promise(abs(report["migrated"] - expected) <= grain,
                     f"1/4 of the pages moved to another channel, once: {report['migrated']} (promised {expected:.0f} +- {grain:.0f})")
        self.promise(faults <= 1.1 * report["migrated"], f"{faults} hint faults for them: "
                     f"{faults / max(report['migrated'], 1):.3f} each (promised at most 1.1)")
        self.verified(report)
        self.capacity(step)
        self.check_books(step)

    def capacity(self, step):
        self.promise(sum(step["chunks_ledger"].values()) * host.CHUNK == CAPACITY_GIB * GIB, "it has 4 GiB as before")

    def shrink(self):
        title("the channel is taken back")
        had = self.steps[-1]["pages"]
        before = {c["cnode"] for c in self.rmd.manager.domain(NAME)["channels"] if c["chunks"]}
        plan = {p["name"]: p["after"] for p in self.rmd.manager.plan(NAME, bandwidth_channels=3)}
        nodes = [c["cnode"] for c in self.rmd.manager.domain(NAME)["channels"] if plan.get(c["name"])]
        leaving = str((before - set(nodes)).pop())
        seconds, faults, report = self.resize(3, nodes)
        self.picture(report["pages"])
        step = self.step("shrink", report["pages"], report, seconds, faults, self.mapped())
        say()
        self.promise(report["pages"].get(leaving, 0) == 0, "no page is left on it")
        ratio = report["migrated"] / max(had[leaving], 1)
        self.promise(1 <= ratio <= 1.02, f"each of its {had[leaving]} pages moved once: {report['migrated']} moves, "
                     f"{ratio:.4f} each (promised at most 1.02)")
        self.promise(bars.is_even(report, nodes), f"the survivors are even: off by {bars.unevenness(report, nodes):.2f}/256 at most")
        self.verified(report)
        self.capacity(step)
        self.check_books(step)

    def destroy(self):
        title("the VM is destroyed")
        began = time.monotonic()
        show("virsh destroy demo", self.libvirt.virsh("destroy", NAME))
        self.domain.wait_gone()
        try:
            self.rmd.wait_all_free(120)
        except AssertionError:
            pass
        seconds = time.monotonic() - began
        self.picture()
        show("rmctl channels", self.rmd.rmctl("channels"))
        step = self.step("destroy", {}, {}, seconds, 0, {})
        self.promise(not self.rmd.not_free() and step["dirty_chunks"] == 0, "every chunk is free and clean")
        self.libvirt.virsh("undefine", NAME)

    def summary(self):
        title("in one table")
        say("  step      seconds   pages per cNode                       migrated  inside  hint faults  verified   errors")
        for step in self.steps:
            pages = " ".join(f"{count}" for count in step["pages"].values()) or "-"
            say(f"  {step['name']:<8} {step['seconds']:>8}   {pages:<38}{step['migrated']:>8} {step['moved_inside']:>7} "
                f"{step['hint_faults']:>12} {step['verified_pages']:>9} {step['verify_errors']:>8}")

    def write(self):
        file = self.out / "report.json"
        file.write_text(json.dumps({"steps": self.steps}, indent=1) + "\n")
        return file


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=env.ROOT / "build" / "demo", help="folder of report.json and the logs")
    out = parser.parse_args().out.resolve()
    if os.geteuid():
        sys.exit("demo: it needs root, for a mount namespace with a libvirtd and an rmd of its own")
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").unlink(missing_ok=True)
    os.environ["RR_LOGS"] = str(out / "logs")

    demo = Demo(out)
    with PrivateLibvirt("demo") as demo.libvirt:
        demo.rmd = Rmd(demo.libvirt, six_channels("2G"), name="demo.rmd")
        demo.domain = Domain(demo.libvirt, NAME, 8192, rr_memory(capacity=CAPACITY_GIB, minimum=2, maximum=8, channels=3,
                                                                 channels_max=6, tiers="dimm cxl"))
        try:
            demo.run()
        except AssertionError as error:
            demo.failures.append(f"the story broke off: {error}")
            say(f"\n  [MISSED] {demo.failures[-1]}")
        finally:
            report = demo.write()
            demo.libvirt.destroy_all()
            demo.rmd.stop()
    say(f"\nThe figures: {report.relative_to(env.ROOT) if report.is_relative_to(env.ROOT) else report}; logs beside it.")
    if demo.failures:
        say("Not kept:")
        for failure in demo.failures:
            say(f"  {failure}")
        return 1
    say("Every promise was kept.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
