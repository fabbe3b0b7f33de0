"""The locking benchmark's output, and its figures against their targets."""

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from lab.error import LabError
from lab.measure import locking
from lab.measure.counted import OURS, STOCK
from lab.measure.locking import Figure


def line(kind: str, data: object) -> str:
    """Return a line as bpftrace prints it."""
    return json.dumps({"type": kind, "data": data})


RUN = line("printf", "run\n")


def test_each_run_that_is_traced_has_its_own_maps() -> None:
    text = [line("attached_probes", {"probes": 6}), line("printf", "ready\n"), "", ""]
    for held in (100, 200):
        text += [RUN, line("map", {"@longest": {"age:16": held}})]
        text.append(line("map", {"@holds": {"age:16": 3, "idle": 5}}))
    assert locking.parse_trace("\n".join(text)) == [{"age:16": 100}, {"age:16": 200}]
    assert locking.parse_trace(f"{RUN}\n{RUN}") == [{}, {}]


def test_whose_holds_are_whose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the tracer lost a run, all that follow would be taken for others."""
    monkeypatch.setattr(locking, "DIRECTORY", tmp_path)
    got = {"path": "nx", "mib": 16, "storm_ns": 5, "faults": 1}
    for whose in ("stock", "ours"):
        (tmp_path / f"alone.{whose}.txt").write_text(json.dumps(got) + "\n")
    runs = [f"{RUN}\n" + line("map", {"@longest": {"nx:16": held}}) for held in (700, 5)]
    (tmp_path / "alone.trace").write_text("\n".join(runs))
    assert [figure.hold for figure in locking.read("alone")] == [700, 5]
    (tmp_path / "alone.trace").write_text(runs[0])
    with pytest.raises(LabError, match="1 of 2"):
        list(locking.read("alone"))


TOLD = """
| host takes memory away (MMU notifier) | 1,000 / 16,000 / 64,000 | 1.2 / 1.2 / 1.2 |
| ageing (a page) | 6.2 / 6.6 / 6.6 | 0 / 0 / 0 |
| `KVM_CLEAR_DIRTY_LOG` | 1,000 / 16,000 / 64,000 | 1.2 / 1.2 / 1.2 |
| `KVM_RESET_DIRTY_RINGS` | 1,000 / 16,000 / 64,000 | 1.2 / 1.2 / 1.2 |
| memslot deleted | 1,000 / 16,000 / 64,000 | 1.2 / 1.2 / 1.2 |
| NX huge page recovery | 9 / 9 / 9 | 1.2 / 1.2 / 1.2 |
"""


@pytest.mark.parametrize(
    ("old", "new", "holds", "wanted"),
    [
        ("", "", {}, []),
        ("", "", {"nx": 1500}, ["NX huge page recovery, ours: 1.2 / 1.2 / 1.2, not 1.5"]),
        ("", "", {"age": 1500}, ["ageing, ours: 0 / 0 / 0, not 1.5"]),
        ("r) | 1,000", "r) | 2,000", {}, ["host takes memory away, stock: 2,000 / 16,000"]),
        ("memslot", "slot", {}, [": nothing"] * 2),
        ("64,000 | 1.2 /", "64,000 |", {}, ["1.2 / 1.2, not 1.2 / 1.2 / 1.2"]),
    ],
)
def test_what_is_told_was_measured(
    old: str, new: str, holds: dict[str, int], wanted: list[str]
) -> None:
    """Of a text with another figure, and with some of ours held as long as this."""
    held = dict.fromkeys(locking.TOLD, 1200) | {"age": 0} | holds
    known = {
        ("alone", whose, path, mib): Figure("alone", whose, path, mib, 1, hold=hold)
        for path in locking.TOLD
        for mib in locking.SIZES
        for whose, hold in (("stock", mib * 62_500), ("ours", held[path]))
    }
    wrong = list(locking.untrue(TOLD.replace(old, new, 1) if old else TOLD, known))
    assert len(wrong) == len(wanted)
    assert all(words in told for words, told in zip(wanted, wrong, strict=True)), wrong


def figures(hold: int = 100) -> list[Figure]:
    """Return those of a run, of which the longest hold is this at more than the least size."""
    return [
        Figure("alone", whose, path, mib, 1, hold=hold if mib > 16 else 100)
        for whose in (OURS, STOCK)
        for path in locking.PATHS
        for mib in locking.SIZES
    ]


def test_what_is_judged_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "DOCUMENTED", False)
    for hold, wanted in ((100, {True}), (200, {True, False})):
        found = list(locking.conclude(figures(hold), ["alone"]))
        assert {good for _, good in found} == wanted
    with pytest.raises(LabError, match="1 figures too few"):
        list(locking.conclude(figures()[:-1], ["alone"]))


def test_tables_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a machine whose figures there are."""
    locking._show(figures())
    said = capsys.readouterr().out
    assert said.count("MMU notifier") == len(locking.SIZES)
    assert "alone, in 1000 instructions" in said and "turns" not in said
    locking._plot(figures(), tmp_path / "locking.png")
    assert (tmp_path / "locking.png").exists()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mode has a machine; that one mode alone was measured is not to be shown to all."""
    run, plot = mock.Mock(), mock.Mock()
    for name in ("build", "save"):
        monkeypatch.setattr(locking.counted, name, mock.Mock())
    monkeypatch.setattr(locking.counted, "run", run)
    monkeypatch.setattr(locking, "_plot", plot)
    monkeypatch.setattr(locking, "DOCUMENTED", False)
    monkeypatch.setattr(locking, "read", lambda _: figures())
    assert locking.run(mock.Mock(modes=["alone"])) == 0
    assert (run.call_args.args[3], run.call_args.kwargs["icount"]) == ("alone.*", True)
    assert plot.call_args.args[1] == locking.DIRECTORY / "locking.png"


def met(*figures: Figure) -> list[bool | None]:
    """Return which targets are met."""
    known = {(f.mode, f.modules, f.path, f.mib): f for f in figures}
    return [good for _, good in locking.judge(known)]


def test_targets_of_holds_and_storms() -> None:
    """A hold that was lost is no gain; that of stock modules is to be seen."""
    ours = Figure("alone", "ours", "nx", 1024, 1)
    for first, last, stock, good in (
        (100, 109, 900, True),
        (100, 111, 900, False),
        (0, 900, 900, False),
        (0, 0, 900, True),
        (0, 0, 0, None),
    ):
        small, large = replace(ours, mib=16, hold=first), replace(ours, hold=last)
        found = met(small, large, replace(ours, modules="stock", hold=stock))
        assert (found[0], len(found)) == (good, 2), (first, last)
    for storm, good in ((102, True), (104, False)):
        stock = replace(ours, modules="stock", storm=100)
        assert met(stock, replace(ours, storm=storm)) == [good]


def test_targets_of_faults_and_threads() -> None:
    for path, worst, good in (
        ("notifier", 100, True),
        ("notifier", 101, False),
        ("notifier", 0, False),
        ("nx", 3333, True),
        ("nx", 3334, False),
    ):
        stock = Figure("turns", "stock", path, 1024, 100, worst=5000)
        assert met(stock, replace(stock, modules="ours", worst=worst)) == [good], (path, worst)
    two = {"threads": 2, "ns": 100, "mib": 1}
    for ns, more, good in ((160, [two], True), (159, [two], False), (160, [], False)):
        timed = [{"threads": 1, "ns": ns, "mib": 1}, *more]
        assert [good for _, good in locking.judge_threads(timed)] == [good]
