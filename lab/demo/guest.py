"""The guest's initramfs: one static program and nothing else, but for modules."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from lab import shell
from lab.machine import disk

_COMMON = Path(__file__).parent / "guest"
SOURCE = _COMMON / "init.c"


def build(directory: Path, source: Path = SOURCE, modules: Iterable[Path] = ()) -> Path:
    """Compile the program and return the initramfs that holds it as /init.

    `modules` are files that it is to load, in /modules, whose names are in that order.
    """
    root, initramfs = directory / "root", directory / "initramfs.cpio"
    shutil.rmtree(root, ignore_errors=True)
    (root / "modules").mkdir(parents=True)
    for number, module in enumerate(modules):
        shutil.copy(module, root / "modules" / f"{number:02}-{module.name}")
    options = ("-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", f"-I{_COMMON}")
    shell.output("gcc", *options, "-o", root / "init", source)
    disk.make_initramfs(root, initramfs)
    return initramfs
