# SPDX-License-Identifier: GPL-2.0-or-later
"""Who may call what on the private bus; the users and the group exist only in a mount namespace of rmd's own."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
from rmdtest import wait_until

CALL = r"""
import json, sys, gi
gi.require_version("Gio", "2.0")
from gi.repository import Gio, GLib
try:
    bus = Gio.DBusConnection.new_for_address_sync("unix:path=" + sys.argv[1], Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT,
                                                  None, None)
    bus.call_sync(None, "/org/ramryder/Manager1", "org.ramryder.Manager1", sys.argv[2],
                  GLib.Variant.parse(None, sys.argv[3], None, None), None, 0, 5000, None)
    print("ok")
except GLib.Error as e:
    print(Gio.DBusError.get_remote_error(e) or "refused")
"""

OPERATOR, READER, STRANGER = 64101, 64102, 64103


@pytest.fixture
def guarded(stopped_rmd, tmp_path):
    rmd = stopped_rmd
    passwd = pathlib.Path("/etc/passwd").read_text(encoding="utf-8")
    group = pathlib.Path("/etc/group").read_text(encoding="utf-8")
    for name, uid in [("rr-operator", OPERATOR), ("rmd-exporter", READER), ("rr-stranger", STRANGER)]:
        passwd += f"{name}:x:{uid}:{uid}::/:/bin/false\n"
    (tmp_path / "passwd").write_text(passwd)
    (tmp_path / "group").write_text(group + "ramryder:x:64200:rr-operator\n")
    wrapper = tmp_path / "rmd"
    wrapper.write_text(f"#!/bin/sh\nmount --bind {tmp_path}/passwd /etc/passwd && mount --bind {tmp_path}/group /etc/group\n"
                       f'exec {rmd.program} "$@"\n')
    wrapper.chmod(0o755)
    outer = tmp_path / "outer"
    outer.write_text(f'#!/bin/sh\nexec unshare --mount --propagation private {wrapper} "$@"\n')
    outer.chmod(0o755)
    rmd.program = str(outer)
    rmd.configure({"dimm0": ("dimm", 4)})
    rmd.start()
    os.chmod(rmd.run, 0o755)
    return rmd


def call(rmd, uid, method, arguments="()"):
    run = subprocess.run([sys.executable, "-c", CALL, str(rmd.run / "bus"), method, arguments], capture_output=True, text=True,
                         check=True, user=uid, group=uid, extra_groups=[])
    return run.stdout.strip()


DENIED = "org.freedesktop.DBus.Error.AccessDenied"


def test_roles(guarded):
    rmd = guarded
    assert call(rmd, OPERATOR, "ListChannels") == "ok"
    assert call(rmd, OPERATOR, "SetChannelState", "('dimm0', 'draining', false)") == "ok"
    assert rmd.channel("dimm0")["state"] == "draining"
    for method in ("ListChannels", "ListDomains", "ListJobs", "GetScrubProgress"):
        assert call(rmd, READER, method) == "ok"
    for method, arguments in [("SetChannelState", "('dimm0', 'online', false)"), ("Compact", "(false,)"), ("Reconcile", "(true,)"),
                              ("Backup", "('/tmp/x',)"), ("SetLogLevel", "('debug',)"), ("Release", "('x',)"),
                              ("Start", "('x',)")]:
        assert call(rmd, READER, method, arguments) == DENIED, method
    assert rmd.channel("dimm0")["state"] == "draining"
    assert call(rmd, STRANGER, "ListChannels") == "refused"


def test_log_level(rmd):
    rmd.call("SetLogLevel", "(s)", "error")
    before = len(rmd.log())
    rmd.claim("quiet", capacity=8, bandwidth=1)
    assert len(rmd.log()) == before
    rmd.call("SetLogLevel", "(s)", "info")
    rmd.claim("loud", capacity=8, bandwidth=1)
    wait_until("said", lambda: "domain loud: claimed" in rmd.log())
    with pytest.raises(Exception, match="known: error, warning, info, debug"):
        rmd.call("SetLogLevel", "(s)", "chatty")


def test_notify_and_watchdog(stopped_rmd, tmp_path):
    """systemd's protocol: READY once, then WATCHDOG from the main loop, STOPPING at the end."""
    import socket
    rmd = stopped_rmd
    rmd.configure({"dimm0": ("dimm", 4)})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(rmd.run / "notify"))
        s.settimeout(20)
        os.environ.update(NOTIFY_SOCKET=str(rmd.run / "notify"), WATCHDOG_USEC="300000")
        try:
            rmd.start()
        finally:
            del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]
        assert s.recv(100) == b"READY=1"
        assert s.recv(100) == s.recv(100) == b"WATCHDOG=1"
        rmd.close_process()
        while (said := s.recv(100)) == b"WATCHDOG=1":
            pass
        assert said == b"STOPPING=1"


def test_unit_file(program):
    """systemd reads it without a complaint, and finds the sandbox tight."""
    unit = pathlib.Path(program("rmctl")).parents[1] / "data/rmd.service"
    text = unit.read_text(encoding="utf-8")
    assert "Type=notify" in text and "CapabilityBoundingSet=CAP_CHOWN" in text and "PrivateNetwork=yes" in text
    result = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    complaints = [x for x in result.stderr.splitlines() if "rmd.service" in x and "is not executable" not in x]
    assert complaints == []
    found = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--json=short", str(unit)], capture_output=True,
                           text=True, check=False)
    if not found.stdout.strip().startswith("["):
        pytest.skip("this systemd-analyze cannot look at a unit offline")
    bad = {x["name"] for x in json.loads(found.stdout) if x["set"] is False and x["exposure"] and float(x["exposure"]) >= 0.3}
    assert not {n for n in bad if n and ("network" in n.lower() or "KernelModules" in n or "SYS_ADMIN" in n)}, bad
