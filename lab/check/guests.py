"""Guests in a lab machine, and what came of them: shared by assigned and nvdimm."""

import asyncio
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from lab.check import report
from lab.check.outcome import Outcome, State, judged, tail
from lab.check.report import Part
from lab.demo import guest, kvm
from lab.demo.config import Job, Side
from lab.demo.vm import Progress, Setting, Vm, VmError, no_complaint
from lab.machine import npt, params
from lab.paths import VENV_BIN
from lab.source import debian

OFF, ON, STOCK = "off", "on", "stock"

Promise = tuple[str, bool, str]
"""In words, whether it was kept, what was found."""


@dataclass(kw_only=True)
class Report:
    """JSON that the lab machine leaves for the host: all cases, or those before the failure."""

    cases: list[Any] = field(default_factory=list)
    error: str = ""
    console: str = ""
    """Last lines of the guest, where there is an error."""

    @classmethod
    def load(cls, path: Path, case: Callable[..., Any]) -> Self:
        """Return it with cases as they were before they were JSON."""
        report = cls(**json.loads(path.read_text()))
        report.cases = [case(**told) for told in report.cases]
        return report

    def save(self, path: Path) -> None:
        # Whole or not at all: the machine may die meanwhile.
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(asdict(self), indent=1) + "\n")
        whole.rename(path)

    def fill(self, path: Path, cases: Iterable[object]) -> int:
        """Do what yields cases, in the lab machine; what failed stands in the file, too."""
        try:
            for _ in cases:
                self.save(path)
        except Exception as error:  # whatever it is, the host tells of it
            self.error = f"{type(error).__name__}: {error}"
            self.console = error.console if isinstance(error, VmError) else ""
        self.save(path)
        return 1 if self.error else 0

    def judge(
        self, cases: Mapping[str, Any], promises: Callable[[Any], Iterable[Promise]]
    ) -> list[Outcome]:
        """Return what came of each promise of the cases, which have `ended`, or are None."""

        def failed(name: str, why: str) -> Outcome:
            return judged(name, False, why, tail(self.console))

        outcomes: list[Outcome] = []
        for name, case in cases.items():
            if case and case.ended:
                told = promises(case)
                outcomes += (judged(f"{name}: {what}", *kept) for what, *kept in told)
            else:
                why = self.error if case or not outcomes else "was not begun"
                outcomes.append(failed(name, why or "did not end"))
        if self.error and not any(each.state is State.FAILED for each in outcomes):
            outcomes.append(failed("the end", self.error))
        return outcomes


def job(directory: Path, source: Path, drivers: Iterable[str], mib: int, **more: bool) -> Job:
    """Return what guests have in common, whose program, and drivers, are these."""
    directory.mkdir(parents=True, exist_ok=True)
    initramfs = guest.build(directory / "guest", source, params.all_needed(drivers))
    files = (str(debian.kernel().image), str(initramfs), "qemu-system-x86_64")
    return Job(directory.name, [], mib, 1, *files, **more)


def run(
    title: str,
    module: str,
    path: Path,
    job: Job,
    arguments: Sequence[str],
    *,
    case: Callable[..., Any],
    **options: Any,  # noqa: ANN401
) -> tuple[Part, Report]:
    """Run a module of the lab's in a machine, which leaves its report at a path.

    Return what the machine itself comes to, and the report. Options are those of npt.command().
    """
    path.unlink(missing_ok=True)
    described = path.with_name("job.json")
    job.save(described)
    with report.doing(title) as part:
        words = (VENV_BIN / "python", "-B", "-m", module, described, path, *arguments)
        done = npt.command(shlex.join(map(str, words)), **options)
        part.outcomes += (judged("the kernel", False, output=text) for text in done.splats)
    lost = Report(error="no guest was started")
    return part, Report.load(path, case) if path.exists() else lost


def live(
    job: Job, side: str, backend: str, life: Callable[[Setting], Coroutine[Any, Any, None]]
) -> None:
    """Take a guest through its life, in the lab machine; its kernel must not complain."""
    kvm.set_parameter(on=side == ON)
    with tempfile.TemporaryDirectory() as name, no_complaint(Path(name)):
        column = Side(side, parameter=side == ON)
        at = Setting(job, column, backend, Path(), Path(name), Progress())
        asyncio.run(life(at))


async def mapped_ahead(vm: Vm, pages: int, seconds: float, *, on: bool) -> int:
    """Return what stage 2 maps before a vCPU runs; if Global TDP is on, wait for all pages."""
    files = kvm.files(vm.pid)
    try:
        async with asyncio.timeout(seconds):
            while on and kvm.pages(files) < pages:
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise vm.error(f"{kvm.pages(files)} of {pages} pages are mapped ahead") from None
    return kvm.pages(files)


def failure(console: str, name: str) -> str:
    """Return what a guest's program, of that name, could not do; "" is nothing."""
    found = re.search(rf"^{name}: (FAILED .*?)\s*$", console, re.M)
    return found[1] if found else ""
