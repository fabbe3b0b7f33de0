"""What the snapshot benchmark printed."""

import json
import unittest

from lab.error import LabError
from lab.measure import restore


def output(*ways: str) -> str:
    """Return output of the program for some ways."""
    return "\n".join(json.dumps({"way": way, "pages": 1}) for way in ways)


class Figures(unittest.TestCase):
    """Of stock modules and ours."""

    STOCK = ("plain", "read", "read+prefault", "copy")

    def test_stock_has_fewer_ways(self) -> None:
        found = restore.figures({("stock", "warm"): output(*self.STOCK)})
        self.assertEqual([run["way"] for run in found], list(self.STOCK))
        self.assertEqual({run["cache"] for run in found}, {"warm"})

    def test_a_slow_disk_is_for_some_ways(self) -> None:
        found = restore.figures({("stock", "slow"): output("plain")})
        self.assertEqual([run["way"] for run in found], ["plain"])

    def test_a_missing_way_is_an_error(self) -> None:
        for whose, ways in (("stock", self.STOCK[1:]), ("ours", self.STOCK)):
            with self.assertRaises(LabError):
                restore.figures({(whose, "warm"): output(*ways)})
