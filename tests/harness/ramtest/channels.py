# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU arguments for channels in static mode: files instead of rmd, resized over QMP. For tests of QEMU and the kernel."""

import pathlib

from ramtest import env

MIB = 1 << 20


class StaticChannels:
    """Channels on sparse files below `folder`.

    dimms, cxls: their number; base_mib: base memory, on dimm0 (env.base_mib() if not given); window_mib: window of each channel;
    plugged_mib: {channel: requested size at boot}, the rest start empty. Heads come first in the numbering of nodes.
    """

    def __init__(self, folder, dimms=3, cxls=0, base_mib=None, window_mib=512, plugged_mib=(), cpus=2):
        base_mib = base_mib or env.base_mib()
        self.base_mib, self.window_mib, self.plugged_mib, self.cpus = base_mib, window_mib, dict(plugged_mib), cpus
        names = [f"dimm{i}" for i in range(dimms)] + [f"cxl{i}" for i in range(cxls)]
        heads = [name for name in names if name in ("dimm0", "cxl0")]
        self.order = heads + [name for name in names if name not in heads]
        self.dax = {name: names.index(name) for name in names}
        self.files = {name: pathlib.Path(folder) / name for name in names}
        for file in self.files.values():
            with open(file, "wb") as f:
                f.truncate((base_mib + window_mib) * MIB)

    def node(self, name):
        return self.order.index(name)

    def arguments(self):
        total = self.base_mib + len(self.order) * self.window_mib
        arguments = ["-machine", "hmat=on", "-smp", str(self.cpus), "-m", f"{self.base_mib}M,maxmem={2 * total}M",
                     "-object", f"memory-backend-channel,id=base0,size={self.base_mib}M,path={self.files['dimm0']},"
                                f"extents=0:{self.base_mib}M"]
        for name in self.order:
            node, dimm = self.node(name), name.startswith("dimm")
            memory = f",cpus=0-{self.cpus - 1},memdev=base0" if node == 0 else ""
            arguments += ["-numa", f"node,nodeid={node}{memory}"]
            speed = 36000 if dimm else 27000
            arguments += ["-numa", f"channel,node-id={node},snode={self.node('dimm0' if dimm else 'cxl0')},socket=0,"
                                   f"tier={'dimm' if dimm else 'cxl'},dax={self.dax[name]},channel={self.dax[name]},"
                                   f"read-bandwidth={speed},write-bandwidth={speed},latency={100 if dimm else 250}"]
        for name in self.order:
            start = self.base_mib if name == "dimm0" else 0
            # Two extents, the later part of the file first: nothing may depend on their order.
            half = self.window_mib // 2
            arguments += ["-object", f"memory-backend-channel,id=win-{name},size={self.window_mib}M,window=on,path={self.files[name]},"
                                     f"extents={start + half}M:{half}M+{start}M:{half}M",
                          "-device", f"virtio-mem-pci,id=chan-{name},memdev=win-{name},node={self.node(name)},"
                                     f"block-size=128M,requested-size={self.plugged_mib.get(name, 0)}M"]
        return arguments

    def request(self, guest, name, mib):
        guest.qmp.command("qom-set", path=f"/machine/peripheral/chan-{name}", property="requested-size", value=mib * MIB)

    def plugged_bytes(self, guest, name):
        return guest.qmp.command("qom-get", path=f"/machine/peripheral/chan-{name}", property="size")
