"""Draw what was mapped before resume, and the faults after it, off beside on.

One column a memory back end.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab import show
from lab.demo.config import OFF, ON, Demo
from lab.demo.report import MEMORY, Pair, pairs
from lab.demo.watch import WINDOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRID = "#2b2f36", "#e3e5e8"
COLOURS = ("#8a8f98", "#0b6fb8", "#c98a1b", "#5b9a68")
"""Off, on, and two sides more."""

_NAMED = (OFF, ON)


def draw(demo: Demo, path: Path) -> None:
    """Write the figure to `path`."""
    found = pairs(demo)
    with show.figure(path, len(found), 2) as (figure, panels):
        for above, below, pair in zip(*panels, found, strict=True):
            _progress(above, pair, demo.mem_mib)
            _faults(below, pair)
        panels[0][0].set_ylabel("MiB mapped ahead of the vCPUs")
        panels[1][0].set_ylabel("stage-2 faults of the destination")
        comma = ",\n" if len(found) == 1 else ", "
        by_qemu = len(found[0].sides) > len(_NAMED)
        switch = "-accel kvm,global-tdp" if by_qemu else "kvm.global_tdp"
        figure.suptitle(
            f"{demo.mode} of a {demo.mem_mib} MiB guest{comma}{switch} off and on",
            x=0.01,
            ha="left",
            fontweight="bold",
        )


def _progress(panel: "Axes", pair: Pair, mem_mib: int) -> None:
    panel.set_title(MEMORY[pair.backend], loc="left", fontsize=10)
    for name, cases in pair.sides.items():
        for case in cases:
            _line(panel, case.progress, _colour(pair, name))
    panel.axvline(0, color=INK, linewidth=0.8, linestyle=":")
    panel.set_xlabel("seconds from resume")
    panel.axhline(mem_mib, color=GRID, linewidth=0.8)
    panel.set_ylim(bottom=0)
    _plain(panel)


def _faults(panel: "Axes", pair: Pair) -> None:
    top = max(case.faults for cases in pair.sides.values() for case in cases) or 1
    ends: list[float] = []
    for name, cases in pair.sides.items():
        colour = _colour(pair, name)
        for case in cases:
            _line(panel, case.curve, colour)
        last = sorted(case.faults for case in cases)[len(cases) // 2]
        close = any(abs(last - other) < top / 8 for other in ends)
        ends.append(last)
        panel.annotate(
            f"{name}: {last:,}",
            (WINDOW, last),
            xytext=(-2, -13 if close else 5),
            textcoords="offset points",
            ha="right",
            color=colour,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )
    panel.set(xlim=(0, WINDOW), ylim=(0, top * 1.15), xlabel="seconds after resume")
    _plain(panel)


def _colour(pair: Pair, name: str) -> str:
    others = [side for side in pair.sides if side not in _NAMED]
    return dict(zip((*_NAMED, *others), COLOURS, strict=False))[name]


def _plain(panel: "Axes") -> None:
    panel.yaxis.set_major_formatter("{x:,.0f}")
    panel.grid(axis="y", color=GRID)
    panel.set_axisbelow(True)


def _line(panel: "Axes", curve: Sequence[tuple[float, float]], colour: str) -> None:
    times, counts = zip(*curve, strict=True)
    panel.step(
        times, counts, where="post", color=colour, linewidth=1.8, clip_on=False, zorder=3
    )
