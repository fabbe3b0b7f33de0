"""Builds of the modules do not disturb one another."""

import fcntl
import subprocess
import sys
import unittest

from lab import modules
from lab.paths import BUILD, ROOT

TRY = """
import fcntl
from lab.paths import BUILD
with (BUILD / ".modules.lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
HOLD_AND_DIE = """
import os
from lab import modules
with modules.locked():
    os.kill(os.getpid(), 9)
"""


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in another process, as another build would."""
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
    )


class Lock(unittest.TestCase):
    """One build at a time, of any number of processes."""

    def test_another_process_is_kept_out_and_let_in(self) -> None:
        with modules.locked():
            kept_out = python(TRY)
        self.assertIn("BlockingIOError", kept_out.stderr)
        let_in = python(TRY)
        self.assertEqual(let_in.returncode, 0, let_in.stderr)

    def test_a_build_that_was_killed_leaves_no_lock(self) -> None:
        self.assertEqual(python(HOLD_AND_DIE).returncode, -9)
        with (BUILD / ".modules.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


if __name__ == "__main__":
    unittest.main()
