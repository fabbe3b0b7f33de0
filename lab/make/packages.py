"""Packages of this machine's Debian that only some commands need."""

import subprocess

from lab import shell
from lab.shell import console

_QUERY = ("dpkg-query", "-W", "-f=${Status}")


def install(*names: str) -> None:
    """Install those that are missing."""
    missing = [name for name in names if not _is_there(name)]
    if missing:
        console.print(f"apt-get install: {' '.join(missing)}")
        shell.output("apt-get", "install", "-q", "-y", "--no-install-recommends", *missing)


def _is_there(name: str) -> bool:
    done = subprocess.run([*_QUERY, name], capture_output=True, text=True)
    return "ok installed" in done.stdout
