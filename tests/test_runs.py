"""Files of runs."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from lab.machine import npt


class NewDirectoryTest(unittest.TestCase):
    def test_those_of_long_ago_go_but_not_one_that_still_runs(self) -> None:
        with (
            tempfile.TemporaryDirectory() as scratch,
            mock.patch.object(npt, "RUNS", Path(scratch)),
        ):
            ended, running = (
                Path(scratch, f"20200101-000000-{pid}-1") for pid in (2**22 + 1, os.getpid())
            )
            for old in (ended, running):
                old.mkdir()
            made = [npt.new_directory() for _ in range(npt.KEPT_RUNS + 1)]
            self.assertFalse(ended.exists())
            self.assertTrue(running.exists())
            self.assertTrue(made[-1].exists())


if __name__ == "__main__":
    unittest.main()
