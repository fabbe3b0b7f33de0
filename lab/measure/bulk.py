"""make bench WHAT=bulk: what many VMs at rest cost their host, with Global TDP off and on.

global_tdp_bulk_bench has small VMs, each a process of its own, whose vCPUs have run and whose
memory is there, and tells what they take while nothing happens. Two boots under -icount, in
which time that is slept through takes none.
"""

import argparse
import shlex
from collections.abc import Iterator, Mapping

from lab.error import LabError
from lab.machine import npt
from lab.make import modules, selftests
from lab.measure import counted
from lab.paths import BUILD, SELFTESTS
from lab.shell import console
from lab.show import stdout, table

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
    parser.add_argument("--timeout", type=float, default=1800, help="seconds, of a boot")


def run(args: argparse.Namespace) -> int:
    """Measure and show; 1 if VMs at rest cost a wake-up, or more than a thread each."""
    selftests.build()
    modules.build()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    console.print(f"Watching {args.vms} VMs at rest for {args.seconds} s; some minutes")
    found = {mode: _measure(mode, args) for mode in MODES}
    _show(found)
    counted.save(DIRECTORY / "bulk.json", note=_NOTE, figures=found)
    return counted.judge(targets(found["on"]))


def _measure(mode: str, args: argparse.Namespace) -> Figures:
    log = DIRECTORY / f"{mode}.txt"
    program = shlex.join([str(_PROGRAM), str(args.vms), str(args.seconds)])
    status = npt.command(
        f"{program} >{shlex.quote(str(log))} 2>&1",
        icount=True,
        # A VMM with its libraries and its guest takes some 11 MiB.
        mem=f"{1024 + 20 * args.vms}M",
        params=f"global_tdp={MODES.index(mode)}",
        timeout=args.timeout,
    ).status
    if status:
        raise LabError(f"global_tdp_bulk_bench ended with status {status}; see {log}")
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


def targets(figures: Figures) -> Iterator[tuple[str, bool]]:
    """What VMs at rest may take of their host."""
    vms, threads, wakeups = (figures[name] for name in ("vms", "threads", "wakeups"))
    yield f"{threads} threads for {vms} VMs", threads == vms
    yield f"{wakeups} wake-ups in {figures['seconds']} s", not wakeups
    yield f"{figures['cpu_us']} us of a CPU in {figures['seconds']} s", not figures["cpu_us"]


def _show(found: Mapping[str, Figures]) -> None:
    on = found["on"]
    title = f"{on['vms']} VMs at rest for {on['seconds']} s"
    made = table(title, ("what",), (*MODES, "more"))
    for name, what in (("threads", "threads"), ("wakeups", "wake-ups"), ("cpu_us", "CPU, us")):
        values = [found[mode][name] for mode in MODES]
        made.add_row(what, *(f"{value:,}" for value in values), f"{values[1] - values[0]:,}")
    for name, what in _MEMORY.items():
        values = [per_vm(found[mode], name) for mode in MODES]
        made.add_row(
            f"{what}, KiB per VM",
            *(f"{value:,.1f}" for value in values),
            f"{values[1] - values[0]:,.1f}",
        )
    out = stdout()
    out.print(made)
    out.print(_NOTE, soft_wrap=True)
