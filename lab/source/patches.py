"""The patch folder: which patches there are, complete, as `git am` takes them."""

import hashlib
from pathlib import Path

from lab.error import LabError
from lab.paths import PATCHES, ROOT, SERIES


def read(path: Path) -> str:
    """Return a patch, with whatever bytes the kernel's files have."""
    return path.read_bytes().decode(errors="surrogateescape")


def write(path: Path, text: str) -> None:
    """Write what read() may have returned."""
    path.write_bytes(text.encode(errors="surrogateescape"))


def series() -> list[Path]:
    """Return the patches in order."""
    if not SERIES.exists():
        return []
    names = (line.partition("#")[0].strip() for line in SERIES.read_text().splitlines())
    patches = [PATCHES / name for name in names if name]
    for patch in patches:
        if not patch.exists():
            raise LabError(f"{SERIES.relative_to(ROOT)} names {patch.name}: no such patch")
    return patches


def digest(release: str) -> str:
    """Return one hash over everything the tree is composed from."""
    total = hashlib.sha256(release.encode())
    for patch in series():
        content = patch.read_bytes()
        total.update(f"{patch.name} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()
