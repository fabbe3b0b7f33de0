"""Which patches `make test WHAT=bisect` tries."""

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from lab.check import bisect
from lab.check.outcome import Outcome, State
from lab.error import LabError

SERIES = [Path(f"{number:04}-x.patch") for number in range(1, 6)]


@pytest.mark.parametrize(
    ("first", "last", "tried", "compared"),
    (
        (1, None, [1, 2, 3, 4, 5], True),
        # Those before are applied; what is not whole can't be compared.
        (4, None, [4, 5], True),
        (1, 2, [1, 2], False),
        (3, 3, [3], False),
        (5, 5, [5], True),
        (0, None, [], False),
        (6, None, [], False),
        (3, 2, [], False),
        (1, 6, [], False),
        (1, 0, [], False),
    ),
)
def test_numbers(
    first: int,
    last: int | None,
    tried: list[int],
    compared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, git = [], mock.Mock()
    compare = mock.Mock(return_value=Outcome("whole", State.PASSED))

    def passes(_: object, patch: Path) -> Outcome:
        found.append(SERIES.index(patch) + 1)
        return Outcome(patch.stem, State.PASSED)

    for name, new in (("_worktree", lambda: git), ("_compare", compare), ("_try", passes)):
        monkeypatch.setattr(bisect, name, new)
    monkeypatch.setattr(bisect, "locked", nullcontext)
    monkeypatch.setattr(bisect.tree, "compose", mock.Mock())
    monkeypatch.setattr(bisect.selftests, "build", mock.Mock())
    monkeypatch.setattr(bisect.patches, "series", lambda: SERIES)
    args = mock.Mock(first=first, last=last)
    if not tried:
        with pytest.raises(LabError, match="patches are 1 to 5"):
            bisect.run(args)
    else:
        bisect.run(args)
        applied = [call.args[-1] for call in git.call_args_list]
        assert applied == SERIES[: len(SERIES) if last is None else last]
        assert (found, compare.called) == (tried, compared)
