"""make test and make check: build, run, show."""

import argparse
import os
import subprocess
import sys
import time
import traceback
import unittest
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO

from lab.check import compare, machines, report, sparse, tests
from lab.check.machines import Report
from lab.check.outcome import Outcome, State, must_run
from lab.check.report import Part
from lab.check.tests import Test
from lab.error import LabError
from lab.machine import runs
from lab.make import delay, modules, restore, selftests
from lab.paths import ROOT, VENV_BIN
from lab.shell import console

PARTS = ("lint", "unit", "npt", "ept", "tools", "stock")
ASKED_FOR = ("tools",)
"""Parts that are left out unless they are named: make test-tools."""
OFF, ON = "global_tdp=0", "global_tdp=1"
STOCK = "stock modules"
_CHECKED = "with assertions"

_LANES = 2
_LONG = ("series' tests, EPT", "kernel's own")
"""What the titles of the longest parts begin with."""

_WITHOUT = ("lint", "unit tests")
"""And of those that take no machine, but may change what all share in a process."""

_EPT_SECONDS = 2400
_EPT_TIMEOUT = 60
"""Seconds of the guest, of which one takes Bochs some twenty."""

Step = Callable[[Part], None]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the whole suite."""
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        metavar="PART",
        help=f"leave out other parts than this one: {', '.join(PARTS)}",
    )
    parser.add_argument("--tests", default="", help="names, of the series' tests; default all")
    parser.add_argument("--no-build", action="store_true", help="take what is built")


def configure_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the inner loop."""
    parser.add_argument("--tests", default="", help="names, of the series' tests; default all")
    text = "with assertions, as make test does, and VMs with memory attributes"
    parser.add_argument("--checked", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Run the suite; 1 if anything failed."""
    wanted = args.tests.split()
    steps: dict[str, list[tuple[str, Step]]] = {
        "lint": [("lint", _lint)],
        "unit": [("unit tests of the lab", _unit)],
        "npt": [
            (f"series' tests, NPT, {OFF}", _npt(OFF, wanted)),
            (f"series' tests, NPT, {ON}, {_CHECKED}", _npt(ON, wanted, checked=True)),
            *(
                (f"series' tests, NPT, {ON}, {_CHECKED}, machine {kind}", _kind(kind, wanted))
                for kind in tests.ON_MACHINES
            ),
        ],
        "ept": [(f"series' tests, EPT, {ON}", _ept(ON, wanted))],
        "tools": [(f"bpftrace tools, {name}", _tools(name)) for name in (STOCK, ON)],
        "stock": [("kernel's own tests", _stock)],
    }
    only = args.only or [name for name in PARTS if name not in ASKED_FOR]
    chosen = [step for name in PARTS if name in only for step in steps[name]]
    return _run(chosen, build=not args.no_build, checked="npt" in only)


def check(args: argparse.Namespace) -> int:
    """Run the series' tests on NPT with Global TDP on; 1 if any failed."""
    title = f"series' tests, NPT, {ON}{f', {_CHECKED}' * args.checked}"
    step = _npt(ON, args.tests.split(), checked=args.checked)
    return _run([(title, step)], build=True, checked=args.checked)


def _run(steps: Sequence[tuple[str, Step]], *, build: bool, checked: bool) -> int:
    parts = [Part("build")]
    with _part(parts[0]) as part:
        if build:
            modules.build()
            if checked:
                modules.build(checked=True)
            selftests.build()
            restore.build()
            delay.build()
    return report.show(parts if part.outcomes else _side_by_side(steps))


def _side_by_side(steps: Sequence[tuple[str, Step]]) -> list[Part]:
    """Do what takes no machine; the rest two at a time, as each keeps one CPU busy."""
    parts = {title: Part(title) for title, _ in steps}

    def do(title: str, step: Step) -> None:
        if not runs.STOPPING.is_set():
            with _part(parts[title]) as part:
                step(part)

    inorder = sorted(steps, key=lambda titled: not titled[0].startswith(_LONG))
    rest = [titled for titled in inorder if not titled[0].startswith(_WITHOUT)]
    for title, step in inorder:
        if title.startswith(_WITHOUT):
            do(title, step)
    with ThreadPoolExecutor(min(_LANES, len(os.sched_getaffinity(0)))) as pool:
        for job in [pool.submit(do, title, step) for title, step in rest]:
            job.result()
    return list(parts.values())


@contextmanager
def _part(part: Part) -> Iterator[Part]:
    """Do a part; whatever keeps it from being done is a failure of it."""
    title = part.title
    console.print(f"[bold]{title}[/]")
    began = time.monotonic()
    try:
        yield part
    # Whatever it is: what came of other parts is not to be lost.
    except Exception as error:
        if not isinstance(error, LabError):
            traceback.print_exc()
        print(f"lab: {error}", file=sys.stderr)
        part.outcomes.append(Outcome(f"{title}: done", State.FAILED, reason=str(error)))
    part.seconds = time.monotonic() - began


def _lint(part: Part) -> None:
    command = [VENV_BIN / "ruff", "check", "--no-cache", "lab", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    state = State.FAILED if done.returncode else State.PASSED
    part.outcomes.append(Outcome("ruff check", state, output=done.stdout + done.stderr))
    reasons = sparse.judge(sparse.list_new())
    state = State.FAILED if reasons else State.PASSED
    part.outcomes.append(Outcome("sparse", state, output="\n".join(reasons)))


def _unit(part: Part) -> None:
    suite = unittest.defaultTestLoader.discover(str(ROOT / "tests"), top_level_dir=str(ROOT))
    result = unittest.TextTestRunner(stream=StringIO(), resultclass=_Recorder).run(suite)
    assert isinstance(result, _Recorder)
    part.outcomes += result.outcomes
    if not result.wasSuccessful() and all(o.state is not State.FAILED for o in result.outcomes):
        # E.g. of a class as a whole, which belongs to no test.
        output = "\n".join(text for _, text in (*result.failures, *result.errors))
        part.outcomes.append(Outcome("what is no test's own", State.FAILED, output=output))


class _Recorder(unittest.TextTestResult):
    """Keeps what came of each unit test."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.outcomes: list[Outcome] = []

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        """Note what is known of the test by now."""
        super().stopTest(test)
        # What a subTest leaves is one of its own, which knows the test.
        wrong = [
            text
            for failed, text in (*self.failures, *self.errors)
            if getattr(failed, "test_case", failed) is test
        ]
        state = State.FAILED if wrong else State.PASSED
        name = test.id().removeprefix("tests.")
        self.outcomes.append(Outcome(name, state, output="\n".join(wrong)))


def _npt(params: str, wanted: Sequence[str], *, checked: bool = False) -> Step:
    def step(part: Part) -> None:
        chosen = tests.ours(wanted)
        if params == ON:
            chosen += tests.variants("npt", wanted) + tests.delayed(wanted)
        private = tests.private(wanted) if checked else []
        done = machines.on_npt(f"npt {params}", [*chosen, *private], params, checked=checked)
        for test in private:
            done.outcomes[test.name] = must_run(done.outcomes[test.name])
        part.outcomes += done.all

    return step


def _kind(kind: str, wanted: Sequence[str]) -> Step:
    """On a machine that they want, on which none may skip."""

    def step(part: Part) -> None:
        if chosen := tests.on_machine(kind, wanted):
            done = machines.on_npt(f"npt {kind}", chosen, ON, checked=True, machine=kind)
            part.outcomes += [*map(must_run, done.outcomes.values()), *done.splats]

    return step


def _ept(params: str, wanted: Sequence[str]) -> Step:
    def step(part: Part) -> None:
        chosen = [*tests.ours(wanted), *tests.variants("ept", wanted), *tests.pml(wanted)]
        chosen = [replace(test, timeout=_EPT_TIMEOUT) for test in chosen]
        part.outcomes += machines.on_ept(f"ept {params}", chosen, params, _EPT_SECONDS).all

    return step


def _tools(name: str) -> Step:
    def step(part: Part) -> None:
        stock = name == STOCK
        params = "" if stock else name
        done = machines.on_npt(f"tools {name}", tests.tools(stock=stock), params, stock=stock)
        part.outcomes += done.all

    return step


def _stock(part: Part) -> None:
    chosen = tests.stock()
    run = [test for test in chosen if not test.left_out]
    on_stock = _config("stock", "", stock=True)
    stock = on_stock(run, 0)
    for params in (OFF, ON):
        on_ours = _config(f"ours {params}", params)
        ours = on_ours(run, 0)
        verdicts, unclear = compare.compare(chosen, stock, ours)
        if unclear:
            verdicts += compare.repeat(unclear, stock, ours, on_stock, on_ours)
        verdicts += compare.complaints(stock, ours)
        part.outcomes += [replace(each, name=f"{each.name}  [{params}]") for each in verdicts]


def _config(label: str, params: str, *, stock: bool = False) -> compare.Runner:
    def runner(chosen: Sequence[Test], number: int) -> Report:
        name = f"{label}, again {number}" if number else label
        console.print(f"kernel's own tests, {name}: {len(chosen)}")
        return machines.on_npt(f"own {name}", chosen, params, stock=stock)

    return runner
