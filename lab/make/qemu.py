"""make qemu: the newest QEMU of Debian 13 with the patches of integration/qemu, in build/qemu.

Just the one program, of which the demo needs no more than KVM, RAM and a serial port, and
its tests of migration.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.make import packages
from lab.paths import ROOT, SHARED, VENV_BIN
from lab.shell import console, working
from lab.source import mirror

RELEASE = "trixie"
WORK = SHARED / "qemu"
SOURCE = WORK / "source"
PROGRAM = WORK / "qemu-system-x86_64"
TESTS = SOURCE / "build" / "tests" / "qtest" / "migration-test"
PATCHES = ROOT / "integration" / "qemu"

_NEEDED = ("dpkg-dev", "libfdt-dev", "libglib2.0-dev", "ninja-build", "pkgconf")
_MESON = "meson==1.8.3"
"""That of Debian 12 is too old, and Debian's source package comes without."""

_OPTIONS = (
    f"--python={VENV_BIN}/python",
    *("--target-list=x86_64-softmmu", "--without-default-features", "--enable-system"),
    *("--enable-kvm", "--disable-docs", "--disable-install-blobs"),
)


def build() -> Path:
    """Return the program, built if it is not there or older than a patch."""
    with shell.locked("qemu", SHARED):
        patches = sorted(PATCHES.glob("*.patch"))
        newest = max(path.stat().st_mtime for path in patches)
        if not TESTS.exists() or not PROGRAM.exists() or PROGRAM.stat().st_mtime < newest:
            _build(patches)
    return PROGRAM


def _build(patches: Sequence[Path]) -> None:
    packages.install(*_NEEDED)
    shell.output(VENV_BIN / "pip", "install", "-q", _MESON)
    # What is there is dropped when there is something to take its place.
    scratch = WORK.with_suffix(".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with working(f"Fetching the source of {RELEASE}'s QEMU"):
        name = _fetch(scratch).name
    shutil.rmtree(WORK, ignore_errors=True)
    scratch.rename(WORK)
    package = WORK / name
    shell.output("dpkg-source", "-x", package, SOURCE)
    for patch in patches:
        _apply(patch, package)
    console.print(f"{package.stem}, {len(patches)} patches: building, some ten minutes")
    # The build finds out by itself that it is in no repository of QEMU's.
    shell.output("./configure", *_OPTIONS, cwd=SOURCE)
    wanted = (PROGRAM.name, TESTS.relative_to(SOURCE / "build"))
    shell.build("qemu", "ninja", "-C", SOURCE / "build", *wanted)
    shutil.copy2(SOURCE / "build" / PROGRAM.name, PROGRAM)
    PROGRAM.touch()
    console.print(f"{PROGRAM.relative_to(ROOT)}: for make demo ARGS='--qemu …'")


def _fetch(where: Path) -> Path:
    """Have apt download and verify the newest source package; return its .dsc."""
    apt = mirror.Apt(RELEASE, where / "apt", "deb-src")
    apt.get("source", "--download-only", "--only-source", "qemu", cwd=where)
    return next(where.glob("qemu_*.dsc"))


def _apply(patch: Path, package: Path) -> None:
    # No fuzz: a patch that fits elsewhere, too, is to be looked at by somebody.
    command = ("patch", "-p1", "--fuzz=0", "-f", "-i", patch)
    try:
        shell.output(*command, cwd=SOURCE)
    except LabError as error:
        name = patch.relative_to(ROOT)
        raise LabError(
            f"{name} does not apply to {package.stem}: adapt it ({error})"
        ) from error
