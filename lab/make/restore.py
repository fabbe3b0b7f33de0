"""The program of integration/restore: a small VMM that restores memory from a snapshot file."""

from lab import shell
from lab.error import LabError
from lab.make.selftests import HEADERS
from lab.paths import RESTORE, ROOT

SOURCE = ROOT / "integration" / "restore" / "restore.c"


def build() -> None:
    """Bring the program up to date."""
    headers = HEADERS / "usr/include"
    if not headers.exists():
        raise LabError("no kernel headers in build/headers: run make selftests")
    RESTORE.parent.mkdir(exist_ok=True)
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")
    shell.build(
        "restore",
        *("gcc", "-O2", "-static", *warnings, "-isystem", headers, "-o", RESTORE, SOURCE),
    )
