"""What docs/vmm.md shows to VMM developers."""

import re
import subprocess
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


def test_programs_are_those_of_the_files() -> None:
    """In C, what is between the rules, which compiles with the headers of this machine."""
    _, shown, _ = rust.MINIMAL.read_text().split(RULE)
    assert block("c") == shown.rstrip("\n") + "\n"
    assert block("rust") == (rust.CRATE / "examples" / "minimal.rs").read_text()
    command = ["gcc", *rust.FLAGS, "-fsyntax-only", rust.MINIMAL]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert len(links) > 10
    assert [link for link in links if not (PAGE.parent / link).exists()] == []


def test_figures_are_those_of_the_page_that_is_named() -> None:
    """Zeroes, and words, are not looked for."""
    assert len(rows()) > 10
    for what, *figures, source in rows():
        link = re.search(r"\(([^)]+)\)", source)
        assert link
        text = (PAGE.parent / link[1]).read_text()
        for figure in re.findall(FIGURE, " ".join(figures)):
            there = re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,.]*\d)", text)
            assert there, f"{what}: {figure} is not in {link[1]}"
