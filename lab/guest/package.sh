#!/bin/bash
# Runs at boot on the system that lab.check.package installed: one phase a boot. Prints what
# it finds to the console, between marks as those of run.sh, and switches the machine off.
# Files of the test are in /package-test.
cd /package-test || exit 1
# shellcheck disable=SC1091
. ./job # kernel, version
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
kernel_untouched() { [ -z "$(dpkg --verify "linux-image-$kernel")" ]; }

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
	check 'files of the kernel package untouched' 'dpkg --verify' kernel_untouched
}

parameter=/sys/module/kvm/parameters/global_tdp

case $phase in
off)
	ours
	check 'off by default' "global_tdp=$(cat $parameter)" grep -qx '[0N]' $parameter
	sed -i 's/^#options/options/' /etc/modprobe.d/kvm-global-tdp.conf
	echo on >phase
	;;
on)
	ours
	check 'on by modprobe.d' "global_tdp=$(cat $parameter)" grep -qx '[1Y]' $parameter
	./global_tdp_populate_test >log 2>&1
	status=$?
	tail -n 3 log
	check 'selftest passes' "global_tdp_populate_test, status $status" test $status = 0
	dpkg --remove kvm-global-tdp-dkms
	left=$(dpkg-query -W -f='${db:Status-Status}' kvm-global-tdp-dkms)
	check 'package can be removed' "$left" test "$left" = config-files
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
