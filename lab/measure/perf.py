"""make bench WHAT=perf: KVM's own perf tests of live migration, stock beside ours.

One machine under -icount, whose CPUs take turns and count together: a nanosecond is an
instruction of one of them. It runs the tests for 1 to 8 vCPUs, with the distribution's
modules and then with ours, and their option for how memory is mapped before vCPUs run.

While vCPUs run, so does a CPU for each, and, but in demand_paging_test, one for the main
thread, which spins, as do vCPUs that are done. So what the tests tell of that time is divided
by the number of these CPUs: what is left are the instructions of one. Who spins has longer
turns than who leaves the guest again and again, so the more vCPUs there are, the more these
figures are too large; demand_paging_test's are not. Nobody spins while memory is mapped.
"""

import argparse
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lab import show
from lab.error import LabError
from lab.measure import counted
from lab.measure.counted import OURS, STOCK, Verdict
from lab.paths import BUILD, ROOT, SELFTESTS

DIRECTORY = BUILD / "perf"
LOG = DIRECTORY / "perf.txt"
PLOT = ROOT / "images" / "perf.png"

VCPUS = (1, 2, 4, 8)
MIB, LESS, MORE, HUGE = 8, 2, 32, 64
"""Of memory, for each vCPU; the last where a page costs so little that it takes many."""
_GIANT_VCPUS, _GIANT_MIB = 2, 512
"""All of them share the machine's one huge page of 1 GiB."""

DIRTY_LOG, DEMAND, MEMSLOT = (
    "dirty_log_perf_test",
    "demand_paging_test",
    "memslot_modification_stress_test",
)
BACKINGS = {
    "anonymous": "4K",
    "anonymous_thp": "THP",
    "shmem": "memfd",
    "anonymous_hugetlb_2mb": "hugetlb 2M",
    "anonymous_hugetlb_1gb": "hugetlb 1G",
}
SMALL, LARGE = ("anonymous", "shmem"), ("anonymous_thp", "anonymous_hugetlb_2mb")
"""What KVM maps by pages of 4 KiB, and of 2 MiB."""

LOGS = {"manual": "manual protect", "bitmap": "bitmap", "ring": "dirty ring"}
_RING = 16384
"""Entries: more than a vCPU has pages, so none exits because its ring is full."""

WAYS = {
    "": "vCPUs, which fault host memory in, too",
    "fault": "vCPUs",
    "prefault": "KVM_PRE_FAULT_MEMORY",
    "populate": "KVM_POPULATE_MEMORY",
    "populate:n": "… from a thread per vCPU",
    "follow": "the follower, waited for",
}

_MODIFICATIONS = 40
_HUGE_PAGES = 8 * HUGE // 2 + 8
"""Of 2 MiB each: what 8 vCPUs have, and some."""

PHASES = {
    "fault_in": r"Fault in host memory time:\s*",
    "map": r"Map memory time:\s*",
    "touch": r"(?:Populate memory|Total guest execution) time:\s*",
    "log_on": r"Enabling dirty logging time:\s*",
    "dirty": r"Iteration 2 dirty memory time:\s*",
    "get": r"Iteration 2 get dirty log time:\s*",
    "clear": r"Iteration 2 clear dirty log time:\s*",
    "log_off": r"Disabling dirty logging time:\s*",
    "modify": r"Modify memslots time:\s*",
    "passes": r"\d+ passes of vCPUs over their memory time:\s*",
}
"""How the tests call what they time. Of iterations it is the last: in the first, as long as
logging clears nothing, a test with manual protect has nothing that is write-protected."""

_BEFORE_VCPUS = ("fault_in", "map")
_PASSES = re.compile(r"(\d+) passes of vCPUs")
_KEY = "=== "

LESS_BY = 50
"""Per cent that mapping and the first pass are to take less than on stock, of small pages."""
OVER = 15
"""Per cent that anything else may take more than on stock. Runs of the same differed by up to
6: how turns fall is another each time. What the main thread does by itself, e.g. to clear the
log, takes a turn more or less, which is half of it: that is shown, not judged."""

TURN = 400_000
"""Instructions, about, of a turn: what is less than that apart cannot be told apart."""

FEW = 2
"""vCPUs, with which a pass over huge pages is judged. Threads of vCPUs that have started spin
until all have: with more of them, that is as much as the pass, and another time each time."""

NOTE = f"""\
Instructions of a CPU for each 4 KiB page of a vCPU, all CPUs doing as much at the same time:
what a vCPU waits for. Faulted in, mapped: by one thread for all vCPUs, so they wait longer the
more they are. {MIB} MiB for each vCPU, unless told. A page is cleared byte by byte here, as an
instruction each; VM entry and exit count as one, and cost over a thousand cycles on silicon."""


@dataclass(frozen=True)
class Run:
    """A run of one of the tests."""

    test: str
    modules: str
    way: str
    vcpus: int
    backing: str = "anonymous"
    log: str = "manual"
    mib: int = MIB

    @property
    def key(self) -> str:
        """What its output begins with."""
        return json.dumps(asdict(self))

    @property
    def argv(self) -> list[str]:
        """Return the command."""
        argv = [self.test, "-v", str(self.vcpus), "-b", f"{self.mib}M"]
        if self.way:
            argv += ["-f", self.way.replace(":n", f":{self.vcpus}")]
        if self.test == MEMSLOT:
            return [*argv, "-i", str(_MODIFICATIONS)]
        argv += ["-s", self.backing]
        if self.test == DIRTY_LOG:
            argv += {"manual": [], "bitmap": ["-g"], "ring": ["-d", str(_RING)]}[self.log]
        return argv

    @property
    def pages(self) -> int:
        """Of 4 KiB, of each vCPU."""
        return self.mib * 256


@dataclass(frozen=True)
class Figure:
    """What a run came to: instructions of a CPU, a page of a vCPU, by phase."""

    run: Run
    cost: Mapping[str, float] = field(default_factory=dict)

    @property
    def first(self) -> float:
        """Until all vCPUs have gone over memory that is present, with what mapped it before."""
        return self.cost.get("map", 0) + self.cost["touch"]


Known = dict[Run, Figure]


def wanted() -> Iterator[Run]:
    """Return all runs, those with as many vCPUs next to each other."""
    for vcpus in VCPUS:
        for whose, ways in (
            (STOCK, ("", "fault", "prefault")),
            (OURS, ("fault", "populate", "populate:n", "follow")),
        ):
            yield from (Run(DEMAND, whose, way, vcpus) for way in ways)
        yield from (Run(DEMAND, STOCK, "", vcpus, backing, mib=HUGE) for backing in LARGE)
        # The two that everything is measured for.
        for run in ((STOCK, "fault", vcpus), (OURS, "populate", vcpus)):
            yield Run(DEMAND, *run, "shmem")
            yield from (Run(DEMAND, *run, backing, mib=HUGE) for backing in LARGE)
            yield from (Run(DIRTY_LOG, *run, log=log) for log in LOGS)
            yield Run(DIRTY_LOG, *run, "anonymous_thp")
            yield Run(MEMSLOT, *run)
            if vcpus == max(VCPUS):
                others = ("shmem", "anonymous_hugetlb_2mb")
                yield from (Run(DIRTY_LOG, *run, backing) for backing in others)
            if vcpus == 4:
                yield from (Run(DEMAND, *run, mib=mib) for mib in (LESS, MORE))
            if vcpus == _GIANT_VCPUS:
                yield Run(DEMAND, *run, "anonymous_hugetlb_1gb", mib=_GIANT_MIB)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    text = "numbers of vCPUs; not all of them is for a look"
    parser.add_argument(
        "--vcpus", type=int, nargs="+", choices=VCPUS, default=list(VCPUS), help=text
    )


def run(args: argparse.Namespace) -> int:
    """Measure and show; 1 if a target is missed."""
    runs = [run for run in wanted() if run.vcpus in args.vcpus]
    counted.build()
    doing = f"{len(runs)} runs: stock modules, then ours"
    # A turn is the shorter the more CPUs there are, be they idle.
    options = {"turns": max(VCPUS) + 1, "stock": True, "machine": "4level"}
    counted.run(DIRECTORY, doing, lambda: _script(runs), **options)
    found = {figure.run: figure for figure in parse(LOG.read_text())}
    if missing := [run for run in runs if run not in found]:
        raise LabError(f"{len(missing)} figures are not there, of: {missing[0].argv}")
    known = {run: found[run] for run in runs}
    _show(known)
    # Only what was measured as a whole is to be shown to all.
    plot = PLOT if sorted(args.vcpus) == list(VCPUS) else DIRECTORY / PLOT.name
    _plot(known, plot)
    print(f"saved: {plot.relative_to(ROOT)}")
    figures = [asdict(figure) for figure in known.values()]
    counted.save(DIRECTORY / "perf.json", note=NOTE, figures=figures)
    return counted.judge(judge(known))


def _script(runs: Sequence[Run]) -> str:
    """Return what the machine runs, which comes up with stock modules.

    Programs and their output are in the machine's own memory: while the host is asked for a
    file, nobody runs, and the clock leaps from timer to timer.
    """
    programs = shlex.join(str(SELFTESTS / name) for name in (DIRTY_LOG, DEMAND, MEMSLOT))
    lines = [
        *counted.BEGIN,
        "mkdir /dev/shm/perf",
        f"cp {programs} /dev/shm/perf",
        f"echo {_HUGE_PAGES} >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        "log=/dev/shm/perf/log",
        "do_run() { # vCPUs, key, command",
        "  taskset -pc 0-$1 $$ >/dev/null; shift",
        f'  echo "{_KEY}$1" >>$log; shift',
        '  "/dev/shm/perf/$@" >>$log 2>&1 || { tail -n 30 $log; exit 1; }',
        "}",
    ]
    for whose in (STOCK, OURS):
        lines += [counted.load(whose, DIRECTORY), f"echo '  {whose}'"]
        for run in (run for run in runs if run.modules == whose):
            key = shlex.quote(run.key)
            lines += [f"do_run {run.vcpus} {key} {shlex.join(run.argv)}"]
    return "\n".join([*lines, f"cat $log >{shlex.quote(str(LOG))}"])


def parse(text: str) -> Iterator[Figure]:
    """Return the figures in what the tests have printed, each after its key."""
    for part in text.split(f"\n{_KEY}"):
        key, _, output = part.removeprefix(_KEY).partition("\n")
        if key:
            run = Run(**json.loads(key))
            yield Figure(run, dict(_costs(run, output)))


def _costs(run: Run, output: str) -> Iterator[tuple[str, float]]:
    for phase, told in PHASES.items():
        if found := re.search(rf"^{told}(\d+)\.(\d{{9}})s$", output, re.MULTILINE):
            ns = int(found[1]) * 10**9 + int(found[2])
            yield phase, _each(run, phase, ns, output)


def _each(run: Run, phase: str, ns: int, output: str) -> float:
    """Return the instructions of one CPU, for a page or a modification of memslots."""
    if phase in _BEFORE_VCPUS:
        # Those of all threads, which do their shares at the same time.
        threads = run.vcpus if run.way == "populate:n" else 1
        return ns / threads / run.pages
    # The main thread of this test sleeps.
    ns /= run.vcpus + (run.test != DEMAND)
    if phase == "modify":
        return ns / _MODIFICATIONS
    if phase == "passes":
        number = int(_PASSES.search(output)[1])
        return ns * run.vcpus / max(number, 1) / run.pages
    return ns / run.pages


def judge(known: Known) -> Iterator[Verdict]:
    """Return a verdict on each target."""
    for run, figure in known.items():
        if run.modules != OURS or run.way != "populate":
            continue
        stock = known.get(_of_stock(run))
        if not stock:
            raise LabError(f"there is nothing on stock modules to compare with: {run.argv}")
        name = _name(run)
        if run.test == MEMSLOT:
            for phase, text in (("modify", "a modification"), ("passes", "a pass of vCPUs")):
                yield _less(f"{name}: {text}", stock.cost[phase], figure.cost[phase])
        elif run.test == DIRTY_LOG:
            pair = stock.cost["dirty"], figure.cost["dirty"]
            yield _no_more(f"{name}: pass of vCPUs, logged", *pair, TURN / run.pages)
        elif run.backing in SMALL:
            yield _less(f"{name}: mapping and first pass", stock.first, figure.first)
        elif run.vcpus <= FEW:
            pair = stock.first, figure.first
            yield _no_more(f"{name}: mapping and first pass", *pair, TURN / run.pages)


def _of_stock(run: Run) -> Run:
    return Run(run.test, STOCK, "fault", run.vcpus, run.backing, run.log, run.mib)


def _name(run: Run) -> str:
    words = [run.test.removesuffix("_test"), f"{run.vcpus} vCPUs", BACKINGS[run.backing]]
    words += [LOGS[run.log]] if run.test == DIRTY_LOG else []
    return ", ".join((*words, *([f"{run.mib} MiB each"] if run.mib != MIB else [])))


def _percent(stock: float, ours: float) -> float:
    return (ours / stock - 1) * 100


def _less(text: str, stock: float, ours: float) -> Verdict:
    over = _percent(stock, ours)
    text = f"{text}: {stock:,.0f} to {ours:,.0f}, {over:+.0f} %, ≤ -{LESS_BY} %"
    return text, over <= -LESS_BY


def _no_more(text: str, stock: float, ours: float, turn: float) -> Verdict:
    over = _percent(stock, ours)
    text = f"{text}: {stock:,.1f} to {ours:,.1f}, {over:+.0f} %, ≤ +{OVER} % or {turn:.0f}"
    return text, over <= OVER or ours - stock <= turn


def _show(known: Known) -> None:
    heads = ("faulted in", "mapped", "first pass", "mapped + pass")
    left = ("memory", "vCPUs", "modules", "mapped by")
    show.rows("First pass of vCPUs over memory", left, heads, _first_rows(known))
    heads = ("enable", "dirty", "get", "clear", "disable")
    phases = ("log_on", "dirty", "get", "clear", "log_off")
    rows = _pairs(known, DIRTY_LOG, phases, lambda run: (BACKINGS[run.backing], LOGS[run.log]))
    show.rows("Dirty logging: stock | ours", ("vCPUs", "memory", "log"), heads, rows)
    heads = ("modification", "each pass of vCPUs, a page")
    rows = _pairs(known, MEMSLOT, ("modify", "passes"), lambda _: ())
    show.rows("Memslots modified beside vCPUs: stock | ours", ("vCPUs",), heads, rows)
    show.stdout().print(NOTE, soft_wrap=True)


def _size(run: Run) -> str:
    return f"{run.vcpus} x {run.mib} MiB"


def _first_rows(known: Known) -> Iterator[list[str]]:
    for run in sorted(known, key=_row_order):
        if run.test == DEMAND:
            figure = known[run]
            cells = (figure.cost.get(phase) for phase in ("fault_in", "map", "touch"))
            numbers = ["-" if cell is None else f"{cell:,.1f}" for cell in cells]
            row = [BACKINGS[run.backing], _size(run), run.modules, WAYS[run.way]]
            yield [*row, *numbers, f"{figure.first:,.1f}"]


def _row_order(run: Run) -> tuple[int, int, int, int, bool]:
    backing = list(BACKINGS).index(run.backing)
    return backing, run.mib, run.vcpus, list(WAYS).index(run.way), run.modules != STOCK


def _pairs(
    known: Known, test: str, phases: Sequence[str], words: Callable[[Run], Sequence[str]]
) -> Iterator[list[str]]:
    """Return a row for each run on ours of a test, with what stock came to beside each."""
    for run in sorted(known, key=_row_order):
        if run.test == test and (run.modules, run.way) == (OURS, "populate"):
            pair = known[_of_stock(run)], known[run]
            cells = [
                " | ".join(f"{each.cost.get(phase, 0):,.1f}" for each in pair)
                for phase in phases
            ]
            yield [_size(run), *words(run), *cells]


def _plot(known: Known, plot: Path) -> None:
    """Draw mapping and the first pass over the number of vCPUs, and over memory."""
    lines = (
        *(
            ("anonymous", STOCK, "fault", "--", "C0"),
            ("anonymous", STOCK, "prefault", ":", "C0"),
        ),
        ("anonymous", OURS, "populate", "-", "C1"),
        ("anonymous", OURS, "populate:n", "-.", "C1"),
        ("anonymous_thp", STOCK, "fault", "--", "C2"),
        ("anonymous_thp", OURS, "populate", "-", "C3"),
    )
    with show.figure(plot, 2) as (figure, (axes,)):
        for backing, whose, way, style, color in lines:
            label = f"{BACKINGS[backing]}, {whose}: {way}"
            marks = {"color": color, "linestyle": style, "label": label}
            found = [
                figure
                for run, figure in known.items()
                if (run.test, run.modules, run.way, run.backing)
                == (DEMAND, whose, way, backing)
            ]
            usual = HUGE if backing in LARGE else MIB
            by_vcpus = [(f.run.vcpus, f.first) for f in found if f.run.mib == usual]
            show.draw_points(axes[0], by_vcpus, **marks)
            four = [(f.run.mib, f.first) for f in found if f.run.vcpus == 4]
            show.draw_points(axes[1], four if len(four) > 1 else (), **marks)
        below = f"vCPUs, of {MIB} MiB each, THP: {HUGE}", "MiB for each of 4 vCPUs"
        for axis, ticks, text in zip(axes, (VCPUS, (LESS, MIB, MORE)), below, strict=True):
            show.logarithmic(axis, ticks, title="mapping, and the first pass", xlabel=text)
        axes[0].set(ylabel="instructions a page")
        show.legend_below(figure, axes[0], 3)
