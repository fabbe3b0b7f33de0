"""The guest's initramfs: one static program and nothing else."""

import subprocess
from pathlib import Path

from lab import shell
from lab.error import LabError

SOURCE = Path(__file__).parent / "guest" / "init.c"


def build(directory: Path) -> Path:
    """Compile the program and return the initramfs that holds it as /init."""
    directory.mkdir(parents=True, exist_ok=True)
    initramfs = directory / "initramfs.cpio"
    options = ("-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread")
    shell.output("gcc", *options, "-o", directory / "init", SOURCE)
    done = subprocess.run(
        ["cpio", "--create", "--format=newc", "--quiet", f"--file={initramfs}"],
        cwd=directory,
        input=b"init\n",
        capture_output=True,
    )
    if done.returncode:
        raise LabError(f"cpio failed: {done.stderr.decode(errors='replace').strip()}")
    return initramfs
