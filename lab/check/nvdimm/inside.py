"""In the lab machine "pmem": run every guest of a job.

python -m lab.check.nvdimm.inside JOB.json REPORT.json SIDE
"""

import asyncio
import fcntl
import mmap
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy

from lab.check import guests
from lab.check.nvdimm.config import KINDS, LAST, Case
from lab.demo import kvm
from lab.demo.config import Job
from lab.demo.vm import Setting, Vm
from lab.error import LabError

SIZE = 64 << 20
PAGE = 4096
BOOT_SECONDS = 600
SECONDS = 300
"""For what takes a few seconds; more is a hang."""

_DISK, _MOUNTED = "/dev/pmem1", Path("/tmp/xfs")
_DEVICE = Path("/dev/dax2.0")
_SYNCED = ("dax", "file")
_ROUND_SHIFT = 40
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
"""_IOR('X', 125, __u32) of XFS, and its way to stop at once, as if the power were cut."""

_ROUND = re.compile(r"^nvdimm: round (\d+) mismatches (\d+)\r?\n", re.M)


class Guest(Vm):
    """A guest that tells of rounds."""

    def how_far(self, text: str) -> str:
        return f"{len(_ROUND.findall(text))} rounds" if "nvdimm: up" in text else "booting"


def main() -> int:
    """Run the cases; what failed stands in the file, too."""
    job, path, side = Job.load(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
    report = guests.Report()
    # Nothing is to reach the medium but what somebody asks for.
    for name, value in (("dirty_writeback_centisecs", 0), ("dirty_background_ratio", 90)):
        Path("/proc/sys/vm", name).write_text(f"{value}")

    def cases() -> Iterator[Case]:
        for kind in KINDS:
            print(f"nvdimm: {kind}, {side}", flush=True)
            report.cases.append(case := Case(kind, side, pages=SIZE // PAGE - 1))
            yield case
            _run(job, case)
            yield case

    return report.fill(path, cases())


def _run(job: Job, case: Case) -> None:
    place = _DEVICE
    if case.kind != "devdax":
        _mount(dax="never" if case.kind == "file" else "always")
        place = _MOUNTED / "nvdimm"
        with place.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, SIZE)
    _fill(_mapped(place))
    if case.kind in _SYNCED:
        os.sync()

    async def life(at: Setting) -> None:
        await _live(at, case, place)
        if case.kind != "devdax":
            _cut()
            _mount(dax="never")
        at.progress.now("QEMU is gone, and power, if it can be cut; what is left?")

    guests.live(job, case.side, "anon", life)
    case.left = _left(_mapped(place))


def _mount(dax: str) -> None:
    subprocess.run(["umount", _MOUNTED], check=True)
    subprocess.run(["mount", "-t", "xfs", "-o", f"dax={dax}", _DISK, _MOUNTED], check=True)


def _cut() -> None:
    """Have the file system forget what is not on its medium."""
    fd = os.open(_MOUNTED, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH.to_bytes(4, sys.byteorder))
    finally:
        os.close(fd)


def _mapped(place: Path) -> numpy.ndarray:
    """Return what the NVDIMM is on the host, as words; mapped as long as that is in use."""
    fd = os.open(place, os.O_RDWR)
    try:
        return numpy.frombuffer(mmap.mmap(fd, SIZE), dtype=numpy.uint64)
    finally:
        os.close(fd)


def _fill(words: numpy.ndarray) -> None:
    """Write what the guest expects at first, and that it is not to begin."""
    words[:] = numpy.arange(words.size, dtype=numpy.uint64)
    words[-PAGE // 8 :] = 0


def _left(words: numpy.ndarray) -> dict[int, int]:
    """Return how many pages are wholly of a round, by its number; -1 has the others."""
    pages = words[: -PAGE // 8].reshape(-1, PAGE // 8)
    rounds = pages[:, 0] >> _ROUND_SHIFT
    wanted = numpy.arange(pages.size, dtype=numpy.uint64).reshape(pages.shape)
    whole = (pages == wanted + (rounds[:, None] << _ROUND_SHIFT)).all(axis=1)
    return dict(Counter(int(n) if ok else -1 for n, ok in zip(rounds, whole, strict=True)))


async def _live(at: Setting, case: Case, place: Path) -> None:
    """Take a guest through its rounds; its QEMU is killed in the end."""
    kind = "memory-backend-file,id=nvdimm,share=on,prealloc=on,align=2M"
    pmem = "off" if case.kind == "file" else "on"
    more = (
        "-S",
        "-machine=nvdimm=on",
        f"-m={at.job.mem_mib}M,slots=2,maxmem=2G",
        f"-object={kind},pmem={pmem},size={SIZE >> 20}M,mem-path={place}",
        "-device=nvdimm,memdev=nvdimm,id=nvdimm0",
    )
    async with Guest("guest", at, *more) as vm:
        on = case.side == guests.ON
        case.mapped_ahead = await guests.mapped_ahead(vm, case.pages, SECONDS, on=on)
        await vm.do("cont")
        await vm.said("it has no NVDIMM", _up, BOOT_SECONDS)
        at.progress.now("the guest is up")
        await _rounds(vm, case, place, _mapped(place))
        told = _ROUND.findall(vm.text())
        case.mismatches = [int(wrong) for _, wrong in told]


async def _rounds(vm: Vm, case: Case, place: Path, words: numpy.ndarray) -> None:
    files = kvm.files(vm.pid)
    faults, again = _faults(files), 0
    for number in range(LAST + 1):
        over = asyncio.Event()
        syncs = 0 < number < LAST and case.kind in _SYNCED
        words[-PAGE // 8] = number + 1
        syncing = asyncio.create_task(_sync(case, place, words, over)) if syncs else None

        def ended(text: str, number: int = number) -> bool:
            return _up(text) and len(_ROUND.findall(text)) > number

        await vm.said(f"round {number} has not ended", ended, SECONDS)
        over.set()
        if syncing:
            await syncing
        case.faults.append(_faults(files) - faults)
        faults += case.faults[-1]
        if not number:
            again = _again(files)
        elif number == LAST - 1:
            case.repopulated = _again(files) - again
        vm.progress.now(f"round {number}")


def _faults(files: dict[str, Path]) -> int:
    return kvm.memory_faults(kvm.read(files, kvm.CURVE))


def _again(files: dict[str, Path]) -> int:
    return sum(kvm.read(files, ("tdp_repopulated", "tdp_fault_around")).values())


async def _sync(case: Case, place: Path, words: numpy.ndarray, over: asyncio.Event) -> None:
    """Sync the file until the round is over, and once more then.

    Count the times when the guest had begun to write, and has not ended.
    """
    first, last = 0, -PAGE // 8 - 1
    while not over.is_set():
        midway = words[first] >> _ROUND_SHIFT != words[last] >> _ROUND_SHIFT
        await asyncio.to_thread(_sync_once, place)
        case.syncs += bool(midway)
    await asyncio.to_thread(_sync_once, place)


def _sync_once(place: Path) -> None:
    fd = os.open(place, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _up(text: str) -> bool:
    """Return whether the guest has its NVDIMM; what it can't do is an error."""
    if told := guests.failure(text, "nvdimm"):
        raise LabError(f"the guest: {told}")
    return "nvdimm: up" in text


if __name__ == "__main__":
    sys.exit(main())
