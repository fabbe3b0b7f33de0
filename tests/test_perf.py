"""KVM's perf tests: what they print, what of it is whose, and the targets."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.error import LabError
from lab.measure import perf
from lab.measure.perf import DEMAND, DIRTY_LOG, MEMSLOT, OURS, STOCK, Figure, Run
from lab.paths import PATCHES

PRINTED = """\
Test iterations: 2
Fault in host memory time: 0.016384000s
Map memory time: 0.000204800s
Populate memory time: 0.004096000s
Enabling dirty logging time: 0.000000000s

Iteration 1 dirty memory time: 9.000000000s
Iteration 2 dirty memory time: 1.000008192s
Iteration 2 clear dirty log time: 0.000004096s
Get dirty log over 2 iterations took 0.000462236s. (Avg 0.000231118s/iteration)
"""
RUN = Run(DIRTY_LOG, OURS, "populate", 1)


def costs(run: Run, printed: str) -> dict[str, float]:
    """Return what is made of what a run has printed."""
    (figure,) = perf.parse(f"=== {run.key}\n{printed}")
    return dict(figure.cost)


def measured(**worse: float) -> dict[Run, Figure]:
    """Return figures of all runs, of which some phases of ours are so much worse."""
    good = dict.fromkeys(perf.PHASES, 100.0)
    ours = good | {"map": 5, "touch": 5, "modify": 20, "passes": 20}
    ours = {phase: value * worse.get(phase, 1) for phase, value in ours.items()}
    return {run: Figure(run, ours if run.modules == OURS else good) for run in perf.wanted()}


def test_what_is_run() -> None:
    """All there is, none twice, and what ours is compared with; a key says which."""
    runs = list(perf.wanted())
    assert len(runs) == len(set(runs))
    for name, values in (
        ("vcpus", perf.VCPUS),
        ("log", perf.LOGS),
        ("backing", perf.BACKINGS),
        ("way", perf.WAYS),
        ("test", (DIRTY_LOG, DEMAND, MEMSLOT)),
    ):
        assert {getattr(run, name) for run in runs} == {*values}, name
    ours = [run for run in runs if run.modules == OURS and run.way == "populate"]
    assert {perf._of_stock(run) for run in ours} <= {*runs}
    assert [Run(**json.loads(run.key)) for run in runs] == runs


def test_arguments() -> None:
    """One test has no choice of memory."""
    run = Run(DIRTY_LOG, OURS, "populate:n", 4, log="ring")
    wanted = "dirty_log_perf_test -v 4 -b 8M -f populate:4 -s anonymous -d 16384"
    assert " ".join(run.argv) == wanted
    assert "-f" not in replace(run, way="").argv
    assert "-g" in replace(run, log="bitmap").argv
    assert "-s" not in Run(MEMSLOT, OURS, "populate", 4).argv


def test_the_script_loads_each_kind_of_modules_once_stock_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf, "DIRECTORY", tmp_path)
    monkeypatch.setattr(perf.counted.params, "to_load", lambda *_, **__: "")
    script = perf._script(list(perf.wanted()))
    loads = [line.rpartition("/")[2] for line in script.splitlines() if "load " in line]
    assert loads == ["stock.modules", "ours.modules"]
    assert script.count("\ndo_run ") == len(list(perf.wanted()))


def test_time_is_shared_among_those_that_are_busy() -> None:
    """Pages are 2048; the main thread spins while vCPUs run, and not before."""
    cost = costs(RUN, PRINTED)
    wanted = {"fault_in": 8000, "map": 100, "touch": 1000, "log_on": 0, "clear": 1}
    # The last iteration counts.
    wanted["dirty"] = 1000008192 / 2 / 2048
    assert cost == cost | wanted
    # Threads do their shares at the same time.
    cost = costs(replace(RUN, way="populate:n", vcpus=4), PRINTED)
    assert (cost["map"], cost["touch"]) == (25, 4096000 / 5 / 2048)
    # The main thread of demand paging sleeps.
    text = "Total guest execution time:\t0.004096000s\n"
    assert costs(Run(DEMAND, STOCK, "fault", 2), text) == {"touch": 1000}
    text = "Modify memslots time: 0.000080000s\n"
    text += "10 passes of vCPUs over their memory time: 0.004096000s\n"
    assert costs(Run(MEMSLOT, STOCK, "fault", 1), text) == {"modify": 1000, "passes": 100}


def test_each_run_has_its_own() -> None:
    other = replace(RUN, modules=STOCK)
    text = f"=== {RUN.key}\n{PRINTED}=== {other.key}\nMap memory time: 1.000000000s\n"
    first, second = perf.parse(text)
    assert (first.run, second.run, [*second.cost]) == (RUN, other, ["map"])
    assert list(perf.parse("")) == []


def test_the_phases_are_called_as_the_tests_call_them() -> None:
    """The series' patches have what they add."""
    patches = "".join(path.read_text() for path in PATCHES.glob("*.patch"))
    for told in (
        "Fault in host memory time: ",
        "Map memory time: ",
        "Modify memslots time: ",
        "%lu passes of vCPUs over their memory time: ",
    ):
        assert f'"{told}' in patches


def test_what_is_met() -> None:
    """A first pass without a fault, for which mapping took as long, is no gain."""
    # A turn is not judged: it is more than the whole first pass, where pages are huge and few.
    turn = 1 + perf.TURN / (perf.MIB * 256) / 101
    for worse, good in (
        ({}, True),
        ({"dirty": turn}, True),
        ({"map": 20}, False),
        *(({phase: 4}, False) for phase in ("dirty", "passes", "modify")),
    ):
        found = {met for _, met in perf.judge(measured(**worse))}
        assert found == {True} if good else False in found, worse
    known = measured()
    del known[Run(DEMAND, STOCK, "fault", 8)]
    with pytest.raises(LabError):
        list(perf.judge(known))


@pytest.mark.parametrize("vcpus", [perf.VCPUS, (1,)])
def test_tables_and_figure(
    vcpus: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all runs and of some."""
    known = {run: each for run, each in measured().items() if run.vcpus in vcpus}
    perf._show(known)
    assert "First pass" in capsys.readouterr().out
    perf._plot(known, tmp_path / "perf.png")
    assert (tmp_path / "perf.png").exists()
