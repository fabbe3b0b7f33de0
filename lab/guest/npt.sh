#!/bin/bash
# Runs as root in the guest that lab.machine.npt starts: load KVM, run the command.
# $1 is the directory of the run, writable and seen by the host.
cd "$(dirname "$0")/../.." || exit 1
run=$1
# shellcheck disable=SC1091
. "$run/job"
export HOME=/tmp

load() { # file, parameters
	# shellcheck disable=SC2086
	message=$(insmod "$@" 2>&1) && return
	echo "$(basename "$1") does not load: $message; $(dmesg | tail -n 1)" >"$run/failure"
	exit 1
}

# A sign of life for machine/heartbeat.py, ahead of all work there is. Not under -icount,
# where seconds take long, and interrupts are not lost.
beat() {
	exec 9<> <(:)
	while echo >"$run/beat"; do read -rt 3 <&9; done
}

: >"$run/begun"
# shellcheck disable=SC2154
if [ "$beats" ]; then
	beat &
	chrt -f -p 1 $!
fi
echo 'lab: begin' >/dev/kmsg
rmmod kvm_amd kvm 2>/dev/null
modprobe -a ccp irqbypass
# shellcheck disable=SC2154,SC2086
load "$kvm" $kvm_params
# shellcheck disable=SC2154,SC2086
load "$kvm_amd" $kvm_amd_params
bash "$run/command" </dev/null 2>&1
status=$?
echo "lab: end, status $status" >/dev/kmsg
echo $status >"$run/status"
exit $status
