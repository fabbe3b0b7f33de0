"""What came of a test in one machine, and how a program's own words tell it."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from tap.parser import Parser

from lab.machine.result import KILLED, Result

SKIPPED = 4
"""Status of a kselftest that cannot be run here."""

_SKIP = re.compile(r"# SKIP[\s:-]*(.*)|(?:^|\s)SKIP[:\s-]+(.+)", re.M)
_SIGNALS = range(128, 128 + 65)
"""What a shell says of a program that a signal ended."""

_LOCATIONS = re.compile(
    r"^==== Test Assertion Failure ====\n\s*(?P<assertion>.*)|^# (?P<check>\S+\.c:\d+:\w+):"
    r"|^not ok \d+ (?P<part>.*)|^\s*(?P<exception>Unhandled exception .*)",
    re.M,
)
"""What programs print of what failed: an assertion, one of kselftest_harness.h, a sub-test, a
guest that takes an exception, all of which fail in the same assertion."""

_VARYING = re.compile(r"\b\d+ s\b|; see .*|; its console is .*|, as \d+ machines did")
"""What reasons have that is another in each run: seconds, files of the run."""

_TAIL = 12
_TAIL_FROM_FAILURE = 48

LATE = "did not end within"
"""What a reason begins with, if it was ended."""

NOT_RUN = "not run"
"""What a reason begins with, if machines died before it was its turn."""


class State(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    """Of one run of one test; `reason` says why it did not pass, or not wholly."""

    name: str
    state: State
    seconds: float = 0
    reason: str = ""
    output: str = ""
    parts: tuple[str, ...] = ()
    """Of a test that passed, those that were skipped."""

    @property
    def way(self) -> str:
        """In which it did not pass, or not wholly; "" if it did.

        That of two runs is the same if they ended alike, after the same assertions.
        """
        reason = _VARYING.sub("", self.reason)
        if self.state is State.FAILED:
            places = (found[found.lastgroup] for found in _LOCATIONS.finditer(self.output))
            return "; ".join((self.state, reason, *dict.fromkeys(places)))
        return f"{self.state}; {reason}" if self.state is State.SKIPPED or reason else ""

    @property
    def tail(self) -> str:
        """The last lines it printed."""
        return tail(self.output)


def judged(name: str, good: object, reason: str = "", output: str = "") -> Outcome:
    """Return the outcome of what is good, or is not."""
    return Outcome(name, State.PASSED if good else State.FAILED, 0, reason, output)


def tail(output: str) -> str:
    """Return the last lines of what a test printed, and those since it first failed.

    What fails first may be a child of the test: its parent then says no more than that.
    """
    failed = _LOCATIONS.search(output)
    since = output[failed.start() :].rstrip().splitlines() if failed else []
    lines = min(max(len(since), _TAIL), _TAIL_FROM_FAILURE)
    return "\n".join(output.rstrip().splitlines()[-lines:])


def judge(name: str, result: Result, died: str = "", *, tap: bool = False) -> Outcome:
    """Return the outcome of a test; `died` is why its machine is no more, if so.

    `tap`: it is to say what it has planned, and what came of that. Whatever says so is judged
    by it.
    """
    status, output = result.status, result.output
    state, reason, parts = State.FAILED, "", ()
    if status is None:
        reason = died or "its end was not heard"
    elif status == KILLED:
        reason = f"{LATE} {result.seconds:.0f} s"
    elif status == SKIPPED:
        state, reason = State.SKIPPED, _skip_reason(output)
    elif status in _SIGNALS:
        reason = f"signal {status - _SIGNALS.start}"
    elif status:
        reason = f"status {status}"
    else:
        parts, wrong = _read_tap(output, expected=tap)
        skipped = f"but {len(parts)} of its parts skipped: {', '.join(parts)}"
        state = State.FAILED if wrong else State.PASSED
        reason = wrong or skipped * bool(parts)
    return Outcome(name, state, result.seconds, reason, output, parts)


def _read_tap(said: str, *, expected: bool) -> tuple[tuple[str, ...], str]:
    """Return what a program that ended well has skipped, and why it has failed, if so."""
    lines = [*map(Parser().parse_line, said.splitlines())]
    results = [line for line in lines if line.category == "test" and line.number]
    parts = tuple(line.description or line.directive.reason for line in results if line.skip)
    failed = [line.description for line in results if not line.ok and not line.todo]
    if failed or any(line.category == "bail" for line in lines):
        return parts, f"status 0, but failed, or bailed out: {', '.join(failed)}"
    kinds = [line.category for line in lines]
    if "version" not in kinds:
        return parts, "status 0, but it printed no TAP" * expected
    after = lines[kinds.index("version") :]
    plan = next((line.expected_tests for line in after if line.category == "plan"), 0)
    done = {line.number for line in results}
    if not plan or done != {*range(1, plan + 1)}:
        return parts, f"status 0, but results of {len(done)} of {plan or 'no'} planned parts"
    return parts, ""


def must_run(outcome: Outcome) -> Outcome:
    """Return the outcome of a test that has all it needs: a skip is a failure then."""
    if outcome.state is not State.SKIPPED:
        return outcome
    return replace(outcome, state=State.FAILED, reason=f"skipped: {outcome.reason}")


def _skip_reason(output: str) -> str:
    reasons = [(found[1] or found[2] or "").strip() for found in _SKIP.finditer(output)]
    lines = output.strip().splitlines()
    return next(filter(None, reversed(reasons)), lines[-1] if lines else "gave no reason")
