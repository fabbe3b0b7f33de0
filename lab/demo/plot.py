"""Draw the faults after resume, off beside on, one panel a memory back end."""

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from lab.demo.config import Case, Outcome
from lab.demo.report import MEMORY, Pair, pairs
from lab.demo.watch import WINDOW

OFF, ON, INK, GRID = "#8a8f98", "#0b6fb8", "#2b2f36", "#e3e5e8"


def draw(outcome: Outcome, path: Path) -> None:
    """Write the figure to `path`."""
    mpl.use("Agg")
    found = pairs(outcome)
    plt.rcParams.update({"font.size": 10, "text.color": INK, "axes.labelcolor": INK})
    figure, panels = plt.subplots(1, len(found), figsize=(4.8 * len(found), 3.9), squeeze=False)
    for panel, pair in zip(panels[0], found, strict=True):
        _panel(panel, pair)
    panels[0][0].set_ylabel("stage-2 faults of the destination")
    figure.suptitle(
        f"{outcome.mode} of a {outcome.mem_mib} MiB guest, kvm.global_tdp off and on",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    figure.tight_layout()
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _panel(panel: Axes, pair: Pair) -> None:
    panel.set_title(MEMORY[pair.backend], loc="left", fontsize=10)
    sides = [("off", pair.off, OFF), ("on" if pair.real else "n/a", pair.on, ON)]
    top = max(case.faults for case in (*pair.off, *pair.on)) or 1
    ends: list[float] = []
    for name, cases, colour in sides:
        for case in cases:
            _line(panel, case, colour)
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
        )
    panel.set(xlim=(0, WINDOW), ylim=(0, top * 1.15), xlabel="seconds after resume")
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.grid(axis="y", color=GRID)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _line(panel: Axes, case: Case, colour: str) -> None:
    times, faults = zip(*case.curve, strict=True)
    panel.step(
        times, faults, where="post", color=colour, linewidth=1.8, clip_on=False, zorder=3
    )
