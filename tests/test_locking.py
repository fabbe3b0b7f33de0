"""The locking benchmark's output, and its figures against their targets."""

import io
import json
import unittest
from argparse import Namespace
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from lab.check.outcome import State
from lab.error import LabError
from lab.measure import locking
from lab.measure.locking import Figure
from lab.paths import ROOT


def line(kind: str, data: object) -> str:
    """Return a line as bpftrace prints it."""
    return json.dumps({"type": kind, "data": data})


class Trace(unittest.TestCase):
    """Of mmu_lock, by bpftrace."""

    def test_each_run_has_its_own_maps(self) -> None:
        text = [line("attached_probes", {"probes": 6}), line("printf", "ready\n"), "", ""]
        for held in (100, 200):
            text.append(line("printf", "run\n"))
            text.append(line("map", {"@longest": {"age:16": held}}))
            text.append(line("map", {"@holds": {"age:16": 3, "idle": 5}}))
        runs = list(locking.parse_trace("\n".join(text)))
        self.assertEqual([longest["age:16"] for longest, _ in runs], [100, 200])
        self.assertEqual(runs[0][1], {"age:16": 3, "idle": 5})

    def test_a_run_without_a_hold(self) -> None:
        text = [line("printf", "run\n"), line("printf", "run\n")]
        self.assertEqual(list(locking.parse_trace("\n".join(text))), [({}, {}), ({}, {})])


class Read(unittest.TestCase):
    """Of what programs and tracer have left behind."""

    def read(self, *runs: str) -> list[Figure]:
        """Return the figures of a run on either modules, of which the tracer saw these."""
        got = {"path": "nx", "mib": 16, "storm_ns": 5, "faults": 1}
        with (
            TemporaryDirectory() as scratch,
            mock.patch.object(locking, "DIRECTORY", Path(scratch)),
        ):
            for whose in ("stock", "ours"):
                Path(scratch, f"alone.{whose}.txt").write_text(json.dumps(got) + "\n")
            text = [line("printf", "run\n") + "\n" + held for held in runs]
            Path(scratch, "alone.trace").write_text("\n".join(text))
            return list(locking.read("alone"))

    def test_whose_holds_are_whose(self) -> None:
        stock, ours = (line("map", {"@longest": {"nx:16": held}}) for held in (700, 5))
        self.assertEqual([figure.hold for figure in self.read(stock, ours)], [700, 5])

    def test_a_run_that_the_tracer_lost(self) -> None:
        """Then all that follow would be taken for others."""
        with self.assertRaisesRegex(LabError, "1 of 2"):
            self.read(line("map", {"@longest": {"nx:16": 700}}))


class Machines(unittest.TestCase):
    """Those that run at the same time."""

    def test_the_cause_is_told_and_not_that_the_other_was_ended(self) -> None:
        self.addCleanup(locking.runs.STOPPING.clear)
        stopped = []

        def command(*_: object, turns: int, **__: object) -> None:
            if turns == 2:
                raise LabError("it died")
            stopped.append(locking.runs.STOPPING.wait(20))
            raise KeyboardInterrupt

        args = Namespace(modes=list(locking.MODES), timeout=5)
        with (
            TemporaryDirectory() as scratch,
            mock.patch.object(locking, "DIRECTORY", Path(scratch)),
            mock.patch.object(locking, "console"),
            mock.patch.object(locking, "_script", return_value=""),
            mock.patch.object(locking.npt, "command", command),
            mock.patch.object(locking.os, "sched_getaffinity", return_value={0, 1}),
            self.assertRaisesRegex(LabError, "it died"),
        ):
            locking._measure_all(args)
        self.assertEqual(stopped, [True])


class Untrue(unittest.TestCase):
    """What the documentation tells, beside what was measured."""

    TEXT = """
| host takes memory away (MMU notifier) | 1,000 / 16,000 / 64,000 | 1.2 / 1.2 / 1.2 |
| ageing (a page) | 6.2 / 6.6 / 6.6 | 0 / 0 / 0 |
| `KVM_CLEAR_DIRTY_LOG` | 1,000 / 16,000 / 64,000 | 1.2 / 1.2 / 1.2 |
| `KVM_RESET_DIRTY_RINGS` | 1,000 / 16,000 / 64,000 | 1.2 / 1.2 / 1.2 |
| memslot deleted | 1,000 / 16,000 / 64,000 | 1.2 / 1.2 / 1.2 |
| NX huge page recovery | 9 / 9 / 9 | 1.2 / 1.2 / 1.2 |
"""

    def untrue(self, text: str, **holds: int) -> list[str]:
        """Return what is said of a text, with some of ours held as long as this."""
        known = {
            ("alone", whose, path, mib): Figure(
                *("alone", whose, path, mib, 1),
                hold=mib * 62_500
                if whose == "stock"
                else holds.get(path, 0 if path == "age" else 1200),
            )
            for whose in ("stock", "ours")
            for path in locking.TOLD
            for mib in locking.SIZES
        }
        return list(locking.untrue(text, known))

    def test_what_is_told_was_measured(self) -> None:
        self.assertEqual(self.untrue(self.TEXT), [])

    def test_ours_takes_longer(self) -> None:
        (wrong,) = self.untrue(self.TEXT, nx=1500)
        self.assertIn("NX huge page recovery, ours: 1.2 / 1.2 / 1.2, not 1.5", wrong)
        (wrong,) = self.untrue(self.TEXT, age=1500)
        self.assertIn("ageing, ours: 0 / 0 / 0, not 1.5", wrong)

    def test_stock_takes_less(self) -> None:
        (wrong,) = self.untrue(self.TEXT.replace("(MMU notifier) | 1,000", "| 2,000"))
        self.assertIn("host takes memory away, stock: 2,000 / 16,000", wrong)

    def test_a_row_is_missing(self) -> None:
        wrong = self.untrue(self.TEXT.replace("memslot", "slot"))
        self.assertEqual([line.partition(":")[2][:8] for line in wrong], [" nothing"] * 2)

    def test_a_figure_is_missing(self) -> None:
        (wrong,) = self.untrue(
            self.TEXT.replace("64,000 | 1.2 / 1.2 / 1.2", "64,000 | 1.2 / 1.2", 1)
        )
        self.assertIn("1.2 / 1.2, not 1.2 / 1.2 / 1.2", wrong)


class Conclude(unittest.TestCase):
    """What one run of the benchmark comes to."""

    ARGS = Namespace(modes=["alone"], paths=["nx"], sizes=[16, 1024])

    def figures(self, mode: str = "alone", hold: int = 100) -> list[Figure]:
        return [
            Figure(mode, whose, "nx", mib, 100, worst=7, hold=hold if mib > 16 else 100)
            for whose in ("stock", "ours")
            for mib in (16, 1024)
        ]

    def test_what_an_earlier_run_left_is_not_judged(self) -> None:
        """It is shown."""
        kept = self.figures("turns")
        found = list(locking.conclude([*self.figures(), *kept], self.ARGS))
        self.assertEqual({verdict.met for verdict in found}, {True})
        self.assertFalse(any("turns" in verdict.text for verdict in found))
        self.assertFalse(any("populate" in verdict.text for verdict in found))

    def test_a_figure_that_is_missing(self) -> None:
        with self.assertRaises(LabError):
            list(locking.conclude(self.figures()[:-1], self.ARGS))

    def test_status_and_last_line(self) -> None:
        """Of the command."""
        for hold, status, words in (
            (100, 0, "2 passed, 0 failed, 0 skipped"),
            (200, 1, "1 passed, 1 failed, 0 skipped"),
        ):
            made = self.figures(hold=hold)
            with (
                TemporaryDirectory(dir=ROOT / "build") as scratch,
                mock.patch.object(locking, "DIRECTORY", Path(scratch)),
                mock.patch.object(locking, "console"),
                mock.patch.object(locking, "read", return_value=made),
                mock.patch.object(locking, "PROGRAM", Path(scratch)),
                mock.patch.object(locking, "_plot"),
                mock.patch.object(locking, "_script"),
                mock.patch("lab.machine.npt.command") as command,
                redirect_stdout(io.StringIO()) as out,
            ):
                command.return_value.status = 0
                args = Namespace(
                    **vars(self.ARGS), no_build=True, keep=False, timeout=1, rounds=1
                )
                self.assertEqual(locking.run(args), status)
            self.assertEqual(out.getvalue().splitlines()[-1], words)


class Judge(unittest.TestCase):
    """Of targets."""

    def met(self, *figures: Figure) -> list[bool | None]:
        known = {(f.mode, f.modules, f.path, f.mib): f for f in figures}
        return [verdict.met for verdict in locking.judge(known)]

    def holds(self, first: int, last: int, stock: int = 900) -> bool | None:
        """Return the verdict on the longest holds at both ends."""
        met, _ = self.met(
            Figure("alone", "ours", "nx", 16, 1, hold=first),
            Figure("alone", "ours", "nx", 1024, 1, hold=last),
            Figure("alone", "stock", "nx", 1024, 1, hold=stock),
        )
        return met

    def test_longest_hold(self) -> None:
        self.assertIs(self.holds(100, 109), True)
        self.assertIs(self.holds(100, 111), False)

    def test_no_hold_where_there_are_some_later(self) -> None:
        """One that was lost is not met."""
        self.assertIs(self.holds(0, 900), False)

    def test_no_hold_at_all(self) -> None:
        """It says something if the tracer has seen those of stock modules."""
        self.assertIs(self.holds(0, 0), True)
        self.assertIs(self.holds(0, 0, stock=0), None)

    def test_storm(self) -> None:
        for storm, met in ((102, True), (104, False)):
            stock = Figure("alone", "stock", "nx", 1024, 100)
            self.assertEqual(
                self.met(stock, replace(stock, modules="ours", storm=storm)), [met]
            )

    def test_worst_fault(self) -> None:
        for path, worst, met in (
            ("notifier", 100, True),
            ("notifier", 101, False),
            ("notifier", 0, False),
            ("nx", 3333, True),
            ("nx", 3334, False),
        ):
            stock = Figure("turns", "stock", path, 1024, 100, worst=5000)
            ours = replace(stock, modules="ours", worst=worst)
            self.assertEqual(self.met(stock, ours), [met], (path, worst))

    def test_threads(self) -> None:
        one = {"threads": 1, "ns": 160, "mib": 1}
        for ns, runs in ((160, 2), (159, 2), (160, 1)):
            timed = [{**one, "ns": ns}, {**one, "threads": 2, "ns": 100}][:runs]
            found = [verdict.met for verdict in locking.judge_threads(timed)]
            self.assertEqual(found, [(ns, runs) == (160, 2)])

    def test_states(self) -> None:
        states = [locking.Verdict("", met).state for met in (True, False, None)]
        self.assertEqual(states, list(State))
