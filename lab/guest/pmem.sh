# Sourced in machine "pmem": two file systems with DAX, and a device that is all DAX.
for module in nd_e820 nd_pmem dax_pmem device_dax; do
	# They are built in where there is nothing to load them from.
	[ ! -e "/lib/modules/$(uname -r)/modules.dep" ] || modprobe "$module" || fail "no module $module"
done
# Devices come when they come.
for what in /dev/pmem0 /dev/pmem1 /dev/pmem2; do
	udevadm wait --timeout=60 "$what" || fail "no $what"
done
mkfs.ext4 -q -b 4096 -E stride=512,stripe_width=512 /dev/pmem0 || fail 'no ext4'
# shellcheck disable=SC2154
"$tools/mkfs.xfs" -q -d agcount=2,su=2m,sw=1 -l size=64m,su=4k /dev/pmem1 || fail 'no xfs'
for disk in ext4:/dev/pmem0 xfs:/dev/pmem1; do
	mkdir -p "/tmp/${disk%%:*}"
	mount -t "${disk%%:*}" -o dax=always "${disk#*:}" "/tmp/${disk%%:*}" || fail "no DAX on $disk"
done
"$tools/ndctl" create-namespace -f -e namespace2.0 --mode=devdax --align=2M >/dev/null ||
	fail 'no DAX device'
udevadm wait --timeout=60 /dev/dax2.0 || fail 'no /dev/dax2.0'
export GLOBAL_TDP_DAX='/tmp/ext4 /tmp/xfs /dev/dax2.0'
