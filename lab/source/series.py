"""Export what one would mail: cover letter and patches, new files in full."""

import re
import shutil
from pathlib import Path

from lab.error import LabError
from lab.paths import BUILD, COVER_LETTER, LINUX, ROOT
from lab.shell import console
from lab.source import checkpatch, tree
from lab.source.git import BASE, Git

SUBJECT, BLURB = "*** SUBJECT HERE ***", "*** BLURB HERE ***"


def export() -> list[Path]:
    """Write the series to build/series and return its patches, without the cover letter."""
    tree.compose()
    target = BUILD / "series"
    shutil.rmtree(target, ignore_errors=True)
    options = ("--cover-letter", "-n", "--no-signature", "-o", target)
    Git(LINUX)("format-patch", *options, f"{BASE}..HEAD")
    cover = target / "0000-cover-letter.patch"
    _fill_in(cover)
    patches = sorted(set(target.glob("*.patch")) - {cover})
    console.print(f"build/series: {len(patches)} patches")
    return patches


def export_and_check() -> None:
    """Write the series and look it through."""
    checkpatch.check(export())


def _fill_in(cover: Path) -> None:
    if not cover.exists():
        return
    if not COVER_LETTER.exists():
        console.print(
            f"no {COVER_LETTER.relative_to(ROOT)} yet: exported without", style="yellow"
        )
        cover.unlink()
        return
    subject, _, body = COVER_LETTER.read_text().partition("\n")
    if not subject.startswith("Subject: "):
        raise LabError(f"{COVER_LETTER.relative_to(ROOT)} does not begin with 'Subject: '")
    text = cover.read_text()
    author = Git(LINUX)("log", "-1", "--format=%an <%ae>").strip()
    text = re.sub(r"^From: .*", f"From: {author}", text, count=1, flags=re.M)
    text = text.replace(SUBJECT, subject.removeprefix("Subject: ").strip(), 1)
    cover.write_text(text.replace(BLURB, body.strip(), 1))
