"""What is heard of Bochs, and which CPUs it can have."""

import io
import subprocess
import tempfile
import unittest
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from unittest import mock

from lab import __main__ as main
from lab.check import broken, report, stress
from lab.check.outcome import State
from lab.error import LabError
from lab.machine import ept, runs, served
from lab.machine.result import Result, Run, Stream
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


class Races(unittest.TestCase):
    """What a search for them says."""

    def search(self, shows: Callable[..., bool]) -> Counter[State]:
        """Return it of one broken promise; `shows` says of each run whether a race does."""

        def run(*_: object, **options: object) -> Run:
            return Run(Path(), [Result(0, status=int(shows(**options)))])

        entry = broken.Broken(Path("a"), "p", "a is 3", test="churn")
        args = main.parser().parse_args(["test races", "--seeds", "2"])
        with (
            mock.patch.multiple(broken, load=lambda: [entry], build=lambda *_: Path("kvm.ko")),
            mock.patch.multiple(
                stress, modules=mock.Mock(), selftests=mock.Mock(), console=mock.Mock()
            ),
            mock.patch.object(stress, "locked", nullcontext),
            mock.patch.object(ept, "run", run),
            redirect_stdout(io.StringIO()),
        ):
            args.run(args)
        return report.ENDED

    def test_one_may_show_if_something_is_broken(self) -> None:
        """On whichever machine."""
        found = self.search(lambda cpus, kvm=None, **_: bool(kvm) and cpus == 4)
        self.assertEqual(found, {State.PASSED: 2})

    def test_else_none_may(self) -> None:
        found = self.search(lambda **_: True)
        self.assertEqual(found, {State.FAILED: 1, State.PASSED: 1})

    def test_what_shows_nowhere_is_said(self) -> None:
        found = self.search(lambda **_: False)
        self.assertEqual(found, {State.PASSED: 1, State.SKIPPED: 1})


if __name__ == "__main__":
    unittest.main()
