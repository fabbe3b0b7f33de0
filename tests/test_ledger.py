"""The ledger of what takes long: what is a run of a target, and what is written of it."""

import argparse
import datetime
import io
import os
import subprocess
import tempfile
import unittest
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from lab import __main__ as lab
from lab import paths
from lab.check import ledger, report
from lab.check.outcome import Outcome, State
from lab.check.report import Part
from lab.error import LabError

SOME = Counter({State.PASSED: 3, State.SKIPPED: 1})


class Ledger(unittest.TestCase):
    """In a repository of its own."""

    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "docs").mkdir()
        (self.root / "patches" / "6.12").mkdir(parents=True)
        self.readme = self.root / "README.md"
        self.readme.write_text(f"above\n{ledger.BEGIN}{ledger.END}below\n")
        known = {"FILE": self.root / "docs" / "ledger.toml", "README": self.readme}
        self.enterContext(mock.patch.multiple(ledger, ROOT=self.root, **known))
        chosen = {"SHARED": self.root / "build", "VERSION": "6.12", "TESTS_OF": "6.12"}
        self.enterContext(
            mock.patch.multiple(paths, LINUX=self.root / "build" / "linux", **chosen)
        )
        self.enterContext(mock.patch.dict(os.environ, KVER=""))
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
        self.assertEqual(self.run_it("cover"), 0)
        (key, entry), *more = ledger.load().items()
        self.assertEqual((key, more), (("6.12", "cover"), []))
        self.assertEqual((entry.passed, entry.failed, entry.skipped), (3, 0, 1))
        self.assertFalse(entry.edits)
        self.assertEqual(entry.date, datetime.datetime.now(datetime.UTC).date())
        row = f"| `cover` | 3 passed, 0 failed, 1 skipped: {entry.commit[:8]}, {entry.date} |"
        self.assertIn(row, self.readme.read_text())
        self.assertIn("| `fuzz` | never | never |", self.readme.read_text())
        self.assertTrue(self.readme.read_text().startswith("above\n"))
        self.assertTrue(self.readme.read_text().endswith("below\n"))

    def test_what_is_written_is_no_edit(self) -> None:
        """Others are."""
        self.run_it("demo")
        self.run_it("fuzz")
        self.assertFalse(ledger.load()["6.12", "fuzz"].edits)
        (self.root / "patches" / "6.12" / "new.patch").write_text("a")
        self.run_it("fuzz")
        self.assertTrue(ledger.load()["6.12", "fuzz"].edits)
        self.assertIn(" with edits, ", self.readme.read_text())

    def test_a_part_of_a_target_is_not_the_target(self) -> None:
        for words in (
            ("test", "--only", "npt"),
            ("test", "--tests", "global_tdp_api_test"),
            ("test-broken", "--only", "uffd"),
            ("test-package", "bookworm"),
            ("demo", "--backend", "memfd"),
            ("stress", "--seconds", "5"),
            ("test-debug", "--stock"),
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
        self.assertEqual(self.run_it("fuzz", ends=KeyboardInterrupt()), 130)
        self.assertEqual(ledger.load(), {})

    def test_an_error_is_red(self) -> None:
        """What was counted before it does not count."""
        report.ENDED.update(SOME)
        self.assertEqual(self.run_it("bench", ends=LabError("no room")), 1)
        entry = ledger.load()["6.12", "bench"]
        self.assertEqual((entry.status, entry.passed), (1, 0))
        with self.assertRaises(ValueError):
            self.run_it("bench-dax", ends=ValueError())
        self.assertIn("6.12, failed: bench, bench-dax\n", self.said())

    def test_backends_of_a_debug_kernel_are_apart(self) -> None:
        bad = [Outcome("a", State.FAILED)]
        report.TOLD.append(Part("lockdep kernel, NPT, a", [Outcome("a", State.PASSED)] * 2))
        report.TOLD.append(Part("lockdep kernel, EPT, a", bad))
        self.run_it("test-debug", ends=1)
        npt, ept = (ledger.load()["6.12", f"test-debug lockdep {of}"] for of in ("npt", "ept"))
        self.assertEqual((npt.status, npt.passed, npt.failed), (0, 2, 0))
        self.assertEqual((ept.status, ept.passed, ept.failed), (1, 0, 1))
        self.run_it("test-debug", "--kind", "kcsan", "--backend", "npt")
        known = {target for _, target in ledger.load() if "kcsan" in target}
        self.assertEqual(known, {"test-debug kcsan npt"})

    def test_series_are_apart(self) -> None:
        self.run_it("fuzz", ends=1)
        with mock.patch.multiple(paths, VERSION="7.3", TESTS_OF="7.3"):
            self.run_it("fuzz")
            self.run_it("model")
        found = {key: entry.status for key, entry in ledger.load().items()}
        self.assertEqual(found, {("6.12", "fuzz"): 1, ("7.3", "fuzz"): 0})

    def test_the_commit_is_the_one_that_was_begun_with(self) -> None:
        run = ledger.begin(lab.parser().parse_args(["fuzz"]), lab.parser().parse_args)
        self.commit()
        assert run
        run.end(0)
        head = ledger.Git(self.root).commit()
        self.assertFalse(head.startswith(ledger.load()["6.12", "fuzz"].commit))

    def test_lint_warns(self) -> None:
        self.run_it("fuzz")
        self.assertNotIn("fuzz", self.said().splitlines()[0])
        self.assertRegex(self.said(), r"warning: ledger: 6\.12, never run: test, .*stress")
        for number in range(ledger._OLD + 1):
            self.assertNotIn("older", self.said())
            (self.root / "patches" / "6.12" / "a.patch").write_text(str(number))
            self.commit("patches")
            self.commit()
        self.assertIn("6.12, older than 15 commits of the series: fuzz\n", self.said())
        text = ledger.FILE.read_text()
        ledger.FILE.write_text(text.replace('commit = "', 'commit = "0123456789'))
        ledger.write_table()
        self.assertIn("of a commit that is not here: fuzz", self.said())

    def test_table_and_file_agree(self) -> None:
        ledger.write_table()
        self.said()
        text = self.readme.read_text()
        self.readme.write_text(text.replace("never", "passed", 1))
        with self.assertRaisesRegex(LabError, "make ledger"):
            ledger.check()
        self.readme.write_text("none")
        with self.assertRaisesRegex(LabError, "no lines"):
            ledger.check()


class Here(unittest.TestCase):
    """What this repository has."""

    def test_readme_shows_it(self) -> None:
        self.assertEqual(ledger._readme()[1], ledger.table())

    def test_targets_are_commands(self) -> None:
        known = lab.parser().format_help()
        for target in ledger.TARGETS:
            self.assertRegex(known, rf"\n +{target.split()[0]}\s")


if __name__ == "__main__":
    unittest.main()
