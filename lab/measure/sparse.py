"""make bench WHAT=sparse: guests that want one of so many pages of a file in the page cache.

The program of integration/restore has a file for a guest's memory. The guest reads every so
many pages or, in another VM, reads and then changes each. One boot under -icount, with Global
TDP off, with fault-around of what is present, and with what the page cache holds.
"""

import argparse
import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import log2
from pathlib import Path

from lab import show
from lab.error import LabError
from lab.measure import counted, restore
from lab.measure.restore import Run
from lab.paths import BUILD, RESTORE, ROOT

DIRECTORY = BUILD / "sparse"
PLOT = ROOT / "images" / "sparse.png"
MIB = 64
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ROUNDS = 2
WAYS = {
    "plain": ("off", "#8a8f98", "o"),
    "present+around": ("on, without the page cache", "#c98a1b", "s"),
    "around": ("on, with the page cache", "#0b6fb8", "^"),
}
"""How each is called and drawn."""

TURNS = ("reads", "reads, then writes")
_NOTE = """\
Instructions for each page that the guest touches, from mmap() on, and stage-2 faults. The
lowest of two rounds each."""


def run(_: argparse.Namespace) -> int:
    """Measure and show."""
    doing = "Counting instructions a page that is touched; some minutes"
    log = counted.log_of(DIRECTORY, doing, _script)
    runs = lowest(restore.parse(log))
    _show(runs)
    counted.save(DIRECTORY / "sparse.json", mib=MIB, note=_NOTE, runs=runs)
    plot(runs, PLOT)
    print(f"saved: {PLOT.relative_to(ROOT)}")
    return 0


def _script(log: str) -> str:
    program = shlex.quote(str(RESTORE))
    base = f"{program} -4 -m {MIB}"
    # The first run makes the file.
    lines = ["set -e", restore.disk(MIB + 64), f"{base} {restore.SNAPSHOT} plain >/dev/null"]
    lines += [
        f"{base} -k {step} {restore.SNAPSHOT} {way} >>{log}"
        for _ in range(ROUNDS)
        for step in STEPS
        for way in WAYS
    ]
    return "\n".join(lines)


def lowest(runs: Iterable[Run]) -> list[Run]:
    """Return the lowest of all rounds for each case; LabError if one is not there."""
    found: dict[tuple[int, int, str], list[Run]] = {}
    for each in runs:
        key = (int(each["turn"]), int(each["every"]), str(each["way"]))
        found.setdefault(key, []).append(each)
    wanted = [(turn, step, way) for turn in range(len(TURNS)) for step in STEPS for way in WAYS]
    for key in wanted:
        if len(found.get(key, ())) != ROUNDS:
            raise LabError(f"the benchmark has not measured {key} {ROUNDS} times")
    return [min(found[key], key=lambda each: int(each["ns"])) for key in wanted]


def per_page(runs: Sequence[Run], turn: int, way: str) -> list[float]:
    """Return instructions a page that is touched, for each of STEPS."""
    chosen = (run for run in runs if (run["turn"], run["way"]) == (turn, way))
    return [int(run["ns"]) / int(run["pages"]) for run in chosen]


def even(steps: Sequence[int], one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the step from which on the other costs more, between two that were measured."""
    over = [log2(there / here) for here, there in zip(one, other, strict=True)]
    for (here, there), (before, after) in zip(pairwise(steps), pairwise(over), strict=True):
        if before <= 0 < after:
            return here * (there / here) ** (before / (before - after))
    return None


def _show(runs: Sequence[Run]) -> None:
    out = show.stdout()
    for turn, what in enumerate(TURNS):
        title = f"The guest {what} one of so many pages of {MIB} MiB"
        names = [name for name, *_ in WAYS.values()]
        rows = []
        for step in STEPS:
            chosen = [run for run in runs if (run["turn"], run["every"]) == (turn, step)]
            costs = (f"{int(run['ns']) / int(run['pages']):,.0f}" for run in chosen)
            rows.append((str(step), *costs, *(f"{run['faults']:,}" for run in chosen)))
        show.rows(title, ("one of",), (*names, *(["faults"] * len(names))), rows)
        off, on = (per_page(runs, turn, way) for way in ("plain", "around"))
        at = even(STEPS, off, on)
        out.print(f"even at one of {at:.0f} pages" if at else "one of them is always cheaper")
    out.print(_NOTE, soft_wrap=True)


def plot(runs: Sequence[Run], path: Path) -> None:
    """Draw instructions a page over the step, a panel for each kind of guest."""
    with show.figure(path, len(TURNS)) as (figure, (panels,)):
        for turn, (panel, what) in enumerate(zip(panels, TURNS, strict=True)):
            for way, (name, colour, marker) in WAYS.items():
                costs = per_page(runs, turn, way)
                style = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1}
                panel.plot(STEPS, costs, label=name, **style)
            panel.set(xscale="log", yscale="log", ylim=(400, 300_000))
            panel.set_xlabel("one page of so many is touched")
            panel.set_xticks(STEPS, [str(step) for step in STEPS], fontsize=8)
            panel.minorticks_off()
            panel.set_title(f"the guest {what}", loc="left", fontsize=10)
            panel.grid(visible=True, color="#e3e5e8", linewidth=0.6)
        panels[0].set_ylabel("instructions a page that is touched")
        panels[0].legend(frameon=False, fontsize=9)
        figure.suptitle(
            f"{MIB} MiB of a snapshot file in the page cache", x=0.01, ha="left", weight="bold"
        )
