"""In the lab machine: run every case of a job, each on a freshly loaded KVM.

python -m lab.demo.inside JOB.json OUTCOME.json
"""

import asyncio
import itertools
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from lab import shell
from lab.demo import kvm, scenario
from lab.demo.config import Case, Demo, Job
from lab.demo.vm import QemuGoneError, VmError
from lab.error import LabError

_TRIES = 3


def main() -> int:
    """Run the job; what failed stands in the file too."""
    job, path = Job.load(Path(sys.argv[1])), Path(sys.argv[2])
    demo = Demo(job.mode, job.mem_mib, os.uname().release)
    if path.exists():
        demo = Demo.load(path)
        if demo.error:
            return 1
        done = len(demo.cases)
        demo.repeated.append(f"the lab's machine stood still after {done} cases")
    try:
        demo.save(path)
        demo.qemu = shell.output(job.qemu, "--version").splitlines()[0]
        for case in _cases(job, demo):
            demo.cases.append(_tried(job, case, demo))
            demo.save(path)
            print(_line(demo.cases[-1]), flush=True)
    except LabError as error:
        demo.error = str(error)
        demo.console = error.console if isinstance(error, VmError) else ""
    demo.save(path)
    return 1 if demo.error else 0


def _tried(job: Job, case: Case, demo: Demo) -> Case:
    """Run a case; if a QEMU process ends by itself, as it does with stock KVM, again."""
    for left in reversed(range(_TRIES)):
        tried = replace(case)
        try:
            with tempfile.TemporaryDirectory() as directory:
                asyncio.run(scenario.run(job, tried, Path(directory)))
            return tried
        except QemuGoneError as error:
            if not left:
                raise
            why = f"{case.backend}, global_tdp={case.global_tdp:d}: {error}"
            demo.repeated.append(why)
            print(f"demo: {why}; once more", flush=True)
    raise AssertionError


def _cases(job: Job, demo: Demo):  # noqa: ANN202
    sides = job.sides
    cases = list(itertools.product(range(job.runs), job.backends, sides))
    for run, backend, side in cases[len(demo.cases) :]:
        stock_qemu, on = side
        known = kvm.reload(job.modules, global_tdp=on and not job.chosen_by_qemu)
        what = "stock QEMU" if stock_qemu else f"global_tdp={on:d}"
        done = len(demo.cases)
        print(f"demo: {done + 1}/{len(cases)} {job.mode}, {backend}, {what}", flush=True)
        yield Case(backend, on, run, known, stock_qemu)


def _line(case: Case) -> str:
    downtime = "" if case.downtime_ms is None else f", downtime {case.downtime_ms} ms"
    return f"demo: {case.faults} stage-2 faults{downtime}, {case.pages} pages verified"


if __name__ == "__main__":
    sys.exit(main())
