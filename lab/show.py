"""Show results: tables on stdout, figures in files, all of them alike."""

from collections.abc import Iterator, Sequence
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


def met(good: bool) -> str:
    """Return how a target is told to be met, or not."""
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
