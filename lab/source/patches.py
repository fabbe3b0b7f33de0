"""The patch folder: which patches there are and which new files enter with each.

A patch changes files the kernel already has. A file that is new lives whole in this
repository at its kernel path; the patch it enters with names it after its `---` line:

    New-file: arch/x86/kvm/mmu/example.c
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from lab.error import LabError
from lab.paths import PATCHES, ROOT, SERIES

NEW_FILE = "New-file: "


def read(path: Path) -> str:
    """Return a patch, with whatever bytes the kernel's files have."""
    return path.read_bytes().decode(errors="surrogateescape")


def write(path: Path, text: str) -> None:
    """Write what read() may have returned."""
    path.write_bytes(text.encode(errors="surrogateescape"))


@dataclass(frozen=True)
class Patch:
    """One patch of the series."""

    path: Path

    @property
    def new_files(self) -> list[str]:
        """Kernel paths of the files that enter with this patch."""
        after_changelog = False
        names: list[str] = []
        for line in read(self.path).split("\n"):
            if line.startswith("diff --git "):
                break
            if after_changelog and line.startswith(NEW_FILE):
                names.append(line.removeprefix(NEW_FILE).strip())
            after_changelog |= line == "---"
        return names


def series() -> list[Patch]:
    """Return the patches in order."""
    if not SERIES.exists():
        return []
    names = (line.partition("#")[0].strip() for line in SERIES.read_text().splitlines())
    patches = [Patch(PATCHES / name) for name in names if name]
    for patch in patches:
        if not patch.path.exists():
            raise LabError(f"{SERIES.relative_to(ROOT)} names {patch.path.name}: no such patch")
        for name in patch.new_files:
            if not (ROOT / name).is_file():
                raise LabError(f"{patch.path.name} names the new file {name}: no such file")
    return patches


def digest(release: str) -> str:
    """Return one hash over everything the tree is composed from."""
    total = hashlib.sha256(release.encode())
    for patch in series():
        for path in (patch.path, *(ROOT / name for name in patch.new_files)):
            content = path.read_bytes()
            executable = path.stat().st_mode & 0o100
            total.update(f"{path.relative_to(ROOT)} {executable} {len(content)}\n".encode())
            total.update(content)
    return total.hexdigest()
