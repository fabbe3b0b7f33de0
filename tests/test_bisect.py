"""Which patches `make test WHAT=bisect` tries."""

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from lab.check import bisect
from lab.check.outcome import Outcome, State
from lab.error import LabError

SERIES = [Path(f"{number:04}-x.patch") for number in range(1, 6)]


@pytest.mark.parametrize("first", (1, 4, 5, 0, 6))
def test_numbers(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches before the first are applied, too; what comes of all is compared."""
    tried, git = [], mock.Mock()
    compare = mock.Mock(return_value=Outcome("whole", State.PASSED))

    def passes(_: object, patch: Path) -> Outcome:
        tried.append(patch)
        return Outcome(patch.stem, State.PASSED)

    for name, new in (("_worktree", lambda: git), ("_compare", compare), ("_try", passes)):
        monkeypatch.setattr(bisect, name, new)
    monkeypatch.setattr(bisect, "locked", nullcontext)
    monkeypatch.setattr(bisect.tree, "compose", mock.Mock())
    monkeypatch.setattr(bisect.selftests, "build", mock.Mock())
    monkeypatch.setattr(bisect.patches, "series", lambda: SERIES)
    args = mock.Mock(first=first)
    if first in (0, 6):
        with pytest.raises(LabError, match="patches are 1 to 5"):
            bisect.run(args)
        return
    assert bisect.run(args) == 0
    assert [call.args[-1] for call in git.call_args_list] == SERIES
    assert tried == SERIES[first - 1 :]
    compare.assert_called_once()
