"""make test-broken: break each promise of the series in turn, and see a test notice.

tests/broken.toml has the list. Each is built from a mirror of the sources of its own,
so that neither build/linux nor build/modules are touched.
"""

import argparse
import tomllib
from collections import Counter
from dataclasses import dataclass

from rich.table import Table

from lab import shell
from lab.check import report, tests
from lab.check.outcome import State
from lab.error import LabError
from lab.machine import ept, npt
from lab.machine.result import COMPLAINED, Command
from lab.make import delay, modules, selftests
from lab.paths import BUILD, ROOT, SELFTESTS
from lab.shell import console
from lab.source import tree

LIST = ROOT / "tests" / "broken.toml"
DIRECTORY = BUILD / "broken"

_SECONDS = 180
_BOOT = 90
_EPT_SECONDS = 900
_SKIPPED = 4
_DIED = "the kernel, which died"


@dataclass(frozen=True)
class Broken:
    """A place to break, and the test that is to notice."""

    promise: str
    test: str
    file: str
    old: str
    new: str
    late: str = ""
    """A function of the kernel that returns late meanwhile."""

    usecs: int = 200
    """By how much."""

    checked: bool = False
    """Whether it takes the modules with assertions to notice."""

    machine: str = "default"
    """The one of npt.MACHINES that it takes; or "ept", Bochs."""

    intel: str = ""
    """On the latter, parameters of kvm_intel."""

    params: str = "global_tdp=1"
    """What kvm.ko is loaded with."""

    program: str = ""
    """A program of build/selftests, with arguments, to run in place of the series' test."""

    @property
    def command(self) -> str:
        """What is run, in build/selftests."""
        return self.program or f"x86_64/global_tdp_{self.test}_test"


def configure(command: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.add_argument("--only", default="", help="promises that contain this text")


def load() -> list[Broken]:
    """Return the list."""
    entries = tomllib.loads(LIST.read_text())["broken"]
    optional = ("late", "usecs", "checked", "machine", "intel", "params", "program")
    return [
        Broken(
            *(entry[name] for name in ("promise", "test", "file", "from", "to")),
            **{name: entry[name] for name in optional if name in entry},
        )
        for entry in entries
    ]


def apply(text: str, broken: Broken) -> str:
    """Return the file's text, broken; LabError if it is not as the list has it."""
    found = text.count(broken.old)
    if found != 1:
        raise LabError(
            f"{LIST.relative_to(ROOT)}: '{broken.promise}' fits {found} places of"
            f" {broken.file}, not one: adapt its 'from'"
        )
    return text.replace(broken.old, broken.new)


def run(args: argparse.Namespace) -> int:
    """Build and test them one by one; 1 if a test did not notice."""
    chosen = [broken for broken in load() if args.only in broken.promise]
    if not chosen:
        raise LabError(f"--only {args.only}: no such promise in {LIST.relative_to(ROOT)}")
    for checked in {False, *(broken.checked for broken in chosen)}:
        modules.build(checked=checked)
    selftests.build()
    delay.build()
    table = Table("promise", "test", "noticed by")
    missed = 0
    for number, broken in enumerate(chosen, 1):
        console.print(f"{number}/{len(chosen)} {broken.promise}", markup=False)
        noticed = _try(broken)
        missed += not noticed
        console.print(f"    {broken.test}: {noticed or 'nothing noticed'}", markup=False)
        table.add_row(broken.promise, broken.test, noticed or "[bold red]nothing[/]")
    console.print(table)
    print(f"{len(chosen) - missed} of {len(chosen)} broken promises were noticed")
    return report.end(Counter({State.PASSED: len(chosen) - missed, State.FAILED: missed}))


def _try(broken: Broken) -> str:
    """Return what told that the promise is broken, "" if nothing did."""
    _build(broken)
    built = {"kvm": DIRECTORY / "kvm.ko", "checked": broken.checked}
    test = SELFTESTS / broken.command
    if broken.machine == "ept":
        wanted = f"{broken.params} {broken.intel and f'kvm_intel.{broken.intel}'}"
        program = SELFTESTS / broken.command.split()[0]
        command = Command(str(test), limit=_SECONDS)
        done = ept.run([command], [program], wanted, timeout=_EPT_SECONDS, **built)
    else:
        late = f"{tests.with_delay(broken.late, broken.usecs)} || exit 0" * bool(broken.late)
        panic = "(cd /proc/sys/kernel && echo 1 >panic_on_oops && echo -1 >panic)"
        command = Command(f"{panic}\n{late}\n{test}", limit=_SECONDS)
        limit, kind = _SECONDS + _BOOT, broken.machine
        done = npt.run([command], params=broken.params, machine=kind, timeout=limit, **built)
    return _DIED if done.died else _judge(done.status, done.output)


def _judge(status: int, output: str) -> str:
    if status in (0, _SKIPPED):
        return ""
    lines = output.splitlines()
    failed = [at for at, line in enumerate(lines) if "Test Assertion Failure" in line]
    told = lines[failed[0] + 1].strip() if failed else f"status {status}"
    return told if status != COMPLAINED else "the kernel's log"


def _build(broken: Broken) -> None:
    tree.ensure()
    kmod = DIRECTORY / ("checked/kmod" if broken.checked else "kmod")
    modules.mirror(kmod, checked=broken.checked)
    path = kmod / broken.file
    path.write_text(apply(path.read_text(), broken))
    modules.compile_in(kmod, "broken", werror=False, checked=broken.checked)
    built = kmod / "arch/x86/kvm" / "kvm.ko"
    shell.output("strip", "--strip-debug", built, "-o", DIRECTORY / "kvm.ko")
