"""What benchmarks have in common: to build, to run a machine, to save, to judge."""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.check import report
from lab.check.outcome import State
from lab.error import LabError
from lab.machine import npt, params
from lab.machine.result import TIMED_OUT
from lab.make import modules, programs, selftests
from lab.paths import RESTORE, ROOT
from lab.shell import console
from lab.show import met, stdout
from lab.source import debian

SECONDS = 3600
"""That a machine may take, with its boot."""

STOCK, OURS = "stock", "ours"
BEGIN = ('. "$LAB_GUEST/modules.sh"', "set -e")
"""What comes first in a script that loads modules."""

Verdict = tuple[str, bool | None]
"""On a target: what was found, and whether that is good; None: there is nothing to judge by."""

_STATES = {True: State.PASSED, False: State.FAILED, None: State.SKIPPED}


def build(program: Path = RESTORE) -> None:
    """Bring all up to date that is measured, or measures; LabError if a program is missing."""
    modules.build()
    selftests.build()
    programs.build_restore()
    if not program.exists():
        raise LabError(f"{program.relative_to(ROOT)} is not there: is it in the series?")


def run(
    directory: Path,
    doing: str,
    script: Callable[[], str],
    files: str = "*.txt",
    **options: Any,  # noqa: ANN401
) -> None:
    """Run a script in a machine under -icount, or as options of npt.command() have it.

    Files of the directory that an earlier run has left are dropped before.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob(files):
        old.unlink()
    console.print(doing)
    done = npt.command(script(), **{"icount": True, "timeout": SECONDS, **options})
    if done.status == TIMED_OUT:
        raise LabError(f"the machine took longer than {SECONDS} s")
    if done.status:
        raise LabError(f"the benchmark ended with status {done.status}; see {directory}")


def log_of(directory: Path, doing: str, script: Callable[[str], str]) -> str:
    """Build, run a script that writes to the log that it is given, quoted; return that."""
    build()
    log = directory / "log.txt"
    run(directory, doing, lambda: script(shlex.quote(str(log))))
    return log.read_text()


def load(whose: str, directory: Path) -> str:
    """Return the shell command that loads modules, which are listed in a directory."""
    listed = directory / f"{whose}.modules"
    listed.write_text(params.to_load("kvm_amd", stock=whose == STOCK))
    return f"load {shlex.quote(str(listed))}"


def logged(command: str, log: Path) -> str:
    """Return a shell command that adds its output to a log, and shows that if it fails."""
    file = shlex.quote(str(log))
    return f"{command} >>{file} 2>&1 || {{ tail -n 30 {file}; exit 1; }}"


def traced(tracer: Path, trace: Path, lines: Sequence[str]) -> list[str]:
    """Return shell commands with a program of bpftrace beside them, which prints to a file."""
    file = shlex.quote(str(trace))
    return [
        f"bpftrace -f json {shlex.quote(str(tracer))} >{file} 2>&1 & tracer=$!",
        f"until grep -q ready {file}; do",
        f"  kill -0 $tracer || {{ cat {file}; exit 1; }}; sleep 1; done",
        *lines,
        "kill -INT $tracer; wait $tracer || true",
    ]


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Return the lines that are objects of JSON."""
    return (json.loads(line) for line in text.splitlines() if line.startswith("{"))


def save(path: Path, **found: object) -> None:
    """Write what was found to a file of JSON, with the kernel's version, and say where."""
    content = {"kernel": debian.kernel().release, **found}
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"saved: {path.relative_to(ROOT)}")


def judge(verdicts: Iterable[Verdict]) -> int:
    """Print those that have a text, and the last line; return the status."""
    counts: Counter[State] = Counter()
    for text, good in verdicts:
        counts[_STATES[good]] += 1
        if text:
            stdout().print(f"{text}: {met(good)}", soft_wrap=True)
    return report.end(counts)
