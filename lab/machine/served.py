"""A clock that goes as fast as a machine is served.

On a busy host, what takes 3 s in a machine takes minutes: its CPUs wait for the host's, and for
each other most of all, where they have to be run at the same time. A limit in seconds of the
host then ends what does not hang. So limits are in seconds in which the machine got what it
wanted: of a second in which its threads ran for half of what they ran and waited for a CPU
(proc_pid_schedstat in the kernel's documentation of /proc), a half counts. Time that was stolen
from the host (proc_stat(5)) is not served, either. Where the host tells nothing, all is.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

FILE = "served"
"""The file of a run in which the machine reads the clock, in whole seconds."""

LEAST = 0.25
"""What always counts of a second, so that a hang ends on any host."""

GRACE = 1200
"""Seconds of the host that a machine may take beyond its limit, at most."""

_STEAL, _IDLE = 7, (3, 4)
_STAT = Path("/proc/stat")


class Thread(NamedTuple):
    """What the host knows of a thread: times in ns, and whether it runs or wants to."""

    ran: int = 0
    waited: int = 0
    wants: bool = False


class Served:
    """The clock of one machine, whose threads are those of a session."""

    def __init__(self, directory: Path, session: int) -> None:
        self._path, self._session = directory / FILE, session
        self._threads = threads(session)
        self._host = _host()
        self._begun = self._at = time.monotonic()
        self.seconds = 0.0
        self._write()

    @property
    def elapsed(self) -> float:
        """Seconds of the host."""
        return self._at - self._begun

    def is_past(self, limit: float) -> bool:
        """Whether a machine has had its time."""
        return self.seconds >= limit or self.elapsed >= limit + GRACE

    def tick(self) -> None:
        """Add what was served since the last time, and tell the machine."""
        at, found, host = time.monotonic(), threads(self._session), _host()
        old = [self._threads.get(task, Thread()) for task in found]
        of_machine = share(old, list(found.values()), int((at - self._at) * 1e9))
        own, stolen = (max(0, b - a) for a, b in zip(self._host, host, strict=True))
        self.seconds += (at - self._at) * max(LEAST, of_machine * part(own, stolen))
        self._threads |= found
        self._at, self._host = at, host
        self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(f"{int(self.seconds)}\n")
        new.replace(self._path)


def share(old: list[Thread], new: list[Thread], elapsed: int) -> float:
    """Return how much threads ran, of what they wanted to in `elapsed` ns.

    When none waits, they have what they want, also if that is to sleep.
    """
    spent = waited = 0
    for a, b in zip(old, new, strict=True):
        spent += max(0, b.ran - a.ran)
        # What a thread waits is told once it runs.
        starved = a.wants and b.wants and (a.ran, a.waited) == (b.ran, b.waited)
        waited += elapsed if starved else min(elapsed, max(0, b.waited - a.waited))
    return part(max(spent, elapsed - waited), waited)


def part(had: float, lacked: float) -> float:
    """Return how much of what was wanted was had; all, where nothing was wanted."""
    return had / (had + lacked) if had + lacked > 0 else 1.0


def threads(session: int) -> dict[str, Thread]:
    """Return what is known of each thread of a session."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(process.name)) == session:
                found |= {task.name: _thread(task) for task in (process / "task").iterdir()}
        except OSError:  # gone
            continue
    return found


def _thread(task: Path) -> Thread:
    try:
        ran, waited, _ = (task / "schedstat").read_text().split()
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):  # gone, or a kernel that does not tell
        return Thread()
    return Thread(int(ran), int(waited), state == "R")


def _host() -> tuple[int, int]:
    """Return for how long the host's CPUs were busy, and for how long they were not its own."""
    try:
        times = [int(each) for each in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    steal = times[_STEAL] if len(times) > _STEAL else 0
    return sum(t for n, t in enumerate(times) if n not in (*_IDLE, _STEAL)), steal
