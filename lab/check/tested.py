"""packaging/tested: the uploads of Debian's kernel that the package builds modules for.

`make deb ARGS=--tested` adds the one that the lab has, if docs/ledger.toml says that all of
NEEDED passed on it. A host with another upload keeps the distribution's KVM, unless it allows
more.
"""

import argparse
from contextlib import suppress

from debian.debian_support import Version

from lab.check import ledger
from lab.error import LabError
from lab.paths import PACKAGING, ROOT, VERSIONS
from lab.shell import console
from lab.source.git import Git

FILE = PACKAGING / "tested"
NEEDED = ("test", "test stress", "test package")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the option of make deb."""
    text = f"build nothing; list the lab's kernels in {FILE.relative_to(ROOT)}"
    parser.add_argument("--tested", action="store_true", help=text)


def add() -> None:
    """Add the upload of each series that has passed, and say what the others lack."""
    lacking = [reason for version in VERSIONS if (reason := _add(version))]
    if lacking:
        raise LabError(f"{'; '.join(lacking)}: run it, then make deb ARGS=--tested")


def warn() -> None:
    """Say which uploads have passed with other patches than those that the package has."""
    for line in _lines():
        upload, _, commit, *_ = line.split()
        series = f"patches/{'.'.join(upload.split('.')[:2])}/*.patch"
        with suppress(LabError):
            if Git(ROOT)("rev-list", "-1", f"{commit}..HEAD", "--", series):
                console.print(f"warning: {upload} was tested with the patches of {commit}")


def _lines() -> list[str]:
    return [line for line in FILE.read_text().splitlines() if not line.startswith("#")]


def _add(version: str) -> str:
    entries = ledger.load()
    for target in NEEDED:
        of = version if ledger.is_of(version, target) else VERSIONS[0]
        if reason := ledger.wrong(of, entries.get((of, target))):
            return f"Linux {of}, make {ledger.shown(target)}: {reason}"
    # That of the package has kernels of its own.
    first, second = (entries[version, target] for target in NEEDED[:2])
    if first.upload != second.upload or not first.upload:
        ran = " and ".join(map(ledger.shown, NEEDED[:2]))
        return f"Linux {version}, make {ran}: not on one kernel"
    write(first.upload, f"{first.upload} {first.date} {first.commit}")
    console.print(f"{FILE.relative_to(ROOT)}: {first.upload}")
    return ""


def write(upload: str, line: str) -> None:
    """Add a line, in place of that of the same upload; the oldest comes first."""
    head = [each for each in FILE.read_text().splitlines() if each.startswith("#")]
    kept = [each for each in _lines() if each.split()[0] != upload]
    known = sorted([*kept, line], key=lambda each: Version(each.split()[0]))
    FILE.write_text("".join(f"{each}\n" for each in (*head, *known)))
