"""KVM as the lab machine shows it: modules, counters, traces, memory of its tables."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from lab import shell
from lab.demo.config import Counters
from lab.error import LabError

DEBUGFS = Path("/sys/kernel/debug/kvm")

CURVE = ("pf_taken", "pf_mmio_spte_created")
MAPPED = ("tdp_populated_4k", "tdp_populated_2m", "tdp_populated_1g", "tdp_populate_time_ns")

_TRACE = Path("/sys/kernel/tracing/events/kvm/kvm_page_fault")
_RSVD = 8
"""Bit of the error code: a hit on an MMIO page KVM knows, not on memory."""


def reload(modules: dict[str, str], *, global_tdp: bool) -> bool:
    """Insert KVM anew; False if this one does not know global_tdp."""
    known = "global_tdp:" in shell.output("/sbin/modinfo", "-F", "parm", modules["kvm"])
    given = f" global_tdp={global_tdp:d}" * known
    with NamedTemporaryFile("w") as listed:
        listed.write(f"{modules['kvm']}{given}\n{modules['kvm_amd']}\n")
        listed.flush()
        shell.output("sh", "-c", '. "$LAB_GUEST/modules.sh"; load "$0"', listed.name)
    if not Path("/dev/kvm").exists():
        raise LabError("KVM is loaded, but there is no /dev/kvm; see dmesg")
    return known


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
