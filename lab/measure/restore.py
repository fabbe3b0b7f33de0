"""The program of integration/restore: run it for `make bench`, show what it measured.

A guest's memory is restored from a snapshot file, on stock modules and on ours in one
boot under -icount, with the file in the page cache and without.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.error import LabError
from lab.measure import counted
from lab.measure.counted import Verdict
from lab.paths import RESTORE
from lab.show import rows, stdout

WRITE_STEP = 8
"""The guest writes to one of so many pages."""

SNAPSHOT = "/tmp/disk/snapshot"
_SLOW_US = 1000
"""A request of the slow disk takes so long, in us, as one to storage across a network may."""

CACHES = {
    "warm": "page cache warm",
    "cold": "page cache cold",
    "slow": f"page cache cold, a disk that takes {_SLOW_US} us a request",
}
_MIB = 64
_TITLES = {
    cache: f"Restoring {_MIB} MiB from a snapshot file, {title}"
    for cache, title in CACHES.items()
}

_LABELS = {
    "plain": "mmap() only",
    "present+around": "mmap() only, fault-around without the page cache",
    "around": "mmap() only, fault-around",
    "populate": "mmap() only, KVM_POPULATE_MEMORY",
    "cached+populate": "… of what the page cache holds",
    "willneed+around": "MADV_WILLNEED and fault-around",
    "read": "MADV_POPULATE_READ",
    "read+prefault": "… and KVM_PRE_FAULT_MEMORY",
    "read+around": "… and fault-around",
    "read+follow": "… and the follower, waited for",
    "read+populate": "… and KVM_POPULATE_MEMORY",
    "copy": "MADV_POPULATE_WRITE",
    "copy+populate": "… and KVM_POPULATE_MEMORY",
}
AT_MOST = {"around": 631, "cached+populate": 600}
"""Instructions a page from mmap() to when the guest has read all.  The first is 10 % above the
574 that fault_around_bytes of 2 MiB, for all processes, makes of fault-around."""

_OURS_ONLY = ("around", "populate", "follow")
_SLOW = ("plain", "present+around", "around", "willneed+around")
"""What is measured with the slow disk."""

NOTE = f"""\
Instructions per 4 KiB page: prepare is from mmap() to the first KVM_RUN, check until the
guest has read all pages, write until it has written to one of {WRITE_STEP}; CPU is the whole of
it, the follower's and the guest's included, less what is waited; faults are those of check and
of write. Cold: the file is read from a disk that takes no time, so real disks add theirs to
the first touch or to prepare, as the slow one does here, an instruction a ns. The follower's
prepare is mostly sleep. Each first write copies a page on the host, which zaps what was
mapped: two faults a page on stock, one with ours."""

Run = Mapping[str, int | str]


def script(log: Path) -> str:
    """Return shell commands that measure, with the output in LOG.warm.txt, and so on.

    In small pages: khugepaged of Linux 7.3 collapses ext4's page cache now and then, and
    takes what it collapses out of all page tables, until somebody touches it. Who waits for
    the follower to have mapped all then waits for good.
    """
    program, base = f"{shlex.quote(str(RESTORE))} -4 -m {_MIB}", shlex.quote(str(log))
    return f"""
{disk(_MIB + 64)}
{program} {SNAPSHOT} plain >/dev/null
{program} {SNAPSHOT} >{base}.warm.txt
{program} -c {SNAPSHOT} >{base}.cold.txt
{disk(_MIB + 64, _SLOW_US)}
{program} "$TMPDIR/snapshot" plain >/dev/null
{program} -c "$TMPDIR/snapshot" {" ".join(_SLOW)} >{base}.slow.txt
"""


def disk(mib: int, us: int = 0) -> str:
    """Return shell commands that have a disk of ext4 in TMPDIR: for SNAPSHOT, if not slow."""
    return f"""
disk_mib={mib} disk_us={us or ""}
. "$LAB_GUEST/disk.sh"
[ "$TMPDIR" = /tmp/disk{f".{us}" if us else ""} ] || exit"""


def parse(text: str) -> list[Run]:
    """Return the runs in the output of the program."""
    return [run for run in counted.objects(text) if "way" in run]


def figures(logs: Mapping[tuple[str, str], str]) -> list[Run]:
    """Return all runs, by whose modules and by cache; LabError if one is not there."""
    found = []
    for (whose, cache), text in logs.items():
        runs = parse(text)
        ours = whose != "stock"
        ways = _SLOW if cache == "slow" else tuple(_LABELS)
        wanted = [way for way in ways if ours or not way.endswith(_OURS_ONLY)]
        if [run["way"] for run in runs] != wanted:
            raise LabError(f"restore has not measured all ways on {whose} modules, {cache}")
        found += [{"modules": whose, "cache": cache, **run} for run in runs]
    return found


def targets(runs: Sequence[Run]) -> Iterator[Verdict]:
    """Judge what it takes to read all pages, with the file in the page cache."""
    for run in runs:
        most = AT_MOST.get(str(run["way"]))
        if most and (run["modules"], run["cache"]) == ("ours", "warm"):
            took = (int(run["prepare_ns"]) + int(run["check_ns"])) / int(run["pages"])
            label = _LABELS[str(run["way"])]
            yield f"{label}: {took:,.0f} instructions a page, at most {most}", took <= most


def show(runs: Sequence[Run], titles: Mapping[str, str] = _TITLES, note: str = NOTE) -> None:
    """Print a table for each state of the page cache, or whatever runs differ in."""
    heads = ("prepare", "check", "write", "CPU", "faults", "write")
    for cache, title in titles.items():
        found = sorted((run for run in runs if run["cache"] == cache), key=_order)
        rows(title, ("way", "modules"), heads, map(_row, found))
    stdout().print(note, soft_wrap=True)


def _row(run: Run) -> list[str]:
    times = (run["prepare_ns"], run["check_ns"], run["write_ns"], run["cpu_us"] * 1000)
    faults = (f"{run[name]:,}" for name in ("check_faults", "write_faults"))
    pages = (f"{time / run['pages']:,.0f}" for time in times)
    return [_LABELS[run["way"]], run["modules"], *pages, *faults]


def _order(run: Run) -> tuple[int, bool]:
    return list(_LABELS).index(run["way"]), run["modules"] != "stock"
