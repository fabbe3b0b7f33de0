"""make bench WHAT=working-set: guests of which it was recorded what they need at first.

The program of integration/restore records what a guest reads of its memory, a snapshot file,
and restores guests that read the same: with nothing prepared, with all of the file, and with
what was recorded. One guest and ten at once, the page cache warm and cold; one boot under
-icount.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence

from lab import show
from lab.error import LabError
from lab.measure import counted, restore
from lab.measure.counted import Verdict
from lab.measure.restore import Run
from lab.paths import BUILD, WORKING_SET

DIRECTORY = BUILD / "working-set"
MIB = 64
CLONES = 10
ROUNDS = 2
CASES = {
    "one guest, page cache warm": "",
    "one guest, page cache cold": "-c",
    f"{CLONES} guests at once, page cache warm": f"-n {CLONES}",
    f"{CLONES} guests at once, page cache cold": f"-n {CLONES} -c",
}
WAYS = {
    "nothing, off": "nothing, Global TDP off",
    "nothing": "nothing",
    "everything": "all of the file",
    "recorded": "what was recorded",
}
AT_MOST = 30
"""Instructions for each page of 4 KiB that is recorded, those that were not accessed included;
the goal, from what a recorder without KVM's help pays: a fault a page."""

_NOTE = """\
Millions of instructions: to prepare; and for all up to the end of what the guests read, less
what that takes once all of it is mapped. Faults are stage-2's; tables are in KiB, the host's
and the VMs'. Sums over all guests; the lower of two rounds each."""


def run(_: argparse.Namespace) -> int:
    """Measure and show; 1 if a target is missed."""
    doing = "Counting instructions of guests whose needs were recorded; some minutes"
    log = counted.log_of(DIRECTORY, doing, _script)
    found = cases(restore.parse(log))
    for case, runs in found.items():
        _show(case, runs)
    show.stdout().print(_NOTE, soft_wrap=True)
    counted.save(DIRECTORY / "working-set.json", mib=MIB, note=_NOTE, cases=found)
    return counted.judge(judge(found))


def _script(log: str) -> str:
    program = shlex.quote(str(WORKING_SET))
    lines = ["set -e", restore.disk(MIB + 64)]
    # The first run makes the file.
    lines += [f"{program} -m {MIB} {restore.SNAPSHOT} 'nothing, off' >/dev/null"]
    lines += [
        f"{program} -m {MIB} {flags} {restore.SNAPSHOT} >>{log}"
        for _ in range(ROUNDS)
        for flags in CASES.values()
    ]
    return "\n".join(lines)


def cases(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the lowest runs of each case, its record first; LabError if one is not there."""
    ways = ["record", *WAYS]
    if [run["way"] for run in runs] != ways * len(CASES) * ROUNDS:
        raise LabError(f"the benchmark has not measured all ways: {', '.join(ways)}")
    size = len(ways)
    found = {}
    for index, case in enumerate(CASES):
        starts = ((number * len(CASES) + index) * size for number in range(ROUNDS))
        rounds = [runs[start : start + size] for start in starts]
        found[case] = [min(same, key=net) for same in zip(*rounds, strict=True)]
    return found


def net(run: Run) -> int:
    """Return the instructions of a run, less those of the guests' own work."""
    return int(run["ns"]) - int(run.get("again_ns", 0))


def judge(found: dict[str, list[Run]]) -> Iterator[Verdict]:
    """Return what is promised of a record, and whether it is so."""
    record = int(found[next(iter(CASES))][0]["ns"]) / (MIB << 8)
    yield f"recorded for {record:.1f} instructions a page, ≤ {AT_MOST}", record <= AT_MOST
    for case, (_, _, _, everything, recorded) in found.items():
        faults, guests = int(recorded["faults"]), int(recorded["clones"])
        yield f"{case}: one fault a guest, for its code: {faults}", faults <= guests
        tables = ("stage2_kib", "tables_kib")
        less = all(int(recorded[each]) < int(everything[each]) for each in tables)
        yield f"{case}: fewer page tables than for all of the file", less
        if guests == 1:
            yield f"{case}: less than for all of the file", net(recorded) < net(everything)


def _show(case: str, runs: Sequence[Run]) -> None:
    record, *rest = runs
    title = f"{case}: {int(record['pages']):,} of {MIB << 8:,} pages are needed"
    heads = ("to prepare", "all of it", "faults", "host's tables", "VMs' tables")
    rows = (
        (
            WAYS[str(each["way"])],
            f"{int(each['prepare_ns']) / 1e6:,.1f}",
            f"{net(each) / 1e6:,.1f}",
            *(f"{each[name]:,}" for name in ("faults", "tables_kib", "stage2_kib")),
        )
        for each in rest
    )
    show.rows(title, ("prepared",), heads, rows)
