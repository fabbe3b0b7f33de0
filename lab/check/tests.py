"""What is run, with which arguments, and what is left out and why."""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from lab.check import hostcheck, inside
from lab.check.outcome import Outcome, State, must_run
from lab.check.tools import CHECKS as TOOL_CHECKS
from lab.error import LabError
from lab.machine.result import Command
from lab.make import probes, selftests
from lab.paths import ROOT, SELFTESTS, TESTS_OF, VENV_BIN, VERSION, VERSIONS
from lab.source.git import Git
from lab.source.unpacked import Unpacked

BPFTRACE = Unpacked("bpftrace", ("bpftrace",))
"""That of the newest Debian, for the tools to be tried with beside this machine's own."""

TIMEOUT = 120
_LONG = 300
"""For slow ones: what takes 40 s alone takes 120 beside other work."""

_OURS = "x86_64/global_tdp_"

_PERF = ("-b", "16M", "-v", "2")
_DIRTY_RING = ("-M", "dirty-ring", "-I", "100", "-i", "3")
"""Every 10 ms, as by default, it asks more of a vCPU than a slow one gets done: with stock
modules, too, it then takes old values for lost writes."""

_ARGUMENTS: dict[str, list[tuple[str, ...]]] = {
    "access_tracking_perf_test": [_PERF],
    "demand_paging_test": [_PERF, (*_PERF, "-u", "MINOR", "-s", "shmem")],
    "dirty_log_perf_test": [(*_PERF, "-i", "2")],
    "dirty_log_test": [
        ("-M", "dirty-log", "-i", "3"),
        ("-M", "clear-log", "-i", "3"),
        _DIRTY_RING,
    ],
    "kvm_page_table_test": [("-b", "64M", "-v", "2")],
    "max_guest_memory_test": [("-c", "2", "-m", "1", "-s", "1")],
    "memslot_modification_stress_test": [("-i", "8")],
    # But for the last, RW: it was not done with its memory in the 10 s that it then was given.
    "memslot_perf_test": [("-l", "1", "-s", "64", "-e", "4")],
    "mmu_stress_test": [("-c", "2", "-m", "1", "-s", "1")],
    "x86_64/dirty_log_page_splitting_test": [("-b", "64M")],
}
"""Sizes for an emulated CPU; every element is a run of its own. Others run bare."""

_MAPPED: list[tuple[str, ...]] = [
    *(
        ("dirty_log_perf_test", "-b", "4M", "-v", "2", "-f", way)
        for way in ("fault", "prefault", "populate:3", "follow")
    ),
    ("dirty_log_perf_test", "-b", "4M", "-v", "2", "-f", "populate", "-d", "1024"),
    ("demand_paging_test", "-b", "4M", "-v", "2", "-f", "populate:2", "-s", "shmem"),
    ("memslot_modification_stress_test", "-b", "4M", "-v", "2", "-f", "follow"),
]
"""Of the kernel's own tests, those that the series has choose how memory is mapped before
vCPUs run, in each of the ways, and with a dirty ring that gets full: they fail if what was
to be mapped is not. access_tracking_perf_test can do so, too, but Debian's kernel has no
/sys/kernel/mm/page_idle."""

_SLOW = {
    *("set_memory_region_test", "kvm_create_max_vcpus", "x86_64/hyperv_tlb_flush"),
    "x86_64/save_restore_pf_stress_test",
}

_SCRIPTS = {"x86_64/nx_huge_pages_test": "x86_64/nx_huge_pages_test.sh"}
"""Programs that want the shell script beside them to be run."""

HUGE_PAGES = {"x86_64/dirty_log_page_splitting_test": 72, "x86_64/shared_mmu_lock_test": 8}
"""What a program wants reserved, of 2 MiB each."""

_NX = "/sys/module/kvm/parameters/nx_huge_pages"
_RELOADED = (
    '. "$LAB_GUEST/modules.sh"; reload kvm_intel %s && trace 1 && "$0" "$@"; s=$?; '
    "trace 0; reload kvm_intel; exit $s"
)
_NO_AD = "memory limit"
"""The part of notifier_test that newer series run without Accessed and Dirty bits, too."""

_VARIANTS = {
    "npt": [
        (
            "nx_huge_pages=force, traced",
            f'. "$LAB_GUEST/modules.sh"; old=$(cat {_NX}); echo force >{_NX} && trace 1 && '
            f'"$0" "$@"; s=$?; trace 0; echo $old >{_NX}; exit $s',
            {"populate": (), "dirty": (), "root": ()},
        )
    ],
    "ept": [
        (
            "eptad=0, traced",
            _RELOADED % "eptad=0",
            {"populate": (), "dirty": (), "notifier": (_NO_AD,)},
        ),
        (
            "allow_smaller_maxphyaddr=1, traced",
            _RELOADED % "allow_smaller_maxphyaddr=1",
            {"api": ()},
        ),
    ],
}
"""Parameters to run some of the series' tests with, too, in the same boot, and with KVM's
tracepoints on: how they are called, how they are set, and which tests, or parts of them.
EPT has 4 levels, NPT 5 (`-cpu max`)."""

_ON_DISK = {f"global_tdp_{name}_test" for name in ("populate", "page_cache")}
"""Tests of the series that are about files, which are on a disk where a machine has one."""

_RANDOM = {f"global_tdp_{name}_test" for name in ("churn", "death", "fuzz")}
"""Tests of the series that do another thing with each seed."""

_RACING = ("churn", "locking", "notifier", "dirty", "uffd")
ON_MACHINES = {
    "4level": ("churn", "reach", "fuzz", "giant"),
    "iommu": ("assigned",),
    "pmem": ("dax",),
    "4cpus": _RACING,
    "2nodes": ("numa",),
    "nopat": ("api",),
}
"""Tests that want another of npt.MACHINES: memslots beyond what a VM's page tables
reach, and a huge page of 1 GiB; a device to assign; DAX; more CPUs than the host may have;
memory of two nodes; no PAT."""

_IN_TURNS = {"churn": ("-t", "4"), "nx": ()}
"""Tests about races that Bochs runs on two CPUs, which take turns of three instructions: finer
than CPUs that run at the same time, and repeatable. A second of the machine takes 25 of a CPU
of the host, a boot 90."""

_BY_PARAMETER = {"api": (), "fault_around": (), "follow": ("default",)}
"""Tests that go by the parameter of kvm.ko, and the part of them that does; others choose."""

_SECONDS = {
    name: seconds
    for seconds, names in (
        (130, "budget"),
        (70, "page_cache churn"),
        (60, "manners"),
        (45, "follow"),
        (30, "harvest"),
        (17, "death notifier api"),
        (13, "thread"),
        (12, "uffd populate dirty poison"),
        (9, "nested root"),
        (6, "locking refuse"),
        (1, "assigned dax fail giant level numa reach"),
    )
    for name in names.split()
}
"""About, by itself; of another 3."""

_DELAYED = {
    "locking": ("make_spte", 200),
    "churn": ("kvm_mmu_notifier_invalidate_range_start", 200),
    "nested": ("fast_page_fault", 5000),
    "refuse": ("kvm_mmu_topup_memory_cache", 5000),
    "busy": ("make_populate_spte", 200),
    "vma": ("kvm_tdp_populate", 500),
}
"""Tests of the series that are run again with a function of the kernel returning late, by
so many microseconds: a page is in the dirty log, but not writable yet; a range is
registered as being invalidated, but still mapped by the host; a fault has looked its memslot
up; a page table is being filled, but not linked; a VMA is no more what a call has found."""

_ONLY_DELAYED = {"global_tdp_churn_test"}
"""Long ones that are run without that on other machines."""

MANNERS = "global_tdp_manners_test"
_ONLY_NPT = {"global_tdp_budget_test", MANNERS}
"""What takes minutes of a machine of usual speed, and is the same on any."""
_NOT_EPT = {f"global_tdp_{name}_test" for name in ("churn", "death", "thread")}
"""What takes minutes on Bochs, and is about races, see _IN_TURNS, and processes."""

_NOT_INNER = {
    f"global_tdp_{name}_test"
    for name in ("budget", "churn", "death", "fuzz", "locking", "manners", "nested")
}
"""Tests of the series that the inner loop leaves to `make test`, stress and fuzz."""

_SKIPPED = 4
"""The status of a test that is skipped as a whole."""

_DELAYED_ANY = (
    "n=$(cat /sys/module/lab_delay/parameters/delayed); rmmod lab_delay; "
    '[ $s != 0 ] || [ "$n" -gt 0 ] || { echo "lab_delay delayed nothing"; s=1; }'
)
"""A test that passes without that has not been what it was to be."""

_PRIVATE = (
    "guest_memfd_test",
    "pre_fault_memory_test",
    "x86_64/private_mem_conversions_test",
    "x86_64/private_mem_kvm_exits_test",
)
"""Of the kernel's own tests, those that are about VMs with memory attributes, or have a part
for them: they take KVM_SW_PROTECTED_VM, i.e. our modules with assertions."""

_OF_CPUS = re.compile(
    r"(x86_64/(amx|apic|cpuid|cr4|debug_regs|fix_hypercall|get_msr|hwcr|hyperv_(?!tlb)|kvm_clock"
    r"|kvm_pv|max_vcpuid|monitor|nested_exceptions|platform_info|pmu|recalc_apic|set_|sync_regs"
    r"|triple_fault|tsc|ucna|userspace_|vmx_|xapic|xcr0|xen_vmcall|xss)"
    r"|coalesced_io|guest_print|system_counter)\w*"
)
"""The kernel's own tests of what a CPU, its interrupts or its clocks do."""

_LONGEST = {
    "dirty_log_test -M dirty-log -i 3",
    "hyperv_tlb_flush",
    "kvm_create_max_vcpus",
    "set_memory_region_test",
}
"""Those that take a minute or two each, and little of what the series has in an MMU that it is
not to change. They and the tests of CPUs are run with global_tdp=1, the others with 0, too."""

_LEFT_OUT = {
    "hardware_disable_test": "left out: does not end within 120 s on an emulated CPU",
    "hyperv_clock": "left out: compares two clocks within 1%, an emulated CPU may stop between",
    "steal_time": "left out: wants CPU 0, where the emulator forgets what SVM does",
    "rseq_test": "left out: does not end within 120 s on an emulated CPU",
}

if TESTS_OF != VERSION:
    _LEFT_OUT["set_memory_region_test"] = (
        "left out: hangs on stock modules of 6.12, too: of MMIO as an exception is delivered, "
        "newer kernels tell userspace; with SVM, 6.12 enters the guest again, for good"
    )
    _LEFT_OUT["shared_mmu_lock_test"] = "left out: it is of the other series, not of the kernel"

_EMULATION = dict.fromkeys(
    (
        "debug_regs",
        "monitor_mwait_test",
        "msrs_test",
        "nested_exceptions_test",
        "svm_nested_soft_inject_test",
    ),
    "the emulated CPU is not like a real one",
)
"""Tests that fail on stock modules, and why: not worth repeating; of either kernel."""

_HANGS = {"xen_shinfo_test": "kvm_vcpu_halt kvm_xen_hypercall"}
"""Tests that hang on stock modules, too, now and then, on a busy host, and in which functions,
as guest/limit.sh tells. This one: a vCPU polls an event channel without a time-out while
another thread has the kernel take page 0 for the shared info, where the event that is to end
that may be pending already. 2 of 48 runs beside three other machines."""


@dataclass(frozen=True)
class Skip:
    """What a test of the series says if it, or a part of it, is skipped, and why it may be."""

    test: str
    said: str
    lack: str
    """What its machine has not: one of LACKS."""

    of: tuple[str, ...] = VERSIONS
    """The kernels whose series has it."""

    @property
    def program(self) -> str:
        """As tests() calls it."""
        return f"global_tdp_{self.test}_test"


_WITHOUT = {
    "faults": "Debian's kernel injects none: make test WHAT=debug runs it",
    "device": "it takes the machine iommu",
    "disk": "there is no mkfs.ext4 on Bochs",
    "dax": "it takes the machine pmem",
    "giant page": "it takes the machine 4level",
    "nodes": "it takes the machine 2nodes",
    "reach": "it takes the machine 4level; page tables of others reach all memory",
    "attributes": "it takes modules with assertions",
    "CPU": "this machine of Bochs' has one CPU",
    "keys": "Bochs' CPU has no protection keys",
    "unknown level": "it takes EPT of 5 levels, which one of Bochs' runs feigns",
    "off": "it takes kvm.global_tdp=0, with which it is run, too",
}
_ANYWHERE = {"faults", "device", "dax", "giant page", "nodes", "reach", "unknown level"}
_BOCHS = {"disk", "CPU", "keys"}
LACKS = {
    "npt": _ANYWHERE | {"attributes"},
    "npt, checked": _ANYWHERE,
    "ept": _ANYWHERE | {"attributes", *_BOCHS},
    "lockdep": _ANYWHERE - {"faults"} | {"off"},
    "kcsan": _ANYWHERE,
    "cover": _ANYWHERE - {"faults"} | {"off"},
    **dict.fromkeys(ON_MACHINES, frozenset()),
}
LACKS |= {f"{kind}, ept": LACKS[kind] | _BOCHS for kind in ("lockdep", "kcsan")}
LACKS["ept, 2 CPUs"] = LACKS["ept"] - {"CPU"}
"""What machines, and the kernels of make test WHAT=debug, have not that a test may want."""

SKIPS = (
    Skip("fail", "No /proc/thread-self/fail-nth", "faults"),
    Skip("fail", "enable", "off"),
    Skip("assigned", "needs a device that is bound to vfio-pci", "device"),
    Skip("dax", "needs DAX memory that may be overwritten", "dax"),
    Skip("giant", "needs a free huge page of 1GiB", "giant page"),
    Skip("numa", "needs two nodes", "nodes"),
    Skip("level", "needs EPT of 5 levels", "unknown level"),
    Skip("reach", "needs more than 48 bits of physical address", "reach"),
    Skip("api", "private memory", "attributes"),
    Skip("thread", "CPUs", "CPU"),
    Skip("vma", "memory becomes secret", "CPU"),
    Skip("vma", "memory becomes a device's", "CPU"),
    Skip("populate", "clean pages of a file on a disk", "disk"),
    Skip("page_cache", "read ahead", "disk"),
    Skip("page_cache", "read around", "disk"),
    Skip("refuse", "protection key", "keys"),
    Skip("refuse", "protection key, huge pages", "keys"),
)
"""All that may be skipped of the series' tests; whatever else is, has failed."""


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


def ours(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series, or those of them that are `wanted` by name."""
    built = (name for name in selftests.programs() if name.startswith(_OURS))
    tests = [_seeded(_on_disk(_test(name))) for name in built if name.endswith("_test")]
    if not tests:
        raise LabError("build/selftests has no global_tdp_*_test: is one in the series?")
    known = {test.name for test in tests}
    if unknown := set(wanted) - known:
        raise LabError(f"no test {', '.join(sorted(unknown))}; there are {' '.join(known)}")
    return [test for test in tests if not wanted or test.name in wanted]


def _on_disk(test: Test) -> Test:
    if test.name not in _ON_DISK:
        return test
    script = '. "$LAB_GUEST/disk.sh"; exec "$0" "$@"'
    return replace(test, argv=("sh", "-c", script, *test.argv))


def _seeded(test: Test) -> Test:
    return replace(test, argv=(*test.argv, "-s", seed())) if test.name in _RANDOM else test


@cache
def seed() -> str:
    """Return what random tests begin with, and print it: $SEED, or another for each commit."""
    found = os.environ.get("SEED") or f"0x{Git(ROOT).commit()[:8]}"
    print(f"random tests begin with SEED={found}", flush=True)
    return found


def expect(outcome: Outcome, machine: str) -> Outcome:
    """Return what came of a test of the series: failed if it skips what that machine has."""
    test = outcome.name.partition(",")[0]
    may = [
        skip
        for skip in SKIPS
        if skip.program == test and skip.lack in LACKS[machine] and VERSION in skip.of
    ]
    if outcome.state is State.SKIPPED:
        why = [_WITHOUT[skip.lack] for skip in may if outcome.reason.startswith(skip.said)]
        return (
            replace(outcome, reason=f"{outcome.reason}: {why[0]}") if why else must_run(outcome)
        )
    said = {skip.said for skip in may}
    wrong = [part for part in outcome.parts if part not in said]
    if outcome.state is not State.PASSED or not wrong:
        return outcome
    reason = f"parts skipped that this machine has all for: {', '.join(wrong)}"
    return replace(outcome, state=State.FAILED, reason=reason)


def anywhere(wanted: Sequence[str] = ()) -> list[Test]:
    """Return those that slow machines run, too: all, or those that are `wanted`."""
    return [test for test in ours(wanted) if wanted or test.name not in _ONLY_NPT]


def on_ept(wanted: Sequence[str] = ()) -> list[Test]:
    """Return those that Bochs runs, or those that are `wanted`."""
    return [test for test in anywhere(wanted) if wanted or test.name not in _NOT_EPT]


def every_on_ept(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests in all the ways that Bochs runs them on one CPU."""
    more = (variants("ept", wanted), pml(wanted), unknown_level(wanted))
    return [*on_ept(wanted), *(test for tests in more for test in tests)]


def no_ad(wanted: Sequence[str] = ()) -> list[Test]:
    """Return what is run without Accessed and Dirty bits of newer series, too."""
    return [test for test in variants("ept", wanted) if _NO_AD in test.argv]


def on_npt(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series, in all the ways that the default machine runs them."""
    plain = [test for test in ours(wanted) if wanted or test.name not in _ONLY_DELAYED]
    return [*plain, *variants("npt", wanted), *delayed(wanted), *mapped(wanted)]


def inner(lanes: int) -> list[list[Test]]:
    """Return what the inner loop runs, by machine.

    All but some that are long, for it to stay under two minutes.
    """
    return _spread((test for test in ours() if test.name not in _NOT_INNER), lanes)


def spread(lanes: int) -> list[list[Test]]:
    """Return what any machine runs, by machine."""
    return _spread(anywhere(), lanes)


def _spread(chosen: Iterable[Test], lanes: int) -> list[list[Test]]:
    by_lane: list[list[Test]] = [[] for _ in range(lanes)]
    sums = [0] * lanes
    weighed = [(_seconds(test), test) for test in chosen]
    for seconds, test in sorted(weighed, key=lambda pair: -pair[0]):
        lane = sums.index(min(sums))
        by_lane[lane].append(test)
        sums[lane] += seconds
    return by_lane


def _seconds(test: Test) -> int:
    return _SECONDS.get(test.name.removeprefix("global_tdp_").removesuffix("_test"), 3)


def on_machine(kind: str, wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series that want this one of npt.MACHINES."""
    names = {f"{_OURS.removeprefix('x86_64/')}{name}_test" for name in ON_MACHINES[kind]}
    chosen = [test for test in ours(wanted) if test.name in names]
    return [*chosen, *map(_without_page_map, chosen)] if kind == "pmem" else chosen


def in_turns(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series that Bochs runs on two CPUs."""
    args = {f"global_tdp_{name}_test": args for name, args in _IN_TURNS.items()}
    return [
        replace(test, argv=(*test.argv, *args[test.name]))
        for test in ours(wanted)
        if test.name in args
    ]


def dax(wanted: Sequence[str] = ()) -> list[Test]:
    """Return what machine "pmem" runs in a kernel that no module is built for."""
    return [test for test in on_machine("pmem", wanted) if test.argv[0] != "sh"]


def _without_page_map(test: Test) -> Test:
    """Return the part of a test that is about devices which are being removed."""
    script = (
        '. "$LAB_GUEST/modules.sh"; put "$1" && "$0" "no page map"; s=$?; '
        f"rmmod lab_pagemap || s=1; [ $s != {_SKIPPED} ] || s=1; exit $s"
    )
    argv = ("sh", "-c", script, *test.argv, str(probes.PAGEMAP))
    return replace(test, name=f"{test.name}, no page map", argv=argv)


def by_parameter(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series, or parts of them, that go by kvm.ko's parameter."""
    parts = {
        f"{_OURS.removeprefix('x86_64/')}{name}_test": part
        for name, part in _BY_PARAMETER.items()
    }
    return [
        replace(
            test,
            name=", ".join((test.name, *parts[test.name])),
            argv=(*test.argv, *parts[test.name]),
        )
        for test in ours(wanted)
        if test.name in parts
    ]


def variants(backend: str, wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series that are run with other parameters, too."""
    found = []
    for title, script, parts_of in _VARIANTS[backend]:
        parts = {
            f"{_OURS.removeprefix('x86_64/')}{name}_test": part
            for name, part in parts_of.items()
        }
        found += [
            replace(
                test,
                name=", ".join((test.name, *parts[test.name], title)),
                argv=("sh", "-c", script, *test.argv, *parts[test.name]),
            )
            for test in ours()
            if test.name in parts and (not wanted or test.name in wanted)
        ]
    return found


def pml(wanted: Sequence[str] = ()) -> list[Test]:
    """Return whether PML is on, and the kernel's own tests of it, on EPT."""
    if wanted:
        return []
    modes = (
        ("-M", "dirty-log", "-i", "3"),
        _DIRTY_RING,
    )
    return [
        Test("PML is on", ("grep", "Y", "/sys/module/kvm_intel/parameters/pml")),
        *(_test("dirty_log_test", *mode) for mode in modes),
    ]


def unknown_level(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the test of page tables whose levels are not known yet, on a CPU that has such."""
    script = (
        '. "$LAB_GUEST/modules.sh"; put "$1" && reload kvm_intel && "$0"; s=$?; '
        f"rmmod lab_level && reload kvm_intel || s=1; [ $s != {_SKIPPED} ] || s=1; exit $s"
    )
    return [
        replace(
            test,
            name=f"{test.name}, EPT of 5 levels",
            argv=("sh", "-c", script, *test.argv, str(probes.LEVEL)),
        )
        for test in ours(wanted)
        if test.name == "global_tdp_level_test"
    ]


def delayed(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests of the series that are run with the window of a race widened."""
    chosen = {f"{_OURS.removeprefix('x86_64/')}{name}_test": name for name in _DELAYED}
    found = []
    for test in ours():
        if test.name in chosen and (not wanted or test.name in wanted):
            function, usecs = _DELAYED[chosen[test.name]]
            late = with_delay(function, usecs)
            script = f'{late} && "$0" "$@"; s=$?; {_DELAYED_ANY}; exit $s'
            name = f"{test.name}, {function}() late"
            found.append(replace(test, name=name, argv=("sh", "-c", script, *test.argv)))
    return found


def with_delay(function: str, usecs: int) -> str:
    """Return the command that has a function return late from now on."""
    load = f"put {probes.DELAY} function={function} usecs={usecs}"
    return f'. "$LAB_GUEST/modules.sh" && {load}'


def stock(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the tests the kernel already has, or those of the programs `wanted`."""
    return list(_stock(name for name in _kernels() if not wanted or name in wanted))


def of_memory() -> list[Test]:
    """Return the tests the kernel already has, but those of CPUs, and the longest."""
    of_memory = _stock(name for name in _kernels() if not _OF_CPUS.fullmatch(name))
    return [test for test in of_memory if test.name not in _LONGEST]


def private(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the kernel's own tests of VMs with memory attributes."""
    return [] if wanted else stock(_PRIVATE)


def mapped(wanted: Sequence[str] = ()) -> list[Test]:
    """Return the kernel's own tests that have memory mapped first, in all the ways."""
    return [] if wanted else [_test(*run) for run in _MAPPED]


def tools(*, stock: bool) -> list[Test]:
    """Return the checks of the bpftrace tools, with this Debian's and the newest one's."""
    BPFTRACE.ensure()
    newest = shlex.join(map(str, BPFTRACE.command("usr/bin/bpftrace")))
    variables = f"PYTHONPATH={ROOT}", f"BPFTRACE={newest}"
    python = (str(VENV_BIN / "python"), "-S", "-B", "-m", "lab.check.tools")
    return [
        Test(f"tools{of}: {name}", ("env", *given, *python, name), timeout=_LONG)
        for of, given in (("", variables[:1]), (f" ({BPFTRACE.release})", variables))
        for name in inside.names(TOOL_CHECKS, stock=stock)
        if not (of and name == "perf")
    ]


def host_check(*, stock: bool) -> list[Test]:
    """Return the checks of packaging/global-tdp-check."""
    python = (str(VENV_BIN / "python"), "-S", "-B", "-m", "lab.check.hostcheck")
    return [
        Test(f"host check: {name}", ("env", f"PYTHONPATH={ROOT}", *python, name), timeout=_LONG)
        for name in inside.names(hostcheck.CHECKS, stock=stock)
    ]


def _kernels() -> list[str]:
    return [name for name in selftests.programs() if not name.startswith(_OURS)]


def _stock(names: Iterable[str]) -> Iterable[Test]:
    for name in names:
        for args in _ARGUMENTS.get(name, [()]):
            yield _test(name, *args)


def _test(program: str, *args: str) -> Test:
    path = SELFTESTS / _SCRIPTS.get(program, program)
    name = program.removeprefix("x86_64/")
    slow = program.startswith(_OURS) or program in _SLOW | _ARGUMENTS.keys()
    return Test(
        name=" ".join((name, *args)),
        argv=(*(("bash",) if path.suffix == ".sh" else ()), str(path), *args),
        timeout=_LONG if slow else TIMEOUT,
        huge_pages=HUGE_PAGES.get(program, 0),
        left_out=_LEFT_OUT.get(name, ""),
        known_to_fail=_EMULATION.get(name, ""),
        known_to_hang=_HANGS.get(name, ""),
        tap=selftests.prints_tap(program),
    )
