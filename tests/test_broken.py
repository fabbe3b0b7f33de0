"""The list of promises to break fits the sources."""

import unittest

from lab.check import broken
from lab.error import LabError
from lab.paths import LINUX
from lab.source import tree


class List(unittest.TestCase):
    """Of tests/broken.toml."""

    def test_each_entry_changes_one_place(self) -> None:
        """It is found, once, and something else is there afterwards."""
        tree.ensure()
        for entry in broken.load():
            with self.subTest(entry.promise):
                text = (LINUX / entry.file).read_text()
                self.assertNotEqual(broken.apply(text, entry), text)

    def test_each_entry_names_a_test(self) -> None:
        """Its source is in the series, or in the kernel."""
        source = LINUX / "tools/testing/selftests/kvm"
        for entry in broken.load():
            program = entry.command.split()[0]
            self.assertTrue((source / f"{program}.c").exists(), program)

    def test_what_is_not_there_is_refused(self) -> None:
        """An entry that fits nothing, or two places, is an error."""
        entry = broken.Broken("p", "t", "f", "x", "y")
        for text in ("", "xx"):
            with self.assertRaises(LabError):
                broken.apply(text, entry)
