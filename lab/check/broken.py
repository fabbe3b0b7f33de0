"""make test-broken: break each promise of the series in turn, and see a test notice.

tests/broken/ has a patch a promise; its head, lines of "Name: text", says what is to happen:

    Promise     what is promised, after the number of the rule in the design, if there is one
    Test        the series' test that is to notice, or
    Program     a program of build/selftests, with arguments
    Noticed     what the assertion that fails says; or "kernel: " and what its log says; without
                it, any assertion counts

and, where it takes that, Late, Usecs, Checked, Machine, Intel and Params, see Broken. First
all these tests must pass with nothing broken. Then each patch is applied to a mirror of the
sources of its own, so that neither build/linux nor build/modules are touched.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from email.parser import HeaderParser
from itertools import groupby
from pathlib import Path

from rich.table import Table

from lab import shell
from lab.check import report, tests
from lab.check.outcome import State
from lab.error import LabError
from lab.machine import ept, npt
from lab.machine.result import Command, Run
from lab.make import delay, modules, selftests
from lab.paths import BUILD, ROOT, SELFTESTS
from lab.shell import console
from lab.source import tree

PATCHES = ROOT / "tests" / "broken"
DIRECTORY = BUILD / "broken"
KERNEL = "kernel: "

_SECONDS = 180
_BOOT = 90
_EPT_SECONDS = 900
_PANIC = "(cd /proc/sys/kernel && echo 1 >panic_on_oops && echo -1 >panic)"
"""A kernel that has died of a break is not to be waited for."""

_FAILURE = re.compile(r"^==== Test Assertion Failure ====\n(.*)", re.M)


@dataclass(frozen=True)
class Broken:
    """A patch that breaks a promise; fields but `path` are called so in its head."""

    path: Path
    promise: str
    test: str = ""
    noticed: str = ""
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
    def command(self) -> Command:
        """What is run."""
        program = self.program or f"x86_64/global_tdp_{self.test}_test"
        late = f"{tests.with_delay(self.late, int(self.usecs))} || exit 0\n" * bool(self.late)
        return Command(f"{_PANIC}\n{late}{SELFTESTS / program}", program, limit=_SECONDS)

    @property
    def setting(self) -> tuple[str, str, str, str]:
        """What those have in common that one machine can run."""
        return self.machine, self.intel, self.params, self.checked


def configure(command: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.add_argument("--only", default="", help="promises that contain this text")


def load() -> list[Broken]:
    """Return all, by promise."""
    return sorted(map(parse, PATCHES.glob("*.patch")), key=lambda broken: broken.promise)


def parse(path: Path) -> Broken:
    """Return one; LabError if its head is not as it should be."""
    known = {field.name for field in fields(Broken)} - {"path"}
    head = HeaderParser().parsestr(path.read_text(), headersonly=True)
    given = {name.lower(): text for name, text in head.items()}
    if unknown := given.keys() - known:
        raise LabError(f"{path.relative_to(ROOT)}: what is {min(unknown).capitalize()}:?")
    for wanted in ({"promise"}, {"test", "program"}):
        if not wanted & given.keys():
            raise LabError(f"{path.relative_to(ROOT)}: no {max(wanted).capitalize()}:")
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
    chosen = [broken for broken in load() if args.only in broken.promise]
    if not chosen:
        raise LabError(f"--only {args.only}: no such promise in {PATCHES.relative_to(ROOT)}")
    for checked in {False, *(bool(broken.checked) for broken in chosen)}:
        modules.build(checked=checked)
    selftests.build()
    delay.build()
    states = Counter(_control(chosen))
    table = Table("promise", "test", "noticed by")
    for number, broken in enumerate(chosen, 1):
        console.print(f"{number}/{len(chosen)} {broken.promise}", markup=False)
        state, told = _try(broken)
        states[state] += 1
        console.print(f"    {state}: {told}", markup=False)
        style = "" if state is State.PASSED else "bold red"
        table.add_row(broken.promise, broken.test or broken.program, told, style=style)
    console.print(table)
    return report.end(states)


def _control(chosen: Iterable[Broken]) -> Iterable[State]:
    """Run with nothing broken what is to notice; a test is to fail of what was broken."""

    def setting(broken: Broken) -> tuple[str, ...]:
        return broken.setting

    for _, group in groupby(sorted(chosen, key=setting), setting):
        alike = list(group)
        commands = list(dict.fromkeys(broken.command for broken in alike))
        console.print(f"nothing broken: {', '.join(command.name for command in commands)}")
        done = _run(alike[0], commands)
        for command, result in zip(commands, done.results, strict=False):
            state = State.FAILED if result.status else State.PASSED
            if result.status:
                console.print(f"    {state}: {command.name}, status {result.status}")
            yield state
        if done.splats or len(done.results) < len(commands):
            console.print(f"    {State.FAILED}: {done.died or 'the kernel complained'}")
            yield State.FAILED


def _run(broken: Broken, commands: Sequence[Command], kvm: Path | None = None) -> Run:
    chosen = {"kvm": kvm, "checked": bool(broken.checked)}
    if broken.machine == "ept":
        wanted = f"{broken.params} {broken.intel and f'kvm_intel.{broken.intel}'}"
        programs = [SELFTESTS / command.name.split()[0] for command in commands]
        return ept.run(commands, programs, wanted, timeout=_EPT_SECONDS, **chosen)
    limit = _SECONDS * len(commands) + _BOOT
    return npt.run(
        commands, params=broken.params, machine=broken.machine, timeout=limit, **chosen
    )


def _try(broken: Broken) -> tuple[State, str]:
    """Return whether it was noticed in the way that it must be, and by what."""
    _build(broken)
    done = _run(broken, [broken.command], DIRECTORY / "kvm.ko")
    return judge(broken.noticed, done)


def judge(noticed: str, done: Run) -> tuple[State, str]:
    """Return whether a run, of a broken promise, shows what is to be noticed."""
    by_kernel = noticed.startswith(KERNEL)
    complaints = "\n".join(done.splats)
    failure = _FAILURE.search(done.output)
    if by_kernel and noticed.removeprefix(KERNEL) in complaints:
        return State.PASSED, noticed
    if failure and not by_kernel and noticed in done.output[failure.start() :]:
        return State.PASSED, failure[1].strip()
    if failure:
        told = failure[0] + done.output[failure.end() :][:300]
        return State.FAILED, f"another assertion than the patch names: {told}"
    if complaints:
        return State.FAILED, f"not by the assertion, but the kernel: {done.splats[0][:200]}"
    return State.FAILED, f"not by an assertion: {done.died or f'status {done.status}'}"


def _build(broken: Broken) -> None:
    tree.ensure()
    kmod = DIRECTORY / ("checked/kmod" if broken.checked else "kmod")
    modules.mirror(kmod, checked=bool(broken.checked))
    apply(broken, kmod)
    modules.compile_in(kmod, "broken", werror=False, checked=bool(broken.checked))
    built = kmod / "arch/x86/kvm" / "kvm.ko"
    shell.output("strip", "--strip-debug", built, "-o", DIRECTORY / "kvm.ko")
