"""In the lab machine: run every case of a job, each on a freshly loaded KVM.

python -m lab.demo.inside JOB.json OUTCOME.json
"""

import asyncio
import itertools
import os
import sys
import tempfile
from pathlib import Path

from lab import shell
from lab.demo import kvm, scenario
from lab.demo.config import Case, Job, Outcome
from lab.demo.vm import QEMU, VmError
from lab.error import LabError


def main() -> int:
    """Run the job; what failed stands in the outcome too."""
    job, path = Job.load(Path(sys.argv[1])), Path(sys.argv[2])
    outcome = Outcome(job.mode, job.mem_mib, os.uname().release)
    try:
        outcome.qemu = shell.output(QEMU, "--version").splitlines()[0]
        for case in _cases(job, outcome):
            with tempfile.TemporaryDirectory() as directory:
                asyncio.run(scenario.run(job, case, Path(directory)))
            outcome.cases.append(case)
            print(_line(case), flush=True)
    except LabError as error:
        outcome.error = str(error)
        outcome.console = error.console if isinstance(error, VmError) else ""
    outcome.save(path)
    return 1 if outcome.error else 0


def _cases(job: Job, outcome: Outcome):  # noqa: ANN202
    total = job.runs * len(job.backends) * 2
    for run, backend, on in itertools.product(range(job.runs), job.backends, (False, True)):
        known = kvm.reload(job.modules, global_tdp=on)
        done = len(outcome.cases)
        print(f"demo: {done + 1}/{total} {job.mode}, {backend}, global_tdp={on:d}", flush=True)
        yield Case(backend, on, run, known)


def _line(case: Case) -> str:
    downtime = "" if case.downtime_ms is None else f", downtime {case.downtime_ms} ms"
    return f"demo: {case.faults} stage-2 faults{downtime}, {case.pages} pages verified"


if __name__ == "__main__":
    sys.exit(main())
