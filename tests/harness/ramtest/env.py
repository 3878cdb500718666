# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the parts under test are, and where logs go. Owns the RR_* variables; nobody else reads them."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]

NAMES = {
    "RR_QEMU": "the QEMU under test",
    "RR_KERNEL": "the guest kernel (bzImage)",
    "RR_KERNEL_STOCK": "the same kernel without the series (tools/build linux-stock)",
    "RR_GUEST": "the guest image (guest.cpio.gz)",
    "RR_SELFTESTS": "the selftests of the Linux series (selftests.cpio.gz)",
    "RR_BUILD": "the folder with rmd, rmctl, qemu-ramryder and rmd-libvirt-hook",
}


class Missing(Exception):
    """A part under test is not named; by hand that is a reason to skip."""


def path(name):
    """The path in variable `name`; raises Missing if it is unset, FileNotFoundError if it is wrong."""
    value = os.environ.get(name)
    if not value:
        raise Missing(f"{name} is not set ({NAMES[name]})")
    found = pathlib.Path(value)
    if not found.exists():
        raise FileNotFoundError(f"{name}={value}: no such file ({NAMES[name]})")
    return found.resolve()


def program(name):
    """A program of RR_BUILD, wherever the build put it below that folder."""
    base = path("RR_BUILD")
    for candidate in [base / name, *sorted(base.glob(f"*/{name}"))]:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(f"{name} is not below RR_BUILD={base}")


def kernel_words(*words):
    """The guests' kernel command line; RR_APPEND adds to it, for hunting faults by hand."""
    return " ".join(filter(None, ("console=ttyS0 panic=-1", *words, os.environ.get("RR_APPEND"))))


def base_mib():
    """Base memory of guests on static channels; RR_BASE_MIB gives more to a kernel that needs more, as KASAN's shadow does."""
    return int(os.environ.get("RR_BASE_MIB", "512"))


def logs():
    """Folder for logs that stay after the test."""
    folder = pathlib.Path(os.environ.get("RR_LOGS", ROOT / "build" / "test-logs")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
