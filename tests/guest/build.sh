#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Make OUTDIR/guest.cpio.gz, the initramfs of the test guests.
# Packages: busybox-static numactl gcc libc6-dev cpio gzip
set -eu

if [ $# -ne 1 ]; then
	echo "usage: $0 OUTDIR" >&2
	exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
for tool in busybox numactl gcc cpio gzip ldd; do
	command -v $tool >/dev/null || { echo "$0: $tool is missing (packages: busybox-static numactl gcc libc6-dev cpio gzip)" >&2; exit 1; }
done

root=$out/root.$$
trap 'rm -rf "$root" "$out/guest.cpio.gz.$$"' EXIT
mkdir -p "$root/bin" "$root/sbin" "$root/usr/bin" "$root/usr/sbin" "$root/etc/acpi/PWRF" "$root/proc" "$root/sys" \
	"$root/dev" "$root/run" "$root/tmp"

busybox=$(command -v busybox)
if ldd "$busybox" >/dev/null 2>&1; then
	echo "$0: $busybox is not static (package busybox-static)" >&2
	exit 1
fi
cp "$busybox" "$root/bin/busybox"
for applet in $("$busybox" --list); do
	[ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
done

# Programs of the host, with the libraries that they name.
for program in numactl; do
	path=$(command -v $program)
	cp "$path" "$root/bin/"
	for lib in $(ldd "$path" | grep -o '/[^ ]*'); do
		mkdir -p "$root$(dirname "$lib")"
		cp -L "$lib" "$root$lib"
	done
done

for source in "$here"/*.c; do
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -pthread -o "$root/bin/$(basename "$source" .c)" "$source"
done
cp "$here/init" "$root/init"
cp "$here/power.sh" "$root/etc/acpi/PWRF/00000080"

find "$root" -exec touch -h -d @0 {} +
(cd "$root" && find . -mindepth 1 -printf '%P\n' | LC_ALL=C sort |
	cpio --quiet -o -H newc -R 0:0 --reproducible) | gzip -n -6 >"$out/guest.cpio.gz.$$"
mv "$out/guest.cpio.gz.$$" "$out/guest.cpio.gz"
echo "$out/guest.cpio.gz"
