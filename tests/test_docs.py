"""What a documentation build complained about, and where the documents' links lead."""

import re
import unittest
from pathlib import Path

from lab.check import prose
from lab.paths import ROOT
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


class Links(unittest.TestCase):
    """Of the documents in the repository."""

    def test_they_lead_to_a_file_and_a_heading(self) -> None:
        for page in sorted(path for pattern in prose.PAGES for path in ROOT.glob(pattern)):
            for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
                file, _, anchor = link.partition("#")
                target = page.parent / file if file else page
                if link.startswith("http"):
                    continue
                with self.subTest(page=page.relative_to(ROOT), link=link):
                    self.assertTrue(target.exists())
                    self.assertTrue(not anchor or anchor in anchors(target))


def without_code(page: Path) -> str:
    """Return a page's text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return what a page's headings are called in links."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in headings}
