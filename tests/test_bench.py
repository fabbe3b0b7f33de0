"""The benchmark's figures against their targets."""

import io
import json
import unittest
from contextlib import redirect_stdout

from lab.error import LabError
from lab.measure import bench
from lab.measure.bench import Figure
from lab.paths import VERSION, VERSIONS


def figures(**ours: float) -> list[Figure]:
    """Return figures of all cases; `ours` overrides those of our modules, 4 KiB."""
    made = []
    for case in bench.CASES:
        for backing in bench.BACKINGS:
            whose = "stock" if case.stock else "ours"
            ns = ours.get(case.name, 1.0) if (whose, backing) == ("ours", "4k") else 1.0
            made.append(Figure(whose, case.name, backing, ns, 0))
    return made


class Judge(unittest.TestCase):
    """Of targets."""

    def met(self, case: str, ns: float) -> bool | None:
        rows = bench.judge(figures(**{case: ns}))
        return next(c["4k"].met for row, c in rows if row.name == case and not row.stock)

    def cell(self, stock: float, ours: float) -> bench.Cell:
        case = next(case for case in bench.CASES if case.over_stock is not None)
        before, after = (Figure("", case.name, "4k", ns, 0) for ns in (stock, ours))
        return bench._cell(case, after, before)

    def test_at_most(self) -> None:
        case = next(case for case in bench.CASES if case.name == "populate")
        limit = case.at_most[0]
        assert limit
        self.assertTrue(self.met("populate", limit))
        self.assertFalse(self.met("populate", limit + 0.1))

    def test_over_stock(self) -> None:
        """What is less than an interrupt is not looked at."""
        self.assertTrue(self.met("touch", 1.04))
        self.assertFalse(self.met("touch", 1.06))
        self.assertTrue(self.cell(1000, 1004).met)
        self.assertFalse(self.cell(1000, 1007).met)

    def test_a_missing_figure_is_an_error(self) -> None:
        for left in ([], figures()[:-1]):
            with self.assertRaises(LabError):
                bench.judge(left)

    def test_no_target_is_far_from_what_is_told(self) -> None:
        """Of the documentation: a figure that rose by a quarter is noticed."""
        lines = [line.strip("| ") for line in bench.DOCUMENT.read_text().splitlines()]
        for case in bench.CASES:
            if not any(case.at_most):
                continue
            self.assertTrue(case.told, case.label)
            told = next(line.split("|") for line in lines if line.startswith(case.told))
            figures_told = told[1 + bench.columns_before() :]
            self.assertGreaterEqual(len(figures_told), len(case.at_most), case.label)
            for limit, text in zip(case.at_most, figures_told, strict=False):
                if limit is not None:
                    self.assertLessEqual(limit, 1.25 * float(text), case.label)


class Spread(unittest.TestCase):
    """Of the rounds of one run."""

    def drifts(self, *values: float) -> int:
        return len(list(bench.drift(Figure("ours", "touch", "4k", ns, 0) for ns in values)))

    def test_rounds_that_differ(self) -> None:
        self.assertEqual(self.drifts(1000, 1001.9), 0)
        self.assertEqual(self.drifts(1000, 1002.1), 1)
        self.assertEqual(self.drifts(0.80, 0.84), 0)
        self.assertEqual(self.drifts(0.80, 0.86), 1)

    def test_a_round_that_is_missing(self) -> None:
        self.assertEqual(self.drifts(1000), 1)

    def test_status_and_last_line(self) -> None:
        """A miss, a drift, a word that is not true: each is a failure."""
        for case, drifts, wrong, failed in (
            ("touch", (), (), 0),
            ("populate", (), (), 1),
            ("touch", ("a",), (), 1),
            ("touch", (), ("a",), 1),
        ):
            rows = bench.judge(figures(**{case: 1.0 if case == "touch" else 99}))
            with redirect_stdout(io.StringIO()) as out:
                status = bench.conclude(rows, drifts, wrong)
            self.assertEqual(status, failed)
            self.assertIn(f", {failed} failed, 0 skipped\n", out.getvalue())


class Document(unittest.TestCase):
    """What the documentation says beside what was measured."""

    def untrue(self, **ours: float) -> list[str]:
        told = [case.told for case in bench.CASES if case.told]
        columns = "| 1.0 (+0 %) | 1.0 " * len(VERSIONS)
        text = "\n".join(f"| {label} and more {columns}|" for label in told)
        return list(bench.untrue(text, bench.judge(figures(**ours))))

    def test_what_is_so(self) -> None:
        self.assertEqual(self.untrue(populate=1.09), [])

    def test_what_is_not(self) -> None:
        self.assertEqual(self.untrue(populate=21.4), ["`KVM_POPULATE_MEMORY`: 1.0, not 21.4"])
        self.assertEqual(len(self.untrue(populate=1.11)), 1)

    def test_whole_numbers(self) -> None:
        """Are true within a half, and what may differ from run to run."""
        case = next(case for case in bench.CASES if case.name == "populate")
        cells = {"4k": bench.Cell(Figure("ours", "populate", "4k", 3451.0, 0))}
        for told, wrong in ((3447, 0), (3444, 0), (3443, 1), (3459, 1)):
            line = f"| {case.told} " + f"| {told} " * 2 * len(VERSIONS) + "|"
            self.assertEqual(len(list(bench.untrue(line, [(case, cells)]))), wrong, told)

    def test_of_the_kernel_that_was_measured(self) -> None:
        """Columns of others are left alone."""
        told = [case.told for case in bench.CASES if case.told]
        columns = "".join(f"| {1.0 if each == VERSION else 9.0} " * 2 for each in VERSIONS)
        text = "\n".join(f"| {label} {columns}|" for label in told)
        self.assertEqual(list(bench.untrue(text, bench.judge(figures()))), [])

    def test_every_figure_of_it_is_found(self) -> None:
        found = list(bench.untrue(bench.DOCUMENT.read_text(), bench.judge(figures())))
        self.assertNotIn("nothing", " ".join(found))


class Parse(unittest.TestCase):
    """Of what the program prints."""

    def test_best_of_rounds(self) -> None:
        lines = [
            json.dumps({"case": "touch", "backing": "4k", "ns_per_page": ns, "faults": 3})
            for ns in (7.5, 7.25)
        ]
        found = bench.best(bench.parse("ours", "\n".join(["# for humans", *lines])))
        self.assertEqual(list(found), [Figure("ours", "touch", "4k", 7.25, 3)])
