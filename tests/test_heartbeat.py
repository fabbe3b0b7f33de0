"""What the heartbeat makes of a machine's signs of life."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from lab.machine import ept, heartbeat, npt, served
from lab.machine.result import Stream
from lab.paths import ROOT


class HeartbeatTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)
        self.enterContext(mock.patch.object(heartbeat, "_tell"))
        self.pulse = heartbeat.Heartbeat(self.directory)
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1
        path = self.directory / heartbeat.BEAT
        path.touch()
        os.utime(path, ns=(self.beats, self.beats))

    def looks(self) -> int:
        """Return how many looks it takes until the machine is dead, at most a thousand."""
        return next((n for n in range(1, 1000) if self.pulse.is_dead()), 1000)

    def test_beating_is_alive(self) -> None:
        for _ in range(1000):
            self.beat()
            assert not self.pulse.is_dead()

    def test_silence_is_death_and_tells_what_is_known(self) -> None:
        self.beat()
        assert self.looks() == 32
        assert "QEMU does not answer" in (self.directory / heartbeat.STATE).read_text()

    def test_who_comes_back_is_alive(self) -> None:
        self.beat()
        for _ in range(25):
            assert not self.pulse.is_dead()
        self.beat()
        assert self.looks() == 32

    def test_booting_takes_long_and_counts_by_the_console(self) -> None:
        console = self.directory / "console"
        console.write_text("Linux")
        for _ in range(280):
            assert not self.pulse.is_dead()
        console.write_text("Linux version")
        assert self.looks() == 302

    def test_without_a_heartbeat_nothing_is_known(self) -> None:
        (self.directory / "begun").touch()
        assert self.looks() == 1000


# Of what QEMU says to `info lapic`.


def test_losttest_what_an_apic_has() -> None:
    assert heartbeat.lost("ISR\t (none)\nIRR\t 236 \n\nAPR 0x00 TPR 0x10")
    assert not heartbeat.lost("ISR\t 236 \nIRR\t (none)\n\nAPR 0x00 TPR 0x10")


def test_endedtest_what_does_not_answer_is_over() -> None:
    """A process that never gave a sign of life is ended, as one that is late is."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        ending = npt.pump(["sleep", "60"], directory, bytes, 1.5)
    assert ending == npt.Ending.LATE


def test_endedtest_so_is_bochs_when_it_is_late() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with subprocess.Popen(["sleep", "60"], start_new_session=True) as machine:
            clock = served.Served(directory, machine.pid)
            ept._hear(machine, directory, Stream(), clock, 1.5)
            assert machine.poll() is None
            machine.kill()


def test_endedtest_a_killed_lab_leaves_no_machine() -> None:
    """Not even by the signal that nobody can answer."""
    pump = "from pathlib import Path; from lab.machine import npt; npt.pump"
    with tempfile.TemporaryDirectory() as scratch:
        pid = Path(scratch, "pid")
        words = ["sh", "-c", f'echo $$ >"{pid}"; sleep 60; :']
        line = f"{pump}({words}, Path({scratch!r}), bytes, 60)"
        with subprocess.Popen([sys.executable, "-c", line], cwd=ROOT) as lab:
            machine = _until(lambda: pid.exists() and pid.read_text().strip())
            # One of them is what ends the other.
            children = Path("/proc", str(lab.pid), "task", str(lab.pid), "children")
            _until(lambda: len(children.read_text().split()) == 2)
            lab.send_signal(signal.SIGKILL)
        # What nobody waits for may stay, as a zombie, which has no command line.
        line = Path("/proc", machine, "cmdline")
        _until(lambda: not line.exists() or not line.read_bytes())


def _until(get: Callable[[], str | bool]) -> str:
    """Return what is got when that is something."""
    end = time.monotonic() + 20
    while not (got := get()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return str(got)


if __name__ == "__main__":
    unittest.main()
