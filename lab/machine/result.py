"""What is run in an emulated machine, and what came of it.

lab/guest/run.sh runs commands one by one and prints, beside what they print, marks: lines
that begin with the character RS. They are read while the machine lives, so what is known by
then is not lost with a machine that dies.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

TIMED_OUT = 124
"""Status of a run that did not end in time."""

COMPLAINED = 97
"""Status of a run whose commands passed, but whose kernel complained."""

KILLED = 128 + 9
"""Status of a command that did not end in time."""

_RS = b"\x1e"
_MARK = re.compile(rb"\x1elab: (\w+) ?([^\n\r]*)(?:\r?\n|\r(?=[^\n]))")
"""Where both have one port, as package.sh, the kernel may speak within the end of a line."""

_STATUS = re.compile(r"\d+ (\d+)")


@dataclass(frozen=True)
class Command:
    """One command for the machine's shell."""

    line: str
    name: str = ""
    """What it is called in the kernel's log."""

    limit: float = 0
    """Seconds in which the machine is served, see lab.machine.served, that it may take,
    or, under -icount and on Bochs, its own; 0 is for ever."""

    huge_pages: int = 0
    """To be reserved for it, of 2 MiB each."""


@dataclass
class Result:
    """What came of one command."""

    number: int
    name: str = ""
    status: int | None = None
    """None: it did not end before the machine did."""

    seconds: float = 0
    """Of the host's clock."""

    printed: bytearray = field(default_factory=bytearray, repr=False)

    @property
    def output(self) -> str:
        """What it printed, stdout and stderr as one."""
        return self.printed.decode(errors="replace").replace("\r", "")


Ended = Callable[[Result], None]


class Stream:
    """What a machine prints, heard while it does."""

    def __init__(self, live: IO[bytes] | None = None, ended: Ended | None = None) -> None:
        self.results: list[Result] = []
        self.failure = ""
        """Why no command was run."""

        self.done = False
        self.tainted: list[str] = []
        """That the kernel has got taints, and when."""

        self._live = live
        self._ended = ended
        self._running: Result | None = None
        self._began = 0.0
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Take in what was printed; what may be half a mark waits for the other half."""
        text = self._rest + chunk
        while mark := _MARK.search(text):
            self._print(text[: mark.start()])
            self._mark(mark[1].decode(), mark[2].decode(errors="replace"))
            text = text[mark.end() :]
        start = text.rfind(_RS)
        half = start >= 0 and b"\n" not in text[start:]
        self._rest = text[start:] if half else b""
        self._print(text[:start] if half else text)

    def close(self) -> None:
        """There is no more; a command that runs will not end."""
        if self._running:
            self._running.seconds = time.monotonic() - self._began

    def _print(self, text: bytes) -> None:
        if not text or not self._running:
            return
        self._running.printed += text
        if self._live:
            self._live.write(text)
            self._live.flush()

    def _mark(self, what: str, details: str) -> None:
        if what == "run":
            number, _, name = details.partition(" ")
            self._running = Result(int(number), name)
            self._began = time.monotonic()
            self.results.append(self._running)
        elif what == "end" and self._running:
            # What is no number, as another has written into the line, is no status.
            status = _STATUS.fullmatch(details)
            self._running.status = int(status[1]) if status else None
            self.close()
            if self._ended:
                self._ended(self._running)
            self._running = None
        elif what == "tainted" and self._running:
            name = self._running.name
            self.tainted.append(f"the kernel is tainted since {name}: {details}")
        elif what == "failure":
            self.failure = details
        elif what == "done":
            self.done = True


@dataclass
class Run:
    """What came of a machine."""

    directory: Path
    """Files of the run; `console` is the kernel's log."""

    results: list[Result]
    """Of the commands that began."""

    splats: list[str] = field(default_factory=list)
    """WARNING, BUG, Oops and the like of the run, with their traces."""

    died: str = ""
    """Why the machine did not get to the end of its commands."""

    @property
    def status(self) -> int:
        """Of the first command that failed; TIMED_OUT; or COMPLAINED."""
        if self.died:
            return TIMED_OUT
        failed = (result.status for result in self.results if result.status)
        return next(failed, COMPLAINED if self.splats else 0)

    @property
    def output(self) -> str:
        """What the commands printed."""
        return "".join(result.output for result in self.results)

    @property
    def console(self) -> str:
        """The kernel's log."""
        return (self.directory / "console").read_text(errors="replace")
