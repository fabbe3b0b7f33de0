"""A guest's memory, as its host has it, and what the host may do to it."""

import ctypes
import os
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lab.error import LabError

PAGE = 4096

_PRESENT = 1 << 63
_FRAME = (1 << 55) - 1
_PROCESS_MADVISE = 440
_COLD, _PAGEOUT, _COLLAPSE = 20, 21, 25
_CHUNK = 16 << 20
_KSM = Path("/sys/kernel/mm/ksm")
_KSM_SECONDS = 4
_RECLAIM = 32 << 20
_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP = _CGROUPS / "assigned"


@dataclass(frozen=True)
class Memory:
    """Of a process, where a guest's memory is."""

    pid: int
    address: int
    size: int

    def frames(self) -> list[int]:
        """Return the host's page frame of each page, all brought in; -1 where there is none."""
        with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as memory:
            for at in range(0, self.size, _CHUNK):
                os.pread(memory.fileno(), min(_CHUNK, self.size - at), self.address + at)
        return [e & _FRAME if e & _PRESENT else -1 for e in self._entries()]

    def present(self) -> int:
        """Return how many of its pages are there, and leave it at that."""
        return sum(bool(entry & _PRESENT) for entry in self._entries())

    def _entries(self) -> array:
        entries = array("Q")
        with Path(f"/proc/{self.pid}/pagemap").open("rb") as pagemap:
            pagemap.seek(self.address // PAGE * 8)
            entries.frombytes(pagemap.read(self.size // PAGE * 8))
        return entries


def locked_kib(pid: int) -> int:
    """Return how much memory VFIO has pinned for a process: it is accounted as locked."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1])
    raise LabError(f"process {pid} has no VmLck")


@contextmanager
def cgroup() -> Iterator[None]:
    """Have what this process starts in here be in a memory cgroup of its own."""
    (_CGROUPS / "cgroup.subtree_control").write_text("+memory")
    _CGROUP.mkdir(exist_ok=True)
    (_CGROUP / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (_CGROUPS / "cgroup.procs").write_text(str(os.getpid()))


def _advise(memory: Memory, advice: int, step: int = 1) -> None:
    """Give advice on each chunk, or each `step`th."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(memory.pid)
    try:
        for at in range(0, memory.size, step * _CHUNK):
            part = (ctypes.c_size_t * 2)(memory.address + at, min(_CHUNK, memory.size - at))
            # What can't be had of a part, as it is pinned, is no failure of the attempt.
            libc.syscall(_PROCESS_MADVISE, pidfd, part, ctypes.c_size_t(1), advice, 0)
    finally:
        os.close(pidfd)


def _page_out(memory: Memory) -> None:
    # The guest's data are not to be compressed, and so take long.
    _advise(memory, _COLD, 8)
    _advise(memory, _PAGEOUT, 8)


def _collapse(memory: Memory) -> None:
    _advise(memory, _COLLAPSE)


def _split(memory: Memory) -> None:
    end = memory.address + memory.size
    line = f"{memory.pid},{memory.address:#x},{end:#x}"
    Path("/sys/kernel/debug/split_huge_pages").write_text(line)


def _compact(_: Memory) -> None:
    Path("/proc/sys/vm/compact_memory").write_text("1")


def _reclaim(memory: Memory) -> None:
    # It tells that it did not get that much.
    with suppress(OSError):
        (_CGROUP / "memory.reclaim").write_text(str(_RECLAIM))


def _merge(_: Memory) -> None:
    """KSM: QEMU says of guest memory that it may be merged."""
    (_KSM / "pages_to_scan").write_text("20000")
    (_KSM / "sleep_millisecs").write_text("10")
    (_KSM / "run").write_text("1")
    time.sleep(_KSM_SECONDS)
    (_KSM / "run").write_text("2")
    (_KSM / "run").write_text("0")


ATTEMPTS: dict[str, Callable[[Memory], None]] = {
    "page out": _page_out,
    "reclaim": _reclaim,
    "split huge pages": _split,
    "compact": _compact,
    "collapse": _collapse,
    "merge": _merge,
}
"""What the host does to a guest's memory, or tries to."""
