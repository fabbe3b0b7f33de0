"""make test and make check: build, run, show."""

import argparse
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lab.check import compare, machines, report, sparse, tests, unit
from lab.check.machines import Report
from lab.check.outcome import Outcome, State, judged, must_run
from lab.check.report import Part
from lab.check.tests import Test
from lab.error import LabError
from lab.machine import runs
from lab.make import modules, probes, programs, selftests
from lab.paths import BUILD, ROOT, VENV_BIN, VERSION, VERSIONS
from lab.shell import console
from lab.source import copies, tree

NEWER = "newer"
PARTS = ("lint", "unit", "once", "npt", "no-ad", "ept", "tools", "host", "stock", NEWER)
ASKED_FOR = ("once", "no-ad", "tools", "host")
"""Parts that only run if named: make test WHAT=tools, WHAT=host-check; and parts of others."""
OF_NEWER = ("lint", "unit", "once", "no-ad")
"""Those that are run of newer series, too; WHAT=all runs all."""
_NEWER_SECONDS = 7200

OFF, ON = "global_tdp=0", "global_tdp=1"
SHARED = "shared_mmu_lock=1"
STOCK = "stock modules"
_CHECKED = "with assertions"

_LANES = 2
"""Machines side by side: each keeps a CPU of the host busy, and more wait for each other."""
_EPT_SECONDS = 2400
_EPT_TIMEOUT = 60
"""Seconds of the guest, of which one takes Bochs up to eight."""

Do = Callable[[], Sequence[Outcome | Part]]
Choose = Callable[[Sequence[str]], list[Test]]


@dataclass(frozen=True)
class Step:
    """What makes a part of the report, or several."""

    title: str
    do: Do
    early: bool = False
    """True: it needs no more than the sources, and runs while the rest is built."""

    checked: bool = False
    """True: it takes modules with assertions, which are built while others run already."""

    minutes: int = 0
    """About, on two idle CPUs, as the longest go first; 0: one or two."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the whole suite."""
    text = f"leave out other parts than this one: {', '.join(PARTS)}"
    add = partial(parser.add_argument, choices=PARTS, action="append", metavar="PART")
    add("--only", help=text)
    text = "leave out this one: newer series, e.g., if Debian has their kernel no more"
    add("--without", default=[], help=text)
    parser.add_argument("--tests", default="", help="names, of the series' tests; default all")
    parser.add_argument("--no-build", action="store_true", help="take what is built")
    text = "machines side by side, default %(default)s"
    parser.add_argument("--lanes", type=int, default=_LANES, metavar="N", help=text)
    text = "write what came of it there, for another process to show"
    parser.add_argument("--outcomes", type=Path, metavar="FILE", help=text)
    parser.set_defaults(every=False)


def configure_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the inner loop."""
    parser.add_argument(
        "--tests", default="", help="names, of the series' tests; default all but seven"
    )
    text = "with assertions, as make test does, and VMs with memory attributes"
    parser.add_argument("--checked", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Run the suite; 1 if anything failed."""
    wanted, every = args.tests.split(), args.every
    asked = args.only or [name for name in PARTS if name not in ASKED_FOR]
    only = [name for name in asked if name not in args.without]
    newer = VERSIONS[VERSIONS.index(VERSION) + 1 :] if not wanted or args.only else ()
    known = {
        NEWER: [
            Step(f"Linux {version}", partial(_newer, version, args), early=True, minutes=25)
            for version in newer
        ],
        **_steps(wanted, every=every, lanes=args.lanes),
    }
    chosen = [step for name in known if name in only for step in known[name]]
    parts = _run(chosen, build=not args.no_build, wanted=wanted, lanes=args.lanes)
    # What is of others is shown last.
    parts.sort(key=lambda part: part.title.startswith("Linux "))
    if not wanted and not args.without and not report.count(parts)[State.FAILED]:
        parts += _whole(parts, npt="npt" in only, every=every and not args.only)
    if args.outcomes:
        report.save(args.outcomes, parts)
        return report.status(report.count(parts))
    report.tell(parts)
    report.sum_up(parts)
    return report.end(report.count(parts))


def check(args: argparse.Namespace) -> int:
    """Run the series' tests on NPT with Global TDP on; 1 if any failed.

    All but seven tests, in some machines; or those that are named, then late and with other
    parameters, too.
    """
    wanted = args.tests.split()
    steps = _once("not_inner", wanted, _LANES, checked=args.checked)
    return report.show(_run(steps, build=True, wanted=wanted))


def _steps(wanted: Sequence[str], *, every: bool, lanes: int) -> dict[str, list[Step]]:
    """Return the steps of all parts but newer series."""
    ept = f"series' tests, EPT, {ON}"
    npt, checked = f"series' tests, NPT, {ON}, {_CHECKED}", {"checked": True}
    on_ept = partial(tests.all_on_ept, every=every)

    def units() -> list[Outcome]:
        tree.ensure()
        return unit.run()

    return {
        "lint": [Step("lint", _lint)],
        "unit": [Step("unit tests of the lab", units, early=True)],
        "once": _once("not_once", wanted, lanes, checked=True),
        "npt": [
            Step(f"series' tests, NPT, {OFF}", partial(_npt, tests.by_parameter, wanted, OFF)),
            Step(npt, partial(_npt, tests.on_npt, wanted, **checked), minutes=20, **checked),
            *(
                Step(
                    f"{npt}, machine {kind}",
                    partial(_kind, kind, wanted, every=every),
                    **checked,
                )
                for kind in tests.ON_MACHINES
            ),
        ],
        "no-ad": [Step(f"{ept}, no A/D bits", partial(_ept, tests.no_ad, wanted))],
        "ept": [
            Step(ept, partial(_ept, on_ept, wanted), minutes=13),
            Step(
                f"{ept}, 2 CPUs",
                partial(_ept, tests.in_turns, wanted, "ept, 2 CPUs", cpus=2, quantum=3),
                minutes=5,
            ),
        ],
        "tools": [
            Step(f"bpftrace tools, {name}", partial(_inside, "tools", tests.tools, name))
            for name in (STOCK, ON)
        ],
        "host": [Step(f"host check, {name}", partial(_host, name)) for name in (STOCK, OFF)],
        "stock": _own_tests(every=every),
    }


def _whole(parts: Sequence[Part], *, npt: bool, every: bool) -> list[Part]:
    """Return whether each test of the series is in a part on NPT, and `every` one in any."""
    mine = [part for part in parts if not part.title.startswith("Linux ")]
    on_npt = [part for part in mine if ", NPT, " in part.title]
    looks = [("the series is run on NPT", tests.ours, on_npt)] * npt
    looks += [("the kernel is run", tests.stock, mine)] * every
    found = []
    for what, choose, among in looks:
        names = (outcome.name for part in among for outcome in part.outcomes)
        known = {re.split("[ ,]", name)[0] for name in names}
        missing = sorted({test.name.split()[0] for test in choose()} - known)
        reason = f"in no part: {' '.join(missing)}" if missing else ""
        found.append(judged(f"each test of {what}", not missing, reason))
    return [Part("whole", found)] * bool(found)


def _run(
    steps: Sequence[Step],
    *,
    build: bool,
    wanted: Sequence[str] = (),
    lanes: int = _LANES,
) -> list[Part]:
    """Build and do the steps, the longest first, those that find all built before others."""
    building: list[Part] = []
    parts: dict[str, list[Part]] = {}

    def do(step: Step) -> None:
        if runs.STOPPING.is_set():
            return
        more = []
        with report.doing(step.title) as part:
            found = step.do()
            if not found and not wanted:
                raise LabError("nothing was run")
            part.outcomes += [each for each in found if isinstance(each, Outcome)]
            more = [each for each in found if isinstance(each, Part)]
        parts[step.title] = [*more, *[part] * bool(part.outcomes or not more)]

    def built(*builders: Callable[[], object]) -> bool:
        with report.doing("build") as part:
            for builder in builders if build else ():
                builder()
        building.extend([part] * bool(part.outcomes))
        return not part.outcomes

    lanes = min(lanes, len(os.sched_getaffinity(0)))
    early = [step for step in steps if step.early]
    inorder = sorted((step for step in steps if not step.early), key=lambda step: -step.minutes)
    # As many as there is room for: what waits is taken in order.
    room = max(lanes - sum(step.minutes > 0 for step in early), 1)
    first = [step for step in inorder if step.minutes and not step.checked][:room]
    later = [step for step in inorder if step not in first]
    with ThreadPoolExecutor(lanes) as pool:
        jobs = [pool.submit(do, step) for step in early]
        ready = not inorder or built(
            selftests.build, partial(tests.ours, wanted), programs.build_restore, modules.build
        )
        jobs += [pool.submit(do, step) for step in first if ready]
        if any(step.checked for step in later):
            ready = ready and built(partial(modules.build, checked=True))
        if not ready:
            runs.STOPPING.set()
        jobs += [pool.submit(do, step) for step in later if ready]
        for job in jobs:
            job.result()
    done = (parts.get(step.title, [Part(step.title)]) for step in steps)
    return [*building, *(part for each in done for part in each)]


def _lint() -> list[Outcome]:
    command = [VENV_BIN / "ruff", "check", "--no-cache", "lab", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = {
        "ruff check": f"{done.stdout}{done.stderr}" if done.returncode else "",
        "copies of the new files": copies.wrong(),
        "sparse": "\n".join(sparse.judge(sparse.list_new())),
    }
    return [judged(name, not wrong, output=wrong) for name, wrong in found.items()]


def _newer(version: str, args: argparse.Namespace) -> list[Outcome | Part]:
    """Run some of another series, or all: in a process of its own, which has one lane."""
    hint = f"ARGS='--without {NEWER}' leaves it out"
    if os.geteuid():
        raise LabError(f"it takes root to build what is for it; {hint}")
    for command in () if args.no_build else (("sh", "lab/setup.sh"), _lab("tree")):
        if status := _other(version, command):
            raise LabError(f"status {status}, see above; {hint}")
    outcomes = BUILD / f"outcomes-{version}-{os.getpid()}.json"
    only = [] if args.every else [word for name in OF_NEWER for word in ("--only", name)]
    options = [*only, *["--no-build"] * args.no_build, "--tests", args.tests, "--lanes", "1"]
    command = _lab("test", *["all"] * args.every, *options, "--outcomes", str(outcomes))
    status = _other(version, command, _NEWER_SECONDS * (3 if args.every else 1))
    parts: list[Part] = []
    if outcomes.exists():
        parts = report.load(outcomes)
        outcomes.unlink()
    found: list[Outcome | Part] = [
        replace(part, title=f"Linux {version}: {part.title}") for part in parts
    ]
    if not parts or bool(status) != bool(report.count(parts)[State.FAILED]):
        why = f"make test SERIES={version} ended with status {status}, see above"
        found.append(Outcome(f"Linux {version}: done", State.FAILED, reason=why))
    return found


def _lab(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "lab", *words)


def _other(version: str, command: Sequence[str], seconds: float = _NEWER_SECONDS) -> int:
    """Run a command about another series: a process of its own, as each knows one."""
    env = {"SERIES": version, "KVER": "", "TESTS_OF": ""}
    # One that is interrupted tells its children, which a terminal would do, too.
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        raise LabError(f"not done after {seconds} s") from None


def _once(
    but: str,
    wanted: Sequence[str],
    lanes: int,
    *,
    checked: bool,
) -> list[Step]:
    """Return what runs the series' tests but some once each; or the wanted in all ways."""
    title = f"series' tests, NPT, {ON}{f', {_CHECKED}' * checked}"
    if wanted:
        do = partial(_npt, tests.on_npt, wanted, checked=checked)
        return [Step(title, do, checked=checked)]

    def share(lane: int) -> list[Outcome]:
        return _npt(
            lambda _: tests.spread(lanes, but)[lane], (), share=(lane, lanes), checked=checked
        )

    return [
        Step(
            f"{title}, machine {lane + 1} of {lanes}" if lanes > 1 else title,
            partial(share, lane),
            checked=checked,
        )
        for lane in range(lanes)
    ]


def _npt(
    choose: Choose,
    wanted: Sequence[str],
    params: str = ON,
    *,
    checked: bool = False,
    share: tuple[int, int] = (0, 1),
) -> list[Outcome]:
    """Run tests of the series; with assertions, a share of those of memory attributes, too."""
    private = tests.private(wanted)[share[0] :: share[1]] if checked else []
    chosen = [*choose(wanted), *private]
    done = machines.on_npt(f"npt {params}", chosen, params, checked=checked)
    names = {test.name for test in private}
    return _expected(done, "npt, checked" if checked else "npt", names)


def _expected(done: Report, machine: str, private: set[str] | None = None) -> list[Outcome]:
    """Return what came of the series' tests, of which only what is expected may skip."""
    outcomes = [
        must_run(outcome) if name in (private or ()) else tests.expect(outcome, machine)
        for name, outcome in done.outcomes.items()
    ]
    return [*outcomes, *done.splats]


def _kind(kind: str, wanted: Sequence[str], *, every: bool = True) -> list[Outcome]:
    """On a machine that they want."""
    if not (chosen := tests.on_machine(kind, wanted, every=every)):
        return []
    done = machines.on_npt(f"npt {kind}", chosen, ON, checked=True, machine=kind)
    return _expected(done, kind)


def _ept(
    choose: Choose, wanted: Sequence[str], machine: str = "ept", **turns: int
) -> list[Outcome]:
    """Run those tests on Bochs, by CPUs that take turns, if so."""
    probes.build()
    chosen = [replace(test, timeout=_EPT_TIMEOUT) for test in choose(wanted)]
    if not chosen:
        return []
    done = machines.on_ept(f"{machine} {ON}", chosen, ON, _EPT_SECONDS, **turns)
    return _expected(done, machine)


def _host(name: str) -> list[Outcome]:
    programs.build_check()
    return _inside("host", tests.host_check, name)


def _inside(label: str, choose: Callable[..., list[Test]], name: str) -> list[Outcome]:
    """Run what has all that it needs, on stock modules or ours."""
    stock = name == STOCK
    params = "" if stock else name
    done = machines.on_npt(f"{label} {name}", choose(stock=stock), params, stock=stock)
    return [*map(must_run, done.outcomes.values()), *done.splats]


def _own_tests(*, every: bool) -> list[Step]:
    """Return the kernel's own tests on ours, judged by what they do on stock modules."""
    on_stock = _remembered(_config("stock", "", stock=True))

    def ours(params: str, choose: Callable[[], list[Test]]) -> list[Outcome]:
        on_ours, chosen = _config(f"ours {params}", params), choose()
        found = on_ours([test for test in chosen if not test.left_out], 0)
        return compare.judge(chosen, found, on_stock, on_ours)

    of_memory = partial(tests.of_memory, every=every)
    ways = [(OFF, of_memory, 6), (ON, tests.stock if every else of_memory, 6)]
    ways += [(SHARED, of_memory, 6)] * every
    return [
        Step(f"kernel's own tests, {params}", partial(ours, params, choose), minutes=minutes)
        for params, choose, minutes in ways
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
