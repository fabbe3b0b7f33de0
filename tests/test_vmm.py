"""What docs/vmm.md shows to VMM developers."""

import re
import subprocess
import unittest
from collections.abc import Sequence

from lab.make import rust
from lab.paths import ROOT

PAGE = ROOT / "docs" / "vmm.md"
TEXT = PAGE.read_text()
RULE = "/* ---- */\n"
FIGURE = r"(?:0\.\d+|[1-9]\d*(?:,\d{3})*(?:\.\d+)?)"
HEADINGS = "| what | before the guest runs |"


def block(language: str) -> str:
    """Return the one block of code that the page has in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)
    return found


def rows() -> Sequence[Sequence[str]]:
    """Return the cells of each line of the table of costs."""
    lines = TEXT.partition(HEADINGS)[2].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


class Examples(unittest.TestCase):
    """The programs, which are files, too."""

    def test_c_is_what_is_between_the_rules(self) -> None:
        parts = rust.MINIMAL.read_text().split(RULE)
        self.assertEqual(len(parts), 3)
        self.assertEqual(block("c"), parts[1].rstrip("\n") + "\n")

    def test_rust_is_the_whole_file(self) -> None:
        file = rust.CRATE / "examples" / "minimal.rs"
        self.assertEqual(block("rust"), file.read_text())

    def test_c_compiles_with_the_headers_of_this_machine(self) -> None:
        command = ["gcc", *rust.FLAGS, "-fsyntax-only", rust.MINIMAL]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")


class Page(unittest.TestCase):
    """What it refers to."""

    def test_links_lead_somewhere(self) -> None:
        links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
        self.assertGreater(len(links), 10)
        for link in links:
            self.assertTrue((PAGE.parent / link).exists(), link)

    def test_figures_are_those_of_the_page_that_is_named(self) -> None:
        found = rows()
        self.assertGreater(len(found), 10)
        for what, *figures, source in found:
            link = re.search(r"\(([^)]+)\)", source)
            assert link
            text = (PAGE.parent / link[1]).read_text()
            # Zeroes, and words, are not looked for.
            for figure in re.findall(FIGURE, " ".join(figures)):
                there = re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,.]*\d)", text)
                self.assertTrue(there, f"{what}: {figure} is not in {link[1]}")
