"""The benchmark's figures against their targets."""

import json
import unittest

from lab.error import LabError
from lab.measure import bench
from lab.measure.bench import Figure


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

    def test_at_most(self) -> None:
        self.assertTrue(self.met("populate", 22))
        self.assertFalse(self.met("populate", 22.1))

    def test_over_stock(self) -> None:
        self.assertTrue(self.met("touch", 1.004))
        self.assertFalse(self.met("touch", 1.006))

    def test_a_missing_figure_is_an_error(self) -> None:
        for left in ([], figures()[:-1]):
            with self.assertRaises(LabError):
                bench.judge(left)


class Document(unittest.TestCase):
    """What the documentation says beside what was measured."""

    def untrue(self, **ours: float) -> list[str]:
        told = [case.told for case in bench.CASES if case.told]
        text = "\n".join(f"| {label} and more | 1.0 (+0 %) | 1.0 |" for label in told)
        return list(bench.untrue(text, bench.judge(figures(**ours))))

    def test_what_is_so(self) -> None:
        self.assertEqual(self.untrue(populate=1.05), [])

    def test_what_is_not(self) -> None:
        self.assertEqual(self.untrue(populate=21.4), ["`KVM_POPULATE_MEMORY`: 1.0, not 21.4"])

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
