"""An NPT machine has what it takes against the emulator's breakpoints that are gone."""

import io
import tempfile
import unittest
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from lab.error import LabError
from lab.machine import npt, runs, served
from lab.machine.result import Command, Run
from lab.make import probes

_OOPS = "[ 1.0] Oops: int3: 0000 [#1]\nRIP: 0010:f+0x1/0x2\nCode: 00 {} <90> 66\n"
_GONE, _THERE = _OOPS.format("e9"), _OOPS.format("cc")
_ENDS = b"\x1elab: done\n"
_DIES_RUNNING = b"\x1elab: run 0 a\n"


class Breakpoints(unittest.TestCase):
    """Of a machine's own kernel."""

    def setUp(self) -> None:
        scratch = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.lists: list[str] = []
        self.jobs: list[str] = []
        kernel = SimpleNamespace(image="an image")
        for where, name, value in (
            (runs, "RUNS", scratch),
            (npt.modules, "to_load", lambda *_, **__: "kvm.ko\n"),
            (npt.debian, "kernel", lambda: kernel),
            (npt, "QEMU", SimpleNamespace(program=lambda: "qemu")),
            (npt.probes, "build", lambda: None),
        ):
            self.enterContext(mock.patch.object(where, name, value))
        self.enterContext(redirect_stderr(io.StringIO()))

    def _run(self, *boots: tuple[str, bytes], **options: bool) -> Run:
        """Run a command in machines that log and print so."""
        left = list(boots)

        def pump(
            _: Sequence[str], directory: Path, hear: Callable[[bytes], None], __: float
        ) -> npt.Ending:
            self.lists.append((directory / "modules").read_text())
            self.jobs.append((directory / "job").read_text())
            logged, printed = left.pop(0)
            (directory / "console").write_text(logged)
            if printed:
                (directory / "begun").touch()
            hear(printed)
            return npt.Ending.BY_ITSELF

        with mock.patch.object(npt, "pump", pump):
            return npt.run([Command("true", "a")], **options)

    def test_the_module_comes_before_kvm(self) -> None:
        """But under -icount, where CPUs take turns."""
        for icount, listed in ((False, f"{probes.BREAKPOINT}\nkvm.ko\n"), (True, "kvm.ko\n")):
            self._run(("", _ENDS), icount=icount)
            self.assertEqual(self.lists.pop(), listed)

    def test_limits_go_by_the_clock(self) -> None:
        """But under -icount, where a machine has its own."""
        for icount, clock in ((False, served.FILE), (True, "''")):
            self._run(("", _ENDS), icount=icount)
            self.assertIn(f"\nclock={clock}\n", self.jobs.pop())

    def test_a_machine_that_boots_is_booted_again_once(self) -> None:
        self.assertEqual(self._run((_GONE, b""), ("", _ENDS)).died, "")
        self.assertEqual(len(self.lists), 2)
        with self.assertRaises(LabError):
            self._run((_GONE, b""), (_GONE, b""))
        self.assertEqual(len(self.lists), 4)

    def test_no_other_death_is_excused(self) -> None:
        """A breakpoint that is there, another complaint before it, or a command that runs."""
        for logged in (_THERE, f"[ 0.9] BUG: any\n---[ end trace\n{_GONE}"):
            with self.assertRaises(LabError):
                self._run((logged, b""))
        self.assertIn("died in the run", self._run((_GONE, _DIES_RUNNING)).died)
        self.assertEqual(len(self.lists), 3)


if __name__ == "__main__":
    unittest.main()
