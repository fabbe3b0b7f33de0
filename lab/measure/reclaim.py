"""make bench WHAT=reclaim: what it takes to reclaim a file that many VMs have for their memory.

VMs map the same snapshot file and use the same part of it, with Global TDP off and on; then
their memory cgroup is told to give back half of the file, twice. integration/restore/reclaim.c
does it. One boot under -icount, with generations (MGLRU) and with the classic lists. Beside
them are VMs without Global TDP that use all of the file.
"""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lab import show
from lab.error import LabError
from lab.measure import counted, restore
from lab.measure.counted import Verdict
from lab.paths import BUILD, RECLAIM, RESTORE

DIRECTORY = BUILD / "reclaim"
MIB = 32
ROUNDS = 2
VMS = (1, 10, 100)
LISTS = {"mglru": "7", "classic": "0"}
"""What is written to /sys/kernel/mm/lru_gen/enabled for each."""

MODES = {
    "off": "-u 51",
    "near": "-u 51 -g",
    "on": "-u 51 -c",
    "all": "-u 512",
}
"""Options of the program: which pages are used of each 2 MiB, and with what."""

APART = ("off", "on")
"""Of these, one run more with the VMs in another memory cgroup than the file."""

_LABELS = {
    "off": "off, a tenth is used",
    "near": "on, a tenth is used",
    "on": "on, with the page cache",
    "all": "off, all is used",
}
_TITLES = {"mglru": "MGLRU", "classic": "classic lists"}
_NOTE = f"""\
{MIB} MiB of a file on ext4; half is asked for by memory.reclaim, twice. Instructions a page are
those of the thread that reclaims, for each page of the file that is gone. Afterwards: what each
VM pays, as it uses its part again, and how many pages are read from the disk for all of them.
Apart: the VMs are in another memory cgroup than the file, which does not ask them for the pages
that they use."""

AT_MOST = 2
"""A page that was mapped ahead may take so many times what one takes that all VMs have used,
with Global TDP off: the classic lists look at such a page once more."""

Run = Mapping[str, int | str]


@dataclass(frozen=True)
class Case:
    """One run of the program."""

    lists: str
    vms: int
    mode: str
    apart: bool

    @property
    def options(self) -> str:
        """Return those of the program."""
        apart = " -o" if self.apart else ""
        return f"-n {self.vms} -m {MIB} -r {ROUNDS} {MODES[self.mode]}{apart}"


def cases(vms: Sequence[int]) -> Iterator[Case]:
    """Yield what is run, in this order."""
    for count in vms:
        for lists in LISTS:
            yield from (Case(lists, count, mode, apart=False) for mode in MODES)
    yield from (Case(lists, max(vms), mode, apart=True) for lists in LISTS for mode in APART)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--vms", type=int, nargs="+", default=VMS, help="how many [%(default)s]"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and show; 1 if what is mapped ahead takes more than what was used."""
    doing = "Counting instructions of reclaim, off beside on; some minutes"
    log = counted.log_of(DIRECTORY, doing, partial(_script, args.vms))
    runs = parse(log, list(cases(args.vms)))
    _show(runs)
    counted.save(DIRECTORY / "reclaim.json", mib=MIB, note=_NOTE, runs=runs)
    return counted.judge(targets(runs))


def _script(vms: Sequence[int], log: str) -> str:
    program, maker = shlex.quote(str(RECLAIM)), shlex.quote(str(RESTORE))
    # The first run makes the file.
    lines = ["set -e", restore.disk(MIB + 64)]
    lines += [f"{maker} -m {MIB} {restore.SNAPSHOT} plain >/dev/null"]
    for case in cases(vms):
        lines += [f"echo {LISTS[case.lists]} >/sys/kernel/mm/lru_gen/enabled"]
        lines += [f"echo '  {case.lists}: {case.options}'"]
        lines += [f"{program} {case.options} {restore.SNAPSHOT} >>{log}"]
    return "\n".join(lines)


def parse(text: str, wanted: Sequence[Case]) -> list[Run]:
    """Return what each round of each case measured; LabError if one is not there."""
    printed = list(counted.objects(text))
    if len(printed) != len(wanted) * (ROUNDS + 1):
        raise LabError(f"{len(printed)} lines of {len(wanted)} runs: the benchmark is not done")
    found: list[Run] = []
    for number, case in enumerate(wanted):
        tables, *rounds = printed[number * (ROUNDS + 1) :][: ROUNDS + 1]
        named = {"lists": case.lists, "mode": case.mode, "apart": int(case.apart)}
        found += [{**tables, **each, **named} for each in rounds]
    return found


def per_page(run: Run) -> float:
    """Return instructions a page that is gone."""
    return int(run["cpu_ns"]) / max(1, int(run["gone"]))


def targets(runs: Sequence[Run]) -> Iterator[Verdict]:
    """In the first round, where all of the file is mapped, ahead or as it is used."""
    known = {
        (str(run["lists"]), int(run["vms"]), str(run["mode"])): run
        for run in runs
        if run["round"] == 1 and not run["apart"]
    }
    for (lists, vms, mode), run in known.items():
        if mode != "on":
            continue
        used = per_page(known[lists, vms, "all"])
        text = (
            f"{lists}, {vms} VMs: {per_page(run):,.0f} instructions a page, {used:,.0f} if used"
        )
        yield text, per_page(run) <= AT_MOST * used
        gone, asked = int(run["gone"]), int(run["asked"])
        yield f"{lists}, {vms} VMs: {gone:,} pages are gone of {asked:,}", gone >= asked * 0.95


def _show(runs: Sequence[Run]) -> None:
    heads = ("mapped", "asked", "gone", "scanned", "a page", "faults", "read", "instructions")
    for lists, title in _TITLES.items():
        chosen = (_row(run) for run in runs if run["lists"] == lists)
        show.rows(f"Reclaim, {title}", ("VMs", "Global TDP", "round"), heads, chosen)
    first = (run for run in runs if run["lists"] == "mglru" and run["round"] == 1)
    left, right = ("VMs", "Global TDP"), ("host's", "VM's")
    show.rows("Page tables, KiB a VM", left, right, map(_tables, first))
    show.stdout().print(_NOTE, soft_wrap=True)


def _tables(run: Run) -> list[str]:
    sizes = (int(run[name]) / int(run["vms"]) for name in ("host_kib", "guest_kib"))
    return [str(run["vms"]), _label(run), *(f"{size:,.0f}" for size in sizes)]


def _label(run: Run) -> str:
    return _LABELS[str(run["mode"])] + (", apart" if run["apart"] else "")


def _row(run: Run) -> Iterator[str]:
    vms = int(run["vms"])
    yield from (str(vms), _label(run), str(run["round"]))
    yield from (f"{run[name]:,}" for name in ("mapped", "asked", "gone", "scanned"))
    yield f"{per_page(run):,.0f}"
    yield f"{int(run['again_faults']) / vms:,.0f}"
    yield f"{run['read_again']:,}"
    yield f"{int(run['again_ns']) / vms:,.0f}"
