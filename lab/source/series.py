"""Export what one would mail: the parts of the series, each with a cover letter of its own.

patches/VERSION/covers has a text file a part, in the order of their names: lines of
"Name: text", an empty line, and what the letter says.

    Subject     of the letter
    Last        the subject of the last patch of the part; the last part has none
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from lab.error import LabError
from lab.paths import BUILD, COVERS, LINUX, ROOT
from lab.shell import console
from lab.source import tree
from lab.source.git import BASE, Git

SUBJECT, BLURB = "*** SUBJECT HERE ***", "*** BLURB HERE ***"


@dataclass(frozen=True)
class Part:
    """Patches that are of use without those of later parts."""

    name: str
    subject: str
    text: str
    after: str
    """The commit below its first patch."""

    last: str
    """That of its last one."""


def export() -> list[Path]:
    """Write the series to build/series and return its patches, without the cover letters."""
    tree.compose()
    target = BUILD / "series"
    shutil.rmtree(target, ignore_errors=True)
    return [patch for part in parts() for patch in _export(part, target / part.name)]


def parts() -> Iterator[Part]:
    """Return the parts in order; LabError if they aren't the whole of the series."""
    git = Git(LINUX)
    log = git.lines("log", "--reverse", "--format=%H %s", f"{BASE}..HEAD")
    commits = [line.partition(" ")[::2] for line in log]
    after = git.commit(BASE)
    covers = sorted(COVERS.glob("*.txt"))
    if commits and not covers:
        raise LabError(f"{COVERS.relative_to(ROOT)} has no letter: one a part, NAME.txt")
    for cover in covers:
        where = cover.relative_to(ROOT)
        letter = HeaderParser().parsestr(cover.read_text())
        last = letter["Last"]
        if not letter["Subject"]:
            raise LabError(f"{where} has no 'Subject: '")
        if bool(last) == (cover == covers[-1]):
            raise LabError(f"{where}: 'Last: ' is for all parts but the last one")
        found = [index for index, (_, subject) in enumerate(commits) if subject == last]
        if last and len(found) != 1:
            raise LabError(f"{where}: there are {len(found)} patches '{last}' left for it")
        count = found[0] + 1 if last else len(commits)
        if not count:
            raise LabError(f"{where}: no patch is left for it")
        commit = commits[count - 1][0]
        del commits[:count]
        yield Part(cover.stem, letter["Subject"], letter.get_payload().strip(), after, commit)
        after = commit


def _export(part: Part, target: Path) -> list[Path]:
    git = Git(LINUX)
    options = ("--cover-letter", "-n", "--no-signature", "-o", target)
    git("format-patch", *options, f"{part.after}..{part.last}")
    cover = target / "0000-cover-letter.patch"
    text = cover.read_text()
    author = git("log", "-1", "--format=%an <%ae>").strip()
    text = re.sub(r"^From: .*", f"From: {author}", text, count=1, flags=re.M)
    text = text.replace(SUBJECT, part.subject, 1)
    cover.write_text(text.replace(BLURB, part.text, 1))
    patches = sorted(set(target.glob("*.patch")) - {cover})
    console.print(f"build/series/{part.name}: {len(patches)} patches")
    return patches
