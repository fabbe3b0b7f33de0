"""docs/ledger.toml: what came of the last run of each target that takes long.

The lab writes an entry, and the table in lab/README.md, when such a target ends. Edit neither.
Only a run of the whole target counts: one with ARGS or TESTS, or of another kernel or tests
than those of the series, leaves the entry as it is.
"""

import argparse
import datetime
import json
import os
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product

from lab import paths
from lab.check import debug, pages, report
from lab.check.outcome import State
from lab.error import LabError
from lab.paths import ROOT, VERSIONS
from lab.shell import locked
from lab.source import debian, tree
from lab.source.git import Git

FILE = ROOT / "docs" / "ledger.toml"

FOR_ONE = {
    "deb": "the package is",
    "test package": "the package is",
    "test broken": "what breaks the promises in tests/broken is",
    "test races": "what breaks the promises in tests/broken is",
    "test cover": "the kernel that counts lines is",
    "bench scale": "what is recorded in docs/scale.json is",
}
"""Commands that only the oldest series has so far, and why."""

_DEBUG = "test debug"
TARGETS = (
    *("test", "test all", "test broken", "test cover", "test model"),
    *(f"{_DEBUG} {kind} {backend}" for kind in debug.KINDS for backend in debug.BACKENDS),
    *("test stress", "test fuzz", "test bisect", "demo"),
    *(f"test {name}" for name in ("package", "qemu", "assigned", "nvdimm", "rust")),
    *("bench", "bench bulk", "bench dax", "bench locking", "bench perf", "bench reclaim"),
    *("bench scale", "bench sparse", "bench working-set"),
)

_OLD = 15
"""Commits that change a series, after which a result is one of another program."""


@dataclass(frozen=True)
class Entry:
    """What came of a run."""

    commit: str
    date: datetime.date
    status: int
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    edits: bool = False
    """Whether the tree had uncommitted changes."""

    upload: str = ""
    """Of Debian's linux, that the lab has."""

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        came = counts if self.passed + self.failed else "failed" if self.status else "passed"
        came = f"**{came}**" if self.status else came
        return f"{came}: {self.commit[:8]}{' with edits' * self.edits}, {self.date}"


Entries = dict[tuple[str, str], Entry]
"""By series and target."""


@dataclass(frozen=True)
class Run:
    """A run of a target that goes on."""

    targets: Sequence[str]
    commit: str
    edits: bool

    def end(self, status: int, counted: bool = True) -> None:
        """Write down what came of it: of each target what its parts, or else all, say."""
        at = (self.commit, datetime.datetime.now(datetime.UTC).date())
        kernel = debian.unpacked()
        more = {"edits": self.edits, "upload": kernel.upload if kernel else ""}
        with locked("ledger", paths.SHARED):
            entries = load()
            for target in self.targets:
                counts = _counts(target) if counted else Counter()
                red = report.status(counts) if len(self.targets) > 1 else status
                numbers = {str(state): counts[state] for state in State}
                entry = Entry(*at, red, **numbers, **more)
                entries[paths.VERSION, target] = entry
            FILE.write_text("".join(_toml(entries)))
            SHOWN.write()


def begin(
    args: argparse.Namespace, parse: Callable[[Sequence[str]], argparse.Namespace]
) -> Run | None:
    """Return the run that a command is; None if it is not one of a whole target."""
    targets = [args.command]
    if args.command == _DEBUG:
        chosen = [args.backend] if args.backend else debug.BACKENDS
        targets = [f"{_DEBUG} {args.kind} {backend}" for backend in chosen]
    if not all(is_of(paths.VERSION, target) for target in targets):
        return None
    plain = parse([args.command])
    if args.command == _DEBUG:
        plain.kind, plain.backend = args.kind, args.backend
    if args != plain or paths.TESTS_OF != paths.VERSION or os.environ.get("KVER"):
        return None
    git = Git(ROOT)
    with suppress(LabError):
        # The commit is that of the beginning: others may come while this takes hours.
        written = [f":(exclude){path.relative_to(ROOT)}" for path in (FILE, pages.LAB)]
        edits = bool(git.lines("status", "--porcelain", "--", ".", *written))
        edits = edits or (paths.LINUX.exists() and tree.unsaved() is not None)
        return Run(targets, git.commit()[:12], edits)
    return None


def is_of(version: str, target: str) -> bool:
    """Whether a series has an entry for it."""
    return target in TARGETS and (
        # The model is the same for all series: the oldest has its entry.
        version == VERSIONS[0] or (target != "test model" and target not in FOR_ONE)
    )


def _counts(target: str) -> Counter[State]:
    """Return how many ended how, of a target that may be a part of a command."""
    if target.startswith(_DEBUG):
        backend = target.rpartition(" ")[2].upper()
        return report.count([part for part in report.TOLD if f", {backend}," in part.title])
    return report.ENDED


def load() -> Entries:
    """Return what is recorded."""
    found = tomllib.loads(FILE.read_text()) if FILE.exists() else {}
    return {
        (version, target): Entry(**entry)
        for version, targets in found.items()
        for target, entry in targets.items()
    }


def _toml(entries: Entries) -> Iterator[str]:
    yield "# Written by the lab as a target ends, see lab/check/ledger.py; edited nowhere.\n"
    for (version, target), entry in sorted(entries.items()):
        yield f'\n["{version}"."{target}"]\n'
        for name, value in asdict(entry).items():
            if value or name == "status":
                text = str(value) if isinstance(value, datetime.date) else json.dumps(value)
                yield f"{name} = {text}\n"


def shown(target: str) -> str:
    """Return what to type after make."""
    names = ("", "WHAT=", "DEBUG=", "BACKEND=")
    return " ".join(map("".join, zip(names, target.split(), strict=False)))


def table() -> str:
    """Return what lab/README.md shows."""
    entries = load()
    lines = [f"| target | {' | '.join(VERSIONS)} |\n", f"|---|{'---|' * len(VERSIONS)}\n"]
    for target in TARGETS:
        cells = [
            str(entries.get((each, target), "never")) if is_of(each, target) else "none"
            for each in VERSIONS
        ]
        lines.append(f"| `{shown(target)}` | {' | '.join(cells)} |\n")
    return "".join(lines)


SHOWN = pages.Shown("the ledger", table)


def check() -> None:
    """LabError if lab/README.md shows another ledger; print which targets to run again."""
    SHOWN.check()
    entries, found = load(), defaultdict(list)
    for version, target in product(VERSIONS, TARGETS):
        if is_of(version, target) and (why := wrong(version, entries.get((version, target)))):
            found[version, why].append(shown(target))
    for (version, why), targets in found.items():
        print(f"warning: ledger: {version}, {why}: {', '.join(targets)}")


def wrong(version: str, entry: Entry | None) -> str:
    """Return why an entry does not count, "" if it does."""
    if entry is None:
        return "never run"
    if entry.status:
        return "failed"
    if entry.edits:
        return "of a tree with edits"
    since = ("rev-list", "--count", f"{entry.commit}..HEAD", "--", f"patches/{version}/*.patch")
    with suppress(LabError):
        return f"older than {_OLD} commits of the series" * (int(Git(ROOT)(*since)) > _OLD)
    return "of a commit that is not here"
