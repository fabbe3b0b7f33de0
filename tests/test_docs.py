"""What a documentation build complained about."""

import unittest
from pathlib import Path

from lab.source import docs

SOURCE = Path("/tree")


class Warnings(unittest.TestCase):
    """Of Sphinx and of kernel-doc."""

    def test_lines_do_not_matter(self) -> None:
        first = "/tree/Documentation/virt/kvm/api.rst:8169: ERROR: Malformed table.\n"
        other = first.replace("8169", "8200")
        found = docs.warnings(first, SOURCE)
        self.assertEqual(len(found), 1)
        self.assertEqual(found, docs.warnings(other, SOURCE))

    def test_every_kind_is_found(self) -> None:
        file = "/tree/Documentation/virt/kvm/global_tdp.rst"
        for line in (
            f"{file}:12: WARNING: Title underline too short.",
            f"{file}: WARNING: document isn't included in any toctree",
            f"{file}:3:7: WARNING: undefined label",
            "./include/linux/kvm_host.h:20: warning: Function parameter not described",
        ):
            self.assertEqual(len(docs.warnings(line, SOURCE)), 1, line)

    def test_nothing_else_is(self) -> None:
        text = "reading sources... [100%] global_tdp\nbuild succeeded, 1 warning.\n"
        self.assertEqual(docs.warnings(text, SOURCE), set())
