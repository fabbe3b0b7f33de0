"""The guest's initramfs: one static program and nothing else."""

from pathlib import Path

from lab import shell
from lab.machine import disk

SOURCE = Path(__file__).parent / "guest" / "init.c"


def build(directory: Path) -> Path:
    """Compile the program and return the initramfs that holds it as /init."""
    root, initramfs = directory / "root", directory / "initramfs.cpio"
    root.mkdir(parents=True, exist_ok=True)
    options = ("-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread")
    shell.output("gcc", *options, "-o", root / "init", SOURCE)
    disk.make_initramfs(root, initramfs)
    return initramfs
