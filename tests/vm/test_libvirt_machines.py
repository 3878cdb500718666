# SPDX-License-Identifier: GPL-2.0-or-later
"""Our devices beside libvirt's own, on both machine types: no address is taken twice, whatever the domain carries."""
import pytest

from ramtest import wait

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST", "RR_BUILD")

# What makes libvirt use slots of the root bus that it otherwise leaves alone.
OTHER_BUSES = {
    "q35": """<controller type='pci' index='1' model='dmi-to-pci-bridge'/><controller type='pci' index='2' model='pci-bridge'/>
              <controller type='usb' model='ich9-ehci1'/><controller type='usb' model='ich9-uhci1'/>""",
    "pc": "<controller type='pci' index='1' model='pci-bridge'/><controller type='usb' model='piix3-uhci'/>",
}


def disks(folder, count):
    text = ""
    for number in range(count):
        image = folder / f"disk{number}.img"
        image.write_bytes(b"\0" * 65536)
        text += (f"<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{image}'/>"
                 f"<target dev='vd{chr(ord('a') + number)}' bus='virtio'/></disk>")
    return text


@pytest.mark.parametrize("machine_type", ["q35", "pc"])
def test_a_transient_domain_with_many_devices(rig, machine_type):
    extra = OTHER_BUSES[machine_type] + disks(rig.libvirt.folder, 8)
    domain = rig.domain(tiers="dimm cxl", channels=4, channels_max=6, maximum=4, extra=extra)
    plain = domain.xml()
    domain.xml = lambda: plain.replace("machine='q35'", f"machine='{machine_type}'").replace(
        "<controller type='usb' model='none'/>", "")
    domain.create()
    domain.wait_ready()
    rig.wait_capacity(domain)
    assert sum(rig.check_books(domain).values()) == 16
    nodes = domain.run("ls -d /sys/kernel/mm/cnuma/cnode*").split()
    assert len(nodes) == 6
    rig.rmd.rmctl("resize", domain.name, "--bandwidth", "6ch")
    held = rig.check_books(domain)
    assert len([name for name, chunks in held.items() if chunks]) == 6 and sum(held.values()) == 16
    domain.destroy()
    assert rig.libvirt.state(domain.name) is None
    wait.until(lambda: not rig.rmd.not_free(), 60, "every chunk free and clean")
