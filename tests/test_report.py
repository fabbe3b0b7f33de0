"""What the demo compares."""

import io
import unittest
from contextlib import redirect_stdout

from lab.demo.config import Case, Demo, Job
from lab.demo.report import pairs, show


def case(side: str, faults: int) -> Case:
    return Case("memfd", side, 0, curve=[(0.0, 0), (5.0, faults)])


class Pairs(unittest.TestCase):
    def test_off_beside_on(self) -> None:
        demo = Demo("precopy", 512, cases=[case("off", 200), case("on", 1)])
        (pair,) = pairs(demo)
        self.assertEqual(list(pair.sides), ["off", "on"])
        self.assertEqual(pair.ratio, 1 / 200)

    def test_stock_qemu_is_a_side_and_no_part_of_the_ratio(self) -> None:
        cases = [case("stock QEMU, off", 1000), case("off", 100), case("on", 10)]
        (pair,) = pairs(Demo("precopy", 512, cases=cases))
        self.assertEqual(list(pair.sides), ["stock QEMU, off", "off", "on"])
        self.assertEqual(pair.ratio, 0.1)

    def test_only_a_qemu_of_its_own_has_stock_beside_it(self) -> None:
        job = Job("precopy", ["memfd"], 512, 1, "kernel", "initramfs", "qemu")
        self.assertEqual([side.name for side in job.sides], ["off", "on"])
        self.assertEqual([side.parameter for side in job.sides], [False, True])
        job.patched = "patched"
        self.assertEqual([side.patched for side in job.sides], [False, False, True, True])
        self.assertEqual([side.parameter for side in job.sides], [False, True, False, False])

    def test_a_patched_qemu_that_tells_kvm_nothing_misses_its_target(self) -> None:
        on = case("on", 0)
        on.at_end = {"tdp_populated_4k": 9}
        for mode, told, refused, met in (
            ("precopy", 0, 0, False),
            ("precopy", 1, 0, True),
            ("precopy", 1, 1, False),
            ("cpr", 0, 0, True),
            ("cpr-transfer", 0, 0, True),
        ):
            on.hints = {"kvm_populate": told, "refused": refused, "kvm_populate_busy": 1}
            demo = Demo(mode, 512, cases=[case("off", 200), on])
            with (
                self.subTest(mode, told=told, refused=refused),
                redirect_stdout(io.StringIO()) as said,
            ):
                self.assertEqual(show(demo), met)
            self.assertIn("not given, for a lock", said.getvalue())


if __name__ == "__main__":
    unittest.main()
