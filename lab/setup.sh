#!/bin/sh
# Install what the lab needs: tools from Debian, Python packages into build/venv.
# No kernel is ever installed on this machine; those are unpacked under build/.
set -u

cd "$(dirname "$0")/.." || exit 1
log=build/setup.log
case ${SERIES:-6.12} in # directory, GB that it takes
6.12) own=build needed=12 ;;
7.3) own=build/7.3 needed=10 ;;
*)
	echo "lab: no series $SERIES: SERIES is 6.12 or 7.3" >&2
	exit 1
	;;
esac
stamp=$own/.setup
packages='
bc binutils bison bpftrace busybox-static ccache cpio debhelper
dh-dkms e2fsprogs file flex gcc gcc-12 git iproute2 isolinux kmod libc6-dev libelf-dev
libssl-dev linux-perf make mmdebstrap pahole patch perl procps python3 python3-venv
qemu-system-x86 qemu-utils quilt rsync sparse spin syslinux-common udev xorriso
xz-utils'

die() {
	echo "lab: $*" >&2
	exit 1
}

# Last line of the log that names an error, for a message of one line.
reason() {
	grep -E '^(E:|ERROR|error)' "$log" | tail -n 1
}

# Run a command that ends with this script, whoever ends that.
run() {
	setsid "$@" >>"$log" 2>&1 </dev/null 9>&- &
	running=$!
	wait "$running"
}
running=
trap 'trap "" TERM; [ -z "$running" ] || kill -TERM "-$running"; exit 130' INT TERM HUP

missing_packages() {
	for package in $packages; do
		case $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) in
		*' installed') ;;
		*) printf '%s ' "$package" ;;
		esac
	done
}

apt() {
	run env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"
}

# Of an installation that was cut off, packages may be unpacked, not configured: apt goes on
# only after dpkg has ended what was begun. Nothing is removed for that.
finish_interrupted() { # packages
	grep -q -e 'dpkg was interrupted' -e 'fix-broken' "$log" || return
	echo "lab: an installation was cut off before; dpkg --configure -a, then install again"
	run env DEBIAN_FRONTEND=noninteractive dpkg --force-confdef --force-confold --configure -a
	apt --fix-broken --no-remove install --no-install-recommends "$@"
}

install_packages() {
	missing=$(missing_packages)
	if [ -n "$missing" ] || ! apt-cache show linux-source-6.12 >/dev/null 2>&1; then
		[ "$(id -u)" = 0 ] ||
			die "root is needed once; run: sudo apt-get update && sudo apt-get install ${missing}"
		echo "lab: apt-get update, then install: ${missing:-nothing}"
		apt -o APT::Update::Error-Mode=any update ||
			die "apt-get update failed: $(reason) (is the network up? see $log)"
	fi
	[ -z "$missing" ] && return
	# shellcheck disable=SC2086
	apt install --no-install-recommends $missing || finish_interrupted $missing ||
		die "apt-get install failed: $(reason) (see $log)"
}

# What is there is kept: other commands may be running from it.
install_python() {
	cmp -s lab/requirements.txt build/venv/requirements.txt && return
	echo "lab: Python packages of lab/requirements.txt into build/venv"
	rm -rf build/venv
	run /usr/bin/python3 -m venv build/venv || die "python3 -m venv failed (see $log)"
	run build/venv/bin/pip install -q -r lab/requirements.txt ||
		die "pip install failed: $(reason) (is the network up? see $log)"
	cp lab/requirements.txt build/venv/
}

# shellcheck disable=SC1091
os=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown} ${VERSION_ID:-}")
[ "$os" = 'debian 12' ] ||
	die "this is '$os', the lab needs Debian 12; run it in a Debian 12 container or machine"
mkdir -p "$own" || die "cannot write to $(pwd)/$own; make it writable"
exec 9>build/.setup.lock
flock -n 9 || {
	echo "lab: waiting for another setup"
	flock 9
}
# Another one, that is: make has looked before.
[ -e "$stamp" ] && [ "$stamp" -nt lab/setup.sh ] && [ "$stamp" -nt lab/requirements.txt ] && exit
# That of others is theirs.
used=$(cd "$own" && du -sk --exclude=./7.3 . | cut -f1)
free=$(df -Pk build | awk -v used="$used" 'NR == 2 { print int(($4 + used) / 1048576) }')
[ "$free" -ge "$needed" ] ||
	die "$free GB for $(pwd)/$own, $needed GB are needed; free some or clone elsewhere"
rm -f "$stamp"
: >"$log"
install_packages
install_python
date >"$stamp"
