"""The programs of integration/restore: small VMMs whose memory is a snapshot file."""

from lab import shell
from lab.error import LabError
from lab.make.selftests import HEADERS
from lab.paths import LIVES, RECLAIM, RESTORE, ROOT, WORKING_SET

SOURCES = ROOT / "integration" / "restore"


def build() -> None:
    """Bring the programs up to date."""
    headers = HEADERS / "usr/include"
    if not headers.exists():
        raise LabError("no kernel headers in build/headers: run make selftests")
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")
    for program in (LIVES, RESTORE, RECLAIM, WORKING_SET):
        program.parent.mkdir(exist_ok=True)
        source = SOURCES / f"{program.name}.c"
        shell.build(
            program.name,
            *("gcc", "-O2", "-static", *warnings, "-isystem", headers, "-o", program, source),
        )
