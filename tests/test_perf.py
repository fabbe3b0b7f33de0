"""KVM's perf tests: what they print, what of it is whose, and the targets."""

import io
import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest

from lab.check.outcome import State
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


def costs(run: Run, printed: str) -> Mapping[str, float]:
    """Return what is made of what a run has printed."""
    (figure,) = perf.parse(f"=== {run.key}\n{printed}")
    return figure.cost


def measured(**worse: float) -> dict[Run, Figure]:
    """Return figures of all runs, of which some phases of ours are so much worse."""
    good = dict.fromkeys(perf.PHASES, 100.0)
    known = {}
    for run in perf.wanted():
        cost = dict(good)
        if run.modules == OURS:
            cost |= {"map": 5, "touch": 5, "modify": 20, "passes": 20}
            cost = {phase: value * worse.get(phase, 1) for phase, value in cost.items()}
        known[run] = Figure(run, cost)
    return known


# What is run.


def test_runs_none_twice() -> None:
    runs = list(perf.wanted())
    assert len(runs) == len(set(runs))


def test_runs_all_numbers_of_vcpus_and_logs_and_backings() -> None:
    runs = list(perf.wanted())
    for name, values in (
        ("vcpus", perf.VCPUS),
        ("log", perf.LOGS),
        ("backing", perf.BACKINGS),
        ("way", perf.WAYS),
        ("test", (DIRTY_LOG, DEMAND, MEMSLOT)),
    ):
        assert {getattr(run, name) for run in runs} == set(values), name


def test_runs_what_ours_is_compared_with_is_there() -> None:
    runs = set(perf.wanted())
    for run in runs:
        if run.modules == OURS and run.way == "populate":
            assert perf._of_stock(run) in runs


def test_runs_arguments() -> None:
    run = Run(DIRTY_LOG, OURS, "populate:n", 4, log="ring")
    assert (
        " ".join(run.argv)
        == "dirty_log_perf_test -v 4 -b 8M -f populate:4 -s anonymous -d 16384"
    )
    assert "-f" not in replace(run, way="").argv
    assert "-g" in replace(run, log="bitmap").argv
    # It has no choice of memory.
    assert "-s" not in Run(MEMSLOT, OURS, "populate", 4).argv


def test_runs_the_script_loads_each_kind_of_modules_once_stock_first() -> None:
    with (
        TemporaryDirectory() as scratch,
        mock.patch.object(perf, "DIRECTORY", Path(scratch)),
        mock.patch.object(perf.params, "to_load", return_value=""),
    ):
        script = perf._script(list(perf.wanted()))
    loads = [line.rpartition("/")[2] for line in script.splitlines() if "load " in line]
    assert loads == ["stock.modules", "ours.modules"]
    assert script.count("do_run '{") == len(list(perf.wanted()))


# Of what the tests print.

RUN = Run(DIRTY_LOG, OURS, "populate", 1)


def test_parse_time_is_shared_among_those_that_are_busy() -> None:
    """Pages are 2048; the main thread spins while vCPUs run, and not before."""
    cost = costs(RUN, PRINTED)
    assert cost["fault_in"] == 8000
    assert cost["map"] == 100
    assert cost["touch"] == 1000
    assert cost["log_on"] == 0
    assert cost["clear"] == 1


def test_parse_the_last_iteration_counts() -> None:
    assert costs(RUN, PRINTED)["dirty"] == 1000008192 / 2 / 2048


def test_parse_threads_do_their_shares_at_the_same_time() -> None:
    cost = costs(replace(RUN, way="populate:n", vcpus=4), PRINTED)
    assert cost["map"] == 25
    assert cost["touch"] == 4096000 / 5 / 2048


def test_parse_the_main_thread_of_demand_paging_sleeps() -> None:
    run = Run(DEMAND, STOCK, "fault", 2)
    cost = costs(run, "Total guest execution time:\t0.004096000s\n")
    assert cost == {"touch": 1000}


def test_parse_passes_and_modifications() -> None:
    run = Run(MEMSLOT, STOCK, "fault", 1)
    text = """\
Modify memslots time: 0.000080000s
10 passes of vCPUs over their memory time: 0.004096000s
"""
    assert costs(run, text) == {"modify": 1000, "passes": 100}


def test_parse_each_run_has_its_own() -> None:
    other = replace(RUN, modules=STOCK)
    text = f"=== {RUN.key}\n{PRINTED}=== {other.key}\nMap memory time: 1.000000000s\n"
    first, second = perf.parse(text)
    assert (first.run, second.run) == (RUN, other)
    assert list(second.cost) == ["map"]


def test_parse_nothing() -> None:
    assert list(perf.parse("")) == []


def test_parse_the_phases_are_called_as_the_tests_call_them() -> None:
    """The series' patches have what they add."""
    patches = "".join(path.read_text() for path in PATCHES.glob("*.patch"))
    for told in (
        "Fault in host memory time: ",
        "Map memory time: ",
        "Modify memslots time: ",
        "%lu passes of vCPUs over their memory time: ",
    ):
        assert f'"{told}' in patches


# What is met, and what is not.


def _states(**worse: float) -> set[State]:
    """Return the states of all verdicts."""
    return {verdict.state for verdict in perf.judge(measured(**worse))}


def test_judge_all_is_well() -> None:
    assert _states() == {State.PASSED}


def test_judge_mapping_counts() -> None:
    """A first pass without a fault, for which mapping took as long, is no gain."""
    assert State.FAILED in _states(map=20)


def test_judge_what_is_not_to_get_slower() -> None:
    for phase in ("dirty", "passes", "modify"):
        assert State.FAILED in _states(**{phase: 4}), phase


def test_judge_a_turn_is_not_judged() -> None:
    """It is more than the whole first pass, where pages are huge and few."""
    assert _states(dirty=1 + perf.TURN / (perf.MIB * 256) / 101) == {State.PASSED}


def test_judge_nothing_to_compare_with() -> None:
    known = measured()
    del known[Run(DEMAND, STOCK, "fault", 8)]
    with pytest.raises(LabError):
        list(perf.judge(known))


# Tables and figure, of all runs and of some.


def test_show_all_of_it() -> None:
    for vcpus in (perf.VCPUS, (1,)):
        known = {run: each for run, each in measured().items() if run.vcpus in vcpus}
        with TemporaryDirectory() as scratch, redirect_stdout(io.StringIO()) as out:
            perf._show(known)
            perf._plot(known, Path(scratch) / "perf.png")
            assert (Path(scratch) / "perf.png").exists()
        assert "First pass" in out.getvalue()


def test_show_the_key_is_what_the_run_is_made_of() -> None:
    for run in perf.wanted():
        assert Run(**json.loads(run.key)) == run
