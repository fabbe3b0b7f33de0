"""Run other programs."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from lab.error import LabError
from lab.paths import BUILD

console = Console(stderr=True, highlight=False)

Arg = str | Path


def output(*args: Arg, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return what a program prints; a failure is a LabError with its last line."""
    done = subprocess.run(
        [str(arg) for arg in args],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise LabError(_failure(args, done.stderr or done.stdout))
    return done.stdout


def build(name: str, *args: Arg) -> None:
    """Run a build with its output in build/NAME.log; show the errors if it fails."""
    log = BUILD / f"{name}.log"
    with log.open("w") as sink:
        done = subprocess.run(
            [str(arg) for arg in args],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        subprocess.run(["grep", "-E", "-A4", "error|undefined!|warning:|\\*\\*\\*", str(log)])
        raise LabError(f"the {name} do not build; the whole log is {log}")


def _failure(args: Sequence[Arg], text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    name = " ".join(str(arg) for arg in args[:2])
    return f"{name} failed: {lines[-1] if lines else 'no message'}"
