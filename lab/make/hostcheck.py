"""The program packaging/global-tdp-check.c."""

from lab import shell
from lab.paths import HOSTCHECK, PACKAGING

SOURCE = PACKAGING / "global-tdp-check.c"
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread")


def build() -> None:
    """Bring it up to date; it needs no headers but those that gcc finds."""
    HOSTCHECK.parent.mkdir(exist_ok=True)
    shell.build("global-tdp-check", "gcc", *FLAGS, "-o", HOSTCHECK, SOURCE)
