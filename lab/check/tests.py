"""What is run, with which arguments, and what is left out and why: tests.toml tells."""

import os
import re
import shlex
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from lab.check import hostcheck, inside
from lab.check.outcome import SKIPPED, Outcome, State, must_run
from lab.check.tools import CHECKS as TOOL_CHECKS
from lab.error import LabError
from lab.machine.result import Command
from lab.make import probes, selftests
from lab.paths import ROOT, SELFTESTS, TESTS_OF, VENV_BIN, VERSION
from lab.source.git import Git
from lab.source.unpacked import Unpacked

BPFTRACE = Unpacked("bpftrace", ("bpftrace",))
"""That of the newest Debian, for the tools to be tried with beside this machine's own."""

TIMEOUT = 120
_LONG = 300
"""For slow ones: what takes 40 s alone takes 120 beside other work."""

DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
HUGE_PAGES: Mapping[str, int] = DATA["huge_pages"]
ON_MACHINES = {kind: names.split() for kind, names in DATA["machines"].items()}
_OURS = {title: names.split() for title, names in DATA["ours"].items()}
_SECONDS = {name: int(s) for s, names in DATA["seconds"].items() for name in names.split()}
_LEFT_OUT = DATA["left_out"] | (DATA["left_out_of_others"] if TESTS_OF != VERSION else {})
_PRIVATE = DATA["kernels"]["private"].split()
_SLOW = {*DATA["kernels"]["slow"].split(), *DATA["arguments"]}
_OF_CPUS = re.compile(DATA["kernels"]["of_cpus"])
_PREFIX = "x86_64/global_tdp_"
MANNERS = "global_tdp_manners_test"

_SCRIPTS = {"x86_64/nx_huge_pages_test": "x86_64/nx_huge_pages_test.sh"}
"""Programs that want the shell script beside them to be run."""

DISK = '. "$LAB_GUEST/disk.sh"'
_MODULES = '. "$LAB_GUEST/modules.sh"'
_TRACED = 'trace 1 && "$0" "$@"; s=$?; trace 0'
_NX = "/sys/module/kvm/parameters/nx_huge_pages"
_FORCED = f"{_MODULES}; old=$(cat {_NX}); echo force >{_NX} && {_TRACED}; echo $old >{_NX}"
_RELOADED = f"{_MODULES}; reload kvm_intel %s && {_TRACED}; reload kvm_intel"
_VARIANTS = {
    "npt": {"force": ("nx_huge_pages=force", _FORCED)},
    "ept": {
        name: (name, _RELOADED % name) for name in ("eptad=0", "allow_smaller_maxphyaddr=1")
    },
}
"""Parameters to run some of the series' tests with, too, in the same boot, and with KVM's
tracepoints on: how they are called, and how they are set. EPT has 4 levels, NPT 5."""

_NO_AD = "memory limit"
"""The part of notifier_test that newer series run without Accessed and Dirty bits, too."""

_DELAYED_ANY = (
    "n=$(cat /sys/module/lab_delay/parameters/delayed); rmmod lab_delay; "
    '[ $s != 0 ] || [ "$n" -gt 0 ] || { echo "lab_delay delayed nothing"; s=1; }'
)
"""A test that passes without that has not been what it was to be."""

_ANYWHERE = {"faults", "device", "dax", "giant page", "nodes", "reach", "unknown level"}
_BOCHS = {"disk", "CPU", "keys"}
LACKS = {
    "npt": _ANYWHERE | {"attributes"},
    "npt, checked": _ANYWHERE,
    "ept": _ANYWHERE | {"attributes"} | _BOCHS,
    "ept, 2 CPUs": _ANYWHERE | {"attributes"} | _BOCHS - {"CPU"},
    "lockdep": _ANYWHERE - {"faults"} | {"off"},
    "lockdep, ept": _ANYWHERE - {"faults"} | {"off"} | _BOCHS,
    "kcsan": _ANYWHERE,
    "kcsan, ept": _ANYWHERE | _BOCHS,
    "cover": _ANYWHERE - {"faults"} | {"off"},
    **dict.fromkeys(ON_MACHINES, frozenset()),
}
"""What machines, and the kernels of make test WHAT=debug, have not that a test may want."""


@dataclass(frozen=True)
class Test:
    """A run of a program of build/selftests."""

    name: str
    argv: tuple[str, ...]
    timeout: float = TIMEOUT
    huge_pages: int = 0
    left_out: str = ""
    """Why it is not run, if so."""
    known_to_fail: str = ""
    """Why it fails on stock modules, if it does."""
    known_to_hang: str = ""
    """In which functions it hangs now and then on stock modules, if it does."""
    tap: bool = False
    """Whether it prints what it has planned, and what came of that, as others don't."""

    @property
    def command(self) -> Command:
        """What a machine is to run; some programs write to where they are."""
        line = f"cd /tmp && exec {shlex.join(self.argv)}"
        return Command(line, self.name, self.timeout, self.huge_pages)

    @property
    def short(self) -> str:
        """What tests.toml calls one of the series."""
        return self.name.removeprefix("global_tdp_").removesuffix("_test")

    def part(self, *parts: str) -> "Test":
        """Return parts of it, or it with other arguments, as a test of its own."""
        name = ", ".join(filter(None, (self.name, *parts)))
        return replace(self, name=name, argv=(*self.argv, *filter(None, parts)))

    def within(self, title: str, script: str, *more: str) -> "Test":
        """Return it as a shell script runs it, which it, and `more`, are the arguments of."""
        name = f"{self.name}, {title}" if title else self.name
        return replace(self, name=name, argv=("sh", "-c", script, *self.argv, *more))


def ours(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series, or those of them that are `wanted` by name."""
    built = (name for name in selftests.programs() if name.startswith(_PREFIX))
    tests = [_own(_test(name)) for name in built if name.endswith("_test")]
    if not tests:
        raise LabError("build/selftests has no global_tdp_*_test: is one in the series?")
    known = {test.name for test in tests}
    if unknown := set(wanted) - known:
        raise LabError(f"no test {', '.join(sorted(unknown))}; there are {' '.join(known)}")
    return [test for test in tests if not wanted or test.name in wanted]


def is_on_disk(program: str) -> bool:
    """Return whether the files of a test of the series are on a disk where there is one."""
    return Test(program.removeprefix("x86_64/"), ()).short in _OURS["on_disk"]


def _own(test: Test) -> Test:
    if is_on_disk(test.name):
        return test.within("", f'{DISK}; exec "$0" "$@"')
    if test.short in _OURS["random"]:
        return replace(test, argv=(*test.argv, "-s", seed()))
    return test


@cache
def seed() -> str:
    """Return what random tests begin with, and print it: $SEED, or another for each commit."""
    found = os.environ.get("SEED") or f"0x{Git(ROOT).commit()[:8]}"
    print(f"random tests begin with SEED={found}", flush=True)
    return found


def expect(outcome: Outcome, machine: str) -> Outcome:
    """Return what came of a test of the series: failed if it skips what that machine has."""
    test = Test(outcome.name.partition(",")[0], ()).short
    skips = DATA["skips"].get(test, {}).items()
    may = {said: lack for said, lack in skips if lack in LACKS[machine]}
    if outcome.state is State.SKIPPED:
        for said, lack in may.items():
            if outcome.reason.startswith(said):
                return replace(outcome, reason=f"{outcome.reason}: {DATA['lacks'][lack]}")
        return must_run(outcome)
    wrong = [part for part in outcome.parts if part not in may]
    if outcome.state is not State.PASSED or not wrong:
        return outcome
    reason = f"parts skipped that this machine has all for: {', '.join(wrong)}"
    return replace(outcome, state=State.FAILED, reason=reason)


def _of(names: Container[str], wanted: Sequence[str] = ()) -> list[Test]:
    return [test for test in ours(wanted) if test.short in names]


def _without(names: Container[str], wanted: Sequence[str] = ()) -> list[Test]:
    """Return all but some, which are run if they are wanted by name."""
    return [test for test in ours(wanted) if wanted or test.short not in names]


def anywhere(wanted: Sequence[str] = ()) -> list[Test]:
    """Return those that slow machines run, too: all, or those that are `wanted`."""
    return _without(_OURS["only_npt"], wanted)


def on_ept(wanted: Sequence[str] = (), *, every: bool = True) -> list[Test]:
    """Return those that Bochs runs, all or those about EPT; or those that are `wanted`."""
    some = _without({*_OURS["only_npt"], *_OURS["not_ept"]}, wanted)
    if every or wanted:
        return some
    return [test.part(_on_ept(test)) for test in some if test.short in _OURS["ept"]]


def _on_ept(test: Test) -> str:
    """Return the part of it that make test runs on Bochs."""
    return DATA["ept_parts"].get(test.short, "")


def all_on_ept(wanted: Sequence[str] = (), *, every: bool = True) -> list[Test]:
    """Return the tests in all the ways that Bochs runs them on one CPU."""
    more = (
        variants("ept", wanted, every=every),
        pml(wanted, every=every),
        unknown_level(wanted),
    )
    return [*on_ept(wanted, every=every), *(test for tests in more for test in tests)]


def no_ad(wanted: Sequence[str] = ()) -> list[Test]:
    """Return what is run without Accessed and Dirty bits of newer series, too."""
    return [test for test in variants("ept", wanted) if _NO_AD in test.argv]


def on_npt(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series, in all the ways that the default machine runs them."""
    plain = _without(_OURS["only_delayed"], wanted)
    return [*plain, *variants("npt", wanted), *delayed(wanted), *mapped(wanted)]


def spread(lanes: int, but: str) -> list[list[Test]]:
    """Return the series' tests by machine, for each to be run once, but some of tests.toml."""
    chosen = _without(_OURS[but])
    by_lane: list[list[Test]] = [[] for _ in range(lanes)]
    sums = [0] * lanes
    for test in sorted(chosen, key=lambda test: -_SECONDS.get(test.short, 3)):
        lane = sums.index(min(sums))
        by_lane[lane].append(test)
        sums[lane] += _SECONDS.get(test.short, 3)
    return by_lane


def on_machine(kind: str, wanted: Sequence[str] = (), *, every: bool = True) -> list[Test]:
    """Return the tests of the series that want this one of npt.MACHINES."""
    moved = "" if every or wanted else DATA["moved"].get(kind, "")
    chosen = _of(ON_MACHINES[kind], wanted)
    chosen = [test for test in chosen if test.short not in moved.split()]
    # A part of it is about devices which are being removed.
    script = (
        f'{_MODULES}; put "$1" && "$0" "no page map"; s=$?; '
        f"rmmod lab_pagemap || s=1; [ $s != {SKIPPED} ] || s=1; exit $s"
    )
    more = [test.within("no page map", script, str(probes.PAGEMAP)) for test in chosen]
    return [*chosen, *more] if kind == "pmem" else chosen


def dax(wanted: Sequence[str] = ()) -> list[Test]:
    """Return what machine "pmem" runs in a kernel that no module is built for."""
    return [test for test in on_machine("pmem", wanted) if test.argv[0] != "sh"]


def in_turns(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series that Bochs runs on two CPUs."""
    args = {name: words.split() for name, words in DATA["in_turns"].items()}
    return [replace(test, argv=(*test.argv, *args[test.short])) for test in _of(args, wanted)]


def by_parameter(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series, or parts of them, that go by kvm.ko's parameter."""
    parts = DATA["by_parameter"]
    return [test.part(parts[test.short]) for test in _of(parts, wanted)]


def variants(backend: str, wanted: Sequence[str] = (), *, every: bool = True) -> list[Test]:
    """Return the tests of the series that are run with other parameters, too."""
    found = []
    for name, (title, script) in _VARIANTS[backend].items():
        parts = DATA["variants"][name]
        for test in _of(parts, wanted):
            less = "" if every or wanted else _on_ept(test)
            chosen = test.part(parts[test.short] or less)
            found.append(chosen.within(f"{title}, traced", f"{script}; exit $s"))
    return found


def pml(wanted: Sequence[str] = (), *, every: bool = True) -> list[Test]:
    """Return whether PML is on, and the kernel's own tests of it, on EPT."""
    on = Test("PML is on", ("grep", "Y", "/sys/module/kvm_intel/parameters/pml"))
    log, _, ring = _stock(["dirty_log_test"])
    return [] if wanted else [on, *[log] * every, ring]


def unknown_level(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the test of page tables whose levels are not known yet, on a CPU that has such."""
    script = (
        f'{_MODULES}; put "$1" && reload kvm_intel && "$0"; s=$?; '
        f"rmmod lab_level && reload kvm_intel || s=1; [ $s != {SKIPPED} ] || s=1; exit $s"
    )
    level = str(probes.LEVEL)
    return [test.within("EPT of 5 levels", script, level) for test in _of({"level"}, wanted)]


def delayed(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series that are run with the window of a race widened."""
    found = []
    for test in _of(DATA["delayed"], wanted):
        function, usecs = DATA["delayed"][test.short]
        script = f'{with_delay(function, usecs)} && "$0" "$@"; s=$?; {_DELAYED_ANY}; exit $s'
        found.append(test.within(f"{function}() late", script))
    return found


def with_delay(function: str, usecs: int) -> str:
    """Return the command that has a function return late from now on."""
    return f"{_MODULES} && put {probes.DELAY} function={function} usecs={usecs}"


def stock(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests the kernel already has, or those of the programs `wanted`."""
    return _stock(name for name in _kernels() if not wanted or name in wanted)


def of_memory(*, every: bool = False) -> list[Test]:
    """Return the tests the kernel already has, but those of CPUs; the longest if `every`."""
    of_memory = _stock(name for name in _kernels() if not _OF_CPUS.fullmatch(name))
    longest = () if every else DATA["kernels"]["longest"]
    return [test for test in of_memory if test.name not in longest]


def private(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the kernel's own tests of VMs with memory attributes."""
    return [] if wanted else stock(_PRIVATE)


def mapped(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the kernel's own tests that have memory mapped first, in all the ways."""
    runs = [] if wanted else DATA["mapped"].items()
    return [_test(name, *each.split()) for name, every in runs for each in every]


def tools(*, stock: bool) -> list[Test]:
    """Return the checks of the bpftrace tools, with this Debian's and the newest one's."""
    BPFTRACE.ensure()
    newest = shlex.join(map(str, BPFTRACE.command("usr/bin/bpftrace")))
    return [
        _check(f"tools{of}: {name}", "tools", name, *given)
        for of, given in (("", ()), (f" ({BPFTRACE.release})", (f"BPFTRACE={newest}",)))
        for name in inside.names(TOOL_CHECKS, stock=stock)
        if not (of and name == "perf")
    ]


def host_check(*, stock: bool) -> list[Test]:
    """Return the checks of packaging/global-tdp-check."""
    names = inside.names(hostcheck.CHECKS, stock=stock)
    return [_check(f"host check: {name}", "hostcheck", name) for name in names]


def _check(title: str, module: str, name: str, *variables: str) -> Test:
    python = (str(VENV_BIN / "python"), "-S", "-B", "-m", f"lab.check.{module}", name)
    return Test(title, ("env", f"PYTHONPATH={ROOT}", *variables, *python), timeout=_LONG)


def _kernels() -> list[str]:
    return [name for name in selftests.programs() if not name.startswith(_PREFIX)]


def _stock(names: Iterable[str]) -> list[Test]:
    runs = DATA["arguments"]
    return [_test(name, *each.split()) for name in names for each in runs.get(name, [""])]


def _test(program: str, *args: str) -> Test:
    path = SELFTESTS / _SCRIPTS.get(program, program)
    name = program.removeprefix("x86_64/")
    why = _LEFT_OUT.get(name)
    return Test(
        name=" ".join((name, *args)),
        argv=(*(("bash",) if path.suffix == ".sh" else ()), str(path), *args),
        timeout=_LONG if program.startswith(_PREFIX) or program in _SLOW else TIMEOUT,
        huge_pages=HUGE_PAGES.get(program, 0),
        left_out=f"left out: {why}" if why else "",
        known_to_fail=DATA["known_to_fail"].get(name, ""),
        known_to_hang=DATA["known_to_hang"].get(name, ""),
        tap=selftests.prints_tap(program),
    )
