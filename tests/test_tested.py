"""Which uploads of Debian's kernel the package is said to be tested on."""

import datetime
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from lab.check import ledger, tested
from lab.error import LabError
from lab.paths import PACKAGING

BEFORE, OF_73 = "6.12.9-1 2026-01-01 a\n", "7.3.4-1 2026-01-01 a\n"
ADDED, LATER = (f"{upload} 2026-11-28 0123456789ab\n" for upload in ("6.12.118-1", "7.3.4-1"))
ENTRY = ledger.Entry("0123456789ab", datetime.date(2026, 11, 28), 0, 9, upload="6.12.118-1")


class List:
    """Written from a ledger in which all is well."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.console, self.differ = root / "tested", mock.Mock(), ""
        self.write(BEFORE + OF_73)
        later = replace(ENTRY, upload="7.3.4-1")
        self.entries = {("6.12", target): ENTRY for target in tested.NEEDED}
        self.entries |= {("7.3", target): later for target in tested.NEEDED[:2]}
        for name, value in (("FILE", self.file), ("ROOT", root), ("console", self.console)):
            monkeypatch.setattr(tested, name, value)
        monkeypatch.setattr(tested, "Git", lambda _: self.git)
        monkeypatch.setattr(ledger, "load", lambda: self.entries)
        monkeypatch.setattr(ledger, "Git", lambda _: lambda *_: "0")

    def git(self, *words: str) -> str:
        """Patches of one series differ from those of a commit; one commit is not here."""
        if "unknown" in words:
            raise LabError("unknown revision")
        return f"{words[-1]}\n" if self.differ and self.differ in words[-1] else ""

    def write(self, lines: str) -> None:
        self.file.write_text(f"# x\n{lines}")

    def refuses(self, why: str) -> str:
        """Return the lines, to which not all is added."""
        self.write(BEFORE + OF_73)
        with pytest.raises(LabError, match=why):
            tested.add()
        return self.file.read_text().removeprefix("# x\n")


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> List:
    return List(tmp_path, monkeypatch)


def test_added(listed: List) -> None:
    """Of both series, once: one package is for all, and tested with the oldest."""
    for _ in range(2):
        tested.add()
        assert listed.file.read_text() == f"# x\n{BEFORE}{ADDED}{LATER}"


def test_one_series_that_lacks_something(listed: List) -> None:
    """The other one is added all the same."""
    listed.differ = "patches/7.3/"
    why = "Linux 7.3, .*which has other patches"
    assert listed.refuses(why) == BEFORE + ADDED + OF_73
    listed.differ = ""
    del listed.entries["7.3", tested.NEEDED[1]]
    why = "Linux 7.3, make test WHAT=stress: never run"
    assert listed.refuses(why) == BEFORE + ADDED + OF_73


@pytest.mark.parametrize("target", tested.NEEDED)
@pytest.mark.parametrize(
    ("entry", "why"),
    (
        (None, "never run"),
        (replace(ENTRY, status=1), "failed"),
        (replace(ENTRY, edits=True), "edits"),
    ),
)
def test_what_is_missing(
    target: str, entry: ledger.Entry | None, why: str, listed: List
) -> None:
    listed.entries |= {("6.12", target): entry, ("7.3", target): entry}
    assert listed.refuses(f"make {ledger.shown(target)}: .*{why}") == BEFORE + OF_73


@pytest.mark.parametrize("upload", ("6.12.117-1", ""))
def test_on_two_kernels(upload: str, listed: List) -> None:
    listed.entries["6.12", tested.NEEDED[1]] = replace(ENTRY, upload=upload)
    assert listed.refuses("not on one kernel") == BEFORE + LATER


@pytest.mark.parametrize(
    ("lines", "differ", "left", "said"),
    (
        (BEFORE + OF_73, "", BEFORE + OF_73, []),
        (BEFORE + OF_73, "patches/6.12/", OF_73, ["6.12.9-1 is left out: a has no or other"]),
        (
            *(OF_73.replace(" a", " unknown"), "", ""),
            ["7.3.4-1 is left out", "no upload is listed as tested: hosts need an entry in"],
        ),
    ),
)
def test_what_is_left_out(
    lines: str, differ: str, left: str, said: list[str], listed: List
) -> None:
    """As the patches have changed since; an unknown commit may have had any."""
    listed.write(lines)
    listed.differ = differ
    assert tested.text() == f"# x\n{left}"
    tested.warn()
    calls = [call.args[0] for call in listed.console.print.call_args_list]
    assert len(calls) == len(said)
    assert all(words in call for words, call in zip(said, calls, strict=True))


def test_the_list_of_the_package() -> None:
    line = r"(#.*|\d+\.\d+\.\d+-\S+ \d{4}-\d\d-\d\d [0-9a-f]{7,40}( .*)?)\n"
    assert re.fullmatch(rf"({line})*", (PACKAGING / "tested").read_text())
