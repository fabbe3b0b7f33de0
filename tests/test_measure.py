"""What the smaller benchmarks make of their output, and find fault with."""

import json
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest

from lab.error import LabError
from lab.machine.result import TIMED_OUT
from lab.measure import bulk, counted, dax, reclaim, restore, sparse, working_set
from lab.measure.counted import Verdict
from lab.measure.restore import Run


def missed(verdicts: Iterable[Verdict]) -> list[str]:
    """Return what is not as it is to be."""
    return [text for text, good in verdicts if not good]


@pytest.mark.parametrize(
    ("goods", "status", "last"),
    (
        ((True, None), 0, "1 passed, 0 failed, 1 skipped"),
        ((True, False), 1, "1 passed, 1 failed, 0 skipped"),
    ),
)
def test_verdicts(
    goods: tuple[bool | None, ...],
    status: int,
    last: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each that has a text is told; one that is not known counts as skipped."""
    assert counted.judge([*((f"a {good}", good) for good in goods), ("", True)][:2]) == status
    told = {True: "met", False: "not met", None: "unknown"}
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*(f"a {good}: {told[good]}" for good in goods), last]


@pytest.mark.parametrize(
    ("status", "wrong"), ((0, ""), (TIMED_OUT, "longer than"), (3, "status 3"))
)
def test_a_machine_measures_anew(
    status: int, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier one has left is gone before the script is made; a failure is told."""
    command = mock.Mock(return_value=mock.Mock(status=status))
    monkeypatch.setattr(counted.npt, "command", command)
    for name in ("a.txt", "b.json"):
        (tmp_path / name).touch()

    def measure() -> None:
        names = (path.name for path in tmp_path.iterdir())
        counted.run(tmp_path, "", lambda: " ".join(names), stock=True)

    if wrong:
        with pytest.raises(LabError, match=wrong):
            measure()
    else:
        measure()
    command.assert_called_once_with("b.json", icount=True, timeout=counted.SECONDS, stock=True)


BULK = """\
Random seed: 0x6b8b4567
before_Slab 1000
after_Slab 1600
vms 200
seconds 600
threads 200
wakeups 0
cpu_us 0
"""


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    (
        ("", "", []),
        ("wakeups 0", "wakeups 1", ["1 wake-ups in 600 s"]),
        ("cpu_us 0", "cpu_us 2", ["2 us of a CPU in 600 s"]),
        ("threads 200", "threads 201", ["201 threads for 200 VMs"]),
    ),
)
def test_vms_at_rest(old: str, new: str, wanted: list[str]) -> None:
    found = bulk.parse(BULK.replace(old, new))
    assert bulk.per_vm(found, "Slab") == 3
    assert missed(bulk.targets(found)) == wanted


@pytest.mark.parametrize(
    ("check", "write", "wanted"),
    (
        (1, 0, []),
        (2, 0, [f"{way}: 2 faults to read" for way in ("read+populate", "copy+populate")]),
        # All was made writable.
        (1, 1, ["copy+populate: 1 faults to write"]),
    ),
)
def test_faults_on_dax(check: int, write: int, wanted: list[str]) -> None:
    runs: list[Run] = []
    for size in ("small", "huge"):
        known = {"modules": "ours", "cache": size, "check_faults": check}
        runs.append(known | {"way": "read+populate", "write_faults": 8})
        runs.append(known | {"way": "copy+populate", "write_faults": write})
    both = [f"{size}, {each}" for size in ("small", "huge") for each in wanted]
    assert missed(dax.targets(runs)) == both


CASES = tuple(reclaim.cases([1]))


def reclaimed(count: int = len(CASES)) -> list[Run]:
    """Return what is made of so many runs."""
    each = {"asked": 100, "gone": 100, "cpu_ns": 1000}
    lines = [{"vms": 1, "host_kib": 4}]
    lines += [{"vms": 1, "round": number, **each} for number in (1, 2)]
    return reclaim.parse("".join(f"{json.dumps(line)}\n" for line in lines) * count, CASES)


def test_each_round_of_reclaim_has_its_tables() -> None:
    found = reclaimed()
    assert len(found) == 2 * len(CASES)
    assert {(run["host_kib"], run["lists"]) for run in found} == {(4, "mglru"), (4, "classic")}
    assert sum(bool(run["apart"]) for run in found) == 8
    with pytest.raises(LabError):
        reclaimed(len(CASES) - 1)


@pytest.mark.parametrize(
    ("on", "wanted"),
    (
        ({}, ""),
        ({"cpu_ns": 2100}, "mglru, 1 VMs: 21 instructions a page, 10 if used"),
        ({"gone": 90}, "90 pages are gone of 100"),
    ),
)
def test_reclaim(on: dict[str, int], wanted: str) -> None:
    """It takes more than what was used, or less comes than was asked for."""
    runs = [{**run, **(on if run["mode"] == "on" else {})} for run in reclaimed()]
    told = missed(reclaim.targets(runs))
    assert (wanted in " ".join(told), bool(told)) == (True, bool(on))


def sparse_round(ns: int) -> list[Run]:
    """Return a round."""
    return [
        {"way": way, "every": step, "turn": turn, "pages": 10, "ns": ns, "faults": 1}
        for turn in range(len(sparse.TURNS))
        for step in sparse.STEPS
        for way in sparse.WAYS
    ]


def test_the_lowest_of_two_rounds_counts() -> None:
    found = sparse.lowest([*sparse_round(70), *sparse_round(60)])
    assert len(found) == len(sparse_round(60))
    assert {run["ns"] for run in found} == {60}
    assert sparse.per_page(found, 1, "around") == [6] * len(sparse.STEPS)
    with pytest.raises(LabError):
        sparse.lowest(sparse_round(70))


def test_where_one_way_begins_to_cost_more() -> None:
    assert sparse.even((1, 2, 4), (8, 8, 8), (2, 4, 16)) == pytest.approx(2 * 2**0.5)
    assert sparse.even((1, 2, 4), (8, 8, 8), (2, 4, 6)) is None


def recorded(way: str = "", **changed: int) -> dict[str, list[Run]]:
    """Return what is measured where all is well but what is changed of one way."""
    found: list[Run] = []
    for flags in working_set.CASES.values():
        clones = working_set.CLONES if flags.startswith("-n") else 1
        ns = 30 * (working_set.MIB << 8)
        found.append({"way": "record", "pages": 100, "ns": ns, "faults": 2})
        for number, each in enumerate(working_set.WAYS):
            counts = {"clones": clones, "ns": 1000 - 100 * number, "again_ns": 10}
            sizes = {"faults": clones, "tables_kib": 9 - number, "stage2_kib": 9 - number}
            found.append({"way": each, **counts, **sizes})
    found = [{**run, **changed} if run["way"] == way else run for run in found]
    slower = [{**run, "ns": int(run["ns"]) + 500} for run in found]
    return working_set.cases([*slower, *found][changed.get("less", 0) :])


def test_each_working_set_has_its_record_and_ways() -> None:
    found = recorded()
    assert list(found) == list(working_set.CASES)
    for case in found.values():
        assert [run["way"] for run in case] == ["record", *working_set.WAYS]
    with pytest.raises(LabError):
        recorded(less=1)


@pytest.mark.parametrize(
    ("way", "changed", "count"),
    (
        ("", {}, 0),
        ("record", {"ns": 31 * (working_set.MIB << 8)}, 1),
        ("recorded", {"faults": working_set.CLONES + 1}, len(working_set.CASES)),
        # As many tables as for all of the file, or no less instructions.
        ("recorded", {"stage2_kib": 7}, len(working_set.CASES)),
        ("recorded", {"ns": 900}, 2),
    ),
)
def test_what_is_promised_of_a_record(way: str, changed: dict[str, int], count: int) -> None:
    assert len(missed(working_set.judge(recorded(way, **changed)))) == count


WAYS = ("plain", "read", "read+prefault", "copy")


def restored(key: tuple[str, str], *ways: str, **known: int) -> list[Run]:
    """Return what is made of output of the program for some ways."""
    text = "\n".join(json.dumps({"way": way, "pages": 1, **known}) for way in ways)
    return restore.figures({key: text})


def test_stock_and_a_slow_disk_have_fewer_ways_to_restore() -> None:
    found = restored(("stock", "warm"), *WAYS)
    assert [(run["way"], run["cache"]) for run in found] == [(way, "warm") for way in WAYS]
    assert [run["way"] for run in restored(("stock", "slow"), "plain")] == ["plain"]
    for whose, ways in (("stock", WAYS[1:]), ("ours", WAYS)):
        with pytest.raises(LabError):
            restored((whose, "warm"), *ways)


@pytest.mark.parametrize(("ns", "count"), ((300, 0), (310, 1), (316, 2)))
def test_what_it_takes_to_restore(ns: int, count: int) -> None:
    ways = tuple(restore._LABELS)
    found = restored(("ours", "warm"), *ways, prepare_ns=ns, check_ns=ns)
    assert len(missed(restore.targets(found))) == count
