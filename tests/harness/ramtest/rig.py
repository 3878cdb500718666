# SPDX-License-Identifier: GPL-2.0-or-later
"""libvirtd, rmd and domains together: what a test of the whole chain works with."""

from . import wait
from .domain import Domain, rr_memory


class Rig:
    """A private libvirtd and an rmd with 4 DIMM and 2 CXL channels of 1 GiB, and the domains of the tests on them."""

    def __init__(self, libvirt, rmd):
        self.libvirt, self.rmd, self.domains = libvirt, rmd, []

    def domain(self, name="vm1", memory_mib=4096, **options):
        keys = ("capacity", "minimum", "maximum", "channels", "channels_min", "channels_max", "tiers", "inside", "unit", "base")
        element = {key: options.pop(key) for key in keys if key in options}
        options.setdefault("metadata", rr_memory(**{**dict(capacity=2, minimum=1, maximum=memory_mib // 1024, channels=3,
                                                           tiers="dimm", base="512MiB"), **element}))
        domain = Domain(self.libvirt, name, memory_mib, **options)
        self.domains.append(domain)
        return domain

    def wait_capacity(self, domain, timeout=180):
        """Wait until the guest has all of its memory."""
        def there():
            shown = self.rmd.manager.domain(domain.name)
            return shown["ready"] and shown["actual-bytes"] == shown["capacity-bytes"] and shown
        return wait.until(there, timeout, f"{domain.name} to have its memory")

    def check_books(self, domain):
        """Ledger and QEMU's mappings name the same chunks of every channel."""
        ledger, mapped = self.rmd.ledger_chunks(domain.name), self.rmd.qemu_chunks(domain.pid)
        assert ledger == mapped, f"ledger {ledger}, QEMU {mapped}"
        return ledger

    def clean(self):
        for domain in self.domains:
            if self.libvirt.state(domain.name) not in (None, "shut off"):
                self.libvirt.virsh_result("destroy", domain.name)
            self.libvirt.virsh_result("undefine", domain.name)
            domain.close()
        self.domains = []
