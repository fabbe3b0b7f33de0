"""What the benchmark of guests that want few pages makes of its output."""

import unittest

from lab.error import LabError
from lab.measure import sparse
from lab.measure.restore import Run


def runs(ns: int) -> list[Run]:
    """Return a round."""
    return [
        {"way": way, "every": step, "turn": turn, "pages": 10, "ns": ns, "faults": 1}
        for turn in range(len(sparse.TURNS))
        for step in sparse.STEPS
        for way in sparse.WAYS
    ]


class Lowest(unittest.TestCase):
    """Of two rounds."""

    def test_the_lowest_counts(self) -> None:
        found = sparse.lowest([*runs(70), *runs(60)])
        self.assertEqual(len(found), len(runs(60)))
        self.assertEqual({run["ns"] for run in found}, {60})
        self.assertEqual(sparse.per_page(found, 1, "around"), [6] * len(sparse.STEPS))

    def test_a_round_that_is_missing_is_an_error(self) -> None:
        with self.assertRaises(LabError):
            sparse.lowest(runs(70))


class Even(unittest.TestCase):
    """Where one way begins to cost more than another."""

    def test_between_two_steps(self) -> None:
        self.assertAlmostEqual(sparse.even((1, 2, 4), (8, 8, 8), (2, 4, 16)) or 0, 2 * 2**0.5)

    def test_nowhere(self) -> None:
        self.assertIsNone(sparse.even((1, 2, 4), (8, 8, 8), (2, 4, 6)))
