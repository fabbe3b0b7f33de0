"""Keep an emulated machine from patching its kernel while two CPUs run it in parallel.

Static keys of KVM and of the scheduler flip when the first VM comes, the last one goes,
a vCPU has no local APIC, or has it turned off. QEMU's emulation has been seen to run the
breakpoint of such patching after it was gone ("Oops: int3"): it may translate code that
another CPU is just writing. So hold the keys.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_KVM_CREATE_VM, _KVM_CREATE_VCPU, _KVM_CREATE_IRQCHIP = 0xAE01, 0xAE41, 0xAE60


@contextmanager
def steady() -> Iterator[None]:
    """Hold two VMs: one whose vCPU has no APIC, one whose APIC is off, as at reset."""
    with ExitStack() as held:
        kvm = _hold(held, os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
        for irqchip in (False, True):
            vm = _hold(held, fcntl.ioctl(kvm, _KVM_CREATE_VM, 0))
            if irqchip:
                fcntl.ioctl(vm, _KVM_CREATE_IRQCHIP)
            _hold(held, fcntl.ioctl(vm, _KVM_CREATE_VCPU, 0))
        yield


def _hold(held: ExitStack, fd: int) -> int:
    held.callback(os.close, fd)
    return fd
