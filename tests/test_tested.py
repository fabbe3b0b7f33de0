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

ENTRY = ledger.Entry("0123456789ab", datetime.date(2026, 11, 28), 0, 9, upload="6.12.118-1")


class Tested(unittest.TestCase):
    """The list is written from the ledger."""

    def setUp(self) -> None:
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.file = root / "packaging" / "tested"
        self.file.parent.mkdir()
        self.file.write_text("# x\n6.12.9-1 2026-01-01 a\n7.3.4-1 2026-01-01 a\n")
        self.enterContext(mock.patch.multiple(tested, FILE=self.file, ROOT=root))
        self.entries = {("6.12", target): ENTRY for target in tested.NEEDED}
        later = replace(ENTRY, upload="7.3.4-1")
        self.entries |= {("7.3", target): later for target in tested.NEEDED[:2]}
        self.enterContext(mock.patch.object(ledger, "load", lambda: self.entries))
        fresh = mock.Mock(return_value=lambda *_: "0")
        self.enterContext(mock.patch.object(ledger, "Git", fresh))
        self.enterContext(mock.patch.object(tested, "console"))
        self.differ = ""
        self.enterContext(mock.patch.object(tested, "Git", lambda _: self.git))

    def git(self, *words: str) -> str:
        """Patches of one series differ from those of a commit; one commit is not here."""
        if "unknown" in words:
            raise LabError("unknown revision")
        return f"{words[-1]}\n" if self.differ and self.differ in words[-1] else ""

    def test_added(self) -> None:
        """Of both series: one package is for all, and tested with the oldest."""
        tested.add()
        lines = (f"{upload} 2026-11-28 0123456789ab\n" for upload in ("6.12.118-1", "7.3.4-1"))
        wanted = f"# x\n6.12.9-1 2026-01-01 a\n{''.join(lines)}"
        self.assertEqual(self.file.read_text(), wanted)
        tested.add()
        self.assertEqual(self.file.read_text(), wanted)

    def test_one_series_lacks_something(self) -> None:
        """The other one is added all the same."""
        del self.entries["7.3", tested.NEEDED[1]]
        with self.assertRaisesRegex(LabError, "Linux 7.3, make test WHAT=stress: never run"):
            tested.add()
        self.assertIn("6.12.118-1 2026-11-28 0123456789ab\n", self.file.read_text())
        self.assertIn("7.3.4-1 2026-01-01 a\n", self.file.read_text())

    def test_what_is_missing(self) -> None:
        before = self.file.read_text()
        for target in tested.NEEDED:
            for entry, why in (
                (None, "never run"),
                (replace(ENTRY, status=1), "failed"),
                (replace(ENTRY, edits=True), "edits"),
            ):
                keys = {("6.12", target): entry, ("7.3", target): entry}
                wrong = self.assertRaisesRegex(
                    LabError, f"make {ledger.shown(target)}: .*{why}"
                )
                with mock.patch.dict(self.entries, keys), wrong:
                    tested.add()
        self.assertEqual(self.file.read_text(), before)

    def test_on_two_kernels(self) -> None:
        for upload in ("6.12.117-1", ""):
            self.entries["6.12", tested.NEEDED[1]] = replace(ENTRY, upload=upload)
            with self.assertRaisesRegex(LabError, "not on one kernel"):
                tested.add()
        self.assertIn("6.12.9-1 2026-01-01 a\n7.3.4-1 2026-11-28", self.file.read_text())

    def said(self) -> list[str]:
        tested.warn()
        return [call.args[0] for call in tested.console.print.call_args_list]

    def test_other_patches(self) -> None:
        """Those of 6.12 have changed since: the package does not list its upload."""
        self.differ = "patches/6.12/"
        self.assertEqual(tested.text(), "# x\n7.3.4-1 2026-01-01 a\n")
        (said,) = self.said()
        self.assertIn("6.12.9-1 is left out: a has no or other patches", said)

    def test_an_unknown_commit(self) -> None:
        """It may have any patches."""
        self.file.write_text("# x\n7.3.4-1 2026-01-01 unknown\n")
        self.assertEqual(tested.text(), "# x\n")
        left_out, nothing = self.said()
        self.assertIn("7.3.4-1 is left out", left_out)
        self.assertIn("no upload is listed as tested: hosts need an entry in", nothing)

    def test_the_same_patches(self) -> None:
        self.assertEqual(tested.text(), self.file.read_text())
        self.assertEqual(self.said(), [])

    def test_not_added_with_other_patches(self) -> None:
        self.differ = "patches/7.3/"
        with self.assertRaisesRegex(LabError, "Linux 7.3, .*which has other patches"):
            tested.add()
        self.assertIn("6.12.118-1 2026-11-28 0123456789ab\n", self.file.read_text())
        self.assertIn("7.3.4-1 2026-01-01 a\n", self.file.read_text())

    def test_an_image_says_what_it_is(self) -> None:
        with (
            tempfile.TemporaryDirectory() as root,
            mock.patch.object(debian, "DEBIAN", Path(root)),
        ):
            kernel = debian.Kernel("R-amd64")
            kernel.image.parent.mkdir(parents=True)
            for said, wanted in (
                ("#1 SMP Debian 6.12.118-1 (2026-11-28)", "6.12.118-1"),
                ("", ""),
            ):
                head = bytes(0x20E) + (0x400).to_bytes(2, "little") + bytes(0x3F0)
                kernel.image.write_bytes(head + said.encode() + bytes(9))
                self.assertEqual(kernel.upload, wanted)

    def test_the_list_of_the_package(self) -> None:
        for line in (PACKAGING / "tested").read_text().splitlines():
            self.assertRegex(
                line, r"^(#|\d+\.\d+\.\d+-\S+ \d{4}-\d\d-\d\d [0-9a-f]{7,40}( |$))"
            )


if __name__ == "__main__":
    unittest.main()
