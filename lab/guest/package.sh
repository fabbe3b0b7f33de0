#!/bin/bash
# Runs at boot on the system that lab.check.package installed: one phase a boot. Prints what
# it finds to the console, between marks as those of run.sh, and switches the machine off.
# Files of the test are in /package-test.
cd /package-test || exit 1
# shellcheck disable=SC1091
. ./job # kernel, version, images
# shellcheck source=marks.sh
. ./marks.sh
phase=$(cat phase)
exec >/dev/ttyS0 2>&1
udevadm settle --timeout=600 # udev loads KVM; on a slow machine, after this has begun

check() { # what, details, command: passes if the command does
	local what=$1 details=$2
	shift 2
	begin $((checks += 1)) "$what"
	echo "$details"
	"$@"
	end $checks $?
}

kvm_of() { # file or version, as modinfo gives it for the module that modprobe would load
	modinfo -F "$1" kvm 2>&1
}

loaded() { grep -q '^kvm_amd ' /proc/modules; }
says_ours() { dmesg | grep -q "kvm: with Global TDP $version,"; }
not() { ! "$@"; }

# All files of the distribution's kernel are there, as its package has them.
# shellcheck disable=SC2086,SC2154
kernel_untouched() { [ -z "$(dpkg --verify $images)" ]; }

ours() {
	check 'runs the kernel of this system' "$(uname -r)" test "$(uname -r)" = "$kernel"
	check 'KVM was loaded at boot' "$(grep -c ^kvm /proc/modules) modules" loaded
	check 'modinfo: file is ours' "$(kvm_of filename)" test "$(dirname "$(kvm_of filename)")" = \
		"/lib/modules/$kernel/updates/dkms"
	for module in kvm kvm_amd kvm_intel; do
		found=$(modinfo -F version $module)
		check "modinfo: version of $module" "$found" test "$found" = "$version"
	done
	for module in kvm kvm_amd; do
		found=$(cat /sys/module/$module/version)
		check "loaded $module is ours" "$found" test "$found" = "$version"
	done
	check 'dmesg says so' "$(dmesg | grep -o 'kvm: with Global TDP.*')" says_ours
	found=$(kvm_of linux_source)
	check "made from this kernel's sources" "$found" grep -qF "Debian $found " <<<"$(uname -v)"
	check 'files of the kernel package untouched' 'dpkg --verify' kernel_untouched
}

parameter=/sys/module/kvm/parameters/global_tdp
hook=/usr/lib/kvm-global-tdp/kernel-hook

# status, word in the line
status() {
	said=$(global-tdp-status)
	found=$?
	check "global-tdp-status ends with $1" "$found: $said" test $found = "$1"
	check "global-tdp-status says $2" "$said" grep -q "$2" <<<"$said"
}

service_said() {
	journalctl -q -b -o cat -u kvm-global-tdp | grep '^kvm-global-tdp: '
}

# Built in the root file system; a build in this machine would take an hour.
load_fixes() {
	modprobe -r kvm_amd kvm
	cp fixes/* "/lib/modules/$kernel/updates/dkms/" && modprobe kvm_amd
}

load_all() {
	modprobe -r kvm_amd kvm
	cp "/var/lib/dkms/kvm-global-tdp/$version/$kernel"/*/module/* "/lib/modules/$kernel/updates/dkms/"
	modprobe kvm_amd
}

says_fixes() { dmesg | grep -q "kvm: with Global TDP's fixes $version,"; }

installed() {
	find "/lib/modules/$kernel/updates" -name 'kvm*' 2>/dev/null | wc -l
}

case $phase in
off)
	# Headers of another flavour brought its image, which is not what boots next.
	rm -f /boot/vmlinuz-*-cloud-amd64
	ours
	check 'off by default' "global_tdp=$(cat $parameter)" grep -qx ask $parameter
	status 1 WARNING
	signer=$(modinfo -F signer kvm)
	check 'signed with a key of this system' "$signer" grep -q DKMS <<<"$signer"
	# An emulated AMD CPU has no VMX; but if that is all, the module is right.
	said=$(modprobe kvm_intel 2>&1)
	check 'kvm_intel would load' "$said" grep -q 'not supported' <<<"$said"
	echo locked >phase
	;;
locked)
	# The kernel wants signatures, as with Secure Boot, and nobody has enrolled the key.
	check 'locked down' "$(cat /sys/kernel/security/lockdown)" \
		grep -q '\[integrity\]' /sys/kernel/security/lockdown
	said=$(dmesg | grep -iE 'lockdown.*module|module.*(unavailable key|unsigned)')
	check 'ours was refused' "$said" test -n "$said"
	said=$(service_said)
	check 'the service says why, once' "$said" grep -q 'mokutil --import' <<<"$said"
	check 'in one line' "$said" test "$(wc -l <<<"$said")" = 1
	check 'nothing is in updates/' "$(installed) modules" test "$(installed)" = 0
	check "the distribution's KVM was loaded at boot" "$(kvm_of filename)" loaded
	check 'no parameter global_tdp' '' not test -e $parameter
	check 'files of the kernel package untouched' 'dpkg --verify' kernel_untouched
	status 2 'mokutil --import'
	said=$($hook "$kernel" 2>&1)
	check 'the hook changes nothing' "$said" test "$(installed)" = 0
	echo on >phase
	;;
on)
	said=$(service_said)
	check 'without the lock-down, the service says that ours is back' "$said" grep -q 'our KVM again' <<<"$said"
	check 'installed' "$(installed) modules" test "$(installed)" = 3
	check 'ours was loaded at boot' "global_tdp=$(cat $parameter)" grep -qx ask $parameter
	echo 'options kvm global_tdp=1' >/etc/modprobe.d/local-global-tdp.conf
	modprobe -r kvm_amd kvm
	modprobe kvm_amd
	ours
	check 'on by modprobe.d' "global_tdp=$(cat $parameter)" grep -qx always $parameter
	status 0 OK
	echo 0 >$parameter
	status 1 WARNING
	check 'global-tdp-status --stop' "$(global-tdp-status --stop)" grep -qx never $parameter
	status 1 stopped
	echo 1 >$parameter
	./global_tdp_populate_test >log 2>&1
	status=$?
	tail -n 3 log
	check 'selftest passes' "global_tdp_populate_test, status $status" test $status = 0
	check 'the fixes alone: loaded' "$(load_fixes 2>&1)" loaded
	found=$(cat /sys/module/kvm/version)
	check 'the fixes alone: ours' "$found" test "$found" = "$version"
	check 'the fixes alone: no parameter global_tdp' '' not test -e $parameter
	check 'the fixes alone: dmesg' "$(dmesg | tail -n 3)" says_fixes
	echo patches=fixes >>/etc/default/kvm-global-tdp
	status 0 'as patches=fixes asks'
	sed -i '/^patches/d' /etc/default/kvm-global-tdp
	load_all
	dpkg --purge kvm-global-tdp-dkms
	left=$(dpkg-query -W -f='${db:Status-Status}' kvm-global-tdp-dkms 2>/dev/null)
	check 'package can be purged' "$left" test "${left:-not-installed}" = not-installed
	check 'which stops it' "global_tdp=$(cat $parameter)" grep -qx never $parameter
	echo stock >phase
	;;
stock)
	check 'KVM was loaded at boot' "$(grep -c ^kvm /proc/modules) modules" loaded
	check "modinfo: file is the distribution's" "$(kvm_of filename)" \
		test "$(dirname "$(kvm_of filename)")" = "/lib/modules/$kernel/kernel/arch/x86/kvm"
	check 'modinfo: no version' "'$(kvm_of version)'" test -z "$(kvm_of version)"
	check 'dmesg does not name us' "" not says_ours
	check 'no parameter global_tdp' "" not test -e $parameter
	check 'files of the kernel package untouched' 'dpkg --verify' kernel_untouched
	left=$(ls -d /usr/src/kvm-global-tdp* /var/lib/dkms/kvm-global-tdp \
		"/lib/modules/$kernel/updates/dkms/"kvm* 2>/dev/null)
	check 'nothing is left behind' "$left" test -z "$left"
	./global_tdp_populate_test >log 2>&1
	status=$?
	check 'selftest has nothing to test' "status $status" test $status = 4
	;;
esac
mark 'done'
sync
systemctl poweroff --force
