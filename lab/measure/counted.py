"""What benchmarks of one boot under -icount have in common: to run, to save, to judge."""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from lab.check import report
from lab.check.outcome import State
from lab.error import LabError
from lab.machine import npt
from lab.make import modules, restore, selftests
from lab.paths import ROOT
from lab.shell import console
from lab.source import debian


def run(directory: Path, doing: str, script: Callable[[str], str], timeout: float) -> str:
    """Build, run a script that writes to the log that it is given, quoted; return that."""
    selftests.build()
    restore.build()
    modules.build()
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "log.txt"
    console.print(doing)
    status = npt.command(script(shlex.quote(str(log))), icount=True, timeout=timeout).status
    if status:
        raise LabError(f"the benchmark ended with status {status}; see {log}")
    return log.read_text()


def save(path: Path, **found: object) -> None:
    """Write what was found to a file of JSON, with the kernel's version, and say where."""
    content = {"kernel": debian.kernel().release, **found}
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"saved: {path.relative_to(ROOT)}")


def judge(told: Iterable[tuple[str, bool]]) -> int:
    """Print which targets are missed, and the last line; return the status."""
    targets = list(told)
    for text, met in targets:
        if not met:
            print(f"missed: {text}")
    return report.end(Counter(State.PASSED if met else State.FAILED for _, met in targets))
