# SPDX-License-Identifier: GPL-2.0-or-later
# What tools/patches, tools/build and tools/setup share. Sourced, never run.

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/ramryder
BUILD=$TOP/build

# No setting of the user may leak into what we write: an export must be the same bytes everywhere.
export LC_ALL=C GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }

# base_get TARGET KEY: the value of KEY in TARGET's BASE file
base_get() { sed -n "s/^$2=//p" "$TOP/$1-patches/BASE" | head -n 1; }

# series_files TARGET: the patches in order, paths from the top
series_files() {
	[ -f "$TOP/$1-patches/series" ] || return 0
	sed -E 's/[[:space:]]*#.*//; /^[[:space:]]*$/d' "$TOP/$1-patches/series" | sed "s#^#$1-patches/#"
}

# series_hash TARGET [FILE...]: names what is built from BASE, the series and the given files
series_hash() {
	local target=$1 f
	shift
	(
		cd "$TOP" || exit 1
		for f in "$target-patches/BASE" $(series_files "$target") "$@"; do
			[ -f "$f" ] || die "$f is named in the series, but is not there"
			sha256sum <"$f"
		done
	) | sha256sum | cut -c 1-16
}

# as_root COMMAND...: with sudo where we are not root
as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"
	elif command -v sudo >/dev/null; then sudo "$@"
	else die "this needs root for: $* (run as root, or install sudo)"; fi
}

# debian_mirror [SUFFIX]: the archive that this machine already uses (SUFFIX: -security)
debian_mirror() {
	local code uri
	code=$(. /etc/os-release && echo "$VERSION_CODENAME")
	uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $code${1-}" 2>/dev/null |
		grep -vE '^(cdrom|file):' | head -n 1)
	[ -n "$uri" ] || uri=http://deb.debian.org/debian${1-}
	echo "${uri%/}"
}

# apt_private ARGS...: apt-get or apt-cache with sources of our own; the user's apt is not touched
apt_private() {
	local tool=$1 dir=$CACHE/apt uri sec key=/usr/share/keyrings/debian-archive-keyring.gpg
	shift
	if [ ! -f "$dir/sources.list" ] || [ -n "$(find "$dir/sources.list" -mmin +720)" ]; then
		mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
		uri=$(debian_mirror) sec=$(debian_mirror -security)
		printf '%s\n' \
			"deb-src [signed-by=$key] $uri trixie main" \
			"deb [signed-by=$key] $uri bookworm-backports main" \
			"deb [signed-by=$key] $sec bookworm-security main" >"$dir/sources.list.new"
		apt_private_run apt-get "$dir/sources.list.new" update -qq >&2 || die "apt could not read the package lists"
		mv "$dir/sources.list.new" "$dir/sources.list"
	fi
	apt_private_run "$tool" "$dir/sources.list" "$@"
}

apt_private_run() {
	local tool=$1 list=$2 dir=$CACHE/apt
	shift 2
	"$tool" -o "Dir::Etc::sourcelist=$list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$dir/lists" \
		-o "Dir::Cache=$dir/cache" -o APT::Sandbox::User=root -o APT::Get::List-Cleanup=0 "$@"
}
