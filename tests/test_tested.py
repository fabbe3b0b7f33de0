"""Which uploads of Debian's kernel the package is said to be tested on."""

import datetime
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

from lab.check import ledger, tested
from lab.error import LabError
from lab.paths import PACKAGING
from lab.source import debian

BEFORE = "6.12.9-1 2026-01-01 a\n"
ADDED, LATER = (f"{upload} 2026-11-28 0123456789ab\n" for upload in ("6.12.118-1", "7.3.4-1"))
ENTRY = ledger.Entry("0123456789ab", datetime.date(2026, 11, 28), 0, 9, upload="6.12.118-1")


class Tested(unittest.TestCase):
    """The list is written from the ledger."""

    def setUp(self) -> None:
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.file = root / "packaging" / "tested"
        self.file.parent.mkdir()
        self.file.write_text(f"# x\n{BEFORE}7.3.4-1 2026-01-01 a\n")
        self.enterContext(mock.patch.multiple(tested, FILE=self.file, ROOT=root))
        self.entries = {("6.12", target): ENTRY for target in tested.NEEDED}
        later = replace(ENTRY, upload="7.3.4-1")
        self.entries |= {("7.3", target): later for target in tested.NEEDED[:2]}
        self.enterContext(mock.patch.object(ledger, "load", lambda: self.entries))
        fresh = mock.Mock(return_value=lambda *_: "0")
        self.enterContext(mock.patch.object(ledger, "Git", fresh))
        self.differ = ""
        of_tests = {"console": mock.DEFAULT, "Git": lambda _: self.git}
        self.enterContext(mock.patch.multiple(tested, **of_tests))

    def git(self, *words: str) -> str:
        """Patches of one series differ from those of a commit; one commit is not here."""
        if "unknown" in words:
            raise LabError("unknown revision")
        return f"{words[-1]}\n" if self.differ and self.differ in words[-1] else ""

    def refuses(self, why: str) -> str:
        """Return the list, to which not all is added."""
        with self.assertRaisesRegex(LabError, why):
            tested.add()
        return self.file.read_text().removeprefix("# x\n")

    def test_added(self) -> None:
        """Of both series: one package is for all, and tested with the oldest."""
        for _ in range(2):
            tested.add()
            self.assertEqual(self.file.read_text(), f"# x\n{BEFORE}{ADDED}{LATER}")

    def test_one_series_lacks_something(self) -> None:
        """The other one is added all the same."""
        before = self.file.read_text()
        for differ, gone, why in (
            ("patches/7.3/", (), "Linux 7.3, .*which has other patches"),
            ("", ("7.3", tested.NEEDED[1]), "Linux 7.3, make test WHAT=stress: never run"),
        ):
            self.differ = differ
            self.entries.pop(gone, None)
            self.file.write_text(before)
            self.assertEqual(self.refuses(why), f"{BEFORE}{ADDED}7.3.4-1 2026-01-01 a\n")

    def test_what_is_missing(self) -> None:
        before = self.file.read_text().removeprefix("# x\n")
        failed, edited = replace(ENTRY, status=1), replace(ENTRY, edits=True)
        for target in tested.NEEDED:
            for entry, why in ((None, "never run"), (failed, "failed"), (edited, "edits")):
                keys = {("6.12", target): entry, ("7.3", target): entry}
                with mock.patch.dict(self.entries, keys):
                    found = self.refuses(f"make {ledger.shown(target)}: .*{why}")
                self.assertEqual(found, before)

    def test_on_two_kernels(self) -> None:
        for upload in ("6.12.117-1", ""):
            self.entries["6.12", tested.NEEDED[1]] = replace(ENTRY, upload=upload)
            self.assertEqual(self.refuses("not on one kernel"), f"{BEFORE}{LATER}")

    def test_what_is_left_out(self) -> None:
        """As the patches have changed since; an unknown commit may have had any."""
        of_73 = "7.3.4-1 2026-01-01"
        for listed, differ, left, said in (
            (f"{BEFORE}{of_73} a\n", "", f"{BEFORE}{of_73} a\n", ()),
            (
                *(f"{BEFORE}{of_73} a\n", "patches/6.12/", f"{of_73} a\n"),
                ("6.12.9-1 is left out: a has no or other patches",),
            ),
            (
                *(f"{of_73} unknown\n", "", ""),
                (
                    "7.3.4-1 is left out",
                    "no upload is listed as tested: hosts need an entry in",
                ),
            ),
        ):
            self.file.write_text(f"# x\n{listed}")
            self.differ = differ
            self.assertEqual(tested.text(), f"# x\n{left}")
            tested.console.reset_mock()
            tested.warn()
            calls = tested.console.print.call_args_list
            self.assertEqual(len(calls), len(said))
            for call, words in zip(calls, said, strict=True):
                self.assertIn(words, call.args[0])

    def test_an_image_says_what_it_is(self) -> None:
        self.enterContext(mock.patch.object(debian, "DEBIAN", self.file.parent))
        kernel = debian.Kernel("R-amd64")
        kernel.image.parent.mkdir(parents=True)
        for said, wanted in (("#1 SMP Debian 6.12.118-1 (2026)", "6.12.118-1"), ("", "")):
            head = bytes(0x20E) + (0x400).to_bytes(2, "little") + bytes(0x3F0)
            kernel.image.write_bytes(head + said.encode() + bytes(9))
            self.assertEqual(kernel.upload, wanted)

    def test_the_list_of_the_package(self) -> None:
        line = r"(#.*|\d+\.\d+\.\d+-\S+ \d{4}-\d\d-\d\d [0-9a-f]{7,40}( .*)?)\n"
        self.assertRegex((PACKAGING / "tested").read_text(), rf"\A({line})*\Z")
