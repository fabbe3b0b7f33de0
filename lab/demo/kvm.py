"""KVM as the lab machine shows it: its parameter, counters, traces, memory of its tables."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.demo.config import Counters

DEBUGFS = Path("/sys/kernel/debug/kvm")

CURVE = ("pf_taken", "pf_mmio_spte_created")
MAPPED = ("tdp_populated_4k", "tdp_populated_2m", "tdp_populated_1g", "tdp_populate_time_ns")

_SIZES = {"pages_4k": 1, "pages_2m": 512, "pages_1g": 512 * 512}
_PARAMETER = Path("/sys/module/kvm/parameters/global_tdp")
_TRACE = Path("/sys/kernel/tracing/events/kvm/kvm_page_fault")
_RSVD = 8
"""Bit of the error code: a hit on an MMIO page KVM knows, not on memory."""


def has_parameter() -> bool:
    """Return False if this KVM does not know Global TDP."""
    return _PARAMETER.exists()


def set_parameter(*, on: bool) -> None:
    """Have VMs that are created from now on have Global TDP or not, where there is a choice."""
    if has_parameter():
        _PARAMETER.write_text(f"{on:d}")


def files(pid: int) -> dict[str, Path]:
    """Return where debugfs shows KVM's counters of the guest of process `pid`.

    debugfs and not QMP: query-stats would kick every vCPU out of the guest.
    """
    for directory in DEBUGFS.glob(f"{pid}-*"):
        return {path.name: path for path in directory.iterdir() if path.is_file()}
    raise FileNotFoundError(f"{DEBUGFS}/{pid}-*")


def read(shown: dict[str, Path], names: Iterable[str]) -> Counters:
    """Return those counters this kernel has, vCPUs added up."""
    return {name: int(shown[name].read_text()) for name in names if name in shown}


def pages(shown: dict[str, Path]) -> int:
    """Return how many pages of 4 KiB stage 2 maps."""
    return sum(count * _SIZES[name] for name, count in read(shown, _SIZES).items())


def memory_faults(counted: Counters) -> int:
    """Return the stage-2 faults that were about memory, not about finding a device."""
    return counted["pf_taken"] - counted["pf_mmio_spte_created"]


def mapped_mib(counted: Counters) -> float:
    """Return how much was mapped ahead of the vCPUs; 0 if this kernel does not know."""
    sizes = {"4k": 4, "2m": 2048, "1g": 1 << 20}
    return sum(counted.get(f"tdp_populated_{n}", 0) * kib for n, kib in sizes.items()) / 1024


def sec_pagetables_kib() -> int:
    """Return the size of all stage-2 tables of the machine."""
    found = re.search(r"^SecPageTables:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
    return int(found[1]) if found else 0


def differ(shown: Counters, qmp: int, traced: int) -> str:
    """Return how three counts of a guest's faults differ, though it stands still; or "".

    debugfs, here `shown`, and QMP's query-stats show one counter, pf_taken. The tracepoint
    kvm:kvm_page_fault is independent of it: tracing() leaves out what hits a device KVM
    knows, as KVM does. But KVM counts such a hit if memslots have changed since, and then
    finds the device anew.
    """
    taken, devices = (shown[name] for name in CURVE)
    if qmp == taken and taken - devices <= traced <= taken:
        return ""
    return (
        f"counts of its faults differ: debugfs {taken}, of which {devices} found devices,"
        f" query-stats {qmp}, tracepoint {traced}"
    )


@contextmanager
def tracing() -> Iterator[None]:
    """Count kvm:kvm_page_fault by thread while in here."""
    trigger = f"hist:keys=common_pid if !(error_code & {_RSVD})"
    (_TRACE / "trigger").write_text(trigger)
    try:
        yield
    finally:
        (_TRACE / "trigger").write_text("!" + trigger)


def traced(threads: list[int]) -> int:
    """Return how often the threads came by kvm:kvm_page_fault since tracing began."""
    text = (_TRACE / "hist").read_text()
    hits = re.findall(r"common_pid:\s*(\d+)\s*\} hitcount:\s*(\d+)", text)
    return sum(int(count) for thread, count in hits if int(thread) in threads)
