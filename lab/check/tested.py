"""packaging/tested: the uploads of Debian's kernel that the package builds modules for.

`make deb ARGS=--tested` adds the one that the lab has, if docs/ledger.toml says that all of
NEEDED passed on it with the patches as they are. The package lists no upload that was tested
with other patches. A host with another upload keeps the distribution's KVM, unless its
settings name that upload.
"""

import argparse

from debian.debian_support import Version

from lab.check import ledger
from lab.error import LabError
from lab.paths import PACKAGING, ROOT, VERSIONS
from lab.shell import console
from lab.source.git import Git

FILE = PACKAGING / "tested"
NEEDED = ("test all", "test stress", "test package")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the option of make deb."""
    text = f"build nothing; list the lab's kernels in {FILE.relative_to(ROOT)}"
    parser.add_argument("--tested", action="store_true", help=text)


def add() -> None:
    """Add the upload of each series that has passed, and say what the others lack."""
    lacking = [reason for version in VERSIONS if (reason := _add(version))]
    if lacking:
        raise LabError(f"{'; '.join(lacking)}: run it, then make deb ARGS=--tested")


def text() -> str:
    """Return the list as the package has it, without uploads tested with other patches."""
    return "".join(f"{line}\n" for line in (*_head(), *_fresh()))


def warn() -> None:
    """Say which uploads the package does not list, and if it lists none."""
    fresh = _fresh()
    for line in _lines():
        if line not in fresh:
            upload, _, commit, *_ = line.split()
            console.print(f"warning: {upload} is left out: {commit} has no or other patches")
    if not fresh:
        console.print(
            "warning: no upload is listed as tested: "
            "hosts need an entry in /etc/default/kvm-global-tdp"
        )


def _fresh() -> list[str]:
    """Return the lines whose patches are those that are here."""
    fresh = []
    for line in _lines():
        upload, _, commit, *_ = line.split()
        if _has_same_patches(".".join(upload.split(".")[:2]), commit):
            fresh.append(line)
    return fresh


def _has_same_patches(series: str, commit: str) -> bool:
    """Compare with those of a commit; they differ if it is unknown."""
    patches = f":(glob)patches/{series}/*.patch"
    try:
        return not Git(ROOT)("diff", "--name-only", commit, "--", patches)
    except LabError:
        return False


def _head() -> list[str]:
    return [line for line in FILE.read_text().splitlines() if line.startswith("#")]


def _lines() -> list[str]:
    return [line for line in FILE.read_text().splitlines() if not line.startswith("#")]


def _add(version: str) -> str:
    entries = ledger.load()
    for target in NEEDED:
        of = version if ledger.is_of(version, target) else VERSIONS[0]
        entry = entries.get((of, target))
        reason = ledger.wrong(of, entry)
        if entry and not reason and not _has_same_patches(version, entry.commit):
            reason = f"of {entry.commit}, which has other patches"
        if reason:
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
    kept = [each for each in _lines() if each.split()[0] != upload]
    known = sorted([*kept, line], key=lambda each: Version(each.split()[0]))
    FILE.write_text("".join(f"{each}\n" for each in (*_head(), *known)))
