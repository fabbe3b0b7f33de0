"""KVM's perf tests: what they print, what of it is whose, and the targets."""

import io
import json
import unittest
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

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


class Runs(unittest.TestCase):
    """What is run."""

    def test_none_twice(self) -> None:
        runs = list(perf.wanted())
        self.assertEqual(len(runs), len(set(runs)))

    def test_all_numbers_of_vcpus_and_logs_and_backings(self) -> None:
        runs = list(perf.wanted())
        for name, values in (
            ("vcpus", perf.VCPUS),
            ("log", perf.LOGS),
            ("backing", perf.BACKINGS),
            ("way", perf.WAYS),
            ("test", (DIRTY_LOG, DEMAND, MEMSLOT)),
        ):
            self.assertEqual({getattr(run, name) for run in runs}, set(values), name)

    def test_what_ours_is_compared_with_is_there(self) -> None:
        runs = set(perf.wanted())
        for run in runs:
            if run.modules == OURS and run.way == "populate":
                self.assertIn(perf._of_stock(run), runs)

    def test_arguments(self) -> None:
        run = Run(DIRTY_LOG, OURS, "populate:n", 4, log="ring")
        self.assertEqual(
            " ".join(run.argv),
            "dirty_log_perf_test -v 4 -b 8M -f populate:4 -s anonymous -d 16384",
        )
        self.assertNotIn("-f", replace(run, way="").argv)
        self.assertIn("-g", replace(run, log="bitmap").argv)
        # It has no choice of memory.
        self.assertNotIn("-s", Run(MEMSLOT, OURS, "populate", 4).argv)

    def test_the_script_loads_each_kind_of_modules_once_stock_first(self) -> None:
        with (
            TemporaryDirectory() as scratch,
            mock.patch.object(perf, "DIRECTORY", Path(scratch)),
            mock.patch.object(perf.params, "to_load", return_value=""),
        ):
            script = perf._script(list(perf.wanted()))
        loads = [line.rpartition("/")[2] for line in script.splitlines() if "load " in line]
        self.assertEqual(loads, ["stock.modules", "ours.modules"])
        self.assertEqual(script.count("do_run '{"), len(list(perf.wanted())))


class Parse(unittest.TestCase):
    """Of what the tests print."""

    RUN = Run(DIRTY_LOG, OURS, "populate", 1)

    def test_time_is_shared_among_those_that_are_busy(self) -> None:
        """Pages are 2048; the main thread spins while vCPUs run, and not before."""
        cost = costs(self.RUN, PRINTED)
        self.assertEqual(cost["fault_in"], 8000)
        self.assertEqual(cost["map"], 100)
        self.assertEqual(cost["touch"], 1000)
        self.assertEqual(cost["log_on"], 0)
        self.assertEqual(cost["clear"], 1)

    def test_the_last_iteration_counts(self) -> None:
        self.assertEqual(costs(self.RUN, PRINTED)["dirty"], 1000008192 / 2 / 2048)

    def test_threads_do_their_shares_at_the_same_time(self) -> None:
        cost = costs(replace(self.RUN, way="populate:n", vcpus=4), PRINTED)
        self.assertEqual(cost["map"], 25)
        self.assertEqual(cost["touch"], 4096000 / 5 / 2048)

    def test_the_main_thread_of_demand_paging_sleeps(self) -> None:
        run = Run(DEMAND, STOCK, "fault", 2)
        cost = costs(run, "Total guest execution time:\t0.004096000s\n")
        self.assertEqual(cost, {"touch": 1000})

    def test_passes_and_modifications(self) -> None:
        run = Run(MEMSLOT, STOCK, "fault", 1)
        text = """\
Modify memslots time: 0.000080000s
10 passes of vCPUs over their memory time: 0.004096000s
"""
        self.assertEqual(costs(run, text), {"modify": 1000, "passes": 100})

    def test_each_run_has_its_own(self) -> None:
        other = replace(self.RUN, modules=STOCK)
        text = f"=== {self.RUN.key}\n{PRINTED}=== {other.key}\nMap memory time: 1.000000000s\n"
        first, second = perf.parse(text)
        self.assertEqual((first.run, second.run), (self.RUN, other))
        self.assertEqual(list(second.cost), ["map"])

    def test_nothing(self) -> None:
        self.assertEqual(list(perf.parse("")), [])

    def test_the_phases_are_called_as_the_tests_call_them(self) -> None:
        """The series' patches have what they add."""
        patches = "".join(path.read_text() for path in PATCHES.glob("*.patch"))
        for told in (
            "Fault in host memory time: ",
            "Map memory time: ",
            "Modify memslots time: ",
            "%lu passes of vCPUs over their memory time: ",
        ):
            self.assertIn(f'"{told}', patches)


class Judge(unittest.TestCase):
    """What is met, and what is not."""

    def states(self, **worse: float) -> set[State]:
        """Return the states of all verdicts."""
        return {verdict.state for verdict in perf.judge(measured(**worse))}

    def test_all_is_well(self) -> None:
        self.assertEqual(self.states(), {State.PASSED})

    def test_mapping_counts(self) -> None:
        """A first pass without a fault, for which mapping took as long, is no gain."""
        self.assertIn(State.FAILED, self.states(map=20))

    def test_what_is_not_to_get_slower(self) -> None:
        for phase in ("dirty", "passes", "modify"):
            self.assertIn(State.FAILED, self.states(**{phase: 4}), phase)

    def test_a_turn_is_not_judged(self) -> None:
        """It is more than the whole first pass, where pages are huge and few."""
        self.assertEqual(
            self.states(dirty=1 + perf.TURN / (perf.MIB * 256) / 101), {State.PASSED}
        )

    def test_nothing_to_compare_with(self) -> None:
        known = measured()
        del known[Run(DEMAND, STOCK, "fault", 8)]
        with self.assertRaises(LabError):
            list(perf.judge(known))


class Show(unittest.TestCase):
    """Tables and figure, of all runs and of some."""

    def test_all_of_it(self) -> None:
        for vcpus in (perf.VCPUS, (1,)):
            known = {run: each for run, each in measured().items() if run.vcpus in vcpus}
            with TemporaryDirectory() as scratch, redirect_stdout(io.StringIO()) as out:
                perf._show(known)
                perf._plot(known, Path(scratch) / "perf.png")
                self.assertTrue((Path(scratch) / "perf.png").exists())
            self.assertIn("First pass", out.getvalue())

    def test_the_key_is_what_the_run_is_made_of(self) -> None:
        for run in perf.wanted():
            self.assertEqual(Run(**json.loads(run.key)), run)
