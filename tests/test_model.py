"""The judgement on what the checker of the models says, and the list of mutations."""

import re
import tempfile
import unittest
from pathlib import Path
from unittest.mock import patch

from lab.check import model
from lab.check.model import Model
from lab.check.outcome import Outcome, State
from lab.error import LabError

COUNTS_TO_THREE = """
byte n;
active proctype counts()
{
	do
	:: n < 3 -> n++
	:: else -> break
	od;
	assert(n == 3)
}
"""


def told(*lines: str, errors: int = 0) -> str:
    """Return a report of the checker, with some lines at its head."""
    return "\n".join(
        (
            *lines,
            "Full statespace search for:",
            "\tassertion violations\t+",
            "\tinvalid end states\t+",
            f"State-vector 20 byte, depth reached 9, errors: {errors}",
            "      101 states, stored",
            "unreached in proctype p",
            "\t(0 of 9 states)",
        )
    )


def judged(text: str, violates: str = "", status: int = 0) -> Outcome:
    """Return what is made of a report."""
    return model.judge(Model("m", "m.pml", (), "", violates), status, text)


class Judge(unittest.TestCase):
    """Of a report."""

    def test_a_model_holds(self) -> None:
        self.assertIs(judged(told()).state, State.PASSED)

    def test_an_error_is_one(self) -> None:
        for found in ("assertion violated (n!=2)", "invalid end state"):
            outcome = judged(told(f"pan:1: {found} (at depth 7)", errors=1))
            self.assertIs(outcome.state, State.FAILED)
            self.assertIn(found, outcome.reason)

    def test_half_a_search_proves_nothing(self) -> None:
        for line in (
            "error: max search depth too small",
            "pan: reached -DMEMLIM bound",
            "pan: out of memory",
            "Warning: Search not completed",
            "pan: error, VECTORSZ too small, recompile pan.c with -DVECTORSZ=N",
        ):
            outcome = judged(told(line))
            self.assertIs(outcome.state, State.FAILED)
            self.assertEqual(outcome.reason, line)

    def test_no_line_may_be_missing(self) -> None:
        lines = told().splitlines()
        for number, line in enumerate(lines[:-1]):
            with self.subTest(line):
                text = "\n".join(lines[:number] + lines[number + 1 :])
                self.assertIs(judged(text).state, State.FAILED)
        self.assertIs(judged("").state, State.FAILED)

    def test_a_check_that_is_off(self) -> None:
        text = told().replace("invalid end states\t+", "invalid end states\t-")
        self.assertIs(judged(text).state, State.FAILED)

    def test_status(self) -> None:
        self.assertIs(judged(told(), status=1).state, State.FAILED)
        found = "pan:1: assertion violated (n!=2) (at depth 7)"
        outcome = judged(found, "assertion violated (n!=2)", status=-9)
        self.assertIs(outcome.state, State.FAILED)

    def test_a_mutation_is_found(self) -> None:
        text = told("pan:1: assertion violated  !(newer) (at depth 7)", errors=1)
        self.assertIs(judged(text, "assertion violated !(newer)").state, State.PASSED)

    def test_a_mutation_is_not_found(self) -> None:
        for line in ("", "error: max search depth too small", "pan: out of memory"):
            outcome = judged(told(line), "assertion violated (n!=2)")
            self.assertIs(outcome.state, State.FAILED)

    def test_a_mutation_breaks_something_else(self) -> None:
        text = told("pan:1: invalid end state (at depth 7)", errors=1)
        outcome = judged(text, "assertion violated (n!=2)")
        self.assertIs(outcome.state, State.FAILED)


class Checker(unittest.TestCase):
    """Spin itself, with models of a few lines."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name)
        for name, path in (("MODELS", self.path), ("DIRECTORY", self.path / "made")):
            patcher = patch.object(model, name, path)
            patcher.start()
            self.addCleanup(patcher.stop)

    def check(self, text: str, violates: str = "", depth: int = 1000) -> Outcome:
        """Return what is made of a model."""
        (self.path / "m.pml").write_text(text)
        subject = Model("m", "m.pml", (), "", violates)
        return model.judge(subject, *model.check(model.make(subject, "-O0"), depth))

    def test_it_holds(self) -> None:
        self.assertIs(self.check(COUNTS_TO_THREE).state, State.PASSED)

    def test_it_does_not_hold(self) -> None:
        text = COUNTS_TO_THREE.replace("n == 3", "n == 2")
        self.assertIs(self.check(text).state, State.FAILED)
        outcome = self.check(text, "assertion violated (n==2)")
        self.assertIs(outcome.state, State.PASSED, outcome.reason)

    def test_deadlock(self) -> None:
        outcome = self.check(COUNTS_TO_THREE.replace("assert(n == 3)", "n == 4"))
        self.assertIs(outcome.state, State.FAILED)
        self.assertIn("invalid end state", outcome.reason)

    def test_search_is_not_deep_enough(self) -> None:
        outcome = self.check(COUNTS_TO_THREE, depth=3)
        self.assertIs(outcome.state, State.FAILED)
        self.assertIn("max search depth too small", outcome.reason)

    def test_what_is_never_executed(self) -> None:
        dead = "assert(n == 3);\n	if :: n == 4 -> n = 5 :: else fi"
        outcome = self.check(COUNTS_TO_THREE.replace("assert(n == 3)", dead))
        self.assertIs(outcome.state, State.FAILED)
        self.assertIn("never executed: m.pml:10 n = 5", outcome.reason)
        meant = dead.replace("fi", f"fi /* {model.NOT_REACHED} */")
        outcome = self.check(COUNTS_TO_THREE.replace("assert(n == 3)", meant))
        self.assertIs(outcome.state, State.PASSED, outcome.reason)

    def test_it_is_no_model(self) -> None:
        with self.assertRaises(LabError):
            self.check(COUNTS_TO_THREE.replace("active", "inactive"))


class List(unittest.TestCase):
    """Of models/models.toml."""

    def test_mutations_are_those_of_the_sources(self) -> None:
        """Each is in what its model is made of, and none is left out of the list."""
        named: set[str] = set()
        for entry in model.load():
            if not entry.violates:
                continue
            sources = [model.MODELS / entry.file, model.MODELS / "mmu.pml"]
            text = "".join(path.read_text() for path in sources)
            self.assertRegex(text, rf"#ifn?def {entry.define[-1]}\b")
            named.add(entry.define[-1])
        text = "".join(path.read_text() for path in model.MODELS.glob("*.pml"))
        switches = set(re.findall(r"#ifn?def ([A-Z]\w+)", text))
        self.assertEqual(switches - named, {"MAY_STOP"})

    def test_names_are_unique(self) -> None:
        names = [entry.name for entry in model.load()]
        self.assertEqual(len(names), len(set(names)))
