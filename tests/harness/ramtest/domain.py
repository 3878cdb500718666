# SPDX-License-Identifier: GPL-2.0-or-later
"""A libvirt domain that boots the test image: its XML, its shell, its QEMU."""

import re
import uuid
from xml.sax.saxutils import quoteattr

from . import env, host, wait
from .shell import GuestShell

RR = "urn:ramryder:libvirt:1"


def rr_memory(capacity=4, minimum=2, maximum=8, channels=3, channels_min=1, channels_max=4, tiers="dimm cxl", unit="GiB",
              base="auto", inside=""):
    """The <rr:memory> element; a value of None leaves its attribute out."""
    def attributes(**pairs):
        return "".join(f" {name}={quoteattr(str(value))}" for name, value in pairs.items() if value is not None)

    return (f'<rr:memory xmlns:rr="{RR}">'
            f'<rr:capacity{attributes(unit=unit, min=minimum, max=maximum)}>{capacity}</rr:capacity>'
            f'<rr:bandwidth{attributes(unit="channels", min=channels_min, max=channels_max, share="exclusive")}>{channels}'
            f'</rr:bandwidth>'
            f'<rr:placement{attributes(tiers=tiers, sockets="auto", base=base)}/>'
            f'<rr:policy kind="manual"/>{inside}</rr:memory>')


class Domain(GuestShell):
    """metadata: the <rr:memory> element, or None for a domain that is none of ours."""

    def __init__(self, libvirt, name="vm1", memory_mib=8192, metadata=None, vcpus=2, append="", emulator=None, extra=""):
        self.libvirt, self.name, self.metadata, self.extra = libvirt, name, metadata, extra
        self.memory_mib, self.vcpus, self.append = memory_mib, vcpus, append
        self.emulator = emulator or env.program("qemu-ramryder")
        self.uuid = str(uuid.uuid4())
        self.console = env.logs() / f"{libvirt.name}.{name}.console.log"
        self._pid = None
        super().__init__(libvirt.folder / f"{name}.sock", self.is_running,
                         open(env.logs() / f"{libvirt.name}.{name}.shell.log", "wb"))

    def xml(self):
        metadata = f"<metadata>{self.metadata}</metadata>" if self.metadata else ""
        return f"""<domain type='qemu'>
  <name>{self.name}</name>
  <uuid>{self.uuid}</uuid>
  {metadata}
  <memory unit='MiB'>{self.memory_mib}</memory>
  <currentMemory unit='MiB'>{self.memory_mib}</currentMemory>
  <vcpu>{self.vcpus}</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{env.path("RR_KERNEL")}</kernel>
    <initrd>{env.path("RR_GUEST")}</initrd>
    <cmdline>{env.kernel_words(self.append)}</cmdline>
  </os>
  <features><acpi/></features>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>{self.emulator}</emulator>
    <controller type='usb' model='none'/>
    <serial type='file'><source path='{self.console}' append='on'/><target port='0'/></serial>
    <serial type='unix'><source mode='bind' path='{self.path}'/><target port='1'/></serial>
    <memballoon model='virtio'><stats period='1'/></memballoon>
    {self.extra}
  </devices>
</domain>
"""

    def write_xml(self):
        """The XML as a file that virsh inside the namespace can read."""
        file = self.libvirt.folder / f"{self.name}.xml"
        file.write_text(self.xml())
        return file

    def define(self):
        self.libvirt.virsh("define", str(self.write_xml()))
        return self

    def start(self, timeout=120):
        self.libvirt.virsh("start", self.name, timeout=timeout)
        return self.started()

    def create(self, timeout=120):
        self.libvirt.virsh("create", str(self.write_xml()), timeout=timeout)
        return self.started()

    def started(self):
        self.close()
        self._pid = self.libvirt.qemu_pid(self.name)
        return self

    @property
    def pid(self):
        return self._pid

    def is_running(self):
        return self._pid is not None and host.alive(self._pid)

    def wait_gone(self, timeout=60):
        wait.until(lambda: not self.is_running(), timeout, f"the end of {self.name}'s QEMU")
        wait.until(lambda: self.libvirt.state(self.name) in (None, "shut off"), timeout, f"{self.name} shut off")

    def destroy(self):
        self.libvirt.virsh("destroy", self.name)
        self.wait_gone()

    def wait_ready(self, timeout=180):
        try:
            return super().wait_ready(timeout)
        except AssertionError as error:
            tail = self.console.read_text(errors="replace")[-2000:] if self.console.exists() else "(no console)"
            raise AssertionError(f"{error}\nend of {self.console}:\n{tail}") from None

    def pc_ram_resident_bytes(self):
        """What is resident of pc.ram, the memory that libvirt lets QEMU make. It has no name in QEMU while no node uses it."""
        blocks = self.libvirt.virsh("qemu-monitor-command", self.name, "--hmp", "info ramblock")
        found = []
        for line in blocks.splitlines():
            match = re.match(r"\s*(?:\S*pc\.ram\s+)?4 KiB\s+0x[0-9a-f]+\s+(0x[0-9a-f]+)\s+0x[0-9a-f]+\s+(0x[0-9a-f]+)", line)
            if match and int(match[1], 16) == self.memory_mib << 20:
                found.append(int(match[2], 16))
        assert len(found) == 1, f"which of these is pc.ram?\n{blocks}"
        return host.resident_bytes(self.pid, found[0], self.memory_mib << 20)
