"""The patch folder: which patches there are, complete, as `git am` takes them."""

import hashlib
from pathlib import Path

from lab.error import LabError
from lab.paths import PATCHES, ROOT, VERSIONS


def read(path: Path) -> str:
    """Return a patch, with whatever bytes the kernel's files have."""
    return path.read_bytes().decode(errors="surrogateescape")


def write(path: Path, text: str) -> None:
    """Write what read() may have returned."""
    path.write_bytes(text.encode(errors="surrogateescape"))


def series(folder: Path | None = None) -> list[Path]:
    """Return the patches in order, of the chosen series or of the one in a folder."""
    folder = folder or PATCHES
    listed = folder / "series"
    if not listed.exists():
        return []
    names = (line.partition("#")[0].strip() for line in listed.read_text().splitlines())
    patches = [folder / name for name in names if name]
    for patch in patches:
        if not patch.exists():
            raise LabError(f"{listed.relative_to(ROOT)} names {patch.name}: no such patch")
    return patches


def newest() -> list[Path]:
    """Return the patches of the series for the newest kernel that there is one for."""
    folders = (ROOT / "patches" / version for version in reversed(VERSIONS))
    return next(filter(None, map(series, folders)), [])


def digest(release: str) -> str:
    """Return one hash over everything the tree is composed from."""
    total = hashlib.sha256(release.encode())
    for patch in series():
        content = patch.read_bytes()
        total.update(f"{patch.name} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()
