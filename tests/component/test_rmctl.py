# SPDX-License-Identifier: GPL-2.0-or-later
"""rmctl: what each verb prints, asks of rmd and returns."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest

from fake_manager import GIB, MIB, Answer, FakeManager, channel, domain, job

TOP = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def fake(tmp_path):
    with FakeManager(tmp_path) as manager:
        yield manager


@pytest.fixture
def rmctl(program, fake):
    """rmctl("list") -> CompletedProcess, against the fake manager."""
    def run(*arguments, **options):
        environment = {**os.environ, "RMD_BUS": str(fake.socket), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        return subprocess.run([program("rmctl"), *arguments], capture_output=True, text=True, timeout=60, check=False,
                              **{"env": environment, **options})
    return run


def rows(result):
    assert result.returncode == 0, result.stderr
    return [line.split() for line in result.stdout.splitlines()]


def one_line(result, code):
    """The only line of stderr of a run that failed with `code`."""
    assert result.returncode == code, result
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


# ---- tables ----

def test_channels(rmctl):
    assert rows(rmctl("channels")) == [
        ["NAME", "TIER", "SOCKET", "SIZE", "FREE", "GRANTED", "RELEASED", "READ", "STATE", "VMS"],
        ["dimm0", "dimm", "0", "2G", "512M", "1.5G", "0", "36", "online", "web1"],
        ["dimm1", "dimm", "0", "2G", "2G", "0", "0", "36", "online"],
        ["cxl0", "cxl", "0", "2G", "384M", "1.5G", "128M", "36", "online", "web1"]]


def test_list(rmctl):
    assert rows(rmctl("list"))[:2] == [["NAME", "STATE", "CAPACITY", "ACTUAL", "MAX", "CHANNELS"],
                                       ["web1", "running", "4G", "4.125G", "8G", "3"]]


def test_list_of_nothing(rmctl, fake):
    fake.domains = []
    result = rmctl("list")
    assert result.returncode == 0
    assert result.stdout.strip() == ""
    assert json.loads(rmctl("list", "--json").stdout) == {"vms": []}


def test_show(rmctl):
    out = rmctl("show", "web1").stdout.splitlines()
    assert out[:6] == ["Name:      web1", "UUID:      b1f9d6a2-5c0e-4b62-9b0e-0c9aa7a3f1d4",
                       "State:     running, process 4711", "Capacity:  4G (1G to 8G), the guest has 4.125G",
                       "Bandwidth: 3 channels (1 to 4)", ""]
    assert [line.split() for line in out[6:8]] == [
        ["CHANNEL", "TIER", "CNODE", "SNODE", "SIZE", "TARGET", "BASE", "PLUGGED"],
        ["dimm0", "dimm", "0", "0", "1.5G", "1.375G", "1G", "512M"]]


@pytest.mark.parametrize("more,text", [(dict(state="claimed", pid=("i", 0), connected=("b", False)), "claimed"),
                                       (dict(connected=("b", False)), "running, process 4711, not connected"),
                                       (dict(ready=("b", False)), "running, process 4711, not ready yet")])
def test_show_state(rmctl, fake, more, text):
    fake.domains = [domain("web1", **more)]
    assert f"State:     {text}" in rmctl("show", "web1").stdout.splitlines()


def test_jobs(rmctl):
    assert rows(rmctl("jobs"))[1] == ["7", "web1", "resize", "running", "50%", "2023-11-14", "22:13:20", "plugging", "dimm3"]


def test_table_options(rmctl):
    assert rows(rmctl("list", "-o", "name,uuid"))[0] == ["NAME", "UUID"]
    assert rows(rmctl("list", "-o", "+PID"))[0][-1] == "PID"
    assert rmctl("list", "--no-headings", "--raw", "--output", "NAME").stdout == "web1\nweb2\ndb\n"
    assert rows(rmctl("list", "--bytes"))[1][2:4] == [str(4 * GIB), str(4224 * MIB)]
    assert one_line(rmctl("list", "-o", "nmae"), 2) == "rmctl list: -o: there is no column 'nmae'; --help lists them"


def test_json_has_every_key_in_bytes(rmctl):
    shown = json.loads(rmctl("show", "web1", "--json").stdout)
    assert shown["capacity_bytes"] == 4 * GIB and shown["actual_bytes"] == 4224 * MIB
    assert shown["connected"] is True and shown["generation"] == 7
    assert shown["channels"][0] == {"name": "dimm0", "cnode": 0, "snode": 0, "tier": "dimm", "base_chunks": 8, "chunks": 12,
                                    "target_chunks": 11, "requested_bytes": GIB, "plugged_bytes": 512 * MIB}
    assert json.loads(rmctl("list", "--json").stdout)["vms"][0] == shown
    channels = json.loads(rmctl("channels", "--json").stdout)["channels"]
    assert channels[0]["vms"] == ["web1"] and channels[2]["released_chunks"] == 1 and len(channels[0]) == 16
    assert json.loads(rmctl("jobs", "-J").stdout)["jobs"][0]["id"] == 7


def test_future_keys_are_passed_on(rmctl, fake):
    fake.channels = [channel("dimm0", new_thing=("a{su}", {"a-b": 1}))]
    assert json.loads(rmctl("channels", "--json").stdout)["channels"][0]["new_thing"] == {"a-b": 1}
    assert rmctl("channels").returncode == 0


def test_version(rmctl):
    assert re.fullmatch(r"rmctl \d+\.\d+\.\d+\nrmd 9\.9\.9\n", rmctl("version").stdout)
    assert json.loads(rmctl("version", "--json").stdout)["rmd"] == "9.9.9"
    assert rmctl("--version").stdout == rmctl("version").stdout


# ---- resize ----

def test_resize_asks_and_waits(rmctl, fake):
    fake.job = job(state="done", progress=1.0, finished=1)
    result = rmctl("resize", "web1", "--capacity", "4224M", "--bandwidth", "4ch", "--expect-generation", "7")
    assert result.stdout == "web1: 4.125G on 3 channels\n"
    assert fake.called("Resize") == [("web1", {"capacity-bytes": 4224 * MIB, "bandwidth-channels": 4, "expected-generation": 7})]


def test_resize_layout(rmctl, fake):
    assert rmctl("resize", "web1", "--layout", "dimm-a=8, dimm3=0", "--no-wait").stdout == "7\n"
    assert fake.called("Resize") == [("web1", {"layout": {"dimm-a": 8, "dimm3": 0}})]


def test_resize_nothing_to_do(rmctl, fake):
    fake.methods["Resize"] = lambda vm, options: (0,)
    assert rmctl("resize", "web1", "-c", "4G").stdout == "web1: 4.125G on 3 channels\n"
    assert not fake.called("GetJob")


def test_resize_dry_run(rmctl, fake):
    assert rows(rmctl("resize", "web1", "-w", "2", "--dry-run")) == [
        ["CHANNEL", "BEFORE", "AFTER"], ["dimm0", "1.5G", "1G"], ["dimm3", "0", "1G"]]
    plan = json.loads(rmctl("resize", "web1", "-w", "2", "--dry-run", "--json").stdout)
    assert plan == {"plan": [{"name": "dimm0", "before": 12, "after": 8}, {"name": "dimm3", "before": 0, "after": 8}]}
    assert not fake.called("Resize")


def test_resize_json(rmctl, fake):
    assert json.loads(rmctl("resize", "web1", "-c", "4G", "--no-wait", "--json").stdout) == {"job": 7}
    fake.job = job(state="done", progress=1.0, finished=1)
    result = rmctl("resize", "web1", "-c", "4G", "--json")
    assert json.loads(result.stdout)["name"] == "web1"
    assert result.stderr == ""


def test_progress_in_lines(program, fake):
    process = subprocess.Popen([program("rmctl"), "--socket", str(fake.socket), "resize", "web1", "-c", "4G"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "job 7: 50% plugging dimm3\n"
    fake.change_job(job(progress=0.55))
    fake.change_job(job(progress=0.61))
    assert process.stderr.readline() == "job 7: 61% plugging dimm3\n"
    fake.change_job(job(progress=0.61, message="draining dimm0"))
    assert process.stderr.readline() == "job 7: 61% draining dimm0\n"
    fake.change_job(job(state="done", progress=1.0))
    assert process.communicate(timeout=20) == ("web1: 4.125G on 3 channels\n", "")
    assert process.returncode == 0


def test_progress_bar_on_a_terminal(program, fake):
    ours, theirs = os.openpty()
    with subprocess.Popen([program("rmctl"), "--socket", str(fake.socket), "jobs", "7", "--wait"], stdout=subprocess.DEVNULL,
                          stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while b"plugging dimm3" not in seen:
            seen += os.read(ours, 4096)
        fake.change_job(job(state="done", progress=1.0))
        assert process.wait(20) == 0
    os.close(ours)
    assert b"[###############...............]  50% plugging dimm3" in seen


@pytest.mark.parametrize("state,said", [("failed", "rmctl: job 7 failed: the guest keeps 3 blocks of dimm0"),
                                        ("cancelled", "rmctl: job 7 cancelled: the guest keeps 3 blocks of dimm0")])
def test_job_that_does_not_succeed(rmctl, fake, state, said):
    fake.job = job(state=state, message="the guest keeps 3 blocks of dimm0")
    result = rmctl("resize", "web1", "-c", "4G")
    assert one_line(result, 1) == said
    assert result.stdout == ""


def test_interrupt_ends_the_waiting_only(program, fake):
    process = subprocess.Popen([program("rmctl"), "--socket", str(fake.socket), "resize", "web1", "-c", "4G"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert err == "rmctl: job 7 goes on; rmctl jobs --cancel 7 stops it\n"
    assert process.returncode == 1
    assert not fake.called("CancelJob")


def test_rmd_dies_while_we_wait(program, fake):
    process = subprocess.Popen([program("rmctl"), "--socket", str(fake.socket), "resize", "web1", "-c", "4G"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    fake.drop()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 5
    assert err.splitlines()[0] == "rmctl: job 7 is no longer watched; rmctl jobs shows what became of it"
    assert f"cannot reach rmd on the socket {fake.socket}: the connection was lost" in err


def test_jobs_cancel(rmctl, fake):
    assert rmctl("jobs", "7", "--cancel").returncode == 0
    assert fake.called("CancelJob") == [(7,)]


# ---- errors ----

@pytest.mark.parametrize("arguments,said", [
    ([], "rmctl: which verb? see: rmctl --help"),
    (["lsit"], "rmctl: 'lsit' is no verb; did you mean: list"),
    (["migrate"], "rmctl: 'migrate' is no verb; rmctl --help lists them"),
    (["--scoket", "x", "list"], "rmctl: unknown option '--scoket'; see: rmctl --help"),
    (["list", "--scoket"], "rmctl list: Unknown option --scoket; see: rmctl list --help"),
    (["list", "web1"], "rmctl list: the argument 'web1' is one too many; see: rmctl list --help"),
    (["show"], "rmctl show: VM is missing; see: rmctl show --help"),
    (["jobs", "seven"], "rmctl jobs: 'seven' is not the number of a job"),
    (["jobs", "--cancel"], "rmctl jobs: --cancel needs the number of a job"),
    (["resize", "web1"], "rmctl resize: nothing to change; give --capacity, --bandwidth or --layout"),
    (["resize", "web1", "-c", "4X"],
     "rmctl resize: --capacity: '4X' is not a size; write a whole number and K, M, G or T, for example 512M or 4GiB"),
    (["resize", "web1", "-c", "0"], "rmctl resize: --capacity 0: a VM cannot be without memory; virsh shutdown stops it"),
    (["resize", "web1", "-c", "4100M"], "rmctl resize: --capacity: 4100 MiB is not a multiple of the chunk size, 128 MiB; "
                                        "the nearest sizes are 4 GiB and 4224 MiB"),
    (["resize", "web1", "-w", "80GB/s"],
     "rmctl resize: --bandwidth: '80GB/s' is not a number of channels above 0; write for example 4ch"),
    (["resize", "web1", "-l", "dimm0"], "rmctl resize: --layout: 'dimm0' is not CHANNEL=CHUNKS; write for example dimm0=8,dimm3=8"),
    (["resize", "web1", "-l", "dimm0=1,dimm0=2"], "rmctl resize: --layout: 'dimm0' is there twice"),
    (["resize", "web1", "-l", "dimm0=1", "-c", "4G"],
     "rmctl resize: --layout says how many chunks lie where; leave out --capacity"),
    (["resize", "web1", "-c", "4G", "--dry-run", "--no-wait"],
     "rmctl resize: --dry-run starts no job; leave out --no-wait"),
])
def test_wrong_usage_reaches_nobody(rmctl, fake, arguments, said):
    assert one_line(rmctl(*arguments), 2) == said
    assert not fake.calls


@pytest.mark.parametrize("name,said", [
    ("wbe1", "no VM 'wbe1'; did you mean: web1"),
    ("WEB", "no VM 'WEB'; did you mean: web1, web2"),
    ("mail-server", "no VM 'mail-server'; did you mean: web1, web2, db"),
])
def test_unknown_vm(rmctl, name, said):
    assert one_line(rmctl("show", name), 3) == f"rmctl show: {said}"


def test_unknown_vm_among_many_or_none(rmctl, fake):
    fake.domains = [domain(f"node{i:03}") for i in range(100)]
    assert one_line(rmctl("show", "mail"), 3) == "rmctl show: no VM 'mail'; there are 100, rmctl list shows them"
    fake.domains = []
    assert one_line(rmctl("show", "mail"), 3) == "rmctl show: no VM 'mail': rmd holds channels for no VM at all"


@pytest.mark.parametrize("name,code", [("Failed", 1), ("Invalid", 2), ("NotFound", 3), ("NoSpace", 4), ("Busy", 1), ("Stale", 1)])
def test_exit_codes(rmctl, fake, name, code):
    def refuse(number):
        raise Answer(name, "asked for 7, there are 3; take 3")
    fake.methods["CancelJob"] = refuse
    assert one_line(rmctl("jobs", "7", "--cancel"), code) == "rmctl jobs: asked for 7, there are 3; take 3"


def test_no_space_for_a_resize(rmctl, fake):
    def refuse(vm, options):
        raise Answer("NoSpace", "99 channels asked, 6 are there, 4 of them free; ask for at most 4")
    fake.methods["Resize"] = refuse
    assert one_line(rmctl("resize", "web1", "-w", "99"), 4) == \
        "rmctl resize: 99 channels asked, 6 are there, 4 of them free; ask for at most 4"


def test_rmd_is_not_there(program, tmp_path):
    missing = tmp_path / "bus"
    result = subprocess.run([program("rmctl"), "--socket", missing, "list"], capture_output=True, text=True, check=False)
    assert one_line(result, 5) == (f"rmctl list: cannot reach rmd on the socket {missing}: nobody listens there; start it with: "
                                   "systemctl start rmd")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(missing))
    stale.close()
    result = subprocess.run([program("rmctl"), "list", "--socket", missing], capture_output=True, text=True, check=False)
    assert one_line(result, 5).endswith("nobody listens there; start it with: systemctl start rmd")


def test_a_socket_that_never_answers(program, tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "bus"))
        listener.listen()
        begun = time.monotonic()
        result = subprocess.run([program("rmctl"), "list", "--socket", tmp_path / "bus"], capture_output=True, text=True,
                                timeout=30, check=False)
    assert "no answer within 5 s; is it running? systemctl status rmd" in one_line(result, 5)
    assert 4 < time.monotonic() - begun < 15


def test_configuration(program, fake, tmp_path):
    config = tmp_path / "rmd.conf"
    config.write_text(f"[daemon]\nruntime-dir={fake.socket.parent}\n")
    environment = {**os.environ, "RMD_CONFIG": str(config)}
    environment.pop("RMD_BUS", None)
    result = subprocess.run([program("rmctl"), "list"], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    config.write_text("runtime-dir=somewhere\n")
    result = subprocess.run([program("rmctl"), "list"], env=environment, capture_output=True, text=True, check=False)
    assert one_line(result, 1).startswith(f"rmctl list: cannot read {config}: ")
