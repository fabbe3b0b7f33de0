"""In the lab machine: run every case of a job.

python -m lab.demo.inside JOB.json OUTCOME.json
"""

import asyncio
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from lab import shell
from lab.demo import kvm, scenario
from lab.demo.config import BACKENDS, Case, Demo, Job, Side
from lab.demo.vm import (
    Progress,
    QemuGoneError,
    Setting,
    VmError,
    may_repeat,
    no_complaint,
)
from lab.error import LabError

_STOOD = "the lab's machine stood still"
_T = TypeVar("_T")


def main() -> int:
    """Run the job; what failed stands in the file too."""
    job, path = Job.load(Path(sys.argv[1])), Path(sys.argv[2])
    demo = Demo(job.mode, job.mem_mib, os.uname().release, how=job.how)
    if path.exists():
        demo = Demo.load(path)
        if demo.error:
            return 1
        done = len(demo.cases)
        why = f"{_STOOD} after {done} cases"
        side = job.sides[done % len(job.sides)]
        stood = sum(told.startswith(_STOOD) for told in demo.repeated)
        if not may_repeat(stood, global_tdp=side.global_tdp):
            demo.error = f"{why}, in one {'with' if side.global_tdp else 'without'} Global TDP"
            demo.save(path)
            return 1
        demo.repeated.append(why)
    try:
        demo.save(path)
        demo.qemu = shell.output(job.patched or job.qemu, "--version").splitlines()[0]
        if not kvm.has_parameter():
            raise LabError("the KVM in the lab machine has no global_tdp: make modules")
        with tempfile.TemporaryDirectory() as directory:
            _run(job, demo, path, Path(directory))
    except (LabError, OSError) as error:
        demo.error = str(error)
        demo.console = error.console if isinstance(error, VmError) else ""
    demo.save(path)
    return 1 if demo.error else 0


def _run(job: Job, demo: Demo, path: Path, directory: Path) -> None:
    """Do the cases that are not done yet, all with one guest, which is booted once."""
    stored = directory / "stored"

    def store(here: Path, progress: Progress) -> None:
        at = Setting(job, job.sides[0], BACKENDS[0], stored, here, progress)
        asyncio.run(scenario.store(at))

    print(f"demo: a guest of {job.mem_mib} MiB boots, for all cases", flush=True)
    _tried(store, "the boot", job.sides[0], demo)
    for case, side in _cases(job, demo):

        def bring(here: Path, progress: Progress, case: Case = case, side: Side = side) -> Case:
            tried = replace(case)
            at = Setting(job, side, case.backend, stored, here, progress)
            asyncio.run(scenario.run(at, tried))
            return tried

        demo.cases.append(_tried(bring, f"{case.backend}, {case.side}", side, demo))
        demo.save(path)
        print(_line(demo.cases[-1]), flush=True)


def _tried(do: Callable[[Path, Progress], _T], what: str, side: Side, demo: Demo) -> _T:
    """Do it; again if a QEMU process ended by itself, where that may be."""
    for times in itertools.count():
        try:
            with (
                tempfile.TemporaryDirectory() as directory,
                no_complaint(Path(directory)),
            ):
                return do(Path(directory), Progress())
        except QemuGoneError as error:
            if not may_repeat(times, global_tdp=side.global_tdp):
                raise
            demo.repeated.append(f"{what}: {error}")
            print(f"demo: {demo.repeated[-1]}; once more", flush=True)
    raise AssertionError


def _cases(job: Job, demo: Demo) -> Iterator[tuple[Case, Side]]:
    cases = list(itertools.product(range(job.runs), job.backends, job.sides))
    for run, backend, side in cases[len(demo.cases) :]:
        kvm.set_parameter(on=side.parameter)
        done = len(demo.cases)
        print(f"demo: {done + 1}/{len(cases)} {job.mode}, {backend}, {side.name}", flush=True)
        yield Case(backend, side.name, run), side


def _line(case: Case) -> str:
    downtime = "" if case.downtime_ms is None else f", downtime {case.downtime_ms} ms"
    return f"demo: {case.faults} stage-2 faults{downtime}, {case.pages} pages verified"


if __name__ == "__main__":
    sys.exit(main())
