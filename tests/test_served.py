"""A machine's clock: how much it was served of what it wanted."""

import os
import signal
import subprocess
import time
import unittest
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


class ClockTest(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _host(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.patch = tmp_path, monkeypatch

    def told(self) -> int:
        return int((self.directory / served.FILE).read_text())

    def clock(self) -> served.Served:
        """Return a clock whose host tells what self.found and self.host say."""
        self.now, self.found, self.host = 0.0, {"1": Thread()}, (0, 0)
        self.patch.setattr(served, "threads", lambda _: self.found)
        self.patch.setattr(served, "_host", lambda: self.host)
        self.patch.setattr(time, "monotonic", lambda: self.now)
        return served.Served(self.directory, 1)

    def test_it_goes_as_the_machine_and_the_host_are_served(self) -> None:
        clock = self.clock()
        self.assertEqual(self.told(), 0)
        self.found = {"1": Thread(4_000_000_000, 4_000_000_000)}
        # At last, it was moved to another host.
        for now, host, seconds in ((8, (0, 0), 4), (18, (75, 25), 11.5), (28, (85, 20), 21.5)):
            self.now, self.host = now, host
            clock.tick()
            self.assertEqual((clock.seconds, self.told()), (seconds, int(seconds)))

    def test_a_thread_that_could_not_be_read_is_not_new(self) -> None:
        clock = self.clock()
        known = {"1": Thread(9_000_000_000, 0), "2": Thread(0, 9_000_000_000)}
        for now, found in enumerate((known, {}, known), 1):
            before, self.now, self.found = clock.seconds, now, found
            clock.tick()
        self.assertEqual(clock.seconds, before + 1)

    def test_a_hang_ends(self) -> None:
        clock = self.clock()
        self.found = {"1": Thread(0, 0, wants=True)}
        clock.tick()
        for now in (*range(1, 401), 1000 + served.GRACE):
            self.now = now
            clock.tick()
            self.assertEqual(clock.is_past(100), now >= 400)
            self.assertEqual(clock.is_past(1000), now > 400)

    def test_of_two_on_a_cpu_each_is_served_for_half(self) -> None:
        cpu = min(os.sched_getaffinity(0))
        one, _ = (self.busy(cpu) for _ in range(2))
        clock = served.Served(self.directory, one)
        for _ in range(6):
            time.sleep(0.5)
            clock.tick()
        if any(thread.ran for thread in served.threads(one).values()):
            # Half, if nothing else runs; less beside other work.
            self.assertLess(clock.seconds, 0.75 * clock.elapsed)
        else:
            self.assertGreaterEqual(clock.seconds, served.LEAST * clock.elapsed)
        self.assertEqual(self.told(), int(clock.seconds))

    def busy(self, cpu: int) -> int:
        """Start a session that keeps a CPU busy; return its number."""
        command = ["sh", "-c", "while :; do :; done"]
        loop = subprocess.Popen(command, start_new_session=True)
        self.addCleanup(loop.wait)
        self.addCleanup(os.killpg, loop.pid, signal.SIGKILL)
        os.sched_setaffinity(loop.pid, {cpu})
        return loop.pid
