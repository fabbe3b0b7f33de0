"""The program packaging/global-tdp-check.c: static, so that any host runs it."""

from pathlib import Path

from lab import shell
from lab.paths import HOSTCHECK, PACKAGING, ROOT
from lab.shell import console

SOURCE = PACKAGING / "global-tdp-check.c"
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")


def build(into: Path = HOSTCHECK) -> None:
    """Bring the program up to date; it needs no headers but those that gcc finds."""
    into.parent.mkdir(exist_ok=True)
    shell.build("global-tdp-check", "gcc", *FLAGS, "-static", "-o", into, SOURCE)


def show() -> None:
    """Build it, and say what to do with it."""
    build()
    console.print(f"{HOSTCHECK.relative_to(ROOT)}: copy it to a host, and run it there")
