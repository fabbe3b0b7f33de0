"""Show results: a table for each part, the words of what failed, and the last line."""

import pickle
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from lab.check.outcome import NOT_RUN, Outcome, State
from lab.error import LabError
from lab.shell import console as progress
from lab.show import stdout, table

_STYLES = {State.PASSED: "green", State.FAILED: "bold red", State.SKIPPED: "yellow"}

ENDED: Counter[State] = Counter()
"""What the last line of the command that ended last says."""


@dataclass
class Part:
    """Some results that belong together."""

    title: str
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0


@contextmanager
def doing(title: str) -> Iterator[Part]:
    """Do a part; whatever keeps it from being done is a failure of it."""
    part = Part(title)
    progress.print(f"[bold]{title}[/]")
    began = time.monotonic()
    try:
        yield part
    # Whatever it is: what came of other parts is not to be lost.
    except Exception as error:
        if not isinstance(error, LabError):
            traceback.print_exc()
        print(f"lab: {error}", file=sys.stderr)
        part.outcomes.append(Outcome(f"{title}: done", State.FAILED, reason=str(error)))
    part.seconds = time.monotonic() - began


TOLD: list[Part] = []
"""All parts that were printed, for the ledger."""


def save(path: Path, parts: Sequence[Part]) -> None:
    """Write the results where load() reads them."""
    new = path.with_suffix(".new")
    new.write_bytes(pickle.dumps(parts))
    new.rename(path)


def load(path: Path) -> list[Part]:
    """Return the results that save() wrote."""
    return pickle.loads(path.read_bytes())


def show(parts: Sequence[Part]) -> int:
    """Print all; return the status of the command."""
    tell(parts)
    return end(count(parts))


def tell(parts: Sequence[Part]) -> None:
    """Print all but the last line."""
    TOLD.extend(parts)
    sys.stdout.flush()
    sys.stderr.flush()
    console = stdout()
    for part in parts:
        console.print(_table(part))
    # Some who read it see the end only.
    for part in parts:
        for outcome in part.outcomes:
            if outcome.state is State.FAILED and not outcome.reason.startswith(NOT_RUN):
                console.print(f"\n[bold red]failed:[/] {part.title}: ", end="")
                console.print(outcome.name, markup=False, style="bold")
                for text in filter(str.strip, (outcome.reason, outcome.tail)):
                    console.print(text, markup=False, soft_wrap=True)
    console.print()


def count(parts: Sequence[Part]) -> Counter[State]:
    """Return how many ended how."""
    return Counter(outcome.state for part in parts for outcome in part.outcomes)


def sum_up(parts: Sequence[Part]) -> None:
    """Print how many ended how of each kind, which is what titles begin with."""
    made = table("", ["tests"], [*State])
    for kind in dict.fromkeys(map(_kind, parts)):
        counts = count([part for part in parts if _kind(part) == kind])
        made.add_row(kind, *(str(counts[state]) for state in State))
    stdout().print(made)


def _kind(part: Part) -> str:
    return part.title.partition(",")[0]


def end(counts: Counter[State]) -> int:
    """Print the last line of a command that tests; return its status."""
    ENDED.clear()
    ENDED.update(counts)
    # The one line that machines read.
    print(", ".join(f"{counts[state]} {state}" for state in State), flush=True)
    return status(counts)


def status(counts: Counter[State]) -> int:
    """Return the status of a command that tests: 1 if anything failed, or nothing passed."""
    return 1 if counts[State.FAILED] or not counts[State.PASSED] else 0


def _table(part: Part) -> Table:
    counts = Counter(outcome.state for outcome in part.outcomes)
    summary = " · ".join(f"{counts[state]} {state}" for state in State if counts[state])
    title = f"{part.title}: {summary or 'nothing'} in {part.seconds:.0f} s"
    made = table(title, [])
    made.add_column("test", overflow="fold", min_width=30)
    made.add_column("result")
    made.add_column("s", justify="right")
    made.add_column("note", overflow="fold")
    for outcome in part.outcomes:
        state = f"[{_STYLES[outcome.state]}]{outcome.state}[/]"
        seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
        made.add_row(_plain(outcome.name), state, seconds, _plain(outcome.reason))
    return made


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
