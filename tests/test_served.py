"""A machine's clock: how much it was served of what it wanted."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lab.machine import served
from lab.machine.served import Thread

A, WANTS = Thread(5, 5), Thread(5, 5, wants=True)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    (
        # Who wants nothing, or sleeps, is served; who waits is not.
        ([], [], 1),
        ([A], [A], 1),
        ([A], [Thread(6, 15)], 0.9),
        ([A], [Thread(25, 85)], 0.2),
        ([A], [Thread(5, 105)], 0),
        # All threads count.
        ([Thread(0, 0), Thread(50, 10)], [Thread(80, 20), Thread(110, 20)], 140 / 170),
        # Who has not run waited. What it waited before is told later, and counts once.
        ([WANTS], [WANTS], 0),
        ([WANTS], [Thread(105, 705)], 0.5),
        # Figures may go back.
        ([Thread(50, 50)], [Thread(20, 20)], 1),
    ),
)
def test_share(old: list[Thread], new: list[Thread], part: float) -> None:
    assert served.share(old, new, 100) == part
    assert served.part(0, 0) == 1


class Clock:
    """One whose host tells what `found` and `host` say."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.found, self.host = 0.0, {"1": Thread()}, (0, 0)
        monkeypatch.setattr(served, "threads", lambda _: self.found)
        monkeypatch.setattr(served, "_host", lambda: self.host)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.path = directory / served.FILE
        self.served = served.Served(directory, 1)

    def at(self, now: float) -> float:
        """Return how much has been served then."""
        self.now = now
        self.served.tick()
        assert self.path.read_text() == f"{int(self.served.seconds)}\n"
        return self.served.seconds


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(tmp_path, monkeypatch)


def test_it_goes_as_the_machine_and_the_host_are_served(clock: Clock) -> None:
    assert clock.path.read_text() == "0\n"
    clock.found = {"1": Thread(4_000_000_000, 4_000_000_000)}
    # At last, it was moved to another host.
    for now, host, seconds in ((8, (0, 0), 4), (18, (75, 25), 11.5), (28, (85, 20), 21.5)):
        clock.host = host
        assert clock.at(now) == seconds


def test_a_thread_that_could_not_be_read_is_not_new(clock: Clock) -> None:
    known = {"1": Thread(9_000_000_000, 0), "2": Thread(0, 9_000_000_000)}
    told = []
    for now, clock.found in enumerate((known, {}, known), 1):
        told.append(clock.at(now))
    assert told[2] == told[1] + 1


def test_a_hang_ends(clock: Clock) -> None:
    clock.found = {"1": Thread(0, 0, wants=True)}
    clock.at(0)
    for now in (*range(1, 401), 1000 + served.GRACE):
        clock.at(now)
        assert clock.served.is_past(100) == (now >= 400)
        assert clock.served.is_past(1000) == (now > 400)


def busy(cpu: int) -> subprocess.Popen[bytes]:
    """Start a session that keeps a CPU busy."""
    command = ["sh", "-c", "while :; do :; done"]
    loop = subprocess.Popen(command, start_new_session=True)
    os.sched_setaffinity(loop.pid, {cpu})
    return loop


def test_of_two_on_a_cpu_each_is_served_for_half(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    loops = [busy(cpu) for _ in range(2)]
    try:
        clock = served.Served(tmp_path, loops[0].pid)
        for _ in range(6):
            time.sleep(0.5)
            clock.tick()
        if any(thread.ran for thread in served.threads(loops[0].pid).values()):
            # Half, if nothing else runs; less beside other work.
            assert clock.seconds < 0.75 * clock.elapsed
        else:
            assert clock.seconds >= served.LEAST * clock.elapsed
        assert (tmp_path / served.FILE).read_text() == f"{int(clock.seconds)}\n"
    finally:
        for loop in loops:
            os.killpg(loop.pid, signal.SIGKILL)
            loop.wait()
