"""A clock that goes as fast as a machine is served.

On a busy host, what takes 3 s in a machine takes minutes: its CPUs wait for the host's, and for
each other most of all, where they have to be run at the same time. A limit in seconds of the
host then ends what does not hang. So limits are in seconds in which the machine got what it
wanted: of a second in which its threads ran for a quarter of what they ran and waited for a CPU
(proc_pid_schedstat in the kernel's documentation of /proc), a quarter counts. Time that was
stolen from the host (proc_stat(5)) is not served, either.
"""

import os
import time
from pathlib import Path

FILE = "served"
"""The file of a run in which the machine reads the clock, in whole seconds."""

LEAST = 0.1
"""What always counts of a second, so that a hang ends on any host."""

_STEAL, _IDLE = 7, (3, 4)
_STAT = Path("/proc/stat")


class Served:
    """The clock of one machine, whose threads are those of a session."""

    def __init__(self, directory: Path, session: int) -> None:
        self._path, self._session = directory / FILE, session
        self._ran = _ran(session)
        self._host = _host()
        self._at = time.monotonic()
        self.seconds = 0.0
        self._write()

    def tick(self) -> None:
        """Add what was served since the last time, and tell the machine."""
        at, ran, host = time.monotonic(), _ran(self._session), _host()
        before = [self._ran.get(task, (0, 0)) for task in ran]
        spent, waited = (
            sum(
                max(0, new[which] - old[which])
                for old, new in zip(before, ran.values(), strict=True)
            )
            for which in (0, 1)
        )
        own, stolen = (new - old for old, new in zip(self._host, host, strict=True))
        share = part(spent, waited) * part(own, stolen)
        self.seconds += (at - self._at) * max(LEAST, share)
        self._at, self._ran, self._host = at, ran, host
        self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(f"{int(self.seconds)}\n")
        new.replace(self._path)


def part(spent: float, waited: float) -> float:
    """Return how much of what was wanted was had; all, where nothing was wanted."""
    return spent / (spent + waited) if spent > 0 else float(waited <= 0)


def _ran(session: int) -> dict[str, tuple[int, int]]:
    """Return of each thread of a session for how long it ran and waited, in ns."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(process.name)) != session:
                continue
            for task in (process / "task").iterdir():
                ran, waited, _ = (task / "schedstat").read_text().split()
                found[task.name] = int(ran), int(waited)
        except (OSError, ValueError):  # gone, or a kernel that does not tell
            continue
    return found


def _host() -> tuple[int, int]:
    """Return for how long the host's CPUs were busy, and for how long they were not its own."""
    try:
        times = [int(each) for each in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    steal = times[_STEAL] if len(times) > _STEAL else 0
    return sum(t for n, t in enumerate(times) if n not in (*_IDLE, _STEAL)), steal
