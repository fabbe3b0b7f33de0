"""Look through patches with the kernel's scripts/checkpatch.pl --strict."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass
class Verdict:
    """What checkpatch says of one patch."""

    patch: Path
    text: str

    @property
    def counts(self) -> tuple[int, int, int]:
        """Errors, warnings, checks."""
        kinds = ("ERROR", "WARNING", "CHECK")
        errors, warnings, checks = (len(re.findall(f"^{k}:", self.text, re.M)) for k in kinds)
        return errors, warnings, checks


def check(paths: Sequence[Path]) -> None:
    """Print a table and what was found; errors and warnings are a LabError."""
    verdicts = [_look_at(path) for path in paths]
    table = Table("patch", "errors", "warnings", "checks")
    for verdict in verdicts:
        table.add_row(verdict.patch.name, *(str(count) for count in verdict.counts))
        if any(verdict.counts):
            console.print(verdict.text.strip(), markup=False)
    if verdicts:
        console.print(table)
    bad = [verdict.patch.name for verdict in verdicts if any(verdict.counts[:2])]
    if bad:
        raise LabError(f"checkpatch objects to {len(bad)} of {len(paths)} patches: {bad[0]}")


def _look_at(path: Path) -> Verdict:
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
    return Verdict(path, done.stdout)
