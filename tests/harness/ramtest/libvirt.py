# SPDX-License-Identifier: GPL-2.0-or-later
"""An unpatched libvirtd of our own, as root in a mount namespace of its own. Nothing of the machine's libvirt is touched.

The paths that are compiled into libvirt and rmd are bound to one temporary folder; its layout mirrors the paths, so that
`outside("/run/rmd/bus")` is the same file seen from outside the namespace.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from . import env, host, wait

BOUND = ["/etc/libvirt", "/run/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt",
         "/etc/rmd", "/run/rmd", "/var/lib/rmd"]

QEMU_CONF = """user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
stdio_handler = "file"
security_driver = "none"
namespaces = []
cgroup_controllers = []
"""

LIBVIRTD_CONF = """auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_rw_perms = "0700"
log_outputs = "2:file:/var/log/libvirt/libvirtd.log"
"""


class VirshFailed(AssertionError):
    pass


class PrivateLibvirt:
    """`with PrivateLibvirt() as libvirt: libvirt.virsh("list")`; the hook is installed if RR_BUILD has one."""

    def __init__(self, name="libvirt", store_size="14G", hook=True):
        assert os.geteuid() == 0, "a private libvirtd needs root (mount namespace)"
        self.name, self.store_size, self.hook = name, store_size, hook
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ramtest-"))
        self.holder = self.daemon = None

    # The namespace.

    def outside(self, path):
        """The path, outside, of a file that has `path` inside. Not for what lies on the store's tmpfs."""
        return self.folder / path.lstrip("/")

    def write(self, path, text):
        target = self.outside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def enter(self):
        script = "set -e; "
        for path in BOUND:
            self.outside(path).mkdir(parents=True, exist_ok=True)
            # A mount point that this machine lacks. The empty folder stays: to remove it would unmount what another
            # namespace has on it, that is, pull the floor from under another test that runs now.
            pathlib.Path(path).mkdir(parents=True, exist_ok=True)
            script += f"mount --bind {self.outside(path)} {path}; "
        script += "mkdir -p /var/lib/rmd/store; "
        script += f"mount -t tmpfs -o size={self.store_size},mode=0700 rmd-store /var/lib/rmd/store; "
        script += "echo ready; exec cat"
        self.holder = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sh", "-c", script],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "ready\n", "the mount namespace could not be made"

    def popen(self, command, **options):
        """Run a program inside. The pid is that of the program itself: nsenter execs it."""
        return subprocess.Popen(["nsenter", "-t", str(self.holder.pid), "-m", *command], **options)

    def run(self, command, timeout=120, check=True):
        with self.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                        stdin=subprocess.DEVNULL) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        result = subprocess.CompletedProcess(command, process.returncode, out, err)
        if check:
            assert result.returncode == 0, f"{command}: exit {result.returncode}: {out}{err}"
        return result

    # libvirtd.

    def start(self):
        self.write("/etc/libvirt/qemu.conf", QEMU_CONF)
        self.write("/etc/libvirt/libvirtd.conf", LIBVIRTD_CONF)
        if self.hook:
            hooks = self.outside("/etc/libvirt/hooks")
            hooks.mkdir(parents=True, exist_ok=True)
            shutil.copy2(env.program("rmd-libvirt-hook"), hooks / "qemu")
            (hooks / "qemu").chmod(0o755)
        self.enter()
        self.start_daemon()
        return self

    def start_daemon(self):
        with open(env.logs() / f"{self.name}.libvirtd.log", "ab") as log:
            self.daemon = self.popen(["libvirtd", "-p", "/run/libvirt/ramtest.pid"], stdin=subprocess.DEVNULL,
                                     stdout=log, stderr=log)
        wait.until(lambda: self.daemon.poll() is not None or self.virsh_result("uri").returncode == 0, 60,
                   "the private libvirtd", 0.3)
        assert self.daemon.poll() is None, f"libvirtd ended with {self.daemon.returncode}, see {env.logs()}/{self.name}.libvirtd.log"

    def stop_daemon(self):
        if self.daemon and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            try:
                self.daemon.wait(20)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Destroy what runs, stop libvirtd, end every QEMU that it left, take the namespace down."""
        self.destroy_all()
        self.stop_daemon()
        for pid in self.qemu_pids():
            os.kill(pid, signal.SIGKILL)
            wait.until(lambda pid=pid: not host.alive(pid), 20, f"the end of QEMU {pid}")
        for log in (self.folder / "var/log/libvirt").glob("**/*.log"):
            shutil.copy(log, env.logs() / f"{self.name}.{log.name}")
        if self.holder:
            self.holder.stdin.close()
            self.holder.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def destroy_all(self):
        try:
            if self.daemon and self.daemon.poll() is None:
                for name in self.virsh_result("list", "--name", timeout=30).stdout.split():
                    self.virsh_result("destroy", name, timeout=60)
        except subprocess.TimeoutExpired:
            pass

    def qemu_pids(self):
        """Pids of the QEMUs that libvirt's pid files name."""
        pids = []
        for file in self.outside("/run/libvirt/qemu").glob("*.pid"):
            try:
                pid = int(file.read_text())
            except ValueError:
                continue
            if file.name != "driver.pid" and host.alive(pid):
                pids.append(pid)
        return pids

    def qemu_pid(self, name):
        return int(self.outside(f"/run/libvirt/qemu/{name}.pid").read_text())

    # virsh.

    def virsh_result(self, *arguments, timeout=120):
        return self.run(["virsh", "-c", "qemu:///system", *arguments], timeout, check=False)

    def virsh(self, *arguments, timeout=120):
        result = self.virsh_result(*arguments, timeout=timeout)
        if result.returncode:
            raise VirshFailed(f"virsh {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout.strip()

    def state(self, name):
        result = self.virsh_result("domstate", name)
        return result.stdout.strip() if result.returncode == 0 else None
