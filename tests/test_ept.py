"""What is heard of Bochs, and which CPUs it can have."""

import subprocess
import tempfile
import unittest
from pathlib import Path

from lab import __main__ as main
from lab.error import LabError
from lab.machine import ept, runs, served
from lab.machine.result import Stream
from tests.test_result import TWO


class Heard(unittest.TestCase):
    def test_the_log_of_the_kernel_is_none_of_the_output(self) -> None:
        """However they interleave: each has a port."""
        with tempfile.TemporaryDirectory() as scratch:
            directory, stream = Path(scratch), Stream()
            (directory / "console").write_bytes(b"[ 9.7] lab: run\x1elab: end 0 1\n")
            (directory / "output").write_bytes(TWO)
            with subprocess.Popen(["sleep", "60"], start_new_session=True) as machine:
                clock = served.Served(directory, machine.pid)
                ept._hear(machine, directory, stream, clock, 60)
                machine.kill()
        self.assertEqual([result.status for result in stream.results], [0, 254])
        self.assertTrue(stream.done)

    def test_so_it_is_set(self) -> None:
        """Commands print to the port that is no console."""
        self.assertIn("com2: enabled=1, mode=file, dev=output", ept._SETTINGS)
        self.assertNotIn("ttyS1", ept._KERNEL)
        self.assertIn('run.sh" "$lab_run" >/dev/ttyS1', (runs.GUEST / "init.sh").read_text())


class Cpus(unittest.TestCase):
    def test_some_can_be(self) -> None:
        for cpus, quantum in ((0, None), (1, None), (2, None), (2, 1), (4, 16)):
            ept.check(cpus, quantum)

    def test_others_are_refused_before_anything_is_built(self) -> None:
        for words, said in (
            ("--backend ept --cpus 9", "--cpus 9: on EPT there are 1 to 4"),
            ("--backend ept --cpus 2 --quantum 0", "--quantum 0: 1 to 16"),
            ("--backend ept --cpus 2 --quantum 17", "--quantum 17: 1 to 16"),
            ("--backend ept --quantum 3", "--cpus 2 or more"),
            ("--quantum 3", "of EPT"),
        ):
            args = main.parser().parse_args(["run", *words.split(), "--", "true"])
            with self.assertRaisesRegex(LabError, said):
                main._run(args)


if __name__ == "__main__":
    unittest.main()
