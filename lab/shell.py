"""Run other programs, and show that something goes on."""

import fcntl
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from lab.error import LabError
from lab.paths import BUILD, ROOT

console = Console(stderr=True, highlight=False)

Arg = str | Path

TELL_SECONDS = 30
"""How often it is told that something goes on."""


@contextmanager
def working(text: str, how_far: Callable[[], str] = str) -> Iterator[None]:
    """Show what is done for as long as it takes, and `how_far` it is."""
    done = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        while not done.wait(TELL_SECONDS):
            seconds = f"{time.monotonic() - began:.0f} s"
            console.print(f"{text}: {', '.join(filter(None, (how_far(), seconds)))}")

    console.print(text)
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


@contextmanager
def locked(what: str, where: Path = BUILD) -> Iterator[None]:
    """Wait until nobody else makes `what`; the kernel unlocks if this process dies."""
    where.mkdir(parents=True, exist_ok=True)
    with (where / f".{what}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"waiting for another process to make {what}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
        said = (done.stderr or done.stdout).strip() or "no message"
        name = " ".join(map(str, args[:2]))
        raise LabError(f"{name} failed: {said.splitlines()[-1].strip()}")
    return done.stdout


def build(name: str, *args: Arg) -> None:
    """Run a build with its output in build/NAME.log; show that, and the errors if it fails."""
    log = BUILD / f"{name}.log"

    def how_far() -> str:
        lines = len(log.read_bytes().splitlines())
        return f"{lines} lines of {log.relative_to(ROOT)}"

    with working(f"Building {name}", how_far), log.open("w") as sink:
        done = subprocess.run(
            [str(arg) for arg in args],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        subprocess.run(["grep", "-E", "-A4", "error|undefined!|warning:|\\*\\*\\*", str(log)])
        raise LabError(f"the {name} do not build; the whole log is {log}")
