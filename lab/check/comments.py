"""Words in the kernel's own comments that became others when something of ours was renamed."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from lab.error import LabError
from lab.paths import ROOT
from lab.source import patches

_NAME = re.compile(r"\w+_\w+")
_COMMENT = re.compile(r"^[-+]\s*(/?\*|//)")


def check() -> None:
    """LabError if a patch has one of our words where the kernel's comment had another."""
    files = [file for file in (ROOT / "arch").rglob("*.[ch]") if file.is_file()]
    ours = set().union(*(names(file.read_text()) for file in files))
    wrong = [
        f"{path.relative_to(ROOT)}: {told}"
        for path in patches.series()
        for told in renamed(patches.read(path), ours)
    ]
    if wrong:
        raise LabError("comments of the kernel are not to be renamed:\n" + "\n".join(wrong))


def names(text: str) -> set[str]:
    """Return those of a text that are names of functions or the like."""
    return set(_NAME.findall(text))


def renamed(patch: str, ours: Iterable[str]) -> Iterator[str]:
    """Tell of lines of comments in which a patch changes one word, to one of ours."""
    for old, new in _replaced(patch.splitlines()):
        if not (_COMMENT.match(old) and _COMMENT.match(new)):
            continue
        before, after = old[1:].split(), new[1:].split()
        changed = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
        if len(before) != len(after) or len(changed) != 1:
            continue
        if added := (names(changed[0][1]) - names(changed[0][0])) & set(ours):
            yield f"{min(added)} in {new[1:].strip()!r}"


def _replaced(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Return the lines of the kernel's files that one other has replaced, each with that."""
    is_copy = False
    for old, new in pairwise(lines):
        if new.startswith("+++ b/"):
            is_copy = (ROOT / new.removeprefix("+++ b/")).exists()
        elif old[:1] == "-" and new[:1] == "+" and not is_copy:
            yield old, new
