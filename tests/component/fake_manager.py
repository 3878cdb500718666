# SPDX-License-Identifier: GPL-2.0-or-later
"""A fake org.ramryder.Manager1 on a socket of its own, for what rmd cannot be made to do on purpose: answers of any
kind, jobs that move when the test says so, silence, and a connection that breaks. It keeps no books."""
import pathlib
import threading

import gi

gi.require_version("Gio", "2.0")
from gi.repository import Gio, GLib  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[2]
PATH = "/org/ramryder/Manager1"
INTERFACE = "org.ramryder.Manager1"
MIB = 1 << 20
GIB = 1 << 30


class Answer(Exception):
    """Raised by a method: the D-Bus error org.ramryder.Error.NAME."""

    def __init__(self, name, message):
        super().__init__(message)
        self.name = name


def vardict(**pairs):
    """name="x" -> s, and (signature, value) for all else; _ in a key becomes -."""
    return {key.replace("_", "-"): GLib.Variant("s", value) if isinstance(value, str) else GLib.Variant(*value)
            for key, value in pairs.items()}


def channel(name, free=4, granted=12, released=0, vms=("web1",), **more):
    return vardict(name=name, tier="cxl" if name.startswith("cxl") else "dimm", socket=("u", 0), dax=("u", 0),
                   channel=("u", int(name[-1])), size_chunks=("u", free + granted + released), free_chunks=("u", free),
                   granted_chunks=("u", granted), released_chunks=("u", released), scrubbing_chunks=("u", 0),
                   quarantined_chunks=("u", 0), read_mbps=("u", 36000), write_mbps=("u", 30500), latency_ns=("u", 100),
                   vms=("as", list(vms)), state="online", **more)


def domain(name, **more):
    parts = [vardict(name=f"dimm{i}", cnode=("u", i), snode=("u", 0), tier="dimm", base_chunks=("u", 8 if i == 0 else 0),
                     chunks=("u", 12 if i < 2 else 8), target_chunks=("u", 11), requested_bytes=("t", GIB),
                     plugged_bytes=("t", 512 * MIB)) for i in range(3)]
    values = dict(name=name, uuid="b1f9d6a2-5c0e-4b62-9b0e-0c9aa7a3f1d4", state="running", pid=("i", 4711),
                  connected=("b", True), ready=("b", True), capacity_bytes=("t", 4 * GIB),
                  capacity_min_bytes=("t", GIB), capacity_max_bytes=("t", 8 * GIB), actual_bytes=("t", 4224 * MIB),
                  bandwidth_channels=("u", 3), bandwidth_min=("u", 1), bandwidth_max=("u", 4), generation=("t", 7),
                  channels=("aa{sv}", parts))
    return vardict(**{**values, **more})


def job(number=7, state="running", progress=0.5, message="plugging dimm3", finished=0):
    return vardict(id=("t", number), vm="web1", uuid="b1f9d6a2-5c0e-4b62-9b0e-0c9aa7a3f1d4", kind="resize", state=state,
                   progress=("d", progress), message=message, created_usec=("x", 1_700_000_000_000_000),
                   finished_usec=("x", finished))


class FakeManager:
    """methods: name -> function of the arguments that returns a tuple or raises Answer. Every call is kept in `calls`."""

    def __init__(self, folder):
        self.socket = pathlib.Path(folder) / "bus"
        self.calls = []
        self.domains = [domain("web1"), domain("web2"), domain("db")]
        self.channels = [channel("dimm0"), channel("dimm1", 16, 0, vms=()), channel("cxl0", 3, 12, 1)]
        self.job = job()
        self.connections = []
        self.methods = {
            "ListChannels": lambda: (self.channels,),
            "ListDomains": lambda: (self.domains,),
            "GetDomain": self.get_domain,
            "PlanResize": lambda vm, options: ([vardict(name="dimm0", before=("u", 12), after=("u", 8)),
                                                vardict(name="dimm3", before=("u", 0), after=("u", 8))],),
            "Resize": lambda vm, options: (7,),
            "ListJobs": lambda: ([self.job],),
            "GetJob": lambda number: (self.job,),
            "CancelJob": lambda number: (),
            "Claim": lambda xml: (),
            "Release": lambda uuid: (),
            "Start": lambda uuid: self.refuse("NotFound", f"no claim for {uuid}"),
        }

    @staticmethod
    def refuse(name, message):
        raise Answer(name, message)

    def get_domain(self, name):
        for one in self.domains:
            if name in (one["name"].unpack(), one["uuid"].unpack()):
                return (one,)
        raise Answer("NotFound", f"no domain {name}")

    # The bus, in a thread of its own.

    def __enter__(self):
        self.context = GLib.MainContext()
        self.loop = GLib.MainLoop(self.context)
        self.info = Gio.DBusNodeInfo.new_for_xml((TOP / f"rmd/dbus/{INTERFACE}.xml").read_text(encoding="utf-8"))
        ready = threading.Event()
        self.thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self.thread.start()
        assert ready.wait(10)
        return self

    def _serve(self, ready):
        self.context.push_thread_default()
        self.server = Gio.DBusServer.new_sync(f"unix:path={self.socket}", Gio.DBusServerFlags.NONE,
                                              Gio.dbus_generate_guid(), None, None)
        self.server.connect("new-connection", self._connected)
        self.server.start()
        ready.set()
        self.loop.run()
        self.server.stop()
        self.context.pop_thread_default()

    def _connected(self, _server, connection):
        connection.register_object(PATH, self.info.interfaces[0], self._called, self._property, None)
        self.connections.append(connection)
        return True

    @staticmethod
    def _property(*_):
        return GLib.Variant("s", "9.9.9")

    def _called(self, _connection, _sender, _path, _interface, method, arguments, invocation):
        self.calls.append((method, arguments.unpack()))
        try:
            values = self.methods[method](*arguments.unpack())
        except Answer as error:
            invocation.return_dbus_error(f"org.ramryder.Error.{error.name}", str(error))
            return
        if values is None:  # silence
            return
        out = [arg.signature for arg in self.info.interfaces[0].lookup_method(method).out_args]
        invocation.return_value(GLib.Variant(f"({''.join(out)})", values))

    def change_job(self, new):
        """As rmd does it: the state, and the signal."""
        def change():
            self.job = new
            for connection in self.connections:
                connection.emit_signal(None, PATH, INTERFACE, "JobChanged",
                                       GLib.Variant("(ta{sv})", (new["id"].unpack(), new)))
            return False
        self.context.invoke_full(0, change)

    def drop(self):
        """Break every connection, as a killed rmd does."""
        for connection in self.connections:
            connection.close_sync(None)
        self.connections = []

    def called(self, method):
        return [arguments for name, arguments in self.calls if name == method]

    def __exit__(self, *_):
        self.context.invoke_full(0, self.loop.quit)
        self.thread.join(10)
        self.socket.unlink(missing_ok=True)
