"""What must have come of guests with an NVDIMM."""

import tempfile
import unittest
from pathlib import Path

from lab.check.nvdimm import judge
from lab.check.nvdimm.config import KINDS, LAST, ON, STOCK, Case, Report
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


class Judge(unittest.TestCase):
    def setUp(self) -> None:
        self.on = a_report(ON)
        self.dax, self.unsynced, self.device, self.file = self.on.cases

    def failed(self) -> list[str]:
        """Return what failed, without what all names have."""
        outcomes = judge.judge(self.on, ON, a_report(STOCK))
        return [each.name for each in outcomes if each.state is not State.PASSED]

    def test_all_is_well(self) -> None:
        self.assertEqual(self.failed(), [])
        self.assertTrue(
            all(
                each.state is State.PASSED for each in judge.judge(a_report(STOCK), STOCK, None)
            )
        )

    def test_what_ends_early(self) -> None:
        self.on = Report(self.on.cases[:1], error="gone")
        self.assertEqual(self.failed(), ["unsynced, on", "devdax, on", "file, on"])
        self.on.cases[0].left = {}
        self.assertEqual(self.failed(), ["dax, on", "unsynced, on", "devdax, on", "file, on"])

    def test_wrong_data(self) -> None:
        what = "the guest reads what the host has written, and then what it wrote itself"
        for mismatches in ([0, 1, 0, 0], [0, 0, 0]):
            self.dax.mismatches = mismatches
            self.assertEqual(self.failed(), [f"dax, on: {what}"])

    def test_what_the_power_cut_must_leave(self) -> None:
        wrote = "with QEMU gone, all that the guest wrote is in the device"
        for left in ({LAST: PAGES - 1, LAST - 1: 1}, {LAST: PAGES - 1, -1: 1}):
            self.device.left = left
            self.assertEqual(self.failed(), [f"devdax, on: {wrote}"])

    def test_what_was_synced(self) -> None:
        synced = "after a power cut, all that was synced is there, and not all that was not"
        for left in ({LAST - 1: PAGES - 1, LAST - 2: 1}, {LAST: PAGES}):
            self.file.left = left
            self.assertEqual(self.failed(), [f"file, on: {synced}"])

    def test_population(self) -> None:
        self.dax.mapped_ahead -= 1
        self.assertEqual(self.failed(), ["dax, on: it is mapped before a vCPU runs"])
        self.dax.mapped_ahead += 1
        self.file.faults[0] = 1
        self.assertEqual(self.failed(), ["file, on: no fault in the first pass"])
        self.file.faults[0] = 0
        self.file.repopulated = 0
        what = "what a sync has write-protected is mapped again ahead of faults"
        self.assertEqual(self.failed(), [f"file, on: {what}"])

    def test_writes_that_no_file_system_is_told_of(self) -> None:
        for case, enough in ((self.dax, PAGES // 512), (self.file, PAGES)):
            case.faults[LAST] = enough - 1
            self.assertEqual(self.failed(), [f"{case.kind}, on: a write after a sync faults"])
            case.faults[LAST] = enough

    def test_a_file_that_nobody_synced(self) -> None:
        self.file.syncs = 0
        what = "file, on: the file was synced while it was written to"
        self.assertEqual(self.failed(), [what])

    def test_there_and_back(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "report.json"
            self.on.save(path)
            self.assertEqual(Report.load(path), self.on)


if __name__ == "__main__":
    unittest.main()
