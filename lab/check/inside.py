"""Checks that are functions, each of which the lab machine runs by its name.

Only the standard library is imported, as starting takes long on an emulated CPU.
"""

from collections.abc import Callable, Iterator, Mapping

Checks = Mapping[bool, tuple[Callable[[], None], ...]]
"""On stock modules, and on ours."""


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
