"""The ledger of what takes long: what is a run of a target, and what is written of it."""

import argparse
import datetime
import re
import subprocess
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from lab import __main__ as lab
from lab import paths
from lab.check import ledger, noticed, pages, report
from lab.check.outcome import Outcome, State
from lab.check.report import Part
from lab.error import LabError
from lab.paths import ROOT

PARSER = lab.parser
FUZZ, OF_612 = "test fuzz", {"VERSION": "6.12", "TESTS_OF": "6.12"}


class TestLedger:
    """In a repository of its own."""

    @pytest.fixture(autouse=True)
    def _repository(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.root, self.patch, self.capsys = tmp_path, monkeypatch, capsys
        (self.root / "docs").mkdir()
        self.patches = self.root / "patches" / "6.12"
        self.patches.mkdir(parents=True)
        self.page = self.root / "README.md"
        begin = "<!-- the ledger: written by the lab -->"
        self.page.write_text(f"above\n{begin}\n<!-- end of the ledger -->\nbelow\n")
        self.set(ledger, ROOT=self.root, FILE=self.root / "docs/ledger.toml")
        self.set(pages, LAB=self.page)
        self.set(paths, SHARED=self.root / "build", LINUX=self.root / "build/linux", **OF_612)
        self.set(report, ENDED=Counter(), TOLD=[])
        self.set(ledger.debian, unpacked=lambda: mock.Mock(upload="6.12.117-1"))
        self.set(lab, not_yet=lambda *_: "")
        monkeypatch.setenv("KVER", "")
        self.git("init", "-q")
        self.commit("README.md", "docs")

    def set(self, module: object, **values: object) -> None:
        for name, value in values.items():
            self.patch.setattr(module, name, value)

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], cwd=self.root, check=True, capture_output=True)

    def commit(self, *names: str) -> None:
        (self.root / ".gitignore").write_text("build\n")
        self.git("add", ".gitignore", *names)
        self.git("commit", "-q", "--allow-empty", "-m", "a")

    def run_it(self, *words: str, ends: object = 0) -> int:
        """Run a command that ends so; or raise that."""
        parse, run = PARSER().parse_args, mock.Mock(side_effect=[ends])

        def parse_args(argv: list[str]) -> argparse.Namespace:
            return argparse.Namespace(**{**vars(parse(argv)), "run": run})

        self.set(lab, parser=lambda: mock.Mock(parse_args=parse_args))
        return lab.main(list(words))

    def said(self) -> str:
        self.capsys.readouterr()
        ledger.check()
        return self.capsys.readouterr().out

    def test_what_came_of_a_run_is_written(self) -> None:
        report.ENDED.update({State.PASSED: 3, State.SKIPPED: 1})
        assert self.run_it("test", "cover") == 0
        ((key, entry),) = ledger.load().items()
        today = datetime.datetime.now(datetime.UTC).date()
        wanted = ledger.Entry(entry.commit, today, 0, 3, 0, 1, False, "6.12.117-1")
        assert (key, entry) == (("6.12", "test cover"), wanted)
        page = self.page.read_text()
        came = f"3 passed, 0 failed, 1 skipped: {entry.commit[:8]}, {today}"
        assert f"| `test WHAT=cover` | {came} |" in page
        assert "| `test WHAT=fuzz` | never | never |" in page
        assert page.startswith("above\n")
        assert page.endswith("\nbelow\n")

    def test_what_is_written_is_no_edit(self) -> None:
        """Others are."""
        self.run_it("demo")
        self.run_it("test", "fuzz")
        assert not ledger.load()["6.12", FUZZ].edits
        (self.patches / "new.patch").write_text("a")
        self.run_it("test", "fuzz")
        assert ledger.load()["6.12", FUZZ].edits
        assert " with edits, " in self.page.read_text()

    @pytest.mark.parametrize(
        "words",
        (
            "test --only npt",
            "test --tests global_tdp_api_test",
            "test broken --only uffd",
            "test package bookworm",
            "demo --backend memfd",
            "test stress --seconds 5",
            "test debug --stock",
            "check",
        ),
    )
    def test_a_part_of_a_target_is_not_the_target(self, words: str) -> None:
        self.run_it(*words.split())
        assert ledger.load() == {}

    def test_what_is_not_a_run(self) -> None:
        """Tests of another series, another kernel, and what was interrupted."""
        self.set(paths, TESTS_OF="7.3")
        self.run_it("test")
        self.set(paths, TESTS_OF="6.12")
        self.patch.setenv("KVER", "6.12.1-amd64")
        self.run_it("test")
        self.patch.setenv("KVER", "")
        assert self.run_it("test", "fuzz", ends=KeyboardInterrupt()) == 130
        assert ledger.load() == {}

    def test_an_error_is_red(self) -> None:
        """What was counted before it does not count."""
        report.ENDED.update({State.PASSED: 3})
        assert self.run_it("bench", ends=LabError("no room")) == 1
        entry = ledger.load()["6.12", "bench"]
        assert (entry.status, entry.passed) == (1, 0)
        with pytest.raises(ValueError):
            self.run_it("bench", "dax", ends=ValueError())
        assert "6.12, failed: bench, bench WHAT=dax\n" in self.said()

    def test_backends_of_a_debug_kernel_are_apart(self) -> None:
        good, bad = (Outcome("a", state) for state in (State.PASSED, State.FAILED))
        report.TOLD.append(Part("lockdep kernel, NPT, a", [good] * 2))
        report.TOLD.append(Part("lockdep kernel, EPT, a", [bad]))
        self.run_it("test", "debug", ends=1)
        npt, ept = (ledger.load()["6.12", f"test debug lockdep {of}"] for of in ("npt", "ept"))
        assert (npt.status, npt.passed, npt.failed) == (0, 2, 0)
        assert (ept.status, ept.passed, ept.failed) == (1, 0, 1)
        self.run_it("test", "debug", "--kind", "kcsan", "--backend", "npt")
        known = {target for _, target in ledger.load() if "kcsan" in target}
        assert known == {"test debug kcsan npt"}

    def test_series_are_apart(self) -> None:
        self.run_it("test", "fuzz", ends=1)
        self.set(paths, VERSION="7.3", TESTS_OF="7.3")
        self.run_it("test", "fuzz")
        self.run_it("test", "model")
        found = {key: entry.status for key, entry in ledger.load().items()}
        assert found == {("6.12", FUZZ): 1, ("7.3", FUZZ): 0}

    def test_the_commit_is_the_one_that_was_begun_with(self) -> None:
        run = ledger.begin(PARSER().parse_args([FUZZ]), PARSER().parse_args)
        before = ledger.Git(self.root).commit()
        self.commit()
        assert run
        run.end(0)
        assert before.startswith(ledger.load()["6.12", FUZZ].commit)

    def test_lint_warns(self) -> None:
        self.run_it("test", "fuzz")
        said = self.said()
        assert "fuzz" not in said.splitlines()[0]
        assert re.search(r"warning: ledger: 6\.12, never run: test, .*test WHAT=stress", said)
        for number in range(ledger._OLD + 1):
            assert "older" not in self.said()
            (self.patches / "a.patch").write_text(str(number))
            self.commit("patches")
            self.commit()
        assert "6.12, older than 15 commits of the series: test WHAT=fuzz\n" in self.said()
        text = ledger.FILE.read_text()
        ledger.FILE.write_text(text.replace('commit = "', 'commit = "0123456789'))
        ledger.SHOWN.write()
        assert "of a commit that is not here: test WHAT=fuzz" in self.said()

    def test_table_and_file_agree(self) -> None:
        ledger.SHOWN.write()
        self.said()
        changed = self.page.read_text().replace("never", "passed", 1)
        for text, wrong in ((changed, "make docs"), ("none", "no lines")):
            self.page.write_text(text)
            with pytest.raises(LabError, match=wrong):
                ledger.check()


def test_the_page_of_this_repository_shows_them() -> None:
    """The ledger, and the map of tests that notice."""
    noticed.SHOWN.check()
    ledger.check()


@pytest.mark.parametrize("target", ledger.TARGETS)
def test_targets_are_commands(target: str) -> None:
    words = " ".join(target.split()[:2])
    assert re.search(rf"\n +{words}\s", lab.parser().format_help())


def test_help_fits_a_screen() -> None:
    text = subprocess.check_output(["make", "-C", ROOT, "-s", "help"], text=True)
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100


def test_targets() -> None:
    """At most 16, each with a line of help; each WHAT is a command of the lab."""
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)", text, re.M)
    shown = re.findall(r"^([a-z]+):.*## ", text, re.M)
    assert shown == phony.split()
    assert len(shown) <= 16
    for name, whats in lab.WHATS.items():
        part = text[text.index(f"\n{name}:") : text.index(f"$(lab) {name} $(WHAT)")]
        assert re.findall(r"^#: (\S+)", part, re.M) == list(whats)


def test_what(capsys: pytest.CaptureFixture[str]) -> None:
    for given, words in (
        ("test", ["test"]),
        ("test --only npt", ["test", "--only", "npt"]),
        ("test fuzz --seed 1", [FUZZ, "--seed", "1"]),
    ):
        assert lab.words(given.split()) == words
    assert lab.main(["bench", "dx"]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "make bench has no WHAT=dx: choose bulk, dax, " in said
