# SPDX-License-Identifier: GPL-2.0-or-later
"""A real guest moves between two QEMUs, whose channels have other chunks, while its working set is verified."""

import pathlib

import pytest

from ramtest import bars, wait
from ramtest.channels import MIB, StaticChannels
from ramtest.guest import Guest

pytestmark = pytest.mark.needs("RR_QEMU", "RR_KERNEL", "RR_GUEST")

CAPABILITIES = {"plain": [], "multifd": ["multifd"], "mapped-ram": ["mapped-ram"]}


def make_channels(folder, name, plugged_mib, **shape):
    """The same shape each time; the chunks are others, as the files are."""
    path = pathlib.Path(folder) / name
    path.mkdir()
    return StaticChannels(path, dimms=3, plugged_mib=plugged_mib, **shape)


def set_capabilities(guest, names):
    guest.qmp.command("migrate-set-capabilities", capabilities=[{"capability": name, "state": True} for name in names])


def wait_migration(guest, status, timeout=300):
    def reached():
        info = guest.qmp.command("query-migrate")
        assert info.get("status") in (status, None) or info["status"] not in ("failed", "completed"), info
        return info.get("status") == status
    wait.until(reached, timeout, f"a migration that is {status}")


@pytest.mark.parametrize("kind", CAPABILITIES)
def test_guest_moves(folder, test_name, kind):
    """Every page arrives; the guest then plugs at once what it was refused during the migration."""
    source = make_channels(folder, "source", {"dimm1": 256})
    target = make_channels(folder, "target", {})
    uri = f"file:{folder}/state" if kind == "mapped-ram" else f"unix:{folder}/migrate.sock"
    with Guest(source.arguments(), name=f"{test_name}-source") as old, \
         Guest(target.arguments() + ["-incoming", "defer"], name=f"{test_name}-target") as new:
        old.wait_ready()
        wait.until(lambda: source.plugged_bytes(old, "dimm1") == 256 * MIB, 120, "256 MiB plugged on dimm1")
        old.load(128)
        before = old.report("reset")
        bars.check_even(before, [0, 1])
        boot_id = old.read("/proc/sys/kernel/random/boot_id")

        for guest in (old, new):
            set_capabilities(guest, CAPABILITIES[kind])
        if kind != "mapped-ram":
            new.qmp.command("migrate-incoming", uri=uri)
        # Slow at first, so that the guest is refused what it is asked to plug.
        old.qmp.command("migrate-set-parameters", **{"max-bandwidth": 1 << 20})
        old.qmp.command("migrate", uri=uri)
        wait.until(lambda: old.qmp.command("query-migrate")["status"] == "active", 60, "an active migration")
        source.request(old, "dimm2", 128)
        wait.stays(lambda: source.plugged_bytes(old, "dimm2") == 0, 3, "dimm2 unchanged during the migration")
        old.qmp.command("migrate-set-parameters", **{"max-bandwidth": 1 << 40, "downtime-limit": 10000})
        wait_migration(old, "completed")
        if kind == "mapped-ram":
            new.qmp.command("migrate-incoming", uri=uri)
            wait_migration(new, "completed")

        assert new.read("/proc/sys/kernel/random/boot_id") == boot_id
        # The driver would wait for 50 seconds of its own time, and more.
        wait.until(lambda: target.plugged_bytes(new, "dimm2") == 128 * MIB, 30, "128 MiB plugged on dimm2 at once")
        passes = new.report()["passes"]
        wait.until(lambda: new.report()["passes"] >= passes + 2, 240, "two more passes over all pages")
        bars.check_verified(new.report())
        # And back: what is taken away is unplugged from the new chunks.
        target.request(new, "dimm2", 0)
        wait.until(lambda: target.plugged_bytes(new, "dimm2") == 0, 120, "dimm2 unplugged")
        bars.check_verified(new.report())


def test_other_shape_is_refused(folder, test_name):
    """The guest goes on where it is, and the target says what differs."""
    source = make_channels(folder, "source", {"dimm1": 256})
    target = make_channels(folder, "target", {}, window_mib=1024)
    with Guest(source.arguments(), name=f"{test_name}-source") as old, \
         Guest(target.arguments() + ["-incoming", "defer"], name=f"{test_name}-target") as new:
        old.wait_ready()
        new.qmp.command("migrate-incoming", **{"uri": f"unix:{folder}/migrate.sock", "exit-on-error": False})
        old.qmp.command("migrate", uri=f"unix:{folder}/migrate.sock")
        wait_migration(old, "failed", 60)
        assert old.qmp.command("query-status")["running"]
        assert old.run("echo alive").strip() == "alive"
        assert "changed from" in new.stderr.read_text()
