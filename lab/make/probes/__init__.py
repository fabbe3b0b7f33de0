"""The lab's own modules for the stock kernel of an emulated machine.

lab_breakpoint has it go on where the emulator runs a breakpoint that is gone; lab_delay has a
function of the kernel return late, to widen the window of a race; lab_level has KVM take the
CPU for one with EPT of 5 levels; lab_pagemap has it find no live page map of a device; lab_pin
is a VFIO device of software that pins single pages.
"""

import shutil
from pathlib import Path

from lab import shell
from lab.make import root
from lab.paths import BUILD
from lab.shell import locked
from lab.source import debian

_DIRECTORY = BUILD / "probes"
_NAMES = ("breakpoint", "delay", "level", "pagemap", "pin")
_SOURCES = ("Kbuild", *(f"lab_{name}.c" for name in _NAMES))
BREAKPOINT, DELAY, LEVEL, PAGEMAP, PIN = (_DIRECTORY / f"lab_{name}.ko" for name in _NAMES)


def build() -> None:
    """Bring all up to date."""
    with locked("probes"):
        kernel = debian.kernel()
        _DIRECTORY.mkdir(parents=True, exist_ok=True)
        built = _DIRECTORY / "built"
        if built.exists() and built.read_text() == _wanted(kernel.release):
            return
        for name in _SOURCES:
            shutil.copyfile(Path(__file__).parent / name, _DIRECTORY / name)
        make = ("make", "-C", kernel.headers, f"M={_DIRECTORY}", "modules")
        shell.build("probes", *root.command(*make))
        built.write_text(_wanted(kernel.release))


def _wanted(release: str) -> str:
    sources = (Path(__file__).parent / name for name in _SOURCES)
    return "\n".join((release, *(source.read_text() for source in sources)))
