"""make test and make check: build, run, show."""

import argparse
import os
import subprocess
import sys
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path

from lab.check import compare, machines, report, sparse, tests
from lab.check.machines import Report
from lab.check.outcome import Outcome, State, must_run
from lab.check.report import Part
from lab.check.tests import Test
from lab.error import LabError
from lab.machine import runs
from lab.make import hostcheck, modules, probes, restore, selftests
from lab.paths import BUILD, ROOT, VENV_BIN, VERSION, VERSIONS
from lab.shell import console
from lab.source import copies, tree

NEWER = "newer"
PARTS = ("lint", "unit", "once", "npt", "no-ad", "ept", "tools", "host", "stock", NEWER)
ASKED_FOR = ("once", "no-ad", "tools", "host")
"""Parts that only run if named: make test WHAT=tools, WHAT=host-check; and parts of others."""
OF_NEWER = ("lint", "unit", "once", "no-ad")
"""Those that are run of newer series, too, which others may have to wait for."""
_NEWER_SECONDS = 2700

OFF, ON = "global_tdp=0", "global_tdp=1"
SHARED = "shared_mmu_lock=1"
STOCK = "stock modules"
_CHECKED = "with assertions"

_LANES = 2
"""Machines side by side: each keeps a CPU of the host busy, and more wait for each other."""
_EPT_SECONDS = 2400
_EPT_TIMEOUT = 60
"""Seconds of the guest, of which one takes Bochs up to eight."""

Do = Callable[[Part], None]
Spread = Callable[[int], list[list[Test]]]
"""Tests, by machine, for so many machines."""


@dataclass(frozen=True)
class Step:
    """What makes a part of the report."""

    title: str
    do: Do
    alone: bool = False
    """True: it may change what all share in a process, and needs no more than the sources."""

    checked: bool = False
    """True: it takes modules with assertions, which are built while others run already."""

    minutes: int = 0
    """About, on two idle CPUs, as the longest go first; 0: one or two."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the whole suite."""
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        metavar="PART",
        help=f"leave out other parts than this one: {', '.join(PARTS)}",
    )
    text = "leave out this one: newer series, e.g., if Debian has their kernel no more"
    parser.add_argument(
        "--without", choices=PARTS, action="append", default=[], metavar="PART", help=text
    )
    parser.add_argument("--tests", default="", help="names, of the series' tests; default all")
    parser.add_argument("--no-build", action="store_true", help="take what is built")
    text = "write what came of it there, for another process to show"
    parser.add_argument("--outcomes", type=Path, metavar="FILE", help=text)


def configure_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the inner loop."""
    parser.add_argument(
        "--tests", default="", help="names, of the series' tests; default all but seven"
    )
    text = "with assertions, as make test does, and VMs with memory attributes"
    parser.add_argument("--checked", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Run the suite; 1 if anything failed."""
    wanted = args.tests.split()
    steps = {
        "lint": [Step("lint", _lint)],
        "unit": [Step("unit tests of the lab", _unit, alone=True)],
        "once": _once(tests.spread, wanted, checked=True),
        "npt": [
            Step(f"series' tests, NPT, {OFF}", _npt(OFF, wanted)),
            Step(
                f"series' tests, NPT, {ON}, {_CHECKED}",
                _npt(ON, wanted, checked=True),
                checked=True,
                minutes=10,
            ),
            *(
                Step(
                    f"series' tests, NPT, {ON}, {_CHECKED}, machine {kind}",
                    _kind(kind, wanted),
                    checked=True,
                )
                for kind in tests.ON_MACHINES
            ),
        ],
        "no-ad": [Step(f"series' tests, EPT, {ON}, no A/D bits", _ept(tests.no_ad, wanted))],
        "ept": [
            Step(f"series' tests, EPT, {ON}", _ept(tests.every_on_ept, wanted), minutes=14),
            Step(
                f"series' tests, EPT, {ON}, 2 CPUs",
                _ept(tests.in_turns, wanted, "ept, 2 CPUs", cpus=2, quantum=3),
                minutes=4,
            ),
        ],
        "tools": [Step(f"bpftrace tools, {name}", _tools(name)) for name in (STOCK, ON)],
        "host": [Step(f"host check, {name}", _host(name)) for name in (STOCK, OFF)],
        "stock": _own_tests(),
    }
    asked = args.only or [name for name in PARTS if name not in ASKED_FOR]
    only = [name for name in asked if name not in args.without]
    chosen = [step for name in steps if name in only for step in steps[name]]
    newer = VERSIONS[VERSIONS.index(VERSION) + 1 :] if NEWER in only else ()
    if wanted and not args.only:
        newer = ()
    build = not args.no_build
    # What keeps them from being run is not to be found out in half an hour.
    with ThreadPoolExecutor(len(VERSIONS)) as pool:
        kept = {version: pool.submit(_kept_from, version, build=build) for version in newer}
        beside = [*kept.values()]
        parts = [*_run(chosen, build=build, wanted=wanted, beside=beside)] if chosen else []
    if args.outcomes:
        report.save(args.outcomes, parts)
        return report.status(report.count(parts))
    report.tell(parts)
    for version, job in kept.items():
        title, why = f"Linux {version}", job.result()
        more = [Part(title, [why])] if why else _newer(version, args)
        report.tell(more)
        parts += more
    report.sum_up(parts)
    return report.end(report.count(parts))


def check(args: argparse.Namespace) -> int:
    """Run the series' tests on NPT with Global TDP on; 1 if any failed.

    All but seven tests, in some machines; or those that are named, then late and with other
    parameters, too.
    """
    wanted = args.tests.split()
    steps = _once(tests.inner, wanted, checked=args.checked)
    return report.show(_run(steps, build=True, wanted=wanted))


def _run(
    steps: Sequence[Step],
    *,
    build: bool,
    wanted: Sequence[str] = (),
    beside: Sequence[Future[object]] = (),
) -> Sequence[Part]:
    """Build and do the steps, the longest first, those that find all built before others.

    Sources are unpacked and committed `beside` those of others, by one CPU each.
    """
    building = Part("build")
    parts = {step.title: Part(step.title) for step in steps}

    def do(step: Step) -> None:
        if not runs.STOPPING.is_set():
            with _part(parts[step.title]) as part:
                step.do(part)
                if not part.outcomes and not wanted:
                    raise LabError("nothing was run")

    def built(*builders: Callable[[], object]) -> bool:
        with _part(building):
            for builder in builders if build else ():
                builder()
        return not building.outcomes

    # Those look at it, too.
    ready = not build or built(tree.ensure)
    # Unit tests change what all threads share.
    wait(beside)
    if not ready:
        return [building, *parts.values()]
    for step in steps:
        if step.alone:
            do(step)
    inorder = sorted(
        (step for step in steps if not step.alone),
        key=lambda step: -step.minutes,
    )
    checks = any(step.checked for step in inorder)
    lanes = min(_LANES, len(os.sched_getaffinity(0)))
    # As many as there is room for: what waits is taken in order.
    first = [step for step in inorder if step.minutes and not step.checked][:lanes]
    with ThreadPoolExecutor(lanes) as pool:
        ready = built(
            selftests.build, partial(tests.ours, wanted), restore.build, modules.build
        )
        jobs = [pool.submit(do, step) for step in first if ready]
        ready = ready and (not checks or built(partial(modules.build, checked=True)))
        if not ready:
            runs.STOPPING.set()
        jobs += [pool.submit(do, step) for step in inorder if ready and step not in first]
        for job in jobs:
            job.result()
    return [*([] if ready else [building]), *parts.values()]


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
    wrong = copies.wrong()
    state = State.FAILED if wrong else State.PASSED
    part.outcomes.append(Outcome("copies of the new files", state, reason=wrong))
    reasons = sparse.judge(sparse.list_new())
    state = State.FAILED if reasons else State.PASSED
    part.outcomes.append(Outcome("sparse", state, output="\n".join(reasons)))


def _unit(part: Part) -> None:
    suite = unittest.defaultTestLoader.discover(str(ROOT / "tests"), top_level_dir=str(ROOT))
    # Who reads along would take what they print for something that happens.
    runner = unittest.TextTestRunner(stream=StringIO(), resultclass=_Recorder, buffer=True)
    result = runner.run(suite)
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
        skips = [why for of, why in self.skipped if getattr(of, "test_case", of) is test]
        why = "; ".join(skips)
        state = State.FAILED if wrong else State.SKIPPED if skips else State.PASSED
        name = test.id().removeprefix("tests.")
        self.outcomes.append(Outcome(name, state, reason=why, output="\n".join(wrong)))


def _kept_from(version: str, *, build: bool) -> Outcome | None:
    """Return why another series can't be run here, if so."""
    reason = "it takes root to build what is for it" if os.geteuid() else ""
    for command in (("sh", "lab/setup.sh"), _lab("tree")) if build else ():
        try:
            if not reason and (status := _other(version, command)):
                reason = f"status {status}, see above"
        except LabError as error:
            reason = str(error)
    hint = f"{reason}; ARGS='--without {NEWER}' leaves it out"
    return Outcome(f"Linux {version}", State.FAILED, reason=hint) if reason else None


def _newer(version: str, args: argparse.Namespace) -> list[Part]:
    """Run some of another series; a part of its own says what came of the whole."""
    whole = Part(f"Linux {version}")
    outcomes = BUILD / f"outcomes-{version}-{os.getpid()}.json"
    only = [word for name in OF_NEWER for word in ("--only", name)]
    options = [*only, *["--no-build"] * args.no_build, "--tests", args.tests]
    parts: list[Part] = []
    with _part(whole):
        status = _other(version, _lab("test", *options, "--outcomes", str(outcomes)))
        if outcomes.exists():
            parts = report.load(outcomes)
            outcomes.unlink()
        failed = report.count(parts)[State.FAILED]
        if not parts or bool(status) != bool(failed):
            raise LabError(f"make test SERIES={version} ended with status {status}, see above")
    titled = [replace(part, title=f"{whole.title}: {part.title}") for part in parts]
    return [*titled, *[whole] * bool(whole.outcomes)]


def _lab(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "lab", *words)


def _other(version: str, command: Sequence[str]) -> int:
    """Run a command about another series: a process of its own, as each knows one."""
    env = {**os.environ, "SERIES": version, "KVER": "", "TESTS_OF": ""}
    # A terminal has one line for progress.
    env["TTY_COMPATIBLE"] = "0"
    # One that is interrupted tells its children, which a terminal would do, too.
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(_NEWER_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        raise LabError(f"not done after {_NEWER_SECONDS} s") from None
    except KeyboardInterrupt:
        process.wait()
        raise


def _once(spread: Spread, wanted: Sequence[str], *, checked: bool) -> list[Step]:
    """Return what runs the series' tests, each in one machine; or all ways of the wanted."""
    title = f"series' tests, NPT, {ON}{f', {_CHECKED}' * checked}"
    if wanted:
        return [Step(title, _npt(ON, wanted, checked=checked), checked=checked)]
    return [
        Step(
            f"{title}, machine {lane + 1} of {_LANES}",
            _share(spread, lane, checked=checked),
            checked=checked,
        )
        for lane in range(_LANES)
    ]


def _share(spread: Spread, lane: int, *, checked: bool) -> Do:
    def step(part: Part) -> None:
        private = tests.private() if checked else []
        chosen = [*spread(_LANES)[lane], *private[lane::_LANES]]
        done = machines.on_npt(f"npt {ON}", chosen, ON, checked=checked)
        machine = "npt, checked" if checked else "npt"
        part.outcomes += _expected(done, machine, {test.name for test in private})

    return step


def _npt(params: str, wanted: Sequence[str], *, checked: bool = False) -> Do:
    def step(part: Part) -> None:
        chosen = tests.on_npt(wanted) if params == ON else tests.by_parameter(wanted)
        private = tests.private(wanted) if checked else []
        done = machines.on_npt(f"npt {params}", [*chosen, *private], params, checked=checked)
        machine = "npt, checked" if checked else "npt"
        part.outcomes += _expected(done, machine, {test.name for test in private})

    return step


def _expected(
    done: Report, machine: str, private: Container[str] = frozenset()
) -> list[Outcome]:
    """Return what came of the series' tests, of which only what is expected may skip."""
    outcomes = [
        must_run(outcome) if name in private else tests.expect(outcome, machine)
        for name, outcome in done.outcomes.items()
    ]
    return [*outcomes, *done.splats]


def _kind(kind: str, wanted: Sequence[str]) -> Do:
    """On a machine that they want."""

    def step(part: Part) -> None:
        if chosen := tests.on_machine(kind, wanted):
            done = machines.on_npt(f"npt {kind}", chosen, ON, checked=True, machine=kind)
            part.outcomes += _expected(done, kind)

    return step


def _ept(
    choose: Callable[[Sequence[str]], list[Test]],
    wanted: Sequence[str],
    machine: str = "ept",
    **turns: int,
) -> Do:
    """Return what runs those tests on Bochs, by CPUs that take turns, if so."""

    def step(part: Part) -> None:
        probes.build()
        if chosen := choose(wanted):
            chosen = [replace(test, timeout=_EPT_TIMEOUT) for test in chosen]
            done = machines.on_ept(f"{machine} {ON}", chosen, ON, _EPT_SECONDS, **turns)
            part.outcomes += _expected(done, machine)

    return step


def _tools(name: str) -> Do:
    def step(part: Part) -> None:
        stock = name == STOCK
        params = "" if stock else name
        done = machines.on_npt(f"tools {name}", tests.tools(stock=stock), params, stock=stock)
        part.outcomes += [*map(must_run, done.outcomes.values()), *done.splats]

    return step


def _host(name: str) -> Do:
    def step(part: Part) -> None:
        hostcheck.build()
        stock = name == STOCK
        params = "" if stock else name
        chosen = tests.host_check(stock=stock)
        done = machines.on_npt(f"host {name}", chosen, params, stock=stock)
        part.outcomes += [*map(must_run, done.outcomes.values()), *done.splats]

    return step


def _own_tests() -> list[Step]:
    """Return the kernel's own tests on ours, judged by what they do on stock modules."""
    on_stock = _remembered(_config("stock", "", stock=True))

    def ours(params: str) -> Do:
        on_ours = _config(f"ours {params}", params)

        def do(part: Part) -> None:
            every = tests.stock() if params == ON else tests.of_memory()
            found = on_ours([test for test in every if not test.left_out], 0)
            part.outcomes += compare.judge(every, found, on_stock, on_ours)

        return do

    title = "kernel's own tests"
    return [
        Step(f"{title}, {params}", ours(params), minutes=minutes)
        for params, minutes in ((OFF, 5), (SHARED, 5), (ON, 7))
    ]


def _remembered(runner: compare.Runner) -> compare.Runner:
    """Return one whose first run of a test serves all who ask for one."""
    known, lock = Report(), threading.Lock()

    def run(chosen: Sequence[Test], number: int) -> Report:
        if number:
            return runner(chosen, number)
        with lock:
            if new := [test for test in chosen if test.name not in known.outcomes]:
                found = runner(new, 0)
                known.outcomes.update(found.outcomes)
                known.splats += found.splats
            return known

    return run


def _config(label: str, params: str, *, stock: bool = False) -> compare.Runner:
    def runner(chosen: Sequence[Test], number: int) -> Report:
        name = f"{label}, again {number}" if number else label
        console.print(f"kernel's own tests, {name}: {len(chosen)}")
        return machines.on_npt(f"own {name}", chosen, params, stock=stock)

    return runner
