"""Which unit tests depend on the series: those are run for each, the others once."""

import os
import sys
from collections.abc import Iterator, Sequence

import pytest

from lab.paths import DEBIAN, LINUX, PATCHES, VERSION

_OF_SERIES = {
    "bench",
    "broken",
    "debian",
    "debug",
    "locking",
    "modules",
    "perf",
    "source",
    "suite",
}
_FILES = (LINUX, PATCHES, DEBIAN)
_running: list[pytest.Item] = []


def _depends(item: pytest.Item) -> bool:
    return item.path.stem.removeprefix("test_") in _OF_SERIES


def pytest_configure(config: pytest.Config) -> None:
    """Have a marker for them; and see what the others open."""
    config.addinivalue_line("markers", "series: depends on the series")
    sys.addaudithook(_look)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if _depends(item):
            item.add_marker("series")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Know which one runs."""
    known = _depends(item) or getattr(item.module, "VERSION", None) != VERSION
    assert known, f"{item.path.name} goes by the series: name it in conftest.py"
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.remove(item)


def _look(event: str, args: Sequence[object]) -> None:
    """Have one fail that opens a file of the series, or a program that does, unless named."""
    if event not in ("open", "os.scandir", "subprocess.Popen") or not _running:
        return
    words = (args[0], *args[1], args[2]) if event == "subprocess.Popen" else args[:1]
    names = [os.fsdecode(word) for word in words if isinstance(word, str | bytes | os.PathLike)]
    item = _running[-1]
    if any(name.startswith(str(path)) for name in names for path in _FILES):
        assert _depends(item), f"{item.path.name} opens {names}: name it in conftest.py"
