"""In the lab machine: run every case of a job.

python -m lab.check.assigned.inside JOB.json REPORT.json SIDE:BACKEND...
"""

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Self

from lab.check import guests
from lab.check.assigned import memory
from lab.check.assigned.config import Case, Phase, Round
from lab.check.assigned.memory import Memory
from lab.demo import kvm
from lab.demo.config import Job
from lab.demo.vm import Setting, Vm
from lab.error import LabError

BALLOON_MIB = 128
BOOT_SECONDS = 1200
SECONDS = 600
"""For what takes a few seconds; more is a hang."""

_SKIPPED = 1 << 20
"""Bytes at the begin of memory, where firmware, and what shadows it, is."""

_SAMPLE = 0.01

_ROUND = re.compile(
    r"^drive: round (\d+) by (drive|cpu) toggles (\d+) bytes (\d+) mismatches (\d+)\r?\n", re.M
)


def rounds(console: str) -> list[Round]:
    """Return those that have ended."""
    return [
        Round(int(number), by == "drive", int(toggles), int(size) >> 20, int(wrong))
        for number, by, toggles, size, wrong in _ROUND.findall(console)
    ]


def gone(console: str) -> bool:
    """Return whether the guest has seen that it has no drive any more."""
    return bool(re.search(r"^drive: gone\b", console, re.M))


def progress(console: str) -> str:
    """Return how far the guest is."""
    if done := rounds(console):
        return f"{len(done)} rounds"
    return "looking for the drive" if "drive: " in console else "booting"


class Guest(Vm):
    """A guest that tells of rounds."""

    def how_far(self, text: str) -> str:
        return progress(text)


def main() -> int:
    """Run the cases; what failed stands in the file, too."""
    job, path = Job.load(Path(sys.argv[1])), Path(sys.argv[2])
    report = guests.Report()

    def cases() -> Iterator[Case]:
        for name in sys.argv[3:]:
            side, _, backend = name.partition(":")
            print(f"assigned: {side}, {backend}", flush=True)
            report.cases.append(case := Case(backend, side))
            guests.live(job, side, backend, lambda at, case=case: _live(at, case))
            yield case

    return report.fill(path, cases())


async def _live(at: Setting, case: Case) -> None:
    """Take a guest through a life with the drive, and one without it."""
    more = (
        "-S",
        "-device=pcie-root-port,id=plug,chassis=1",
        f"-device=vfio-pci,host={_drive()},id=drive,bus=plug",
        "-device=virtio-balloon-pci,id=balloon",
    )
    async with AsyncExitStack() as stack:
        with memory.cgroup():
            vm = await stack.enter_async_context(Guest("guest", at, *more))
        ram = Memory(vm.pid, await _address(vm) + _SKIPPED, (at.job.mem_mib << 20) - _SKIPPED)
        case.pages = ram.size // memory.PAGE
        life = Life(vm, case)
        on = case.side == guests.ON
        case.mapped_ahead = await guests.mapped_ahead(vm, case.pages, SECONDS, on=on)
        await vm.do("cont")
        async with life:
            await life.more_rounds(1, BOOT_SECONDS)
            at.progress.now("the guest is up, its drive works")
            await _endure(life, ram, case.attached)
            await _unplug(life)
            at.progress.now("the drive is unplugged")
            await _endure(life, ram, case.unplugged)
        status = await vm.do("query_status")
        if status["status"] != "running":
            raise vm.error(f"the guest is {status['status']} in the end")
        names = (name for name in life.files if name.startswith(("pf_", "tdp_", "pages_")))
        case.at_end = kvm.read(life.files, names)


class Life:
    """Of a guest, round after round, with samples of KVM's counters; use as `async with`."""

    def __init__(self, vm: Vm, case: Case) -> None:
        self.vm = vm
        self.files = kvm.files(vm.pid)
        self._case = case
        self._task: asyncio.Task[None] | None = None
        self._faults = 0
        self._began = time.monotonic()
        self._least = -1

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def more_rounds(self, count: int, seconds: float = SECONDS) -> None:
        """Wait until so many rounds have ended that begin from now on."""
        # One is at work.
        wanted = len(self._case.rounds) + count + 1

        def enough(text: str) -> bool:
            return self.heard(text) and len(self._case.rounds) >= wanted

        await self.vm.said(f"round {wanted} has not ended", enough, seconds)

    def heard(self, text: str) -> bool:
        """Return True; what the guest can't do is an error."""
        if told := guests.failure(text, "drive"):
            raise self.vm.error(told)
        return True

    async def _watch(self) -> None:
        while True:
            self._sample()
            ended = rounds(self.vm.text())
            for each in ended[len(self._case.rounds) :]:
                self._end(each)
            await asyncio.sleep(_SAMPLE)

    def _sample(self) -> None:
        mapped = kvm.pages(self.files)
        self._least = mapped if self._least < 0 else min(self._least, mapped)

    def _end(self, each: Round) -> None:
        faults = kvm.memory_faults(kvm.read(self.files, kvm.CURVE))
        each.faults, self._faults = faults - self._faults, faults
        each.least_mapped, self._least = self._least, -1
        now = time.monotonic()
        each.seconds, self._began = round(now - self._began, 1), now
        self._case.rounds.append(each)


async def _endure(life: Life, ram: Memory, phase: Phase) -> None:
    """Have the host do what it may, with the guest at work."""
    vm = life.vm
    phase.locked_kib = memory.locked_kib(vm.pid)
    before = await asyncio.to_thread(ram.frames)
    for name, attempt in memory.ATTEMPTS.items():
        await asyncio.to_thread(attempt, ram)
        after = await asyncio.to_thread(ram.frames)
        phase.moved[name] = sum(a != b for a, b in zip(before, after, strict=True))
        vm.progress.now(f"{name}: {phase.moved[name]} pages moved")
        before = after
    await life.more_rounds(2)
    await asyncio.to_thread(ram.frames)
    size = vm.mem_mib - BALLOON_MIB
    phase.balloon_mib = await _balloon(vm, size)
    phase.balloon_gone = ram.size // memory.PAGE - ram.present()
    vm.progress.now(f"balloon: {phase.balloon_gone} pages gone")
    await _balloon(vm, vm.mem_mib)
    await life.more_rounds(2)


async def _balloon(vm: Vm, mib: int) -> int:
    """Have the guest give up memory, or take it; return what it has then, in MiB."""
    await vm.do("balloon", value=mib << 20)
    actual = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            while actual != mib << 20:
                await asyncio.sleep(0.1)
                actual = (await vm.do("query_balloon"))["actual"]
    return actual >> 20


async def _unplug(life: Life) -> None:
    vm = life.vm
    with vm.on("DEVICE_DELETED") as events:
        await vm.do("device_del", id="drive")
        try:
            async with asyncio.timeout(SECONDS):
                while (await events.get())["data"].get("device") != "drive":
                    pass
        except TimeoutError:
            raise vm.error(f"the drive is not unplugged after {SECONDS} s") from None

    def sees(text: str) -> bool:
        return life.heard(text) and gone(text)

    await vm.said("the guest still sees its drive", sees, SECONDS)


async def _address(vm: Vm) -> int:
    """Return where in QEMU's address space the guest's memory begins."""
    line = f"gpa2hva {_SKIPPED}"
    said = await vm.do("human_monitor_command", command_line=line)
    if not (found := re.search(r"is (0x[0-9a-f]+)", said)):
        raise vm.error(f"{line}: {said.strip()}")
    return int(found[1], 16) - _SKIPPED


def _drive() -> str:
    """Return the address of the drive that lab/guest/vfio.sh has given to vfio-pci."""
    for path in Path("/sys/bus/pci/drivers/vfio-pci").glob("*:*:*"):
        if (path / "class").read_text().startswith("0x0108"):
            return path.name
    raise LabError("vfio-pci has no NVMe drive")


if __name__ == "__main__":
    sys.exit(main())
