"""Files of runs, and the end of all of them."""

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.machine.result import Command
from lab.paths import ROOT, RUNS

STOPPING = threading.Event()
"""Set when the command is to end: machines that other threads run end, none is started."""

GUEST = ROOT / "lab" / "guest"
"""The scripts that run in machines."""

SWAP = "256M"
"""Without swap space, a kernel reclaims nothing of a guest."""

KEPT_RUNS = 20
_OWNER = re.compile(r"^\d+-\d+-(\d+)-\d+$")
_TAIL = 30


def new_directory() -> Path:
    """Make a directory for the files of a run, and drop those of long ago that are over."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for old in sorted(RUNS.iterdir())[:-KEPT_RUNS]:
        owner = _OWNER.search(old.name)
        if owner and not Path("/proc", owner[1]).exists():
            shutil.rmtree(old, ignore_errors=True)
    directory = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns()}"
    directory.mkdir()
    return directory


def write_job(
    directory: Path,
    commands: Sequence[Command],
    modules: str,
    settings: Mapping[str, str],
) -> None:
    """Write down for lab/guest/run.sh what to do; `modules` is from params.to_load()."""
    job = {"root": str(ROOT), **settings}
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in job.items()]
    (directory / "job").write_text("".join(lines))
    (directory / "modules").write_text(modules)
    lines.clear()
    for number, command in enumerate(commands):
        limit = math.ceil(command.limit)
        lines.append(f"{number} {limit} {command.huge_pages} {command.name}\n")
        (directory / f"command.{number}").write_text(f"{command.line}\n")
    (directory / "commands").write_text("".join(lines))


@contextmanager
def leashed(machine: subprocess.Popen[bytes]) -> Iterator[None]:
    """Have a machine, a session of its own, end with this process even if that is killed."""
    # Only this process has the other end of the pipe; its children get SIGTERM as it does.
    watch = 'trap "" TERM; read -r _; kill -KILL "-$0"'
    leash = subprocess.Popen(
        ["sh", "-c", watch, str(machine.pid)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with leash:
        try:
            yield
        finally:
            leash.kill()


def show_tail(console: str) -> None:
    """Show the end of a kernel's log."""
    print("\n".join(console.splitlines()[-_TAIL:]), file=sys.stderr)
