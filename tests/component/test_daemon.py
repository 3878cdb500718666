# SPDX-License-Identifier: GPL-2.0-or-later
"""The program itself: options, configuration, starting, ending."""
import os
import subprocess

import pytest
from rmdtest import BusError, Rmd, wait_until


def run(rmd, *arguments):
    return subprocess.run([rmd.program, *arguments], capture_output=True, text=True, timeout=20,
                          check=False)


def test_options(stopped_rmd):
    rmd = stopped_rmd
    assert run(rmd, "--version").stdout.startswith("rmd ")
    assert "--config" in run(rmd, "--help").stdout
    for arguments, text in [(["--colour"], "--colour"), (["more"], "unexpected argument more"),
                            (["-l", "loud"], "log level loud is unknown")]:
        result = run(rmd, *arguments)
        assert result.returncode == 2
        assert text in result.stderr and result.stderr.count("\n") == 1


def test_configuration_errors(stopped_rmd):
    rmd = stopped_rmd
    rmd.configure({"dimm0": ("dimm", 4)})
    text = rmd.config.read_text()
    for old, new, message in [("size=512M", "size=500M", "[channel dimm0] size=500M"),
                              ("tier=dimm", "tier=ddr", "[channel dimm0] tier=ddr is unknown"),
                              ("[store lab]", "[stor lab]", "unknown group [stor lab]")]:
        rmd.config.write_text(text.replace(old, new))
        last = rmd.start(expect_failure=True)
        assert last.startswith(f"rmd: error: {rmd.config}: ") and message in last
    assert not rmd.store.exists() and not rmd.state.exists()
    rmd.config.unlink()
    assert str(rmd.config) in rmd.start(expect_failure=True)


def test_too_little_room(stopped_rmd):
    """One clear line: which channel, what it wants, what there is."""
    rmd = stopped_rmd
    rmd.configure({"dimm0": ("dimm", 4), "huge": ("dimm", 1 << 30)})
    last = rmd.start(expect_failure=True)
    assert "store lab has too little room for channel huge: it wants 144115188075855872 bytes, " in last
    assert f"are available in {rmd.store}" in last


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")
def test_room_of_a_tmpfs(stopped_rmd):
    """Channels that fill a tmpfs fit exactly, also when their chunks are allocated."""
    rmd = stopped_rmd
    rmd.store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1025m", "tmpfs", rmd.store], check=True)
    try:
        rmd.configure({"dimm0": ("dimm", 9)})
        assert "it wants 1207959552 bytes, 107" in rmd.start(expect_failure=True)
        rmd.configure({"dimm0": ("dimm", 4), "dimm1": ("dimm", 4)})
        rmd.start()
        rmd.claim(capacity=8, minimum=2, maximum=8, bandwidth=2, placement='tiers="dimm" base="256MiB"')
        rmd.restart()
        assert sum(rmd.layout("vm").values()) == 8
        # Somebody else takes the room: the claim says so and holds nothing.
        rmd.call("Release", "(s)", rmd.domain("vm")["uuid"])
        (rmd.store / "other").write_bytes(bytes(64 << 20))
        with pytest.raises(BusError) as e:
            rmd.claim("late", capacity=8, minimum=2, maximum=8, bandwidth=2,
                      placement='tiers="dimm" base="256MiB"')
        assert e.value.name.endswith("NoSpace") and "domain late: cannot allocate" in e.value.message
        wait_until("all is free", rmd.all_free)
    finally:
        rmd.close_process()
        subprocess.run(["umount", rmd.store], check=True)


def test_one_rmd_only(rmd, tmp_path):
    second = Rmd(tmp_path / "second", rmd.program)
    second.folder.mkdir()
    second.state, second.store = rmd.state, rmd.store
    second.configure(rmd.channels)
    assert "another rmd uses " in second.start(expect_failure=True)
    second.run.joinpath("vm").rmdir()
    second.run.rmdir()
    assert rmd.call("ListDomains") == []


def test_end_and_start(rmd):
    rmd.run_vm(capacity=16)
    rmd.process.terminate()
    assert rmd.process.wait(20) == 0
    assert not (rmd.run / "bus").exists()
    assert len(rmd.files()) == 16  # of the domain that runs on
    rmd.start()
    assert rmd.domain("vm")["state"] == "running"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_other_user_is_refused(rmd):
    rmd.run.chmod(0o755)
    (rmd.run / "bus").chmod(0o777)
    code = ("import sys; from gi.repository import Gio\n"
            f"Gio.DBusConnection.new_for_address_sync('unix:path={rmd.run}/bus',"
            " Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT, None, None)")
    result = subprocess.run(["/usr/bin/python3", "-c", code], user=65534, capture_output=True,
                            text=True, check=False)
    assert result.returncode != 0
    assert "a connection of user 65534 to the bus is refused" in rmd.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_qemu_user(stopped_rmd):
    """QEMU's user starts a domain and can do nothing else."""
    rmd = stopped_rmd
    rmd.run.chmod(0o755)
    rmd.qemu_options = "user=nobody\n"
    rmd.configure({"dimm0": ("dimm", 16), "dimm1": ("dimm", 16)})
    rmd.start()
    uuid = rmd.claim(capacity=16, bandwidth=1, placement='tiers="dimm"')
    qemu = rmd.qemu(uuid, user="nobody")
    rmd.wait_started("vm")
    socket = (rmd.run / "vm" / f"{uuid}.sock").stat()
    assert (socket.st_uid, socket.st_mode & 0o777) == (65534, 0o600)
    for method, arguments in [("ListDomains", "()"), ("Release", f"('{uuid}',)")]:
        code = ("from gi.repository import Gio, GLib\n"
                f"bus = Gio.DBusConnection.new_for_address_sync('unix:path={rmd.run}/bus',"
                " Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT, None, None)\n"
                "bus.call_sync(None, '/org/ramryder/Manager1', 'org.ramryder.Manager1',"
                f" '{method}', GLib.Variant.parse(None, \"{arguments}\", None, None), None, 0, -1, None)")
        result = subprocess.run(["/usr/bin/python3", "-c", code], user="nobody",
                                capture_output=True, text=True, check=False)
        assert f"AccessDenied: user 65534 may not call {method}" in result.stderr
    # The process of one domain does not take the claim of another.
    other = rmd.claim("other", capacity=16, bandwidth=1, placement='tiers="dimm"')
    with pytest.raises(OSError, match="is domain vm and cannot start domain other"):
        qemu("start_another", uuid=other)
    rmd.restart()
    qemu("connect")
    wait_until("ready", lambda: rmd.domain("vm")["ready"])
