"""Show results: tables on stdout, figures in files, all of them alike."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 120
"""Of lines, where there is no terminal to say."""


def stdout() -> Console:
    """Return what results are printed to."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def table(title: str, left: Sequence[str], right: Sequence[str] = ()) -> Table:
    """Return a table with columns of words, and then columns of numbers."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for head in left:
        made.add_column(head, no_wrap=True)
    for head in right:
        made.add_column(head, justify="right", no_wrap=True)
    return made


def rows(
    title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Iterable[str]]
) -> None:
    """Print a table."""
    made = table(title, left, right)
    for row in rows:
        made.add_row(*row)
    stdout().print(made)


def met(good: bool | None) -> str:
    """Return how a target is told to be met, or not, or that this is not known."""
    if good is None:
        return "unknown"
    return "[green]met[/]" if good else "[bold red]not met[/]"


@contextmanager
def figure(
    path: Path, columns: int, rows: int = 1, *, width: float = 4.7, height: float = 3.4
) -> Iterator[tuple["Figure", "list[list[Axes]]"]]:
    """Give a figure and its panels, each so large, in inches, and save it."""
    import matplotlib as mpl  # noqa: PLC0415 - it would slow down every command

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    style = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        made, panels = plt.subplots(
            rows,
            columns,
            figsize=(width * columns, height * rows),
            squeeze=False,
            layout="constrained",
        )
        yield made, panels
        path.parent.mkdir(parents=True, exist_ok=True)
        made.savefig(path, dpi=150)
        plt.close(made)


def logarithmic(axis: "Axes", ticks: Sequence[float] = (), **labels: str) -> None:
    """Have both scales be logarithms, that below with plain numbers, at `ticks` if given."""
    axis.set(**labels)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    if ticks:
        axis.set_xticks(ticks)
    axis.xaxis.set_major_formatter("{x:g}")


def draw_points(axis: "Axes", points: Iterable[tuple[float, float]], **style: str) -> None:
    """Draw a line through points, if there are any."""
    if found := sorted(points):
        axis.plot(*zip(*found, strict=True), marker="o", markersize=3, **style)


def legend_below(figure: "Figure", axis: "Axes", columns: int) -> None:
    """Explain the lines of a panel below all: within, that would lie on them."""
    style = {"loc": "outside lower center", "fontsize": 7, "handlelength": 4, "frameon": False}
    figure.legend(*axis.get_legend_handles_labels(), ncols=columns, **style)
