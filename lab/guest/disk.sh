# Sourced where files are to be on a disk: TMPDIR is one of ext4, of disk_mib MiB, which takes no
# time or, if disk_us is set, so many microseconds for each request. Bochs' machine, which has
# nothing to make one with, goes without.
disk=/tmp/disk${disk_us:+.$disk_us}
if command -v mkfs.ext4 >/dev/null && ! grep -q " $disk " /proc/mounts; then
	# They are built in where there is nothing to load them from.
	[ ! -e "/lib/modules/$(uname -r)/modules.dep" ] || modprobe -a loop ext4
	mkdir -p "$disk"
	if [ "${disk_us:-}" ]; then
		# One that is there already takes as long as it does.
		[ ! -e /sys/module/null_blk ] &&
			modprobe null_blk nr_devices=1 memory_backed=1 gb=1 irqmode=2 \
				completion_nsec=$((disk_us * 1000)) &&
			mkfs.ext4 -q /dev/nullb0 "${disk_mib:-256}M" && mount /dev/nullb0 "$disk"
	else
		truncate -s "${disk_mib:-256}M" "$disk.img" &&
			mkfs.ext4 -q "$disk.img" && mount -o loop "$disk.img" "$disk"
	fi
fi
grep -q " $disk " /proc/mounts && export TMPDIR="$disk"
