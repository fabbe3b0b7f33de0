"""What the demo compares."""

import unittest

from lab.demo.config import Case, Demo, Job
from lab.demo.report import pairs


def case(backend: str, on: bool, faults: int, stock_qemu: bool = False) -> Case:
    return Case(backend, on, 0, True, stock_qemu, curve=[(0.0, 0), (5.0, faults)])


class Pairs(unittest.TestCase):
    def test_off_beside_on(self) -> None:
        demo = Demo("precopy", 512)
        demo.cases = [case("memfd", False, 200), case("memfd", True, 1)]
        (pair,) = pairs(demo)
        self.assertEqual([name for name, _ in pair.sides], ["off", "on"])
        self.assertEqual(pair.ratio, 1 / 200)

    def test_stock_qemu_is_a_side_and_no_part_of_the_ratio(self) -> None:
        demo = Demo("precopy", 512)
        demo.cases = [
            case("anon", False, 1000, stock_qemu=True),
            case("anon", False, 100),
            case("anon", True, 10),
        ]
        (pair,) = pairs(demo)
        self.assertEqual([name for name, _ in pair.sides], ["stock QEMU", "off", "on"])
        self.assertEqual(pair.ratio, 0.1)

    def test_only_a_qemu_of_its_own_has_stock_beside_it(self) -> None:
        job = Job("precopy", ["memfd"], 512, 1, "kernel", "initramfs", {})
        self.assertEqual(job.sides, [(False, False), (False, True)])
        job.chosen_by_qemu = True
        self.assertEqual(len(job.sides), 3)
        self.assertTrue(job.sides[0][0])


if __name__ == "__main__":
    unittest.main()
