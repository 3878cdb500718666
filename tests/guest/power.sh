#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# What acpid runs when somebody pressed the power button.
echo "ramryder guest: power button" >/dev/console
exec poweroff -f
