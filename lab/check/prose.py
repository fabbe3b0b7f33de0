"""Sentences of the documents: 25 words at most, and none of the words that STYLE.md bans."""

import re
from collections.abc import Iterator
from pathlib import Path

from lab.error import LabError
from lab.paths import ROOT

LONGEST = 25
PAGES = (
    "README.md",
    "docs/*.md",
    "lab/README.md",
    "models/README.md",
    "patches/README.md",
    "integration/*/README.md",
    "bpftrace/README.md",
    "docs/reports/README.md",
    "Documentation/virt/kvm/*.rst",
)

_BANNED = re.compile(
    r"\b(whoever|nobody|in vain|to be told|as ever|so many|that which)\b|^(what|whoever)\b",
    re.IGNORECASE,
)
_LEAD = re.compile(r"^([-*]|\d+\.)\s+")
_NEW_BLOCK = re.compile(r"\s*([-*]|\d+\.)\s")
_SKIPPED = re.compile(r"\s*(\||#|<!--|!\[)")
_END = re.compile(r"(?<=[.?!])[*_)\"]*\s+|(?<=:)\s*$")
_ABBREVIATION = re.compile(r"\b(i\.e|e\.g|vs)\. ")

_RST_RULE = re.compile(r"\s*([=~^-])\1{2,}$")
_RST_BORDER = re.compile(r"\s*=+( +=+)+$")
_RST_SKIPPED = re.compile(r"\s*(\.\. |:\w+:)")


def check() -> None:
    """LabError if a document has a sentence that is too long, or a banned word."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for page in PAGES
        for path in sorted(ROOT.glob(page))
        for line, fault in faults(plain(path))
    ]
    if wrong:
        raise LabError("split or reword these sentences:\n" + "\n".join(wrong))


def plain(path: Path) -> str:
    """Return what a document has, without reStructuredText."""
    return of_rst(path.read_text()) if path.suffix == ".rst" else path.read_text()


def of_rst(text: str) -> str:
    """Return the prose of reStructuredText: other lines are empty, none is indented."""
    lines = [line.rstrip() for line in text.splitlines()]
    code: int | None = None
    table, kept = False, []
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        after = lines[number + 1] if number + 1 < len(lines) else ""
        indent = _indent(line)
        if line and code is not None and indent <= code:
            code = None
        border = code is None and bool(_RST_BORDER.match(line))
        title = _RST_RULE.match(line) or (line and _RST_RULE.match(after))
        term = line and not before and _indent(after) > indent and not _NEW_BLOCK.match(line)
        other = table or border or title or term or _RST_SKIPPED.match(line)
        kept.append("" if other or code is not None else line.lstrip())
        # The last border is the one with nothing behind it.
        table = bool(after) if border else table
        if line.endswith("::") and code is None:
            code = indent
    return "\n".join(kept)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def faults(text: str) -> Iterator[tuple[int, str]]:
    """Return the line at which a block begins, and what is wrong with a sentence of it."""
    for line, block in _blocks(text):
        for sentence in _END.split(_plain(block)):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            start = " ".join(words[:6])
            if len(words) > LONGEST:
                yield line, f"{len(words)} words, {LONGEST} at most: {start!r}"
            banned = _BANNED.search(sentence.lstrip('*_("'))
            if banned and not (banned[2] and sentence.rstrip("*_").endswith("?")):
                yield line, f"{banned[0]!r}: {start!r}"


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Return each paragraph or item, with its first line; no code, table or heading."""
    first, block, fenced, after_blank, in_list = 0, "", False, True, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        code = line.startswith("    ") and after_blank and not in_list
        ends = fence or fenced or code or not line.strip() or _SKIPPED.match(line)
        if block and (ends or _NEW_BLOCK.match(line)):
            yield first, block
            block = ""
        if not ends:
            first = first if block else number
            block += " " + line.strip()
            in_list = bool(_NEW_BLOCK.match(line)) or (in_list and line.startswith(" "))
        after_blank = not line.strip() or (code and after_blank)


def _plain(block: str) -> str:
    """Return a block's text: code is one word, a link its text."""
    text = re.sub(r"(`+).*?\1(?!`)", "`x`", block)
    text = _LEAD.sub("", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).strip())
    return _ABBREVIATION.sub(r"\1 ", text)
