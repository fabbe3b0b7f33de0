"""make qemu: the newest QEMU of Debian 13 with the patches of integration/qemu, in build/qemu.

Just the one program, of which the demo needs no more than KVM, RAM and a serial port.
"""

import shutil
import subprocess
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.paths import BUILD, ROOT, VENV_BIN
from lab.shell import console, working
from lab.source import mirror

RELEASE = "trixie"
WORK = BUILD / "qemu"
SOURCE = WORK / "source"
PROGRAM = WORK / "qemu-system-x86_64"
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
    patches = sorted(PATCHES.glob("*.patch"))
    newest = max(path.stat().st_mtime for path in patches)
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > newest:
        return PROGRAM
    _install()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    with working(f"Fetching the source of {RELEASE}'s QEMU"):
        package = _fetch()
    shell.output("dpkg-source", "-x", package, SOURCE)
    for patch in patches:
        _apply(patch, package)
    console.print(f"{package.stem}, {len(patches)} patches: building, some ten minutes")
    # The build finds out by itself that it is in no repository of QEMU's.
    shell.output("./configure", *_OPTIONS, cwd=SOURCE)
    shell.build("qemu", "ninja", "-C", SOURCE / "build", PROGRAM.name)
    shutil.copy2(SOURCE / "build" / PROGRAM.name, PROGRAM)
    PROGRAM.touch()
    console.print(f"{PROGRAM.relative_to(ROOT)}: for make demo ARGS='--qemu …'")
    return PROGRAM


def _install() -> None:
    query = ("dpkg-query", "-W", "-f=${Status}")
    missing = [
        name
        for name in _NEEDED
        if "ok installed"
        not in subprocess.run([*query, name], capture_output=True, text=True).stdout
    ]
    if missing:
        console.print(f"apt-get install: {' '.join(missing)}")
        shell.output("apt-get", "install", "-q", "-y", "--no-install-recommends", *missing)
    shell.output(VENV_BIN / "pip", "install", "-q", _MESON)


def _fetch() -> Path:
    """Have apt download and verify the newest source package; return its .dsc."""
    apt = mirror.Apt(RELEASE, WORK / "apt", "deb-src")
    apt.get("source", "--download-only", "--only-source", "qemu", cwd=WORK)
    return next(WORK.glob("qemu_*.dsc"))


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
