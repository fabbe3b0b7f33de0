"""Run tests in a lab machine, on NPT or EPT, and return what came of each."""

import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lab.check.outcome import Outcome, State, judge
from lab.check.tests import Test
from lab.error import LabError
from lab.guest.inside import MARK
from lab.machine import ept, npt, splat
from lab.paths import BUILD, ROOT, SELFTESTS, VENV_BIN

DIRECTORY = BUILD / "test"

_BOOT_SECONDS = 120
_LONGEST = 1200
_BOOTS = 3
_KILLED = (128 + 9, 128 + 15)
_SPLAT_HEAD = re.compile(r"^(?:<\d+>)?\[ *\d+\.\d+\]\s*(?:\[[ TC]\d+\]\s*)?")
_VARYING = re.compile(
    r"CPU: \d+ |PID: \d+ |\+0x[0-9a-f]+/0x[0-9a-f]+|0x[0-9a-f]+|\b[0-9a-f]{16}\b|/\S*/kmod/"
)
_HEAD_LINES = 12


@dataclass
class Report:
    """Of one configuration: what came of its tests, what its kernel complained about."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    splats: list[Outcome] = field(default_factory=list)


def signature(text: str) -> str:
    """Return the head of a complaint without what differs from run to run."""
    head = _SPLAT_HEAD.sub("", text.strip().splitlines()[0])
    return _VARYING.sub("", head).strip()


def on_npt(
    label: str,
    tests: Sequence[Test],
    params: str = "",
    *,
    stock: bool = False,
    checked: bool = False,
    kind: str = "default",
) -> Report:
    """Run the tests; a machine, of a kind in npt.MACHINES, that dies is booted again."""
    report = Report()
    left = list(tests)
    for attempt in range(_BOOTS):
        if not left:
            break
        name = f"{label}, boot {attempt + 1}" if attempt else label
        _boot(name, left, params, report, stock=stock, checked=checked, kind=kind)
        left = [test for test in left if test.name not in report.outcomes]
    for test in left:
        reason = f"not run: the machine died {_BOOTS} times"
        report.outcomes[test.name] = Outcome(test.name, State.FAILED, reason=reason)
    return report


def _boot(
    name: str,
    tests: list[Test],
    params: str,
    report: Report,
    *,
    stock: bool,
    checked: bool,
    kind: str,
) -> None:
    directory = DIRECTORY / re.sub(r"\W+", "-", name)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    plan = [{"number": number, **asdict(test)} for number, test in enumerate(tests)]
    (directory / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
    command = (VENV_BIN / "python", "-B", "-m", "lab.guest.inside", directory)
    limit = _BOOT_SECONDS + min(_LONGEST, sum(test.timeout for test in tests))
    died = ""
    try:
        result = npt.run(
            shlex.join(map(str, command)),
            params=params,
            stock=stock,
            checked=checked,
            machine=kind,
            timeout=limit,
        )
    except LabError as error:
        died = str(error).replace(f"{ROOT}/", "")
        if isinstance(error, npt.DeadError):
            report.splats += _complaints(error.splats, "")
        elif not any(directory.glob("*.txt")):
            raise
    else:
        if result.status == npt.TIMED_OUT:
            died = f"the machine did not end within {limit:.0f} s"
        console = (result.directory / "console").read_text(errors="replace")
        report.splats += _complaints(result.splats, console)
    _collect(directory, tests, died, report)


def _collect(directory: Path, tests: list[Test], died: str, report: Report) -> None:
    results = directory / "results.jsonl"
    lines = results.read_text().splitlines() if results.exists() else []
    ended = {line["number"]: line for line in map(json.loads, lines)}
    for number, test in enumerate(tests):
        printed = directory / f"{number}.txt"
        output = printed.read_text(errors="replace") if printed.exists() else ""
        if line := ended.get(number):
            outcome = judge(test.name, line["status"], line["seconds"], output)
        elif printed.exists():
            outcome = Outcome(test.name, State.FAILED, reason=died, output=output)
        else:
            continue
        report.outcomes[test.name] = outcome


def _complaints(splats: Sequence[str], console: str) -> list[Outcome]:
    """Return each complaint of the kernel, once, as a failed test of its own."""
    counts = Counter(map(signature, splats))
    firsts = {signature(text): text for text in reversed(splats)}
    return [_complaint(text, console, counts[head]) for head, text in firsts.items()]


def _complaint(text: str, console: str, times: int) -> Outcome:
    before, _, _ = console.partition(text.splitlines()[0])
    _, found, rest = before.rpartition(MARK)
    during = f" during {rest.splitlines()[0].strip()}" if found else ""
    name = f"kernel log ({signature(text)})"
    reason = f"the kernel complained {times} times, first{during}"
    head = "\n".join(text.splitlines()[:_HEAD_LINES])
    return Outcome(name, State.FAILED, reason=reason, output=head)


def on_ept(
    tests: Sequence[Test], params: str, timeout: float, image: Path | None = None
) -> Report:
    """Run the tests on Bochs, `timeout` seconds for all; `image` as for ept.run()."""
    commands = [_timed(test) for test in tests]
    programs = [Path(word) for test in tests for word in test.argv if _is_program(word)]
    report = Report()
    results = ept.run(commands, programs, params, timeout=timeout, image=image)
    for test, result in zip(tests, results, strict=True):
        ended = {npt.COMPLAINED: 0, **dict.fromkeys(_KILLED)}
        status = ended.get(result.status, result.status)
        outcome = judge(test.name, status, result.seconds, result.output)
        if status == npt.TIMED_OUT:
            reason = "not ended" if result.output.strip() else "not begun"
            reason += f" when the machine died or its {timeout:.0f} s were up"
            outcome = replace(outcome, reason=reason)
        report.outcomes[test.name] = outcome
    console = splat.BEGIN + "\n" + "".join(result.output for result in results)
    report.splats += _complaints(splat.find(console), console)
    return report


def _is_program(word: str) -> bool:
    return Path(word).is_relative_to(SELFTESTS)


def _timed(test: Test) -> str:
    argv = shlex.join(
        str(Path(word).relative_to(ROOT)) if _is_program(word) else word for word in test.argv
    )
    return f"echo '{MARK}{test.name}' >/dev/kmsg; timeout -s KILL {test.timeout:.0f} {argv}"
