# Sourced where files are to be on a disk: TMPDIR is one of ext4, of disk_mib MiB, which takes no
# time. Bochs' machine, which has nothing to make one with, goes without.
disk=/tmp/disk
if command -v mkfs.ext4 >/dev/null && ! grep -q " $disk " /proc/mounts; then
	# They are built in where there is nothing to load them from.
	[ ! -e "/lib/modules/$(uname -r)/modules.dep" ] || modprobe -a loop ext4
	mkdir -p "$disk" && truncate -s "${disk_mib:-256}M" "$disk.img" &&
		mkfs.ext4 -q "$disk.img" && mount -o loop "$disk.img" "$disk"
fi
grep -q " $disk " /proc/mounts && export TMPDIR="$disk"
