"""What the benchmark of reclaim finds in its output, and finds fault with."""

import io
import json
import unittest
from contextlib import redirect_stdout

from lab.error import LabError
from lab.measure import counted, reclaim


def output(count: int, **measured: int) -> str:
    """Return output of the program for so many runs."""
    each = {"asked": 100, "gone": 100, "cpu_ns": 1000, **measured}
    lines = [{"vms": 1, "host_kib": 4}]
    lines += [{"vms": 1, "round": number, **each} for number in (1, 2)]
    return "".join(f"{json.dumps(line)}\n" for line in lines) * count


class Parse(unittest.TestCase):
    """Of lines for page tables, and for rounds."""

    CASES = tuple(reclaim.cases([1]))

    def test_each_round_is_there_with_its_tables(self) -> None:
        found = reclaim.parse(output(len(self.CASES)), self.CASES)
        self.assertEqual(len(found), 2 * len(self.CASES))
        self.assertEqual({run["host_kib"] for run in found}, {4})
        self.assertEqual({run["lists"] for run in found}, {"mglru", "classic"})
        self.assertEqual(sum(bool(run["apart"]) for run in found), 8)

    def test_a_missing_run_is_an_error(self) -> None:
        with self.assertRaises(LabError):
            reclaim.parse(output(len(self.CASES) - 1), self.CASES)


class Conclude(unittest.TestCase):
    """Of what takes more than what was used, and of what does not come."""

    CASES = tuple(reclaim.cases([1]))

    def concluded(self, **on: int) -> tuple[int, str]:
        runs = reclaim.parse(output(len(self.CASES)), self.CASES)
        runs = [{**run, **(on if run["mode"] == "on" else {})} for run in runs]
        with redirect_stdout(io.StringIO()) as out:
            status = counted.judge(reclaim.targets(runs))
        return status, out.getvalue()

    def test_as_much_as_what_was_used(self) -> None:
        status, said = self.concluded()
        self.assertEqual(status, 0)
        self.assertIn("4 passed, 0 failed", said)

    def test_much_more_than_what_was_used(self) -> None:
        status, said = self.concluded(cpu_ns=2100)
        self.assertEqual(status, 1)
        self.assertIn("mglru, 1 VMs: 21 instructions a page, 10 if used", said)

    def test_less_than_was_asked_for(self) -> None:
        status, said = self.concluded(gone=90)
        self.assertEqual(status, 1)
        self.assertIn("90 pages are gone of 100", said)
