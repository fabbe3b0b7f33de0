"""Unit tests of the lab."""

from pathlib import Path

from lab.make import selftests
from lab.paths import LINUX


def source_of(program: str) -> Path:
    """Return the source of a selftest, called as selftests.programs() does."""
    path = LINUX / selftests.SOURCE / f"{program}.c"
    newer = path.parent.with_name(selftests.NEW_NAME) / path.name
    return path if path.exists() or path.parent.name != selftests.OF_X86 else newer
