"""Sentences of the documents: 25 words at most, and none of the words that STYLE.md bans."""

import re
from collections.abc import Iterator

from lab.error import LabError
from lab.paths import ROOT

LONGEST = 25
PAGES = ("README.md", "docs/*.md", "lab/README.md", "models/README.md", "patches/README.md")

_BANNED = re.compile(
    r"\b(whoever|nobody|in vain|to be told|as ever|so many|that which)\b|^(what|whoever)\b",
    re.IGNORECASE,
)
_LEAD = re.compile(r"^([-*]|\d+\.)\s+")
_NEW_BLOCK = re.compile(r"\s*([-*]|\d+\.)\s")
_SKIPPED = re.compile(r"\s*(\||#|<!--|!\[)")
_END = re.compile(r"(?<=[.?!])[*_)\"]*\s+|(?<=:)\s*$")
_ABBREVIATION = re.compile(r"\b(i\.e|e\.g|vs)\. ")


def check() -> None:
    """LabError if a document has a sentence that is too long, or a banned word."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for page in PAGES
        for path in sorted(ROOT.glob(page))
        for line, fault in faults(path.read_text())
    ]
    if wrong:
        raise LabError("split or reword these sentences:\n" + "\n".join(wrong))


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
    text = re.sub(r"`[^`]*`", "`x`", block)
    text = _LEAD.sub("", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).strip())
    return _ABBREVIATION.sub(r"\1 ", text)
