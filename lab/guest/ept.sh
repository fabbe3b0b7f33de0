#!/bin/busybox sh
# /init of the machine that lab.machine.ept starts: load what is to be, run the commands one by one.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mkdir -p /dev/shm /sys/fs/cgroup
mount -t tmpfs tmp /dev/shm
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
load() { # file, parameters
	message=$(insmod "$@" 2>&1) && return
	echo "lab: failure: $(basename "$1") does not load: $message"
	poweroff -f
}

echo 'lab: begin' >/dev/kmsg
. /lab/load
if [ -e /dev/zram0 ]; then
	echo 256M >/sys/block/zram0/disksize
	mkswap /dev/zram0 >/dev/null && swapon /dev/zram0
fi
for command in /lab/command.*; do
	echo "lab: run ${command##*.}"
	sh "$command" </dev/null 2>&1
	echo "lab: status ${command##*.} $?"
done
echo 'lab: end'
poweroff -f
