"""A module that has a function of the kernel return late, to widen the window of a race."""

import shutil
from pathlib import Path

from lab import shell
from lab.paths import BUILD
from lab.source import debian

MODULE = BUILD / "delay" / "lab_delay.ko"

_SOURCES = ("lab_delay.c", "Kbuild")


def build() -> None:
    """Bring build/delay/lab_delay.ko up to date, for the stock kernel."""
    MODULE.parent.mkdir(parents=True, exist_ok=True)
    for name in _SOURCES:
        source, target = Path(__file__).parent / name, MODULE.parent / name
        if not target.exists() or target.read_text() != source.read_text():
            shutil.copyfile(source, target)
    kernel = debian.kernel()
    shell.build("delay", "make", "-C", kernel.headers, f"M={MODULE.parent}", "modules")
