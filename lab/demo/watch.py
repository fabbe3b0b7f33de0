"""Sample a destination's counters from before it resumes until well after."""

import asyncio
import time
from typing import Self

from lab.demo import kvm
from lab.demo.config import Counters
from lab.demo.vm import QemuGoneError, Vm, VmError

WINDOW = 5.0
"""Seconds after resume."""

_PERIOD = 0.01
_PATIENCE = 60
_WANTED = ("pf_", "tdp_")


class Watch:
    """Samples, by the wall clock that QMP events use; use as `async with Watch(vm)`."""

    def __init__(self, vm: Vm) -> None:
        self._vm = vm
        try:
            self._files = kvm.files(vm.pid)
        except OSError as error:
            raise self._gone() from error
        self._samples: list[tuple[float, Counters]] = []
        self.at_end: Counters = {}
        self._resumed = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._take()
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def finish(self) -> None:
        """Wait until the window is over."""
        assert self._task
        try:
            await asyncio.wait_for(self._task, _PATIENCE)
        except TimeoutError:
            raise self._vm.error(f"the guest has not resumed in {_PATIENCE} s") from None

    async def _run(self) -> None:
        with self._vm.on("RESUME") as events:
            while not self._resumed or time.time() < self._resumed + WINDOW:
                self._take()
                if not self._resumed and not events.empty():
                    stamp = (await events.get())["timestamp"]
                    self._resumed = stamp["seconds"] + stamp["microseconds"] / 1e6
                await asyncio.sleep(_PERIOD)
        self.at_end = kvm.read(self._files, (n for n in self._files if n.startswith(_WANTED)))

    def _take(self) -> None:
        try:
            counted = kvm.read(self._files, (*kvm.CURVE, *kvm.MAPPED))
        except OSError as error:
            raise self._gone() from error
        self._samples.append((time.time(), counted))

    def _gone(self) -> VmError:
        what = "QEMU is gone, and KVM's counters with it"
        return self._vm.error(what, kind=QemuGoneError)

    def at_resume(self) -> Counters:
        """Return the last sample taken before the vCPUs ran."""
        before = (seen for at, seen in reversed(self._samples) if at <= self._resumed)
        return next(before)

    def curve(self) -> list[tuple[float, int]]:
        """Return seconds after resume and faults since then."""
        zero = self._resumed
        base = kvm.memory_faults(self.at_resume())
        after = [
            (round(at - zero, 4), kvm.memory_faults(counted) - base)
            for at, counted in self._samples
            if zero < at <= zero + WINDOW
        ]
        # What a machine that stood still has not sampled is known in the end.
        return [(0.0, 0), *after, (WINDOW, kvm.memory_faults(self.at_end) - base)]

    def progress(self) -> list[tuple[float, float]]:
        """Return seconds after resume, negative before, and MiB mapped until then."""
        points: list[tuple[float, float]] = []
        for at, counted in self._samples:
            mapped = kvm.mapped_mib(counted)
            # Of a time without change, the ends are enough.
            if len(points) > 1 and points[-2][1] == points[-1][1] == mapped:
                points.pop()
            points.append((round(at - self._resumed, 4), mapped))
        return points
