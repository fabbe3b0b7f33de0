# Sourced in machines "iommu" and "drive": hand what there is to assign to vfio-pci, i.e. the
# device that QEMU has for tests, or its NVMe drive.
modprobe vfio-pci
for device in /sys/bus/pci/devices/*; do
	case $(cat "$device/vendor" "$device/device") in
	"$(printf '0x1234\n0x11e8')" | "$(printf '0x1b36\n0x0010')")
		echo vfio-pci >"$device/driver_override"
		basename "$device" >/sys/bus/pci/drivers_probe
		;;
	esac
done
