"""Show results: a table for each part, the words of what failed, and the last line."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table

from lab.check.outcome import Outcome, State

_STYLES = {State.PASSED: "green", State.FAILED: "bold red", State.SKIPPED: "yellow"}
_WIDTH = 120


@dataclass
class Part:
    """Some results that belong together."""

    title: str
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0


def show(parts: Sequence[Part]) -> int:
    """Print all; return the status of the command."""
    sys.stdout.flush()
    sys.stderr.flush()
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    for part in parts:
        console.print(_table(part))
    for part in parts:
        for outcome in part.outcomes:
            if outcome.state is State.FAILED and outcome.output.strip():
                console.print(f"\n[bold red]failed:[/] {part.title}: ", end="")
                console.print(outcome.name, markup=False, style="bold")
                console.print(outcome.tail, markup=False, soft_wrap=True)
    counts = Counter(outcome.state for part in parts for outcome in part.outcomes)
    console.print()
    return end(counts)


def end(counts: Counter[State]) -> int:
    """Print the last line of a command that tests; return its status."""
    print(last_line(counts), flush=True)
    return 1 if counts[State.FAILED] or not counts[State.PASSED] else 0


def last_line(counts: Counter[State]) -> str:
    """Return the one line that machines read."""
    return ", ".join(f"{counts[state]} {state}" for state in State)


def _table(part: Part) -> Table:
    counts = Counter(outcome.state for outcome in part.outcomes)
    summary = " · ".join(f"{counts[state]} {state}" for state in State if counts[state])
    title = f"{part.title}: {summary or 'nothing'} in {part.seconds:.0f} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, expand=False)
    table.add_column("test", overflow="fold", min_width=30)
    table.add_column("result")
    table.add_column("s", justify="right")
    table.add_column("note", overflow="fold")
    for outcome in part.outcomes:
        state = f"[{_STYLES[outcome.state]}]{outcome.state}[/]"
        seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
        table.add_row(_plain(outcome.name), state, seconds, _plain(outcome.reason))
    return table


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
