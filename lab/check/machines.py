"""Run tests in an emulated machine, on NPT or EPT, and return what came of each."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any

from lab.check.outcome import NOT_RUN, Outcome, State, judge
from lab.check.tests import Test
from lab.machine import ept, npt
from lab.machine.result import Command, Ended, Result, Run
from lab.paths import BUILD, ROOT, VERSION, VERSIONS

_LONGEST = 1200
_BOOTS = 3
_MARK = "lab: run "
"""What a line of the kernel's log has where a test begins, see lab/guest/marks.sh."""

_SPLAT_HEAD = re.compile(r"^(?:<\d+>)?\[ *\d+\.\d+\]\s*(?:\[[ TC]\d+\]\s*)?")
_VARYING = re.compile(
    r"CPU: \d+ |PID: \d+ |\+0x[0-9a-f]+/0x[0-9a-f]+|0x[0-9a-f]+|\b[0-9a-f]{16}\b|/\S*/kmod/"
)
_RIP = re.compile(r"\bRIP: 0010:(\w[\w.]*)")
_HEAD_LINES = 12


@dataclass
class Report:
    """Of one configuration: what came of its tests, what its kernel complained about."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    splats: list[Outcome] = field(default_factory=list)

    @property
    def all(self) -> list[Outcome]:
        """Both."""
        return [*self.outcomes.values(), *self.splats]


def signature(text: str) -> str:
    """Return the head of a complaint without what differs from run to run."""
    head = _SPLAT_HEAD.sub("", text.strip().splitlines()[0])
    where = _RIP.search(text)
    return f"{_VARYING.sub('', head).strip()}{f' at {where[1]}' if where else ''}"


def on_npt(
    label: str,
    tests: Sequence[Test],
    params: str = "",
    *,
    boots: int = _BOOTS,
    timeout: float = 0,
    **options: Any,  # noqa: ANN401
) -> Report:
    """Run the tests, with options of npt.run(); a machine that dies is booted again.

    `timeout` is in seconds for a boot; by default it comes from the tests' own.
    """

    def boot(commands: Sequence[Command], ended: Ended) -> Run:
        limit = timeout or npt.BOOT_SECONDS + min(
            _LONGEST, sum(each.limit for each in commands)
        )
        options.update(params=params, swap=True, timeout=limit, ended=ended)
        return npt.run(commands, **options)

    return _run(label, tests, boots, boot)


def on_ept(
    label: str,
    tests: Sequence[Test],
    params: str,
    timeout: float,
    image: Path | None = None,
    **options: Any,  # noqa: ANN401
) -> Report:
    """Run the tests on Bochs, `timeout` seconds for all; with options of ept.run()."""
    words = {Path(word) for test in tests for word in test.argv}
    programs = [word for word in words if word.is_relative_to(BUILD)]

    def boot(commands: Sequence[Command], ended: Ended) -> Run:
        options.update(timeout=timeout, image=image, ended=ended)
        return ept.run(commands, programs, params, **options)

    return _run(label, tests, 1, boot)


def _run(
    label: str,
    tests: Sequence[Test],
    boots: int,
    boot: Callable[[Sequence[Command], Ended], Run],
) -> Report:
    report, left, died = Report(), list(tests), ""

    def ended(result: Result) -> None:
        _tell(label, judge(result.name, result, tap=left[result.number].tap))

    for _ in range(boots):
        if not left:
            break
        run = boot([test.command for test in left], ended)
        died = run.died.replace(f"{ROOT}/", "")
        report.splats += [*_complaints(run), *_deaths(run, died)]
        for result in run.results:
            test = left[result.number]
            report.outcomes[test.name] = judge(test.name, result, died, tap=test.tap)
        left = [test for test in left if test.name not in report.outcomes]
    for test in left:
        reason = f"{NOT_RUN}: {died}{f', as {boots} machines did' * (boots > 1)}"
        report.outcomes[test.name] = Outcome(test.name, State.FAILED, reason=reason)
    return report


def _deaths(run: Run, died: str) -> list[Outcome]:
    """Return a failure of its own for a machine that died while no test was running."""
    if not died or any(result.status is None for result in run.results):
        return []
    after = run.results[-1].name if run.results else "its boot"
    output = f"{died.partition(';')[0]}, after {after}"
    return [Outcome(f"machine after {after}", State.FAILED, reason=died, output=output)]


def _tell(label: str, outcome: Outcome) -> None:
    """Show what is known by now; another series runs beside the oldest."""
    label = label if VERSIONS[0] == VERSION else f"{VERSION} {label}"
    print(f"  {outcome.state:8}{outcome.seconds:6.1f} s  {label}: {outcome.name}", flush=True)
    if outcome.state is State.FAILED:
        print(indent(outcome.tail, " " * 8), flush=True)


def _complaints(run: Run) -> list[Outcome]:
    """Return each complaint of the kernel, once, as a failed test of its own."""
    counts = Counter(map(signature, run.splats))
    firsts = {signature(text): text for text in reversed(run.splats)}
    return [_complaint(text, run.console, counts[head]) for head, text in firsts.items()]


def _complaint(text: str, console: str, times: int) -> Outcome:
    before, _, _ = console.partition(text.splitlines()[0])
    _, found, rest = before.rpartition(_MARK)
    during = f" during {rest.splitlines()[0].strip()}" if found else ""
    name = f"kernel log ({signature(text)})"
    reason = f"the kernel complained {times} times, first{during}"
    head = "\n".join(text.splitlines()[:_HEAD_LINES])
    return Outcome(name, State.FAILED, reason=reason, output=head)
