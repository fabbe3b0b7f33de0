"""make test WHAT=broken: break each promise of the series in turn, and see a test notice.

tests/broken/ has a patch a promise; its head, lines of "Name: text", says what is to happen:

    Promise     what is promised, after the number of the rule in the design, if there is one
    Test        the series' test that is to notice, or more of them, each of which is; or
    Program     a program of build/selftests, with arguments
    Noticed     what the assertion that fails says; or "kernel: " and what its log says; where
                chance decides which, or more tests are to notice, a line of its own for each
    Where       a function of the test that the trace of that assertion has, wherever several
                say the same

and, where it takes that, Late, Usecs, Checked, Machine, Intel and Params, see Broken. First
all these tests must pass with nothing broken. Then each patch is applied to a mirror of the
sources of its own, so that neither build/linux nor build/modules are touched; two at a time.
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from email.parser import HeaderParser
from itertools import chain, groupby
from pathlib import Path
from queue import SimpleQueue

from rich.table import Table

from lab import shell
from lab.check import report, tests
from lab.check.outcome import State
from lab.error import LabError
from lab.machine import ept, npt, runs
from lab.machine.result import Command, Ended, Result, Run
from lab.make import modules, selftests
from lab.paths import BUILD, ROOT, SELFTESTS
from lab.shell import console, locked
from lab.source import tree

PATCHES = ROOT / "tests" / "broken"
DIRECTORY = BUILD / "broken"
KERNEL = "kernel: "

_LANES = 2
_TOGETHER = 12
_SECONDS = 180
_EPT_SECONDS = 900
PANIC = (
    "(cd /proc/sys/kernel && echo 1 >panic_on_oops && echo -1 >panic &&"
    " echo 60 >hung_task_timeout_secs)"
)
"""A kernel that has died of a break is not to be waited for, and it tells of a task that hangs,
after twice as long at most, before the test has had its time."""

_FAILURE = re.compile(r"^==== Test Assertion Failure ====\n(.*)", re.M)


@dataclass(frozen=True)
class Broken:
    """A patch that breaks a promise; fields but `path` are called so in its head."""

    path: Path
    promise: str
    noticed: str
    where: str = ""
    test: str = ""
    program: str = ""
    late: str = ""
    """A function of the kernel that returns late meanwhile."""

    usecs: str = "200"
    """By how much."""

    checked: str = ""
    """"yes" if it takes the modules with assertions to notice."""

    machine: str = "default"
    """The one of npt.MACHINES that it takes; or "ept", Bochs."""

    intel: str = ""
    """On the latter, parameters of kvm_intel."""

    params: str = "global_tdp=1"
    """What kvm.ko is loaded with."""

    @property
    def commands(self) -> list[Command]:
        """What is run."""
        named = [f"x86_64/global_tdp_{name}_test" for name in self.test.split()]
        late = "rmmod lab_delay 2>/dev/null\n"
        if self.late:
            late = f"{tests.with_delay(self.late, int(self.usecs))} || exit 1\n"
        return [
            Command(
                f"{PANIC}\n{late}{_disk(program)}{SELFTESTS / program}",
                program,
                limit=_SECONDS,
                huge_pages=tests.HUGE_PAGES.get(program.split()[0], 0),
            )
            for program in ([self.program] if self.program else named)
        ]

    @property
    def files(self) -> list[str]:
        """Those of the kernel that it changes."""
        return re.findall(r"^\+\+\+ b/(\S+)", self.path.read_text(), re.M)

    @property
    def about(self) -> str:
        """What --only looks at."""
        return f"{self.promise} {self.files}"

    @property
    def is_race(self) -> bool:
        """Whether it takes a delay, or churn alone, to notice."""
        return bool(self.late) or self.test == "churn"

    @property
    def setting(self) -> tuple[str, str, str, str]:
        """What those have in common that one machine can run."""
        return self.machine, self.intel, self.params, self.checked


def _disk(program: str) -> str:
    return f"{tests.DISK}\n" if tests.is_on_disk(program.split(maxsplit=1)[0]) else ""


def configure(command: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="promises, or files, that have this text, or any of several: --only A --only B",
    )


def load() -> list[Broken]:
    """Return all, by promise."""
    return sorted(map(parse, PATCHES.glob("*.patch")), key=lambda broken: broken.promise)


def parse(path: Path) -> Broken:
    """Return one; LabError if its head is not as it should be."""
    known = {field.name for field in fields(Broken)} - {"path"}
    head = HeaderParser().parsestr(path.read_text(), headersonly=True)
    given = {name.lower(): text for name, text in head.items()}
    if len(given) < len(head):
        raise LabError(f"{path.relative_to(ROOT)}: the same name twice")
    if unknown := given.keys() - known:
        raise LabError(f"{path.relative_to(ROOT)}: what is {min(unknown).capitalize()}:?")
    for wanted in ({"promise"}, {"test", "program"}, {"noticed"}):
        if not any(given.get(name, "").strip() for name in wanted):
            raise LabError(f"{path.relative_to(ROOT)}: no {max(wanted).capitalize()}:")
    if KERNEL in given["noticed"] and len(given.get("test", "").split()) > 1:
        raise LabError(f"{path.relative_to(ROOT)}: of several tests, which is {KERNEL}of?")
    return Broken(path, **given)


def apply(broken: Broken, source: Path, *options: str) -> None:
    """Break it in a tree of sources; LabError if that is not as the patch has it."""
    exact = ("-p1", "-f", "--fuzz=0", "--no-backup-if-mismatch", *options)
    try:
        shell.output("patch", *exact, "-d", source, "-i", broken.path)
    except LabError as error:
        raise LabError(f"{broken.path.relative_to(ROOT)} does not apply: adapt it") from error


def run(args: argparse.Namespace) -> int:
    """Build and test them one by one; 1 if a test did not notice."""
    wanted = args.only or [""]
    chosen = [broken for broken in load() if any(text in broken.about for text in wanted)]
    if not chosen:
        where = PATCHES.relative_to(ROOT)
        raise LabError(f"--only {' '.join(wanted)}: no such promise or file in {where}")
    for checked in {False, *(bool(broken.checked) for broken in chosen)}:
        modules.build(checked=checked)
    selftests.build()
    with locked("broken"):
        return _try_all(chosen)


def _try_all(chosen: Sequence[Broken]) -> int:
    free: SimpleQueue[Path] = SimpleQueue()
    lanes = min(_LANES, len(os.sched_getaffinity(0)))
    for lane in range(lanes):
        free.put(DIRECTORY / str(lane))

    def one(numbered: tuple[int, Broken]) -> tuple[State, str]:
        number, broken = numbered
        if runs.STOPPING.is_set():
            raise KeyboardInterrupt
        directory = free.get()
        try:
            state, told = _try(broken, directory)
        finally:
            free.put(directory)
        console.print(
            f"{number}/{len(chosen)} {broken.promise}\n    {state}: {told}", markup=False
        )
        return state, told

    table = Table("promise", "test", "noticed by")
    with ThreadPoolExecutor(lanes) as pool:
        states = Counter(chain.from_iterable(pool.map(_control, _alike(chosen))))
        found = list(pool.map(one, enumerate(chosen, 1)))
    for broken, (state, told) in zip(chosen, found, strict=True):
        states[state] += 1
        style = "" if state is State.PASSED else "bold red"
        table.add_row(broken.promise, broken.test or broken.program, told, style=style)
    console.print(table)
    return report.end(states)


def _alike(chosen: Iterable[Broken]) -> Iterator[list[Broken]]:
    """Return those together that one machine is to run."""

    def setting(broken: Broken) -> tuple[str, ...]:
        return broken.setting

    for _, group in groupby(sorted(chosen, key=setting), setting):
        alike = list(group)
        for first in range(0, len(alike), _TOGETHER):
            yield alike[first : first + _TOGETHER]


def _control(alike: Sequence[Broken]) -> list[State]:
    """Run with nothing broken what is to notice; a test is to fail of what was broken."""
    commands = list(dict.fromkeys(each for broken in alike for each in broken.commands))
    console.print(f"nothing broken: {', '.join(command.name for command in commands)}")
    states = []
    for command, wrong in passes(commands, _run(alike[0], commands, ended=_tell)):
        if wrong:
            console.print(f"    {State.FAILED}: {command}: {wrong}", markup=False)
        states.append(State.FAILED if wrong else State.PASSED)
    return states


def passes(commands: Sequence[Command], done: Run) -> Iterable[tuple[str, str]]:
    """Return, of each command and of the machine, why it is no control; "" if it is one."""
    statuses = {result.number: result.status for result in done.results}
    for number, command in enumerate(commands):
        status = statuses.get(number)
        ended = f"status {status}" if status is not None else f"not run to its end: {done.died}"
        yield command.name, ended if status != 0 else ""
    if done.splats or done.died:
        yield "the machine", done.died or f"the kernel complained: {done.splats[0][:200]}"


def _tell(result: Result) -> None:
    console.print(f"    {result.name}: {result.seconds:.0f} s", markup=False)


def _run(
    broken: Broken,
    commands: Sequence[Command],
    kvm: Path | None = None,
    ended: Ended | None = None,
) -> Run:
    chosen = {"kvm": kvm, "checked": bool(broken.checked), "ended": ended}
    if broken.machine == "ept":
        wanted = f"{broken.params} {broken.intel and f'kvm_intel.{broken.intel}'}"
        programs = [SELFTESTS / command.name.split()[0] for command in commands]
        return ept.run(commands, programs, wanted, timeout=_EPT_SECONDS, **chosen)
    limit = _SECONDS * len(commands) + npt.BOOT_SECONDS
    return npt.run(
        commands, params=broken.params, machine=broken.machine, timeout=limit, **chosen
    )


def _try(broken: Broken, directory: Path) -> tuple[State, str]:
    """Return whether all noticed in the way that they must, and by what or who did not."""
    try:
        done = _run(broken, broken.commands, build(broken, directory))
    except LabError as error:
        if runs.STOPPING.is_set():
            raise KeyboardInterrupt from error
        # Neither is noticed what keeps from being built or from booting; others go on.
        return State.FAILED, f"not by the assertion: {error}"
    if len(broken.commands) == 1:
        return judge(broken.noticed, done, broken.where)
    missed = []
    for number, command in enumerate(broken.commands):
        alone = replace(done, results=[each for each in done.results if each.number == number])
        state, told = judge(broken.noticed, alone, broken.where)
        console.print(f"    {state}: {command.name}: {told}", markup=False)
        if state is not State.PASSED:
            missed.append(command.name)
    if missed:
        return State.FAILED, f"not by {', '.join(missed)}"
    return State.PASSED, f"all {len(broken.commands)}"


def judge(noticed: str, done: Run, where: str = "") -> tuple[State, str]:
    """Return whether a run, of a broken promise, shows what is to be noticed."""
    ways = list(filter(None, map(str.strip, noticed.splitlines())))
    kernels = [way for way in ways if way.startswith(KERNEL)]
    complaints = "\n".join(done.splats)
    failure = _FAILURE.search(done.output)
    said = done.output[failure.start() :] if failure else ""
    # That of a child comes first, and its parent may fail for it.
    frame = rf" {where}(\.\w+)* at " if where else ""
    there = re.search(frame, said.partition("\n====")[0])
    for way in kernels:
        if way.removeprefix(KERNEL) in complaints:
            return State.PASSED, way
    if failure and there and any(way in said for way in ways if way not in kernels):
        return State.PASSED, failure[1].strip()
    if failure:
        told = failure[0] + done.output[failure.end() :][:300]
        return State.FAILED, f"another assertion than the patch names: {told}"
    if complaints:
        return State.FAILED, f"not by the assertion, but the kernel: {done.splats[0][:200]}"
    return State.FAILED, f"not by an assertion: {done.died or f'status {done.status}'}"


def build(broken: Broken, directory: Path) -> Path:
    """Return kvm.ko, built in a directory of its own."""
    tree.ensure()
    kmod = directory / ("checked/kmod" if broken.checked else "kmod")
    modules.mirror(kmod, checked=bool(broken.checked))
    apply(broken, kmod)
    log = f"broken-{directory.name}"
    modules.compile_in(kmod, log, werror=False, checked=bool(broken.checked))
    built = kmod / "arch/x86/kvm" / "kvm.ko"
    shell.output("strip", "--strip-debug", built, "-o", directory / "kvm.ko")
    return directory / "kvm.ko"
