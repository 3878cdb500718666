# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU arguments for channels in static mode: files instead of rmd, resized over QMP. For tests of QEMU and the kernel."""

import pathlib

from ramtest import env

MIB = 1 << 20


class StaticChannels:
    """Channels on sparse files below `folder`.

    dimms: DIMM channels of each socket; cxls: CXL channels, one sNode on socket 0; base_mib: base memory of each socket, on
    its first channel (env.base_mib() if not given); window_mib: window of each channel; plugged_mib: {channel: requested size
    at boot}, the rest start empty; speeds: {channel: MB/s}, else 36000 and 27000. Names are dimm0.. (those of socket 1 go on
    after those of socket 0) and cxl0... Heads come first in the numbering of nodes.
    """

    def __init__(self, folder, dimms=3, cxls=0, base_mib=None, window_mib=512, plugged_mib=(), cpus=2, sockets=1,
                 speeds=()):
        base_mib = base_mib or env.base_mib()
        self.base_mib, self.window_mib, self.plugged_mib, self.cpus = base_mib, window_mib, dict(plugged_mib), cpus
        self.sockets, self.speeds = sockets, dict(speeds)
        dimm_names = [f"dimm{i}" for i in range(sockets * dimms)]
        names = dimm_names + [f"cxl{i}" for i in range(cxls)]
        # The head of each channel's sNode, and its socket.
        self.head = {name: dimm_names[i // dimms * dimms] for i, name in enumerate(dimm_names)}
        self.head.update({name: "cxl0" for name in names if name not in self.head})
        self.socket = {name: names.index(name) // dimms if name in dimm_names else 0 for name in names}
        heads = [name for name in names if self.head[name] == name]
        self.bases = [name for name in heads if name != "cxl0"]
        self.order = heads + [name for name in names if name not in heads]
        self.dax = {name: names.index(name) for name in names}
        self.files = {name: pathlib.Path(folder) / name for name in names}
        for file in self.files.values():
            with open(file, "wb") as f:
                f.truncate((base_mib + window_mib) * MIB)

    def node(self, name):
        return self.order.index(name)

    def nodes(self, head):
        """The cNodes of an sNode."""
        return [self.node(name) for name in self.order if self.head[name] == head]

    def arguments(self):
        total = self.sockets * self.base_mib + len(self.order) * self.window_mib
        each = self.cpus // self.sockets
        arguments = ["-machine", "hmat=on", "-smp", f"{self.cpus},sockets={self.sockets}",
                     "-m", f"{self.sockets * self.base_mib}M,maxmem={2 * total}M"]
        for i, name in enumerate(self.bases):
            arguments += ["-object", f"memory-backend-channel,id=base{i},size={self.base_mib}M,path={self.files[name]},"
                                     f"extents=0:{self.base_mib}M"]
        for name in self.order:
            node, dimm = self.node(name), name.startswith("dimm")
            memory = f",cpus={node * each}-{(node + 1) * each - 1},memdev=base{node}" if name in self.bases else ""
            arguments += ["-numa", f"node,nodeid={node}{memory}"]
            speed = self.speeds.get(name, 36000 if dimm else 27000)
            arguments += ["-numa", f"channel,node-id={node},snode={self.node(self.head[name])},socket={self.socket[name]},"
                                   f"tier={'dimm' if dimm else 'cxl'},dax={self.dax[name]},channel={self.dax[name]},"
                                   f"read-bandwidth={speed},write-bandwidth={speed},latency={100 if dimm else 250}"]
        for name in self.order:
            start = self.base_mib if name in self.bases else 0
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
