"""packaging/tested: the uploads of Debian's kernel that the package builds modules for.

`make deb ARGS=--tested` adds the one that the lab has, if docs/ledger.toml says that all of
NEEDED passed on it. A host with another upload keeps the distribution's KVM, unless it allows
more.
"""

import argparse

from debian.debian_support import Version

from lab import paths
from lab.check import ledger
from lab.error import LabError
from lab.paths import PACKAGING, ROOT, VERSIONS
from lab.shell import console

FILE = PACKAGING / "tested"
NEEDED = ("test", "stress", "test-package")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the option of make deb."""
    text = f"build nothing; list the lab's kernel in {FILE.relative_to(ROOT)}"
    parser.add_argument("--tested", action="store_true", help=text)


def add() -> None:
    """Add the upload of the chosen series, or LabError says what is to be run first."""
    entries = [_passed(target) for target in NEEDED]
    # test-package has kernels of its own.
    found = {entry.upload for entry in entries[: NEEDED.index("test-package")]}
    if len(found) != 1 or found == {""}:
        ran = ", ".join(sorted(found))
        raise LabError(f"make test and make stress ran on {ran}: run both on one kernel")
    upload, entry = found.pop(), entries[0]
    write(upload, f"{upload} {entry.date} {entry.commit}")
    console.print(f"{FILE.relative_to(ROOT)}: {upload}")


def write(upload: str, line: str) -> None:
    """Add a line, in place of that of the same upload; the oldest comes first."""
    lines = FILE.read_text().splitlines()
    head = [each for each in lines if each.startswith("#")]
    kept = [each for each in lines if each not in head and each.split()[0] != upload]
    known = sorted([*kept, line], key=lambda each: Version(each.split()[0]))
    FILE.write_text("".join(f"{each}\n" for each in (*head, *known)))


def _passed(target: str) -> ledger.Entry:
    version = paths.VERSION if ledger.is_of(paths.VERSION, target) else VERSIONS[0]
    entry = ledger.load().get((version, target))
    if reason := ledger.wrong(version, entry):
        raise LabError(
            f"Linux {version}, make {target}: {reason}: run it, then make deb ARGS=--tested"
        )
    assert entry
    return entry
