"""A machine's clock: how much it was served of what it wanted."""

import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from lab.machine import served
from lab.machine.served import Thread


class ShareTest(unittest.TestCase):
    def test_who_wants_nothing_is_served(self) -> None:
        self.assertEqual(served.share([], [], 100), 1)
        self.assertEqual(served.share([Thread(5, 5)], [Thread(5, 5)], 100), 1)

    def test_who_waits_is_not(self) -> None:
        self.assertEqual(served.share([Thread(5, 5)], [Thread(25, 85)], 100), 0.2)
        self.assertEqual(served.share([Thread(5, 5)], [Thread(5, 105)], 100), 0)

    def test_sleep_is_served(self) -> None:
        self.assertEqual(served.share([Thread(5, 5)], [Thread(6, 15)], 100), 0.9)

    def test_all_threads_count(self) -> None:
        old = [Thread(0, 0), Thread(50, 10)]
        self.assertEqual(served.share(old, [Thread(80, 20), Thread(110, 20)], 100), 140 / 170)

    def test_who_has_not_run_all_the_time_waited(self) -> None:
        thread = Thread(5, 5, wants=True)
        self.assertEqual(served.share([thread], [thread], 100), 0)
        # What it waited before is told later, and does not count twice.
        self.assertEqual(served.share([thread], [Thread(105, 705)], 100), 0.5)

    def test_figures_that_go_back(self) -> None:
        self.assertEqual(served.share([Thread(50, 50)], [Thread(20, 20)], 100), 1)
        self.assertEqual(served.part(0, 0), 1)


class ClockTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)
        self.now = 0.0

    def told(self) -> int:
        return int((self.directory / served.FILE).read_text())

    def clock(self) -> served.Served:
        """Return a clock whose host tells what self.found and self.host say."""
        self.found, self.host = {"1": Thread()}, (0, 0)
        for name, what in (
            ("threads", lambda _: self.found),
            ("_host", lambda: self.host),
            ("time.monotonic", lambda: self.now),
        ):
            patch = mock.patch(f"lab.machine.served.{name}", what)
            patch.start()
            self.addCleanup(patch.stop)
        return served.Served(self.directory, 1)

    def test_it_goes_as_the_machine_and_the_host_are_served(self) -> None:
        clock = self.clock()
        self.assertEqual(self.told(), 0)
        self.now, self.found = 8, {"1": Thread(4_000_000_000, 4_000_000_000)}
        clock.tick()
        self.assertEqual((clock.seconds, self.told()), (4, 4))
        self.now, self.host = 18, (75, 25)
        clock.tick()
        self.assertEqual((clock.seconds, self.told()), (11.5, 11))
        self.now, self.host = 28, (85, 20)  # it was moved to another host
        clock.tick()
        self.assertEqual(clock.seconds, 21.5)

    def test_a_thread_that_could_not_be_read_is_not_new(self) -> None:
        clock = self.clock()
        self.found = {"1": Thread(9_000_000_000, 0), "2": Thread(0, 9_000_000_000)}
        self.now = 1
        clock.tick()
        known, self.found, self.now = self.found, {}, 2
        clock.tick()
        before, self.found, self.now = clock.seconds, known, 3
        clock.tick()
        self.assertEqual(clock.seconds, before + 1)

    def test_a_hang_ends(self) -> None:
        clock = self.clock()
        self.found = {"1": Thread(0, 0, wants=True)}
        clock.tick()
        for _ in range(399):
            self.now += 1
            clock.tick()
        self.assertFalse(clock.is_past(100))
        self.now += 1
        clock.tick()
        self.assertTrue(clock.is_past(100))
        self.assertFalse(clock.is_past(1000))
        self.now = 1000 + served.GRACE
        clock.tick()
        self.assertTrue(clock.is_past(1000))

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


if __name__ == "__main__":
    unittest.main()
