"""Look through patches with the kernel's scripts/checkpatch.pl --strict."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from lab.error import LabError
from lab.paths import LINUX
from lab.shell import console

# Trace events can not be written without open-ended lines, nor iterators as the TDP
# MMU has them without bare statements in a macro.
IGNORED = ("FILE_PATH_CHANGES", "OPEN_ENDED_LINE", "COMPLEX_MACRO", "UNKNOWN_COMMIT_ID")
"""Types that say nothing here: MAINTAINERS has an entry for KVM's directories, and the
repository has no history before the series."""

_KINDS = ("ERROR", "WARNING", "CHECK")


def check(paths: Sequence[Path]) -> None:
    """Print a table and what was found; errors and warnings are a LabError."""
    table, bad = Table("patch", "errors", "warnings", "checks"), []
    for path in paths:
        said = _look_at(path)
        counts = [len(re.findall(f"^{kind}:", said, re.M)) for kind in _KINDS]
        table.add_row(path.name, *map(str, counts))
        if any(counts):
            console.print(said.strip(), markup=False)
        bad += [path.name] * any(counts[:2])
    console.print(table)
    if bad:
        raise LabError(f"checkpatch objects to {len(bad)} of {len(paths)} patches: {bad[0]}")


def _look_at(path: Path) -> str:
    script = LINUX / "scripts" / "checkpatch.pl"
    ignored = ("--ignore", ",".join(IGNORED))
    options = ("--strict", "--no-summary", "--quiet", "--show-types", "--color=never", *ignored)
    done = subprocess.run(
        ["perl", str(script), *options, str(path)],
        cwd=LINUX,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode and not done.stdout.strip():
        raise LabError(f"checkpatch failed on {path.name}: {done.stderr.strip()[-200:]}")
    return done.stdout
