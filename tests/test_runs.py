"""Files of runs, and what a machine is told to do."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from lab.machine import runs
from lab.machine.result import Command


class NewDirectory(unittest.TestCase):
    def test_those_of_long_ago_go_but_not_one_that_still_runs(self) -> None:
        with (
            tempfile.TemporaryDirectory() as scratch,
            mock.patch.object(runs, "RUNS", Path(scratch)),
        ):
            ended, running = (
                Path(scratch, f"20200101-000000-{pid}-1") for pid in (2**22 + 1, os.getpid())
            )
            for old in (ended, running):
                old.mkdir()
            made = [runs.new_directory() for _ in range(runs.KEPT_RUNS + 1)]
            self.assertFalse(ended.exists())
            self.assertTrue(running.exists())
            self.assertTrue(made[-1].exists())


class Job(unittest.TestCase):
    """As lab/guest/run.sh reads it."""

    def test_what_is_written(self) -> None:
        commands = [Command("true"), Command("a 'b c'", "a name", 1.5, 7)]
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            runs.write_job(directory, commands, "/kvm.ko a=1\n", {"swap": "it's"})
            told = (directory / "commands").read_text()
            self.assertEqual(told, "0 0 0 \n1 2 7 a name\n")
            self.assertEqual((directory / "command.1").read_text(), "a 'b c'\n")
            self.assertEqual((directory / "modules").read_text(), "/kvm.ko a=1\n")
            self.assertIn("swap='it'\"'\"'s'\n", (directory / "job").read_text())


if __name__ == "__main__":
    unittest.main()
