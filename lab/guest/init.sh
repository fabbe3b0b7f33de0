#!/bin/busybox sh
# /init of the machine on Bochs, which has nothing but busybox. The kernel hands over what it
# finds on its command line: lab_guest and lab_run, as they are called on the host.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs devtmpfs /dev
# The kernel's log has the other port.
stty -F /dev/ttyS1 115200
# shellcheck disable=SC2154
sh "$lab_guest/run.sh" "$lab_run" >/dev/ttyS1 2>&1
poweroff -f
