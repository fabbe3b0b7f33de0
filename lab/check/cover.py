"""make test WHAT=cover: what of the series' code its tests execute, and what not.

A kernel whose KVM counts how often each line is executed (gcov, lab/check/debug/cover.config)
runs the series' tests on NPT: all with Global TDP on, some with it off, with page tables of
four levels and a page of 1 GiB, or on DAX; and KVM's own of memory without the TDP MMU. Of
files that are the series' own all lines count, of others, in virt/kvm, the MMU and x86.c, those
it added or changed. Lines that only other machines reach, or a race that may not take place,
are named in uncovered.toml.
"""

import argparse
import json
import re
import shutil
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lab import shell
from lab.check import debug, machines, report, tests
from lab.check.outcome import Outcome, State, judged
from lab.check.report import Part
from lab.error import LabError
from lab.make import selftests
from lab.paths import BUILD, LINUX
from lab.shell import console
from lab.source import tree
from lab.source.git import BASE, Git

KIND = "cover"
TARGET = 0.95
"""Of the lines of each file that is the series' own."""

NAMED = Path(__file__).with_name("uncovered.toml")
_MACHINE = "4level"
_FAILING = "global_tdp_fail_test"
"""It can fail the capability only where that is not given to each VM."""

_GCOV = "gcov-12"
_KVM = "arch/x86/kvm/"
_COLLECT = """\
cd /sys/kernel/debug/gcov || exit 1
find . -name '*.gcda' >/tmp/counts && [ -s /tmp/counts ] || exit 1
while read -r name; do cat "$name" >"$1/${name##*/}" || exit 1; done </tmp/counts"""
_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.M)


class Line(NamedTuple):
    """Of a file, with code."""

    number: int
    function: str


Counts = dict[str, Counter[Line]]
"""How often each line of a file was executed; those that no code is of are not there."""

Excuses = Mapping[str, tuple[int, str]]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--tests", default="", help="names, of the series' tests; default all")


def run(args: argparse.Namespace) -> int:
    """Count, show; 1 if a test fails, or lines are not executed that must be."""
    if not shutil.which(_GCOV):
        raise LabError(f"there is no {_GCOV}: apt-get install gcc-12")
    tree.ensure()
    selftests.build()
    # Names are looked up before a kernel is built for them.
    boots = list(_boots(args.tests.split()))
    sources = touched()
    image = debug.build(KIND, stock=False, flags=[_flag(name) for name in sources])
    parts, counts = [], defaultdict(Counter)
    for title, chosen, options in boots:
        part, found = _measure(title, chosen, image, options)
        parts.append(part)
        for name, lines in found.items():
            counts[name].update(lines)
    with report.doing("lines that tests execute") as part:
        # What other tests reach is not to be told from what none does.
        if not args.tests:
            part.outcomes += judge(counts, changed(sources), named())
    return report.show([*parts, part])


def touched() -> list[str]:
    """Return the C files of KVM that the series changes or adds."""
    found = Git(LINUX).lines("diff", "--name-only", "--diff-filter=d", BASE)
    return [
        name
        for name in found
        if name.endswith(".c") and name.startswith((f"{_KVM}mmu/", f"{_KVM}x86.c", "virt/kvm/"))
    ]


def changed(sources: Iterable[str]) -> dict[str, set[int] | None]:
    """Return which lines of each file are the series'; None: all."""
    git, found = Git(LINUX), {}
    for name in sources:
        text = git("diff", "-U0", BASE, "--", name)
        found[name] = None if "\nnew file mode" in text else added(text)
    return found


def added(diff: str) -> set[int]:
    """Return the numbers of the lines that a diff without context has added."""
    return {
        number
        for match in _HUNK.finditer(diff)
        for number in range(int(match[1]), int(match[1]) + int(match[2] or "1"))
    }


def named() -> dict[str, Excuses]:
    """Return, by file, what need not be executed: function and text, how often, and why."""
    return tomllib.loads(NAMED.read_text())


def judge(
    counts: Mapping[str, Mapping[Line, int]],
    ours: Mapping[str, set[int] | None],
    excused: Mapping[str, Excuses],
    root: Path = LINUX,
) -> list[Outcome]:
    """Return, of each file, whether enough was executed and all the rest is accounted for."""
    found = []
    for name, chosen in ours.items():
        if name not in counts:
            found.append(Outcome(name, State.FAILED, reason="nothing was counted"))
            continue
        lines = {
            line: count
            for line, count in counts[name].items()
            if chosen is None or line.number in chosen
        }
        if lines:
            text = (root / name).read_text().splitlines()
            whole = chosen is None
            found.append(_judge(name, lines, text, excused.get(name, {}), whole=whole))
    return found


def _judge(
    name: str, lines: Mapping[Line, int], text: Sequence[str], excuses: Excuses, *, whole: bool
) -> Outcome:
    missed = sorted(line for line, count in lines.items() if not count)
    left = Counter({key: number for key, (number, _) in excuses.items()})
    unknown = []
    for line in missed:
        key = f"{line.function}: {text[line.number - 1].strip()}"
        if not left[key]:
            unknown.append(f"{name}:{line.number}: {key}")
        left[key] -= bool(left[key])
    share = 1 - len(missed) / len(lines)
    note = f"{len(lines) - len(missed)} of {len(lines)} lines, {share:.1%}"
    if unknown:
        note += f"; {len(unknown)} that no test reaches and {NAMED.name} does not name"
        console.print("\n".join(unknown), markup=False, soft_wrap=True)
    for key, number in (+left).items():
        console.print(f"{name}: {number} times more excused than missed: {key}", markup=False)
    too_few = whole and share < TARGET
    return judged(name, not (unknown or too_few), note, "\n".join(unknown))


def _boots(wanted: Sequence[str]) -> Iterator[tuple[str, list[tests.Test], dict[str, str]]]:
    on, off = "kvm.global_tdp=1", "kvm.global_tdp=0"
    every = [*tests.anywhere(wanted), *tests.variants("npt", wanted), *tests.private(wanted)]
    yield on, every, {"params": on}
    failing = [test for test in tests.ours(wanted) if test.name == _FAILING]
    yield off, [*tests.by_parameter(wanted), *failing], {"params": off}
    chosen = tests.on_machine(_MACHINE, wanted)
    yield f"{on}, machine {_MACHINE}", chosen, {"params": on, "machine": _MACHINE}
    if dax := tests.dax(wanted):
        yield f"{on}, machine pmem", dax, {"params": on, "machine": "pmem"}
    if not wanted:
        # What the series mends is in code that others use, too.
        shadow = "kvm.tdp_mmu=0"
        yield f"{shadow}, KVM's own tests", tests.stock(debug.KVM_OWN), {"params": shadow}


def _measure(
    title: str, chosen: Sequence[tests.Test], image: Path, options: Mapping[str, str]
) -> tuple[Part, Counts]:
    directory = BUILD / KIND
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    collect = tests.Test("counts", ("sh", "-c", _COLLECT, "sh", str(directory)))
    listed = [*chosen, collect]
    with report.doing(f"series' tests, {title}") as part:
        done = machines.on_npt(title, listed, boots=1, timeout=3600, image=image, **options)
        part.outcomes += debug.expected(done, options.get("machine", KIND)).all
    return part, _read(directory, image.parents[3])


def _read(directory: Path, output: Path) -> Counts:
    """Return what gcov makes of counts, which it wants beside its notes of the compilation."""
    counts: Counts = defaultdict(Counter)
    for notes in output.rglob("*.gcno"):
        data = directory / notes.with_suffix(".gcda").name
        if not data.exists():
            continue
        shutil.copy(data, notes.parent)
        beside = notes.with_suffix(".gcda")
        told = shell.output(_GCOV, "--json-format", "--stdout", beside, cwd=output)
        for file in json.loads(told)["files"]:
            name = _relative(file["file"])
            for line in file["lines"]:
                where = Line(line["line_number"], line.get("function_name", ""))
                counts[name][where] += line["count"]
    return counts


def _relative(name: str) -> str:
    """Return a source's name in the kernel's tree."""
    for top in ("arch/", "virt/", "include/"):
        before, found, rest = name.rpartition(f"/{top}")
        if found and before:
            return top + rest
    return name


def _flag(name: str) -> str:
    """Return what has make instrument a file, called as KVM's Makefile calls its object."""
    stem = name.removesuffix(".c")
    inside = stem.removeprefix(_KVM) if stem.startswith(_KVM) else f"../../../{stem}"
    return f"GCOV_PROFILE_{inside}.o=y"
