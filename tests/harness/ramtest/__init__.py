# SPDX-License-Identifier: GPL-2.0-or-later
"""What the VM tests and the demo share: guests, a private libvirt, rmd, and the figures read from the host.

Everything runs as root in folders of its own; nothing of the machine's libvirt or rmd is touched.
"""
