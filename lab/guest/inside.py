"""Runs in the lab machine: the tests of a plan, one by one, each with a timeout.

    python -m lab.guest.inside DIRECTORY

DIRECTORY holds plan.json, a list of tests with a number each. It gets for each test
what it printed (NUMBER.txt) and a line of results.jsonl once it has ended. A line that
is missing there, of a test that has an output, tells of a machine that died of it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import indent

from lab.check.outcome import tail

_SWAP = "256M"

MARK = "lab: test "
"""What a line of the kernel's log starts with where a test begins."""


def main() -> None:
    """Run what the plan says."""
    directory = Path(sys.argv[1])
    _add_swap()
    plan = json.loads((directory / "plan.json").read_text())
    with (directory / "results.jsonl").open("a") as results:
        for test in plan:
            _mark(test["name"])
            began = time.monotonic()
            output = directory / f"{test['number']}.txt"
            with _reserved(test.get("huge_pages", 0)):
                status = _run(test["argv"], test["timeout"], output)
            seconds = round(time.monotonic() - began, 1)
            word = {0: "ok", 4: "skip", None: "TIMEOUT"}.get(status, "FAIL")
            print(f"  {word:8}{seconds:6.1f} s  {directory.name}: {test['name']}", flush=True)
            if word in ("FAIL", "TIMEOUT"):
                print(indent(tail(output.read_text(errors="replace")), " " * 8), flush=True)
            line = {"number": test["number"], "status": status, "seconds": seconds}
            results.write(json.dumps(line) + "\n")
            results.flush()


def _add_swap() -> None:
    """Have swap space that is done with a page at once: a compressed part of the memory."""
    subprocess.run(["modprobe", "zram"], check=True)
    Path("/sys/block/zram0/disksize").write_text(_SWAP)
    subprocess.run(["mkswap", "-q", "/dev/zram0"], check=True)
    subprocess.run(["swapon", "/dev/zram0"], check=True)


def _run(argv: list[str], timeout: float, output: Path) -> int | None:
    """Return the status of a program, None if it had to be ended."""
    with output.open("wb") as sink:
        try:
            program = subprocess.Popen(
                argv,
                cwd=tempfile.gettempdir(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            sink.write(f"{error}\n".encode())
            return 127
        try:
            return program.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(program)


def _end(program: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        program.wait(20)


@contextmanager
def _reserved(huge_pages: int) -> Iterator[None]:
    file = Path("/proc/sys/vm/nr_hugepages")
    if huge_pages:
        file.write_text(f"{huge_pages}\n")
    yield
    if huge_pages:
        file.write_text("0\n")


def _mark(name: str) -> None:
    with suppress(OSError):
        Path("/dev/kmsg").write_text(f"{MARK}{name}\n")


if __name__ == "__main__":
    main()
