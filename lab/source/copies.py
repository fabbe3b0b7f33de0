"""The new files of the newest series, at their kernel paths in the repository, to be read.

What is true is in the patches. A copy is written by `make refresh`, and edited nowhere.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.error import LabError
from lab.paths import ROOT
from lab.source import patches
from lab.source.git import Git

FOLDERS = ("arch", "Documentation", "include", "tools", "virt")
"""Those of the kernel; in the repository they hold copies only."""

_CREATED = re.compile(r"^ create mode \d+ (.+)$", re.M)


def write() -> int:
    """Have the files as the newest series has them, and no others; return how many."""
    with _made() as made:
        new = _files(made)
        for name in _present() - new:
            _remove(ROOT / name)
        for name in new:
            source, target = made / name, ROOT / name
            if _differ(source, target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(0o755 if _is_executable(source) else 0o644)
        return len(new)


def check() -> None:
    """LabError if a copy is not what the series adds."""
    if reason := wrong():
        raise LabError(reason)


def wrong() -> str:
    """Return what is wrong with the copies, "" if nothing is."""
    with _made() as made:
        new = _files(made)
        found = _present() ^ new
        found |= {name for name in new - found if _differ(made / name, ROOT / name)}
    if not found:
        return ""
    return (
        f"{min(found)} ({len(found)} in all) is not what patches/ add: such files are written "
        "by make refresh; edit them in build/linux, and commit there"
    )


@contextmanager
def _made() -> Iterator[Path]:
    """Have a directory with what the patches make of files that they add."""
    with tempfile.TemporaryDirectory() as scratch:
        git, new = Git(Path(scratch)), set()
        git("init", "-q")
        for patch in patches.newest():
            new |= set(_CREATED.findall(git("apply", "--allow-empty", "--summary", patch)))
            if only := [f"--include={name}" for name in sorted(new)]:
                git("apply", "--allow-empty", "--whitespace=nowarn", *only, patch)
        shutil.rmtree(git.tree / ".git")
        yield git.tree


def _files(directory: Path) -> set[str]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)) for path in found}


def _present() -> set[str]:
    return {f"{name}/{file}" for name in FOLDERS for file in _files(ROOT / name)}


def _differ(source: Path, target: Path) -> bool:
    return (
        not target.is_file()
        or target.read_bytes() != source.read_bytes()
        or _is_executable(target) != _is_executable(source)
    )


def _is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)


def _remove(path: Path) -> None:
    path.unlink()
    for parent in path.parents:
        if parent == ROOT or any(parent.iterdir()):
            break
        parent.rmdir()
