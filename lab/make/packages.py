"""Packages of this machine's Debian that only some commands need."""

import subprocess

from lab import shell
from lab.shell import console


def install(*names: str) -> None:
    """Install those that are missing."""
    query = ("dpkg-query", "-W", "-f=${Package} ${Status}\n", *names)
    listed = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    if missing := [name for name in names if f"{name} install ok installed" not in listed]:
        console.print(f"apt-get install: {' '.join(missing)}")
        shell.output("apt-get", "install", "-q", "-y", "--no-install-recommends", *missing)
