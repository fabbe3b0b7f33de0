"""The suite must not call a failure a success: unit tests of its judgement."""

import io
import unittest
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from unittest import mock

from lab.check import compare, machines, report, suite
from lab.check.machines import Report
from lab.check.outcome import Outcome, State, judge, must_run
from lab.check.report import Part
from lab.check.tests import Test
from lab.machine import npt
from lab.machine.result import KILLED, Command, Result, Run

PASSED, FAILED, SKIPPED = State
TEST = Test("some_test", ("some_test",))


def outcome(state: State) -> Outcome:
    """Return an outcome of TEST."""
    return Outcome(TEST.name, state)


def ended(status: int | None, output: str = "") -> Result:
    """Return a result of a command."""
    return Result(0, "t", status, 1, bytearray(output.encode()))


def reports(*states: State) -> list[Report]:
    """Return reports of TEST alone."""
    return [Report({TEST.name: outcome(state)}) for state in states]


class Judge(unittest.TestCase):
    """Of the status and the words of a program."""

    def test_status(self) -> None:
        for status, state in ((0, PASSED), (4, SKIPPED), (1, FAILED), (254, FAILED)):
            self.assertIs(judge("t", ended(status)).state, state)

    def test_signal_timeout_and_death_fail(self) -> None:
        for status, died, reason in (
            (128 + 11, "", "signal 11"),
            (KILLED, "", "did not end"),
            (None, "the machine died", "the machine died"),
        ):
            found = judge("t", ended(status, "ok 1 all\n"), died)
            self.assertIs(found.state, FAILED)
            self.assertIn(reason, found.reason)

    def test_reason_of_a_skip(self) -> None:
        text = "1..0 # SKIP - Requirement not met: kvm_cpu_has(X86_FEATURE_VMX)\n"
        self.assertIn("FEATURE_VMX", judge("t", ended(4, text)).reason)
        self.assertEqual(judge("t", ended(4, "\nno such CPU\n")).reason, "no such CPU")
        self.assertTrue(judge("t", ended(4)).reason)

    def test_a_skip_of_what_must_run(self) -> None:
        skipped = judge("t", ended(4, "no such CPU\n"))
        self.assertIs(must_run(skipped).state, FAILED)
        self.assertIn("no such CPU", must_run(skipped).reason)
        passed = judge("t", ended(0))
        self.assertEqual(must_run(passed), passed)

    def test_skipped_parts_are_told(self) -> None:
        text = "ok 1 anon\nok 2 # SKIP hugetlb\n"
        self.assertIn("hugetlb", judge("t", ended(0, text)).reason)


class Died(unittest.TestCase):
    """A machine, midway: what came of the tests before is known, the others go on."""

    @staticmethod
    def run_until(*statuses: int | None) -> mock.Mock:
        """Return runs in machines that end tests with a status, or die in one."""
        left = list(statuses)

        def run(commands: Sequence[Command], **_: object) -> Run:
            done = Run(Path(), [])
            for number, command in enumerate(commands):
                done.results.append(Result(number, command.name, left.pop(0)))
                if done.results[-1].status is None:
                    done.died = "it died"
                    break
            return done

        return mock.patch.object(npt, "run", side_effect=run)

    def report(self, *statuses: int | None) -> tuple[list[State], list[str], int]:
        tests = [Test(name, ("true",)) for name in "abc"]
        with self.run_until(*statuses) as run:
            found = machines.on_npt("label", tests).outcomes
        inorder = [found[test.name] for test in tests]
        return (
            [each.state for each in inorder],
            [each.reason for each in inorder],
            run.call_count,
        )

    def test_midway(self) -> None:
        states, reasons, boots = self.report(0, None, 0)
        self.assertEqual((states, boots), ([PASSED, FAILED, PASSED], 2))
        self.assertEqual(reasons[1], "it died")

    def test_thrice(self) -> None:
        states, reasons, boots = self.report(None, None, None)
        self.assertEqual((states, boots), ([FAILED, FAILED, FAILED], 3))
        self.assertEqual(set(reasons), {"it died"})


class Compare(unittest.TestCase):
    """With stock modules."""

    def verdict(self, stock: State, ours: State, test: Test = TEST) -> State | None:
        clear, unclear = compare.compare([test], *reports(stock, ours))
        self.assertEqual(len(clear) + len(unclear), 1)
        return clear[0].state if clear else None

    def test_clear(self) -> None:
        self.assertIs(self.verdict(PASSED, PASSED), PASSED)
        self.assertIs(self.verdict(FAILED, PASSED), PASSED)
        self.assertIs(self.verdict(SKIPPED, SKIPPED), SKIPPED)

    def test_to_be_repeated(self) -> None:
        for states in (
            (PASSED, FAILED),
            (PASSED, SKIPPED),
            (SKIPPED, FAILED),
            (FAILED, FAILED),
        ):
            self.assertIsNone(self.verdict(*states))

    def test_known_to_fail(self) -> None:
        known = Test(TEST.name, (), known_to_fail="the CPU")
        self.assertIs(self.verdict(FAILED, FAILED, known), SKIPPED)
        self.assertIsNone(self.verdict(PASSED, FAILED, known))

    def test_left_out_is_skipped(self) -> None:
        self.assertIs(self.verdict(PASSED, PASSED, Test("t", (), left_out="slow")), SKIPPED)

    def test_repeated(self) -> None:
        for ours, stock, state in (
            ((FAILED, FAILED, FAILED), (PASSED, PASSED, PASSED), FAILED),
            ((FAILED, FAILED, FAILED), (PASSED, PASSED, FAILED), FAILED),
            ((FAILED, FAILED, FAILED), (PASSED, FAILED, FAILED), SKIPPED),
            ((FAILED, FAILED, PASSED), (PASSED, PASSED, PASSED), FAILED),
            ((FAILED, FAILED, PASSED), (PASSED, FAILED, PASSED), PASSED),
            ((FAILED, PASSED, PASSED), (PASSED, PASSED, PASSED), PASSED),
            ((FAILED, FAILED, FAILED), (FAILED, FAILED, FAILED), SKIPPED),
            ((FAILED, FAILED, FAILED), (SKIPPED, SKIPPED, SKIPPED), FAILED),
            ((SKIPPED, SKIPPED, SKIPPED), (PASSED, PASSED, PASSED), FAILED),
        ):
            runs = (list(map(outcome, states)) for states in (ours, stock))
            verdict = compare.settle(*runs)
            self.assertIs(verdict.state, state, (ours, stock))
            self.assertIn(" of 3", verdict.reason)

    def test_a_machine_that_stood_still_is_not_flaky(self) -> None:
        stuck = replace(outcome(FAILED), reason=f"{npt.STILL}; see there")
        ours, stock = [stuck, outcome(PASSED), outcome(PASSED)], [outcome(PASSED)] * 3
        self.assertIs(compare.settle(ours, stock).state, FAILED)

    def test_only_new_complaints_count(self) -> None:
        old = "[   12.5] WARNING: CPU: 1 PID: 77 at arch/x86/kvm/x86.c:99 f+0x1/0x2 [kvm]\n"
        same = old.replace("12.5", "8.1").replace("CPU: 1 PID: 77", "CPU: 0 PID: 5")
        new = old.replace("x86.c:99", "x86.c:100")
        self.assertEqual(machines.signature(old), machines.signature(same))
        stock, ours = (
            Report(splats=[Outcome("kernel log", FAILED, output=text) for text in texts])
            for texts in ([old], [same, new])
        )
        self.assertEqual([found.output for found in compare.complaints(stock, ours)], [new])


class Show(unittest.TestCase):
    """The last line and the status of the command."""

    def shown(self, *states: State) -> tuple[int, list[str]]:
        with redirect_stdout(io.StringIO()) as out:
            status = report.show([Part("part", [outcome(state) for state in states])])
        return status, out.getvalue().splitlines()

    def test_last_line(self) -> None:
        status, lines = self.shown(PASSED, PASSED, SKIPPED)
        self.assertEqual((status, lines[-1]), (0, "2 passed, 0 failed, 1 skipped"))
        self.assertEqual(lines.count(lines[-1]), 1)

    def test_a_failure_shows_in_the_status(self) -> None:
        status, lines = self.shown(PASSED, FAILED)
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_nothing_passed_is_no_success(self) -> None:
        self.assertEqual(self.shown(SKIPPED)[0], 1)
        self.assertEqual(self.shown()[0], 1)

    def test_states_in_order(self) -> None:
        self.assertEqual(report.last_line(Counter()), "0 passed, 0 failed, 0 skipped")


class Recorder(unittest.TestCase):
    """Failures of unit tests are told as such, wherever they happen."""

    def _states(self, case: type[unittest.TestCase]) -> list[State]:
        part = Part("unit tests")
        loaded = unittest.defaultTestLoader.loadTestsFromTestCase(case)
        with mock.patch.object(unittest.defaultTestLoader, "discover", return_value=loaded):
            suite._unit(part)
        return [outcome.state for outcome in part.outcomes]

    def test_a_failed_sub_test_is_a_failure(self) -> None:
        """Of the test that it is a part of."""

        class Case(unittest.TestCase):
            def test_it(self) -> None:
                with self.subTest("a"):
                    self.fail()

        self.assertEqual(self._states(Case), [State.FAILED])

    def test_a_class_that_fails_is_a_failure(self) -> None:
        """Though no test of it has begun."""

        class Case(unittest.TestCase):
            @classmethod
            def setUpClass(cls) -> None:
                raise OSError

            def test_it(self) -> None:
                pass

        self.assertEqual(self._states(Case), [State.FAILED])
