"""What must have come of guests with an NVDIMM."""

from pathlib import Path

import pytest

from lab.check.guests import ON, STOCK, Report
from lab.check.nvdimm import judge
from lab.check.nvdimm.config import KINDS, LAST, Case
from lab.check.outcome import State

PAGES = 1000


def a_report(side: str) -> Report:
    """Return one in which all is as it must be."""
    ahead, faults = (PAGES, [0, 7, 7, PAGES]) if side == ON else (0, [PAGES] * 4)
    report = Report()
    for kind in KINDS:
        left = {LAST - 1: 600, LAST: 400} if kind == "file" else {LAST: PAGES}
        report.cases.append(
            Case(kind, side, PAGES, ahead, [*faults], [0] * (LAST + 1), 3, 8, left)
        )
    return report


def failed(report: Report, side: str = ON) -> list[str]:
    """Return what failed."""
    outcomes = judge.judge(report, side, a_report(STOCK) if side == ON else None)
    return [each.name for each in outcomes if each.state is not State.PASSED]


READS = "the guest reads what the host has written, and then what it wrote itself"
WROTE = "with QEMU gone, all that the guest wrote is in the device"
AGAIN = "what a sync has write-protected is mapped again ahead of faults"
SYNCED = "after a power cut, all that was synced is there, and not all that was not"


@pytest.mark.parametrize(
    ("kind", "name", "value", "wanted"),
    (
        ("dax", "mismatches", [0, 1, 0, 0], READS),
        ("dax", "mismatches", [0, 0, 0], READS),
        ("devdax", "left", {LAST: PAGES - 1, LAST - 1: 1}, WROTE),
        ("devdax", "left", {LAST: PAGES - 1, -1: 1}, WROTE),
        ("file", "left", {LAST - 1: PAGES - 1, LAST - 2: 1}, SYNCED),
        ("file", "left", {LAST: PAGES}, SYNCED),
        ("file", "syncs", 0, "the file was synced while it was written to"),
        ("file", "repopulated", 0, AGAIN),
        ("dax", "mapped_ahead", PAGES - 1, "it is mapped before a vCPU runs"),
        ("file", "faults", [1, 7, 7, PAGES], "no fault in the first pass"),
        # The file system is told of each page, of DAX the largest.
        ("file", "faults", [0, 7, 7, PAGES - 1], "a write after a sync faults"),
        ("dax", "faults", [0, 7, 7, PAGES // 512 - 1], "a write after a sync faults"),
    ),
)
def test_a_case(kind: str, name: str, value: object, wanted: str) -> None:
    report = a_report(ON)
    setattr(report.cases[KINDS.index(kind)], name, value)
    assert failed(report) == [f"{kind}, on: {wanted}"]


def test_all_is_well_and_saved_as_it_is(tmp_path: Path) -> None:
    for side in (ON, STOCK):
        report = a_report(side)
        assert failed(report, side) == []
        report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json", Case) == report


def test_what_ends_early() -> None:
    report = Report(cases=a_report(ON).cases[:1], error="gone")
    assert failed(report) == ["unsynced, on", "devdax, on", "file, on"]
    report.cases[0].left = {}
    assert failed(report) == ["dax, on", "unsynced, on", "devdax, on", "file, on"]
