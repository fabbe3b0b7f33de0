"""Programs of one file, which gcc alone makes: of packaging, and of integration/restore."""

from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.make.selftests import HEADERS
from lab.paths import HOSTCHECK, LIVES, PACKAGING, RECLAIM, RESTORE, ROOT, WORKING_SET
from lab.shell import Arg

CHECK = PACKAGING / "global-tdp-check.c"
FLAGS = ("-O2", "-static", "-Wall", "-Wextra", "-Werror")
CHECK_FLAGS = (*FLAGS, "-std=c11", "-pthread")
_RESTORE = ROOT / "integration" / "restore"


def build_check() -> None:
    """Bring global-tdp-check up to date; it needs no headers but those that gcc finds."""
    _compile(HOSTCHECK, CHECK, *CHECK_FLAGS)


def build_restore() -> None:
    """Bring the small VMMs up to date, whose memory is a snapshot file."""
    headers = HEADERS / "usr/include"
    if not headers.exists():
        raise LabError("no kernel headers in build/headers: run make selftests")
    for program in (LIVES, RESTORE, RECLAIM, WORKING_SET):
        flags = (*FLAGS, "-Wno-missing-field-initializers", "-isystem", headers)
        _compile(program, _RESTORE / f"{program.name}.c", *flags)


def _compile(program: Path, source: Path, *flags: Arg) -> None:
    program.parent.mkdir(exist_ok=True)
    shell.build(program.name, "gcc", *flags, "-o", program, source)
