"""What the demo's guest says on its console."""

import unittest

from lab.demo import stamps
from lab.demo.stamps import Verdict


def ready(cpu: int) -> str:
    return f"stamps: cpu {cpu} ready pages 100\n"


def checked(cpu: int, number: int, wrong: int = 0, pages: int = 100) -> str:
    return f"stamps: cpu {cpu} pass {number} pages {pages} mismatches {wrong}\r\n"


class Ready(unittest.TestCase):
    def test_stamped_and_checked_by_all(self) -> None:
        text = ready(0) + ready(1) + checked(0, 1)
        self.assertFalse(stamps.ready(text, 2))
        self.assertTrue(stamps.ready(text + checked(1, 1), 2))

    def test_one_that_is_ahead_is_not_two(self) -> None:
        text = ready(0) + ready(1) + checked(0, 1) + checked(0, 2)
        self.assertFalse(stamps.ready(text, 2))

    def test_half_a_line_says_nothing(self) -> None:
        text = ready(0) + checked(0, 1)
        self.assertFalse(stamps.ready(text.partition(" mismatches")[0], 1))


class Judgement(unittest.TestCase):
    """Of a guest that resumed: the first pass may have begun before."""

    def test_two_passes_of_each(self) -> None:
        text = checked(0, 7) + checked(0, 8) + checked(1, 5)
        self.assertIsNone(stamps.verdict(text, 2))
        self.assertEqual(stamps.verdict(text + checked(1, 6), 2), Verdict(200, 0))

    def test_a_cpu_that_says_nothing(self) -> None:
        self.assertIsNone(stamps.verdict(checked(0, 7) + checked(0, 8), 2))
        self.assertIsNone(stamps.verdict("", 2))

    def test_mismatches_add_up(self) -> None:
        text = checked(0, 1) + checked(0, 2, wrong=3) + checked(1, 1, wrong=1)
        text += checked(1, 2, wrong=2)
        self.assertEqual(stamps.verdict(text, 2), Verdict(200, 5))

    def test_the_first_mismatch_is_told(self) -> None:
        text = f"{ready(0)}stamps: MISMATCH cpu 0 page 7 \nstamps: MISMATCH cpu 1\n"
        self.assertEqual(stamps.mismatch(text), "stamps: MISMATCH cpu 0 page 7")
        self.assertIsNone(stamps.mismatch(ready(0)))


class Toggled(unittest.TestCase):
    def test_a_number_is_told(self) -> None:
        self.assertTrue(stamps.toggled("stamps: x\ntoggle: 1000\r\n"))
        for text in ("", "toggle: no graphics adapter\n", "toggle: failed\n"):
            self.assertFalse(stamps.toggled(text))


class Progress(unittest.TestCase):
    def test_in_order(self) -> None:
        self.assertIn("booting", stamps.progress("Linux", 2))
        self.assertIn("1 of 2", stamps.progress(ready(0), 2))
        self.assertIn("200 pages", stamps.progress(checked(0, 1) + checked(0, 2), 2))


if __name__ == "__main__":
    unittest.main()
