"""The ledger of what takes long: what is a run of a target, and what is written of it."""

import argparse
import datetime
import io
import os
import re
import subprocess
import tempfile
import unittest
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from lab import __main__ as lab
from lab import paths
from lab.check import ledger, noticed, pages, report
from lab.check.outcome import Outcome, State
from lab.check.report import Part
from lab.error import LabError
from lab.paths import ROOT

SOME = Counter({State.PASSED: 3, State.SKIPPED: 1})


class Ledger(unittest.TestCase):
    """In a repository of its own."""

    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "docs").mkdir()
        (self.root / "patches" / "6.12").mkdir(parents=True)
        self.page = self.root / "README.md"
        begin = "<!-- the ledger: written by the lab -->"
        self.page.write_text(f"above\n{begin}\n<!-- end of the ledger -->\nbelow\n")
        kernel = mock.Mock(return_value=mock.Mock(upload="6.12.117-1"))
        chosen = {"VERSION": "6.12", "TESTS_OF": "6.12", "LINUX": self.root / "build" / "linux"}
        for patch in (
            mock.patch.multiple(ledger, ROOT=self.root, FILE=self.root / "docs/ledger.toml"),
            mock.patch.object(pages, "LAB", self.page),
            mock.patch.multiple(paths, SHARED=self.root / "build", **chosen),
            mock.patch.dict(os.environ, KVER=""),
            mock.patch.object(ledger.debian, "unpacked", kernel),
        ):
            self.enterContext(patch)
        self.git("init", "-q")
        self.commit("README.md", "docs")
        self.addCleanup(report.ENDED.clear)
        self.addCleanup(report.TOLD.clear)

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], cwd=self.root, check=True, capture_output=True)

    def commit(self, *names: str) -> None:
        (self.root / ".gitignore").write_text("build\n")
        self.git("add", ".gitignore", *names)
        self.git("commit", "-q", "--allow-empty", "-m", "a")

    def run_it(self, *words: str, ends: object = 0) -> int:
        """Run a command that ends so; or raise that."""
        parse, run = lab.parser().parse_args, mock.Mock(side_effect=[ends])

        def parse_args(argv: list[str]) -> argparse.Namespace:
            return argparse.Namespace(**{**vars(parse(argv)), "run": run})

        parser = mock.Mock(return_value=mock.Mock(parse_args=parse_args))
        with (
            mock.patch.object(lab, "parser", parser),
            mock.patch.object(lab, "not_yet", return_value=""),
            redirect_stderr(io.StringIO()),
        ):
            return lab.main(list(words))

    def said(self) -> str:
        with redirect_stdout(io.StringIO()) as out:
            ledger.check()
        return out.getvalue()

    def test_what_came_of_a_run_is_written(self) -> None:
        report.ENDED.update(SOME)
        self.assertEqual(self.run_it("test", "cover"), 0)
        ((key, entry),) = ledger.load().items()
        today = datetime.datetime.now(datetime.UTC).date()
        wanted = ledger.Entry(entry.commit, today, 0, 3, 0, 1, False, "6.12.117-1")
        self.assertEqual((key, entry), (("6.12", "test cover"), wanted))
        page = self.page.read_text()
        came = f"3 passed, 0 failed, 1 skipped: {entry.commit[:8]}, {today}"
        self.assertIn(f"| `test WHAT=cover` | {came} |", page)
        self.assertIn("| `test WHAT=fuzz` | never | never |", page)
        self.assertRegex(page, r"^above\n(?s:.*)\nbelow\n$")

    def test_what_is_written_is_no_edit(self) -> None:
        """Others are."""
        self.run_it("demo")
        self.run_it("test", "fuzz")
        self.assertFalse(ledger.load()["6.12", "test fuzz"].edits)
        (self.root / "patches" / "6.12" / "new.patch").write_text("a")
        self.run_it("test", "fuzz")
        self.assertTrue(ledger.load()["6.12", "test fuzz"].edits)
        self.assertIn(" with edits, ", self.page.read_text())

    def test_a_part_of_a_target_is_not_the_target(self) -> None:
        for words in (
            ("test", "--only", "npt"),
            ("test", "--tests", "global_tdp_api_test"),
            ("test", "broken", "--only", "uffd"),
            ("test", "package", "bookworm"),
            ("demo", "--backend", "memfd"),
            ("test", "stress", "--seconds", "5"),
            ("test", "debug", "--stock"),
            ("check",),
        ):
            self.run_it(*words)
            self.assertEqual(ledger.load(), {}, words)
        with mock.patch.object(paths, "TESTS_OF", "7.3"):
            self.run_it("test")
        with mock.patch.dict(os.environ, KVER="6.12.1-amd64"):
            self.run_it("test")
        self.assertEqual(ledger.load(), {})

    def test_an_interrupted_run_is_none(self) -> None:
        self.assertEqual(self.run_it("test", "fuzz", ends=KeyboardInterrupt()), 130)
        self.assertEqual(ledger.load(), {})

    def test_an_error_is_red(self) -> None:
        """What was counted before it does not count."""
        report.ENDED.update(SOME)
        self.assertEqual(self.run_it("bench", ends=LabError("no room")), 1)
        entry = ledger.load()["6.12", "bench"]
        self.assertEqual((entry.status, entry.passed), (1, 0))
        with self.assertRaises(ValueError):
            self.run_it("bench", "dax", ends=ValueError())
        self.assertIn("6.12, failed: bench, bench WHAT=dax\n", self.said())

    def test_backends_of_a_debug_kernel_are_apart(self) -> None:
        bad = [Outcome("a", State.FAILED)]
        report.TOLD.append(Part("lockdep kernel, NPT, a", [Outcome("a", State.PASSED)] * 2))
        report.TOLD.append(Part("lockdep kernel, EPT, a", bad))
        self.run_it("test", "debug", ends=1)
        npt, ept = (ledger.load()["6.12", f"test debug lockdep {of}"] for of in ("npt", "ept"))
        self.assertEqual((npt.status, npt.passed, npt.failed), (0, 2, 0))
        self.assertEqual((ept.status, ept.passed, ept.failed), (1, 0, 1))
        self.run_it("test", "debug", "--kind", "kcsan", "--backend", "npt")
        known = {target for _, target in ledger.load() if "kcsan" in target}
        self.assertEqual(known, {"test debug kcsan npt"})

    def test_series_are_apart(self) -> None:
        self.run_it("test", "fuzz", ends=1)
        with mock.patch.multiple(paths, VERSION="7.3", TESTS_OF="7.3"):
            self.run_it("test", "fuzz")
            self.run_it("test", "model")
        found = {key: entry.status for key, entry in ledger.load().items()}
        self.assertEqual(found, {("6.12", "test fuzz"): 1, ("7.3", "test fuzz"): 0})

    def test_the_commit_is_the_one_that_was_begun_with(self) -> None:
        run = ledger.begin(lab.parser().parse_args(["test fuzz"]), lab.parser().parse_args)
        before = ledger.Git(self.root).commit()
        self.commit()
        assert run
        run.end(0)
        self.assertTrue(before.startswith(ledger.load()["6.12", "test fuzz"].commit))

    def test_lint_warns(self) -> None:
        self.run_it("test", "fuzz")
        self.assertNotIn("fuzz", self.said().splitlines()[0])
        self.assertRegex(
            self.said(), r"warning: ledger: 6\.12, never run: test, .*test WHAT=stress"
        )
        for number in range(ledger._OLD + 1):
            self.assertNotIn("older", self.said())
            (self.root / "patches" / "6.12" / "a.patch").write_text(str(number))
            self.commit("patches")
            self.commit()
        self.assertIn(
            "6.12, older than 15 commits of the series: test WHAT=fuzz\n", self.said()
        )
        text = ledger.FILE.read_text()
        ledger.FILE.write_text(text.replace('commit = "', 'commit = "0123456789'))
        ledger.SHOWN.write()
        self.assertIn("of a commit that is not here: test WHAT=fuzz", self.said())

    def test_table_and_file_agree(self) -> None:
        ledger.SHOWN.write()
        self.said()
        for text, wrong in (
            (self.page.read_text().replace("never", "passed", 1), "make docs"),
            ("none", "no lines"),
        ):
            self.page.write_text(text)
            with self.assertRaisesRegex(LabError, wrong):
                ledger.check()


class Here(unittest.TestCase):
    """What this repository has."""

    def test_the_page_shows_them(self) -> None:
        """The ledger, and the map of tests that notice."""
        noticed.SHOWN.check()
        with redirect_stdout(io.StringIO()):
            ledger.check()

    def test_targets_are_commands(self) -> None:
        known = lab.parser().format_help()
        for target in ledger.TARGETS:
            self.assertRegex(known, rf"\n +{' '.join(target.split()[:2])}\s")


class Make(unittest.TestCase):
    """The Makefile, beside the commands of the lab."""

    def test_help_fits_a_screen(self) -> None:
        lines = subprocess.check_output(
            ["make", "-C", ROOT, "-s", "help"], text=True
        ).splitlines()
        self.assertLessEqual(len(lines), 40)
        self.assertLessEqual(max(map(len, lines)), 100)

    def test_targets(self) -> None:
        """At most 16, each with a line of help; each WHAT is a command of the lab."""
        text = (ROOT / "Makefile").read_text()
        (phony,) = re.findall(r"^\.PHONY: (.*)", text, re.M)
        shown = re.findall(r"^([a-z]+):.*## ", text, re.M)
        self.assertEqual(shown, phony.split())
        self.assertLessEqual(len(shown), 16)
        for name, whats in lab.WHATS.items():
            part = text[text.index(f"\n{name}:") : text.index(f"$(lab) {name} $(WHAT)")]
            self.assertEqual(re.findall(r"^#: (\S+)", part, re.M), list(whats))

    def test_what(self) -> None:
        for given, words in (
            (["test"], ["test"]),
            (["test", "--only", "npt"], ["test", "--only", "npt"]),
            (["test", "fuzz", "--seed", "1"], ["test fuzz", "--seed", "1"]),
        ):
            self.assertEqual(lab.words(given), words)
        with redirect_stderr(io.StringIO()) as error:
            self.assertEqual(lab.main(["bench", "dx"]), 1)
        self.assertEqual(error.getvalue().count("\n"), 1)
        self.assertIn("make bench has no WHAT=dx: choose bulk, dax, ", error.getvalue())
