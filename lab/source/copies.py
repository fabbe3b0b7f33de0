"""The new files of the series, at their kernel paths in the repository, for people to read.

What is true is in the patches. A copy is written by `make refresh`, and edited nowhere.
"""

import shutil
from pathlib import Path

from lab.error import LabError
from lab.paths import LINUX, ROOT
from lab.source.git import BASE, Git

FOLDERS = ("arch", "Documentation", "include", "tools", "virt")
"""Those of the kernel; in the repository they hold copies only."""


def names(git: Git) -> set[str]:
    """Return the kernel paths of the files that the commits in build/linux add."""
    return set(
        git.lines("diff", "--name-only", "--no-renames", "--diff-filter=A", BASE, "HEAD")
    )


def write() -> int:
    """Have the files as build/linux has them, and no others; return how many."""
    git = Git(LINUX)
    new = names(git)
    for name in _present() - new:
        _remove(ROOT / name)
    for name in new:
        source, target = git.tree / name, ROOT / name
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
    git = Git(LINUX)
    new = names(git)
    found = _present() ^ new
    found |= {name for name in new - found if _differ(git.tree / name, ROOT / name)}
    if not found:
        return ""
    return (
        f"{min(found)} ({len(found)} in all) is not what patches/ add: such files are written "
        "by make refresh; edit them in build/linux, and commit there"
    )


def _present() -> set[str]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return {str(path.relative_to(ROOT)) for path in found if path.is_file()}


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
