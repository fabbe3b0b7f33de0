"""The locking benchmark's output, and its figures against their targets."""

import json
import unittest

from lab.measure import locking
from lab.measure.locking import Figure


def line(kind: str, data: object) -> str:
    """Return a line as bpftrace prints it."""
    return json.dumps({"type": kind, "data": data})


class Trace(unittest.TestCase):
    """Of mmu_lock, by bpftrace."""

    def test_each_run_has_its_own_maps(self) -> None:
        text = [line("attached_probes", {"probes": 6}), line("printf", "ready\n"), "", ""]
        for held in (100, 200):
            text.append(line("printf", "run\n"))
            text.append(line("map", {"@longest": {"age:16": held}}))
            text.append(line("map", {"@holds": {"age:16": 3, "idle": 5}}))
        runs = list(locking.parse_trace("\n".join(text)))
        self.assertEqual([longest["age:16"] for longest, _ in runs], [100, 200])
        self.assertEqual(runs[0][1], {"age:16": 3, "idle": 5})

    def test_a_run_without_a_hold(self) -> None:
        text = [line("printf", "run\n"), line("printf", "run\n")]
        self.assertEqual(list(locking.parse_trace("\n".join(text))), [({}, {}), ({}, {})])


class Judge(unittest.TestCase):
    """Of targets."""

    def lines(self, *figures: Figure) -> str:
        known = {(f.mode, f.modules, f.path, f.mib): f for f in figures}
        return "\n".join(locking.judge(known))

    def test_longest_hold(self) -> None:
        for hold, met in ((120, True), (121, False)):
            text = self.lines(
                Figure("alone", "ours", "nx", 16, 1, hold=100),
                Figure("alone", "ours", "nx", 1024, 1, hold=hold),
            )
            self.assertEqual("not met" not in text, met)

    def test_worst_fault_and_storm(self) -> None:
        text = self.lines(
            Figure("turns", "stock", "nx", 1024, 100, worst=5000),
            Figure("turns", "ours", "nx", 1024, 100, worst=101),
            Figure("alone", "stock", "nx", 1024, 100),
            Figure("alone", "ours", "nx", 1024, 111),
        )
        self.assertEqual(text.count("not met"), 2)
