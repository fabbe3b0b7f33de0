#!/bin/sh
# Runs in the system that lab.check.package installed, which does not run: has our package, of
# the version $2, install the modules that are built for the kernel $1 where others fill the file
# system meanwhile, once for each number of KiB that they leave, and tells which KVM there is
# then. All is done on copies, in file systems that go with this process' mounts.
release=$1
version=$2
shift 2
own=/lib/modules/$release
hook=/usr/lib/kvm-global-tdp/kernel-hook

# The hook looks for room by df; the others come right after.
cat >/usr/sbin/df <<'END'
#!/bin/sh
/usr/bin/df "$@"
left=$(/usr/bin/df -Pk /full.mnt | awk 'NR == 2 { print $4 }')
head -c "$((left - $(cat /full.left)))K" /dev/zero >/full.mnt/others
END
chmod +x /usr/sbin/df
trap 'rm -rf /usr/sbin/df /full /full.*' EXIT

size=$(du -sk "$own" | cut -f1)
mkdir -p /full.mnt /full.dkms /full.stock
cp -a "$own/kernel/arch/x86/kvm/." /full.stock

of_one_kind() { # all three, whole, as modprobe would take them
	kind=
	for name in kvm kvm-amd kvm-intel; do
		file=$(modinfo -k "$release" -n "$name") || return
		case $file in
		*/updates/dkms/*) this=ours made=$(ls /var/lib/dkms/kvm-global-tdp/"$version"/"$release"/*/module/"${file##*/}") ;;
		*) this="the kernel's own" made=/full.stock/${file##*/} ;;
		esac
		cmp "$file" "$made" || return
		[ "${kind:=$this}" = "$this" ] || return
	done
	# Also if ours is what is taken: these are not to get lost.
	diff -r /full.stock "$own/kernel/arch/x86/kvm" || return
	for name in kvm-amd kvm-intel; do
		modprobe -S "$release" --show-depends "$name" >/full.depends || return
		while read -r what file _; do
			[ "$what" != insmod ] || [ -e "$file" ] || return
		done </full.depends
	done
}

for left; do
	echo "$left" >/full.left
	mount -t tmpfs -o "size=$((size + 128 * 1024))k" tmpfs /full.mnt
	mount -t tmpfs tmpfs /full.dkms
	cp -a "$own" /full.mnt/modules
	cp -a /var/lib/dkms/. /full.dkms
	mount --bind /full.mnt/modules "$own"
	mount --bind /full.dkms /var/lib/dkms
	dkms uninstall -m kvm-global-tdp -v "$version" -k "$release"
	"$hook" "$release"
	status=$?
	if of_one_kind; then
		found=$kind
	else
		found='a KVM that is not whole'
	fi
	echo "full: $left KiB: $found, status $status"
	umount "$own" /var/lib/dkms /full.mnt /full.dkms
done
