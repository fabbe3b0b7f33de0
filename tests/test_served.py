"""A machine's clock: how much it was served of what it wanted."""

import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from lab.machine import served


class ServedTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)

    def told(self) -> int:
        return int((self.directory / served.FILE).read_text())

    def busy(self, cpu: int) -> int:
        """Start a session that keeps a CPU busy; return its number."""
        command = ["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"]
        loop = subprocess.Popen(command, start_new_session=True)
        self.addCleanup(loop.wait)
        self.addCleanup(os.killpg, loop.pid, signal.SIGKILL)
        return loop.pid

    def test_who_wants_nothing_is_served(self) -> None:
        self.assertEqual(served.part(0, 0), 1)
        clock = served.Served(self.directory, os.getpid() + 1_000_000_000)
        self.assertEqual(self.told(), 0)
        time.sleep(1.1)
        clock.tick()
        self.assertGreaterEqual(clock.seconds, served.LEAST * 1.1)

    def test_what_counts(self) -> None:
        self.assertEqual(served.part(1, 3), 0.25)
        self.assertEqual(served.part(0, 3), 0)

    def test_of_two_on_a_cpu_each_is_served_for_half(self) -> None:
        cpu = min(os.sched_getaffinity(0))
        one, _ = (self.busy(cpu) for _ in range(2))
        clock = served.Served(self.directory, one)
        begun = time.monotonic()
        for _ in range(6):
            time.sleep(0.5)
            clock.tick()
        # Half, if nothing else runs; less beside other work.
        self.assertLess(clock.seconds, 0.75 * (time.monotonic() - begun))
        self.assertEqual(self.told(), int(clock.seconds))


if __name__ == "__main__":
    unittest.main()
