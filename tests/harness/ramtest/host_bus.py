# SPDX-License-Identifier: GPL-2.0-or-later
"""rmd's private bus from Python: calls of org.ramryder.Manager1, plain Python values in and out."""

import gi

gi.require_version("Gio", "2.0")
from gi.repository import Gio, GLib  # noqa: E402


class BusError(AssertionError):
    """An error that rmd answered: `name` is NotFound, Invalid, NoSpace, Busy, Stale, Failed, `message` its one line."""

    def __init__(self, name, message):
        super().__init__(f"{name}: {message}")
        self.name, self.message = name, message


def _error(error):
    remote = Gio.DBusError.get_remote_error(error)
    if not remote:
        return BusError("Connection", error.message)
    Gio.DBusError.strip_remote_error(error)
    return BusError(remote.rpartition(".")[2], error.message)


class Manager:
    TYPES = {"capacity-bytes": "t", "bandwidth-channels": "u", "dry-run": "b", "expected-generation": "t", "layout": "a{su}"}

    def __init__(self, socket_path):
        self.connection = Gio.DBusConnection.new_for_address_sync(
            f"unix:path={socket_path}", Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT, None, None)

    def call(self, method, signature="()", *arguments, timeout=60):
        try:
            result = self.connection.call_sync(None, "/org/ramryder/Manager1", "org.ramryder.Manager1", method,
                                               GLib.Variant(signature, arguments), None, Gio.DBusCallFlags.NONE,
                                               timeout * 1000, None)
        except GLib.Error as error:
            raise _error(error) from None
        values = result.unpack()
        return values[0] if len(values) == 1 else values or None

    def channels(self):
        return {channel["name"]: channel for channel in self.call("ListChannels")}

    def domains(self):
        return self.call("ListDomains")

    def domain(self, name):
        return self.call("GetDomain", "(s)", name)

    def _options(self, options):
        named = {name.replace("_", "-"): value for name, value in options.items()}
        return {name: GLib.Variant(self.TYPES[name], value) for name, value in named.items()}

    def resize(self, name, **options):
        """capacity_bytes, bandwidth_channels, layout, dry_run, expected_generation -> job"""
        return self.call("Resize", "(sa{sv})", name, self._options(options))

    def plan(self, name, **options):
        return self.call("PlanResize", "(sa{sv})", name, self._options(options))

    def job(self, number):
        return self.call("GetJob", "(t)", number)

    def close(self):
        try:
            self.connection.close_sync(None)
        except GLib.Error:
            pass
