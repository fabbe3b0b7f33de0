"""What came of a test in one machine, and how a program's own words tell it."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from lab.machine.result import KILLED, Result

SKIPPED = 4
"""Status of a kselftest that cannot be run here."""

_SKIP = re.compile(r"# SKIP[\s:-]*(.*)|(?:^|\s)SKIP[:\s-]+(.+)", re.M)
_SKIPPED_PART = re.compile(r"^ok \d+ #? ?SKIP[\s:-]*(.*)|^ok \d+ (.*?) # SKIP", re.M)
_SIGNALS = range(128, 128 + 65)
"""What a shell says of a program that a signal ended."""

_TAIL = 12


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

    @property
    def tail(self) -> str:
        """The last lines it printed."""
        return tail(self.output)


def tail(output: str) -> str:
    """Return the last lines of what a test printed."""
    return "\n".join(output.rstrip().splitlines()[-_TAIL:])


def judge(name: str, result: Result, died: str = "") -> Outcome:
    """Return the outcome of a test; `died` is why its machine is no more, if so."""
    status, output = result.status, result.output
    state, reason = State.FAILED, ""
    if status is None:
        reason = died
    elif status == KILLED:
        reason = f"did not end within {result.seconds:.0f} s"
    elif status == SKIPPED:
        state, reason = State.SKIPPED, _skip_reason(output)
    elif status in _SIGNALS:
        reason = f"signal {status - _SIGNALS.start}"
    elif status:
        reason = f"status {status}"
    else:
        state, reason = State.PASSED, _parts_skipped(output)
    return Outcome(name, state, result.seconds, reason, output)


def must_run(outcome: Outcome) -> Outcome:
    """Return the outcome of a test that has all it needs: a skip is a failure then."""
    if outcome.state is not State.SKIPPED:
        return outcome
    return replace(outcome, state=State.FAILED, reason=f"skipped: {outcome.reason}")


def _skip_reason(output: str) -> str:
    reasons = [(found[1] or found[2] or "").strip() for found in _SKIP.finditer(output)]
    lines = output.strip().splitlines()
    return next(filter(None, reversed(reasons)), lines[-1] if lines else "gave no reason")


def _parts_skipped(output: str) -> str:
    parts = [found[1] or found[2] for found in _SKIPPED_PART.finditer(output)]
    return f"but {len(parts)} of its parts skipped: {', '.join(parts)}" if parts else ""
