"""What must have come of guests with an NVDIMM."""

from collections.abc import Iterator, Sequence

from lab.check.guests import ON, Promise, Report
from lab.check.nvdimm.config import KINDS, LAST, Case
from lab.check.outcome import Outcome

_WANTED = {
    "dax": "after a power cut, all that the guest wrote is in the file",
    "unsynced": "after a power cut, so is the file itself, by MAP_SYNC",
    "devdax": "with QEMU gone, all that the guest wrote is in the device",
    "file": "after a power cut, all that was synced is there, and not all that was not",
}
"""Of each kind; caches of CPUs, which a real cut takes, are not emulated."""

_DAX_PAGES = 512
"""Of 4 KiB, in the largest that the host may map DAX by: the file system is told of each."""


def judge(report: Report, side: str, stock: Report | None) -> list[Outcome]:
    """Return what came of each promise; `stock` is what has run without the series, if any."""
    cases = {case.kind: case for case in report.cases}
    others = {case.kind: case for case in stock.cases} if stock else {}
    wanted = {f"{kind}, {side}": cases.get(kind) for kind in KINDS}
    return report.judge(wanted, lambda case: _promises(case, others.get(case.kind)))


def _promises(case: Case, stock: Case | None) -> Iterator[Promise]:
    wrong = case.mismatches
    yield (
        "the guest reads what the host has written, and then what it wrote itself",
        len(wrong) == LAST + 1 and not any(wrong),
        f"{wrong} words are wrong",
    )
    yield _WANTED[case.kind], _survives(case), _left(case)
    if case.kind in ("dax", "file"):
        yield (
            "the file was synced while it was written to",
            case.syncs > 0,
            f"{case.syncs} times",
        )
        least = case.pages // _DAX_PAGES if case.kind == "dax" else case.pages
        found = f"{case.faults[-1:]} faults, at least {least}"
        yield "a write after a sync faults", sum(case.faults[LAST:]) >= least, found
        # A fault of DAX maps 2 MiB again, before the follower looks, which is after a second.
        if case.side == ON and case.kind == "file":
            what = "what a sync has write-protected is mapped again ahead of faults"
            yield what, case.repopulated > 0, f"{case.repopulated} pages"
    ahead = case.mapped_ahead
    found = f"{ahead} pages are mapped, {case.pages} are the NVDIMM's"
    if case.side == ON:
        yield "it is mapped before a vCPU runs", ahead >= case.pages, found
        found = f"{case.faults[:1]}, stock {stock.faults[:1] if stock else 'not run'}"
        yield "no fault in the first pass", case.faults[:1] == [0], found
    else:
        yield "nothing is mapped before a vCPU runs", not ahead, found


def _survives(case: Case) -> bool:
    """Whether no page is older than it may be; and whether the cut was one."""
    allowed: Sequence[int] = (LAST - 1, LAST) if case.kind == "file" else (LAST,)
    kept = sum(case.left.get(number, 0) for number in allowed)
    return kept == case.pages and bool(case.left.get(allowed[0]))


def _left(case: Case) -> str:
    told = (f"{pages} of round {number}" for number, pages in sorted(case.left.items()))
    return f"of {case.pages} pages {', '.join(told)}"
