"""make bench WHAT=bulk: what many VMs at rest cost their host, with Global TDP off and on.

global_tdp_bulk_bench has small VMs, each a process of its own, whose vCPUs have run and whose
memory is there, and tells what they take while nothing happens. Two boots under -icount, in
which time that is slept through takes none.
"""

import argparse
import shlex
from collections.abc import Iterator, Mapping

from lab import show
from lab.measure import counted
from lab.measure.counted import Verdict
from lab.paths import BUILD, SELFTESTS

DIRECTORY = BUILD / "bulk"
_PROGRAM = SELFTESTS / "x86_64" / "global_tdp_bulk_bench"
MODES = ("off", "on")

Figures = Mapping[str, int]

_MEMORY = {
    "KernelStack": "kernel stacks",
    "Slab": "slab (task_struct, …)",
    "VmallocUsed": "vmalloc (stacks, trackers)",
    "PageTables": "the VMMs' page tables",
    "SecPageTables": "the VMs' page tables",
    "Percpu": "per CPU",
}
_NOTE = """\
Differences of /proc/meminfo, in KiB per VM, before the VMs are created and as they rest. Stacks
are in two lines: they are allocated by vmalloc(). Wake-ups and CPU time are those of the VMs'
kvm-gtdp threads, all together."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--vms", type=int, default=200, help="how many, up to 1000 [200]")
    parser.add_argument("--seconds", type=int, default=600, help="of rest, emulated [600]")


def run(args: argparse.Namespace) -> int:
    """Measure and show; 1 if VMs at rest cost a wake-up, or more than a thread each."""
    counted.build(_PROGRAM)
    found = {mode: _measure(mode, args) for mode in MODES}
    _show(found)
    counted.save(DIRECTORY / "bulk.json", note=_NOTE, figures=found)
    return counted.judge(targets(found["on"]))


def _measure(mode: str, args: argparse.Namespace) -> Figures:
    log = DIRECTORY / f"{mode}.txt"
    program = shlex.join([str(_PROGRAM), str(args.vms), str(args.seconds)])
    counted.run(
        DIRECTORY,
        f"Watching {args.vms} VMs at rest for {args.seconds} s, {mode}; some minutes",
        lambda: counted.logged(program, log),
        log.name,
        # A VMM with its libraries and its guest takes some 11 MiB.
        mem=f"{1024 + 20 * args.vms}M",
        params=f"global_tdp={MODES.index(mode)}",
    )
    return parse(log.read_text())


def parse(text: str) -> Figures:
    """Return what the program has printed, by name."""
    lines = (line.split() for line in text.splitlines())
    return {
        words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()
    }


def per_vm(figures: Figures, name: str) -> float:
    """Return what of /proc/meminfo, in KiB, a VM takes."""
    return (figures[f"after_{name}"] - figures[f"before_{name}"]) / figures["vms"]


def targets(figures: Figures) -> Iterator[Verdict]:
    """What VMs at rest may take of their host."""
    vms, threads, wakeups = (figures[name] for name in ("vms", "threads", "wakeups"))
    yield f"{threads} threads for {vms} VMs", threads == vms
    yield f"{wakeups} wake-ups in {figures['seconds']} s", not wakeups
    yield f"{figures['cpu_us']} us of a CPU in {figures['seconds']} s", not figures["cpu_us"]


def _show(found: Mapping[str, Figures]) -> None:
    rest = found["on"]
    rows = []
    for name, what in (("threads", "threads"), ("wakeups", "wake-ups"), ("cpu_us", "CPU, us")):
        off, on = (found[mode][name] for mode in MODES)
        rows.append((what, *(f"{value:,}" for value in (off, on, on - off))))
    for name, what in _MEMORY.items():
        off, on = (per_vm(found[mode], name) for mode in MODES)
        numbers = (f"{value:,.1f}" for value in (off, on, on - off))
        rows.append((f"{what}, KiB per VM", *numbers))
    title = f"{rest['vms']} VMs at rest for {rest['seconds']} s"
    show.rows(title, ("what",), (*MODES, "more"), rows)
    show.stdout().print(_NOTE, soft_wrap=True)
