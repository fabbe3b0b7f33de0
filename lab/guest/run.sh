#!/bin/sh
# Runs in an emulated machine, as root: the commands of a list, one by one.
#	run.sh DIRECTORY
# lab/machine/runs.py has written there
#	job		settings: root, beats, clock, cpus (that commands may use), swap, prepare
#	modules		what to load, for modules.sh
#	commands	a line each: number, seconds that it may take, huge pages, name
#	command.NUMBER	a script
# What comes of them is told in marks, for lab/machine/result.py. Both machines have this
# file, with a Debian about it or with nothing but busybox: any POSIX shell will do.
run=$1
# shellcheck disable=SC1091
. "$run/job"
export HOME=/tmp LAB_RUN="$run" LAB_GUEST="${0%/*}"
# shellcheck source=marks.sh
. "$LAB_GUEST/marks.sh"
# shellcheck source=modules.sh
. "$LAB_GUEST/modules.sh"
shell=$(command -v bash || echo sh)

mount_missing() { # type, where
	grep -q " $2 " /proc/mounts && return
	mkdir -p "$2" && mount -t "$1" "$1" "$2" 2>/dev/null
}

fail() {
	mark "failure $*"
	exit 1
}

add_swap() { # a compressed part of the memory: it is done with a page at once
	echo "$swap" >/sys/block/zram0/disksize
	mkswap /dev/zram0 >/dev/null && swapon /dev/zram0 || fail 'no swap space'
}

reserve() { # huge pages, of how many that are wanted
	[ "$2" = 0 ] || echo "$1" >/proc/sys/vm/nr_hugepages
}

# What a complaint leaves even if the log has lost it: machine check, bad page, died, warned,
# soft lockup. Modules that are not Debian's taint from the start, by other bits.
taints() {
	echo $(($(cat /proc/sys/kernel/tainted) & 0x42b0))
}

run_one() { # number, seconds, huge pages, name
	begin "$1" "$4"
	reserve "$3" "$3"
	setsid "$shell" "$run/command.$1" </dev/null 2>&1 &
	session=$!
	timer=
	if [ "$2" != 0 ]; then
		setsid sh "$LAB_GUEST/limit.sh" $session "$2" ${clock:+"$run/$clock"} 2>&1 &
		timer=$!
	fi
	wait $session 2>/dev/null # which would tell of a signal
	status=$?
	# Whatever is left of it. The timer may not have a session yet.
	kill -KILL "-$session" ${timer:+$timer "-$timer"} 2>/dev/null
	[ -z "$timer" ] || wait "$timer" 2>/dev/null
	reserve 0 "$3"
	now=$(taints)
	[ "$now" = "$tainted" ] || mark "tainted $now, it was $tainted"
	tainted=$now
	end "$1" $status
}

mkdir -p /proc /tmp
[ -e /proc/mounts ] || mount -t proc proc /proc
mount_missing sysfs /sys
mount_missing devtmpfs /dev
mount_missing debugfs /sys/kernel/debug
mount_missing tracefs /sys/kernel/tracing
mount_missing tmpfs /dev/shm
mount_missing cgroup2 /sys/fs/cgroup
# As init would: access_tracking_perf_test of 7.3 counts the memory of its own group.
echo +memory 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control
# DAMON's statistics, on by default in 7.3, make any page look unused now and then: without
# A/D bits that is a fault, where tests count them.
stat=/sys/module/damon_stat/parameters/enabled
[ ! -w "$stat" ] || echo N >"$stat"
: >"$run/begun"
# shellcheck disable=SC2154
cd "$root" || fail "no $root"
# shellcheck disable=SC2154
if [ "$beats" ]; then
	bash "$LAB_GUEST/beat.sh" "$run" &
	chrt -f -p 1 $!
fi
echo 'lab: begin' >/dev/kmsg
tainted=$(taints)
message=$(load "$run/modules") || fail "$message"
[ -z "$swap" ] || add_swap
# shellcheck disable=SC1090,SC2154
[ -z "$prepare" ] || . "$LAB_GUEST/$prepare"
# shellcheck disable=SC2154
[ -z "$cpus" ] || taskset -pc "$cpus" $$ >/dev/null || fail "no CPUs $cpus"
while read -r number limit pages name; do
	run_one "$number" "$limit" "$pages" "$name"
done <"$run/commands"
mark 'done'
