"""How fast the TSC is: that of this machine, which QEMU's emulated CPUs have, too.

Kernels measure it as they boot, beside a timer that is emulated, and get wrong by far what is
interrupted: on a busy host, 181 MHz for 2596. Guests of such a kernel's KVM sleep for minutes.
"""

import ctypes
import mmap
import time
from functools import cache

_RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")
"""rdtsc; shl $32, %rdx; or %rdx, %rax; ret"""

_SECONDS = 0.05
_TRIES = 100


@cache
def khz() -> int:
    """Return the frequency in kHz, by CLOCK_MONOTONIC."""
    with mmap.mmap(
        -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    ) as m:
        m.write(_RDTSC)
        start = ctypes.c_char.from_buffer(m)
        rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(start))
        began = _together(rdtsc)
        time.sleep(_SECONDS)
        ended = _together(rdtsc)
        del start
    ticks, ns = (late - early for early, late in zip(began, ended, strict=True))
    return round(ticks * 1_000_000 / ns)


def _together(rdtsc) -> tuple[int, int]:  # noqa: ANN001 - a type that ctypes makes
    """Return TSC and time in ns, of the try that was interrupted least."""
    found = []
    for _ in range(_TRIES):
        before = time.monotonic_ns()
        ticks = rdtsc()
        after = time.monotonic_ns()
        found.append((after - before, ticks, (before + after) // 2))
    return min(found)[1:]
