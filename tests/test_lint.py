"""What make lint and make docs find fault with."""

import re
from pathlib import Path

import pytest

from lab.check import comments, prose
from lab.paths import ROOT
from lab.source import docs

LONG = "word " * 26


@pytest.mark.parametrize(
    "text",
    (
        LONG + "ends.",
        f"- {LONG}",
        "What is mapped stays.",
        "It ends. What is mapped stays.",
        "Whoever asks gets it.",
        "It is for whoever asks.",
        "It has nobody.",
        "It waits in vain.",
        "It is to be told.",
        "It is as ever.",
        "It has so many pages.",
        "It is that which counts.",
    ),
)
def test_a_sentence_that_documents_must_not_have(text: str) -> None:
    ((line, _),) = prose.faults(f"Short.\n\n{text}")
    assert line == 3


@pytest.mark.parametrize(
    "text",
    (
        "word " * 25,
        "What does it cost?",
        "**What does it cost?** Little.",
        "The `in vain` part of the test.",
        f"    {LONG}",
        f"```\n{LONG}\n```",
        f"| {LONG} |",
        f"# {LONG}",
        f"It is [here]({LONG.replace(' ', '-')}), in `{LONG}`.",
        "word " * 20 + "ends. " + "Word " * 20,
    ),
)
def test_a_sentence_that_they_may_have(text: str) -> None:
    assert list(prose.faults(text)) == []


TITLE = f"{LONG.strip()}\n{'=' * 130}\n\n"
TABLE = f"""\
====== ===
number {LONG}
====== ===
1      What is mapped stays.
====== ===

"""


@pytest.mark.parametrize(
    ("text", "lines"),
    (
        (TITLE, []),
        (f".. SPDX: {LONG}", []),
        (TABLE, []),
        (f"Some code::\n\n    {LONG}\n\n        {LONG}\n\nIt ends.", []),
        (f"  In a definition::\n\n    {LONG}\n\n  It ends.", []),
        (f"{LONG}\n  It is explained.", []),
        (f"It is ``{LONG}``, and ends.", []),
        (f"{TITLE}{LONG}", [4]),
        (f"{TABLE}  {LONG}", [7]),
        (f"Some code::\n\n    {LONG}\n\n{LONG}", [5]),
        (f"Term\n  {LONG}\n  {LONG}", [2]),
        (f"- {LONG}\n  continued.", [1]),
        ("``term``\n  What is mapped stays.", [2]),
    ),
)
def test_sentences_of_an_rst_file(text: str, lines: list[int]) -> None:
    assert [line for line, _ in prose.faults(prose.of_rst(text))] == lines


PAGES = sorted(path for pattern in prose.PAGES for path in ROOT.glob(pattern))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not link.startswith("http"):
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def without_code(page: Path) -> str:
    """Return a page's text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return what a page's headings are called in links."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in headings}


OLD, NEW = (
    "@@ -1 +1 @@\n-\t * doesn't have to topup if",
    "\n+\t * doesn't have to topup_sps if\n",
)


@pytest.mark.parametrize(
    ("patch", "wanted"),
    (
        (OLD + NEW, ["topup_sps in"]),
        # The kernel has that word, too; the line says something else; or it is code.
        (OLD + NEW.replace("_sps", "_root"), []),
        ("-\t * The root is there.\n+\t * No topup_sps() for the root here.\n", []),
        ("-\ttopup();\n+\ttopup_sps();\n", []),
    ),
)
def test_comments_of_the_kernel_that_are_renamed_by_mistake(
    patch: str, wanted: list[str]
) -> None:
    assert [told[:12] for told in comments.renamed(patch, {"topup_sps"})] == wanted


RST = "/tree/Documentation/virt/kvm/global_tdp.rst"
SUCCESS = "reading sources... [100%] global_tdp\nbuild succeeded, 1 warning.\n"


@pytest.mark.parametrize(
    ("line", "count"),
    (
        (f"{RST}:12: WARNING: Title underline too short.", 1),
        (f"{RST}: WARNING: document isn't included in any toctree", 1),
        (f"{RST}:3:7: WARNING: undefined label", 1),
        ("./include/linux/kvm_host.h:20: warning: Function parameter not described", 1),
        # Its line does not matter.
        (f"{RST}:8169: ERROR: Malformed table.\n{RST}:8200: ERROR: Malformed table.", 1),
        (SUCCESS, 0),
    ),
)
def test_what_a_documentation_build_complains_about(line: str, count: int) -> None:
    assert len(docs.warnings(line, Path("/tree"))) == count
