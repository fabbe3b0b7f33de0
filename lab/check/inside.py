"""Checks that are functions, each of which the lab machine runs by its name.

Only the standard library is imported, as starting takes long on an emulated CPU.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Checks = Mapping[bool, tuple[Callable[[], None], ...]]
"""On stock modules, and on ours."""


@contextmanager
def written(file: Path, text: str) -> Iterator[None]:
    """Have a text in a file of the kernel's meanwhile, if there is that file."""
    before = file.read_text() if file.exists() else ""
    if before:
        file.write_text(text)
    try:
        yield
    finally:
        if before:
            file.write_text(before.partition("[")[2].partition("]")[0] or before)


def names(checks: Checks, *, stock: bool) -> Iterator[str]:
    """Return what is to be run."""
    return (check.__name__ for check in checks[stock])


def run(checks: Checks, name: str) -> int:
    """Do one check; return the status of the program."""
    known = {check.__name__: check for group in checks.values() for check in group}
    try:
        known[name]()
    except AssertionError as error:
        print(f"{name}: {error}")
        return 1
    return 0
