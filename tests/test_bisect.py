"""Which patches `make test WHAT=bisect` tries."""

import argparse
import unittest
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

from lab.check import bisect
from lab.check.outcome import Outcome, State
from lab.error import LabError

SERIES = [Path(f"{number:04}-x.patch") for number in range(1, 6)]


class Range(unittest.TestCase):
    """Of numbers."""

    def tried(self, first: int = 1, last: int | None = None) -> tuple[list[int], bool]:
        """Return which are tried, and whether the result is compared."""

        def passed(_: object, patch: Path) -> Outcome:
            return Outcome(patch.stem, State.PASSED)

        git = mock.Mock()
        with (
            mock.patch.object(bisect.tree, "compose"),
            mock.patch.object(bisect.selftests, "build"),
            mock.patch.object(bisect.patches, "series", lambda: SERIES),
            mock.patch.object(bisect, "locked", nullcontext),
            mock.patch.object(bisect, "_worktree", lambda: git),
            mock.patch.object(bisect, "_try", mock.Mock(side_effect=passed)) as tried,
            mock.patch.object(bisect, "_compare") as compare,
            mock.patch.object(bisect.report, "show", return_value=0),
            mock.patch.object(bisect.console, "print"),
        ):
            bisect.run(argparse.Namespace(first=first, last=last))
        applied = [call.args[-1] for call in git.call_args_list]
        self.assertEqual(applied, SERIES[: len(SERIES) if last is None else last])
        numbers = [SERIES.index(call.args[1]) + 1 for call in tried.call_args_list]
        return numbers, compare.called

    def test_all(self) -> None:
        self.assertEqual(self.tried(), ([1, 2, 3, 4, 5], True))

    def test_a_part(self) -> None:
        """Those before it are applied; what is not whole can't be compared."""
        self.assertEqual(self.tried(first=4), ([4, 5], True))
        self.assertEqual(self.tried(last=2), ([1, 2], False))
        self.assertEqual(self.tried(first=3, last=3), ([3], False))
        self.assertEqual(self.tried(first=5, last=5), ([5], True))

    def test_others_are_refused(self) -> None:
        for first, last in ((0, None), (6, None), (3, 2), (1, 6), (1, 0)):
            with self.assertRaisesRegex(LabError, "patches are 1 to 5"):
                self.tried(first, last)
