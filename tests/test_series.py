"""The series that SERIES= chooses."""

import argparse
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from lab import __main__ as lab
from lab import paths
from lab.error import LabError
from lab.paths import ROOT

SHOW = "from lab import paths; print(paths.PATCHES, paths.BUILD, paths.VENV_BIN)"


def chosen(name: str) -> subprocess.CompletedProcess[str]:
    """Import with a choice, as make hands it over."""
    return subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=ROOT,
        env={**os.environ, "SERIES": name},
        capture_output=True,
        text=True,
    )


class Paths(unittest.TestCase):
    """Where things are."""

    def test_side_by_side(self) -> None:
        for name, build in (("", "build"), ("6.12", "build"), ("7.3", "build/7.3")):
            patches = ROOT / "patches" / (name or "6.12")
            told = f"{patches} {ROOT / build} {ROOT}/build/venv/bin\n"
            self.assertEqual(chosen(name).stdout, told)

    def test_unknown(self) -> None:
        done = chosen("6.1")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "lab: no series 6.1: SERIES is 6.12 or 7.3\n")


class OnlyOne(unittest.TestCase):
    """What is for one series only."""

    def test_it_is(self) -> None:
        known = lab.parser().format_help()
        for command in (*lab.FOR_ONE, "check"):
            self.assertRegex(known, rf"\n +{command}\s")
            for version in ("6.12", "7.3"):
                with mock.patch.object(paths, "VERSION", version):
                    said = "only, not 7.3 yet" in lab.not_yet(command)
                self.assertEqual(said, command != "check" and version != "6.12")


class Clean(unittest.TestCase):
    """A newer series is removed alone; with the oldest, what is in its directory."""

    def test_another_series_is_in_it(self) -> None:
        shared = Path(self.enterContext(tempfile.TemporaryDirectory()), "build")
        newer = shared / "7.3"
        newer.mkdir(parents=True)
        other = self.enterContext(mock.patch.object(lab.subprocess, "run"))

        def clean(build: Path) -> None:
            known = {"SHARED": shared, "BUILD": build, "LINUX": build / "linux"}
            with mock.patch.multiple(paths, **known):
                lab._clean(argparse.Namespace())

        (shared / "linux").mkdir()
        with (
            mock.patch.object(lab.tree, "unsaved", return_value="has edits"),
            self.assertRaisesRegex(LabError, "has edits"),
        ):
            clean(shared)
        other.assert_not_called()
        (shared / "linux").rmdir()
        other.return_value.returncode = 1
        with self.assertRaisesRegex(LabError, "build/7.3, which is in it, stays"):
            clean(shared)
        self.assertEqual(other.call_args.kwargs["env"]["SERIES"], "7.3")
        other.reset_mock()
        clean(newer)
        self.assertTrue(shared.exists())
        self.assertFalse(newer.exists())
        clean(shared)
        self.assertFalse(shared.exists())
        other.assert_not_called()


if __name__ == "__main__":
    unittest.main()
