"""make bench WHAT=scale: what large VMs cost, by a model, which is checked where it can be.

Two emulated machines, our modules, global_tdp_scale_bench:

    count     one CPU under -icount: instructions, memory, acquisitions of mmu_lock, at small
              sizes, which the model is made of, and at large ones, which it is to predict
    threads   eight CPUs, two nodes: acquisitions by up to eight threads at once, whose number
              the model says is the same as by one

Large is what takes addresses only: memory that is in many memslots, or in none. Nothing is
judged by time.
"""

import argparse
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab import show
from lab.error import LabError
from lab.measure import counted
from lab.measure.counted import Verdict
from lab.paths import BUILD, ROOT, SELFTESTS
from lab.source import debian

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTORY = BUILD / "scale"
PROGRAM = SELFTESTS / "x86_64" / "global_tdp_scale_bench"
TRACER = Path(__file__).with_name("scale.bt")
DOCUMENT = ROOT / "docs" / "scale.md"
RECORD = ROOT / "docs" / "scale.json"
"""What DOCUMENT's tables and PLOT are made of."""
PLOT = ROOT / "images" / "scale.png"

TIB = 1024
"""GiB."""
REGIONS = 512
"""Of 2 MiB, in a GiB."""
PAGES = REGIONS * 512
MAX_SLOT_GIB = 8 * TIB
"""A memslot has fewer than 2^31 pages (KVM_MEM_MAX_NR_PAGES)."""

BOUND = 5
"""Per cent that a prediction may be off by."""

DRIFT = 5
"""Per cent that an input may be off what RECORD has."""


@dataclass(frozen=True)
class Case:
    """Runs of the program, under -icount: two whose sizes the model knows, and others."""

    name: str
    backing: str
    inputs: tuple[int, int]
    checks: tuple[int, ...]
    """In GiB."""

    figures: dict[str, str]
    """Of those that it prints, by name, what they are."""


CASES = (
    Case(
        *("vmm", "4k", (1, 4), (8, 16)),
        {
            "ns": "populate 4 KiB pages",
            "again_ns": "scan full tables again",
            "free_ns": "end the VM, all mapped by 4 KiB",
            "table_kib": "KiB of page tables, 4 KiB pages",
        },
    ),
    Case(
        *("follower", "4k", (1, 4), (8,)),
        {"ns": "follower: 4 KiB pages", "done_ns": "follower: a pass, nothing to do"},
    ),
    Case(
        *("vmm", "thp", (4, 64), (1024,)),
        {
            "ns": "populate 2 MiB pages",
            "free_ns": "end the VM, all mapped by 2 MiB",
            "table_kib": "KiB of page tables, 2 MiB pages",
        },
    ),
    Case(
        *("follower", "thp", (16, 64), (256,)),
        {"ns": "follower: 2 MiB pages"},
    ),
    Case(
        *("sparse", "4k", (64, 256), (1024,)),
        {
            "call_ns": "KVM_POPULATE_MEMORY, absent memory",
            "pass_ns": "follower: a pass, absent memory",
            "create_ns": "create a memslot",
            "zap_ns": "zap what is pending",
            "vmalloc_kib": "KiB of a memslot, with a tracker",
        },
    ),
    Case(
        *("plain_sparse", "4k", (64, 256), (1024,)),
        {
            "create_ns": "create a memslot, without Global TDP",
            "vmalloc_kib": "KiB of a memslot, without",
        },
    ),
    Case(*("zap", "thp", (4, 64), ()), {"ns": "zap what is mapped by 2 MiB, marked"}),
    Case(*("unmarked_zap", "thp", (4, 64), ()), {"ns": "the same, without a follower"}),
)

LOCKS = {
    ("vmm", "4k", "populate"): 1,
    ("vmm", "thp", "populate"): 1 / 16,
    ("follower", "thp", "populate"): 1,
    ("sparse", "4k", "call"): 1,
    ("sparse", "4k", "pass"): 1,
}
"""Acquisitions of mmu_lock for read, a region, as the sources have it: one for each new page
table, one for sixteen regions that need none (SCANS_PER_LOCK), but one for each region where
there is no table above it, and for each scan of the follower's, which it has at one region.
Checked by who counts them."""

NEW_VM = 5
"""More, of a VM without tables: one finds no root, two are of its creation, and at two levels
one finds that a table is wanted. Tables below these are for a GiB each, and take one more."""
ABSENT = 3
"""Of these, what there is with nothing to map."""

TRACED = (
    ("vmm", "4k", 1),
    ("vmm", "thp", 1),
    ("follower", "thp", 1),
    ("sparse", "4k", 4),
)
"""By one thread, with who counts acquisitions: case, backing, GiB."""

THREADED = (
    *(("vmm", "4k", 4, threads) for threads in (2, 4, 8)),
    *(("vmm", "thp", 64, threads) for threads in (2, 4, 8)),
)
"""By more: case, backing, GiB, threads."""

Record = dict[str, int | str]
"""What one run of the program printed; with what was traced as `calls`, `locks`, `waits`."""


# No emulator tells these. Times are no better than they.
GHZ = 3.0
IPC = 1.0
"""Instructions per cycle: it takes no memory that is slow into account."""

EXIT_CYCLES = 1200
"""That a VM exit and entry take, of which the emulator counts two."""

LINE_NS = {2: 108, 8: 197}
"""To get a cache line that a CPU of another socket has changed, by nodes: two sockets of Xeon
8375C; of EPYC 7R13. Medians by nviennot/core-to-core-latency, a public benchmark."""

LOCK_ATOMICS = 2
"""To acquire mmu_lock for read, and to release it."""

STAT_ATOMICS = {"4k": 3, "thp": 2, "fault": 1}
"""Others, on lines that all share, by what is mapped, as the sources have it: pages of a size,
pages populated, and page tables."""

FAULT = 3448
"""Instructions of a fault on a 4 KiB page on stock modules, from docs/costs.md."""


def ns(instructions: float) -> float:
    """Return how long they take."""
    return instructions / (IPC * GHZ)


@dataclass(frozen=True)
class Line:
    """What grows with the memory: so much, and so much more a GiB."""

    fixed: float
    per_gib: float

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> "Line":
        """Return the one through two points, of GiB and a figure."""
        slope = (large[1] - small[1]) / (large[0] - small[0])
        return cls(small[1] - slope * small[0], slope)

    def at(self, gib: float) -> float:
        """Return the figure at a size."""
        return self.fixed + self.per_gib * gib

    @property
    def per_region(self) -> float:
        """Return what is added by 2 MiB."""
        return self.per_gib / REGIONS


@dataclass(frozen=True)
class Check:
    """A prediction beside what came of a run that is no input of the model."""

    text: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Return by how many per cent the prediction is off."""
        if not self.measured:
            return 0 if not self.predicted else float("inf")
        return (self.predicted / self.measured - 1) * 100

    @property
    def good(self) -> bool:
        """Return whether that is within the bound."""
        return abs(self.error) <= BOUND


class Model:
    """Of what a VM costs, made of what small ones do."""

    def __init__(self, records: Sequence[Record]) -> None:
        """LabError: an input is missing."""
        self.records = records
        self.lines = {
            (case.name, case.backing, figure): Line.through(
                *((gib, self.figure(case, gib, figure)) for gib in case.inputs)
            )
            for case in CASES
            for figure in case.figures
        }

    def figure(self, case: Case, gib: int, figure: str) -> float:
        """Return what one run came to."""
        got = find(self.records, case=case.name, backing=case.backing, gib=gib, traced=False)
        return int(got[figure])

    def line(self, name: str, backing: str, figure: str = "ns") -> Line:
        """Return how a figure grows."""
        return self.lines[name, backing, figure]

    def checks(self) -> Iterator[Check]:
        """Compare with what was run, and is no input."""
        for case in CASES:
            for figure, text in case.figures.items():
                line = self.lines[case.name, case.backing, figure]
                for gib in case.checks:
                    measured = self.figure(case, gib, figure)
                    yield Check(f"{text}, {size(gib)}", line.at(gib), measured)
        for got in self.records:
            if got.get("traced"):
                yield from self._acquisitions(got)

    def _acquisitions(self, got: Record) -> Iterator[Check]:
        for (name, backing, phase), locks in LOCKS.items():
            if (name, backing) == (got["case"], got["backing"]):
                whose = "of the kernel" if name == "follower" else "of the VMM"
                where = f"threads {whose}: {got['threads']}, CPUs: {got['cpus']}"
                text = f"acquisitions, {phase}, {backing}, {size(int(got['gib']))}, {where}"
                gib = int(got["gib"])
                expected = locks * gib * REGIONS
                if name == "vmm":
                    expected += gib + NEW_VM
                elif phase == "call":
                    expected += ABSENT
                yield Check(text, expected, int(got.get(f"locks_{phase}", 0)))

    def populate_ns(self, backing: str, gib: int, threads: int, nodes: int) -> float:
        """Return how long so many of the kernel's threads take.

        Each waits for lines that the others have changed; no thread gets the lock's while
        another does, so that is the least that all take together.
        """
        work = ns(self.line("follower", backing).at(gib))
        if threads == 1:
            return work
        locks = self.locks(backing, gib)
        waits = locks * (LOCK_ATOMICS + STAT_ATOMICS[backing]) * LINE_NS[nodes]
        return max((work + waits) / threads, locks * LOCK_ATOMICS * LINE_NS[nodes])

    def locks(self, backing: str, gib: int) -> float:
        """Return the acquisitions to populate: the follower's, one a region or more."""
        name = "vmm" if backing == "4k" else "follower"
        return LOCKS[name, backing, "populate"] * gib * REGIONS

    def line_share(self, backing: str, threads: int, nodes: int) -> float:
        """Return what share of what the lock's cache line can do that would take.

        If threads did not wait for it: with more than one, more than 1 can't be had.
        """
        work = ns(self.line("follower", backing).at(TIB))
        return threads * self.locks(backing, TIB) / work * LOCK_ATOMICS * LINE_NS[nodes]

    def fault_ns(self, gib: int, vcpus: int, nodes: int) -> float:
        """Return how long vCPUs take that fault on all 4 KiB pages, all at a time."""
        work = ns(FAULT) + EXIT_CYCLES / GHZ
        waits = (LOCK_ATOMICS + STAT_ATOMICS["fault"]) * LINE_NS[nodes]
        return gib * PAGES * max((work + waits) / vcpus, LOCK_ATOMICS * LINE_NS[nodes])

    def vain_seconds(self, gib: int) -> float:
        """Return how long a pass takes that gains nothing: a 21st of it is work.

        After 10 ms of wasted scans, the follower pauses for twenty times as long.
        """
        return ns(self.line("sparse", "4k", "pass_ns").at(gib)) * 21 / 1e9

    def mark(self) -> float:
        """Return the instructions to mark a region that was complete, and is zapped."""
        return self.line("zap", "thp").per_region - self.line("unmarked_zap", "thp").per_region

    def tracker_kib(self, gib: int) -> float:
        """Return what the tracker takes."""
        marked = self.line("sparse", "4k", "vmalloc_kib").at(gib)
        return marked - self.line("plain_sparse", "4k", "vmalloc_kib").at(gib)


def find(records: Sequence[Record], **wanted: str | float) -> Record:
    """Return the one record that has these values."""
    for got in records:
        if all(got.get(key, False) == value for key, value in wanted.items()):
            return got
    words = ", ".join(f"{key} {value}" for key, value in wanted.items())
    raise LabError(f"the benchmark has no figure for {words}")


def size(gib: int) -> str:
    """Return it as people say it."""
    return f"{gib // TIB} TiB" if gib >= TIB and not gib % TIB else f"{gib} GiB"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    text = "count nothing anew: the model and the tables of what docs/scale.json has"
    parser.add_argument("--recorded", action="store_true", help=text)
    text = "put what was measured into docs/scale.json, and draw the figure"
    parser.add_argument("--record", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Measure, predict and show; 1 if the model is off, or the page tells something else."""
    recorded = json.loads(RECORD.read_text())["records"]
    records = recorded if args.recorded else measure()
    model = Model(records)
    if args.record:
        RECORD.write_text(dump({"kernel": debian.kernel().release, "records": records}))
        plot(model, PLOT)
        recorded = records
    for title, heads, rows in tables(model):
        show.rows(title, heads[:1], heads[1:], rows)
    return counted.judge(_verdicts(model, Model(recorded)))


def _verdicts(model: Model, recorded: Model) -> Iterator[Verdict]:
    """Return those on predictions, which the table has, and on what was recorded."""
    yield from (("" if check.good else check.text, check.good) for check in model.checks())
    told = DOCUMENT.read_text().splitlines()
    untrue = [line for line in page(recorded) if line not in told]
    for what, wrong in (
        (f"{DOCUMENT.name} has the tables of {RECORD.name}", untrue),
        (f"inputs are within {DRIFT} % of {RECORD.name}", list(drift(model, recorded))),
    ):
        yield "\n".join((what, *wrong)), not wrong


def dump(content: dict) -> str:
    """Return JSON with a line a record."""
    lines = ",\n  ".join(json.dumps(record) for record in content["records"])
    return f'{{"kernel": "{content["kernel"]}",\n "records": [\n  {lines}]}}\n'


def drift(model: Model, recorded: Model) -> Iterator[str]:
    """Return which inputs are not what they were when the page was written."""
    for (name, backing, figure), line in model.lines.items():
        known = recorded.lines[name, backing, figure]
        if abs(line.per_gib - known.per_gib) > DRIFT / 100 * abs(known.per_gib) + 1:
            yield (
                f"{name}, {backing}, {figure}: {line.per_gib:,.0f} a GiB, {known.per_gib:,.0f}"
            )


def measure() -> list[Record]:
    """Run the machines; return what they have left."""
    counted.build(PROGRAM)
    counted.run(DIRECTORY, "Machine 'count'", _count_script, "count.*")
    options = {"icount": False, "machine": "2nodes"}
    counted.run(DIRECTORY, "Machine 'threads'", _threads_script, "threads.*", **options)
    plain = counted.objects((DIRECTORY / "count.txt").read_text())
    return [
        *(got | {"traced": False} for got in plain),
        *traced("count", 1),
        *traced("threads", 8),
    ]


def _run(log: str, name: str, backing: str, gib: int, threads: int = 1) -> str:
    command = f"{shlex.quote(str(PROGRAM))} -b {backing} -g {gib} -t {threads} {name}"
    what = f"echo '  {name}, {backing}, {gib} GiB, threads: {threads}'"
    return f"{what}; {counted.logged(command, DIRECTORY / log)}"


def _expected() -> list[tuple[int, str, str, int, int]]:
    """Return what is traced: CPUs, case, backing, GiB, threads."""
    one = [(1, *each, 1) for each in TRACED]
    turns = [(1, *each) for each in THREADED]
    return [*one, *turns, *((8, *each) for each in THREADED)]


def _count_script() -> str:
    runs = (
        _run("count.txt", case.name, case.backing, gib)
        for case in CASES
        for gib in (*case.inputs, *case.checks)
    )
    return "\n".join([*runs, *_traced("count", 1)])


def _threads_script() -> str:
    """Return what the machine with nodes runs; to balance them, the kernel would hide pages."""
    balance = "echo 0 >/proc/sys/kernel/numa_balancing"
    return "\n".join([balance, *_traced("threads", 8)])


def _traced(name: str, on: int) -> list[str]:
    lines = [_run(f"{name}.traced.txt", *each) for cpus, *each in _expected() if cpus == on]
    return counted.traced(TRACER, DIRECTORY / f"{name}.trace", lines)


def traced(name: str, cpus: int) -> list[Record]:
    """Return runs with what the tracer has counted of each phase of each VM."""
    counts = parse_trace((DIRECTORY / f"{name}.trace").read_text())
    also = {"traced": True, "cpus": cpus}
    records = counted.objects((DIRECTORY / f"{name}.traced.txt").read_text())
    return [got | also | counts.get(number, {}) for number, got in enumerate(records, 1)]


def parse_trace(text: str) -> dict[int, Record]:
    """Return the tracer's counts by the number of the VM: `locks_populate` and the like."""
    counts: dict[int, Record] = {}
    maps = (got["data"] for got in counted.objects(text) if got["type"] == "map")
    for name, values in (pair for each in maps for pair in each.items()):
        if isinstance(values, dict):
            for key, value in values.items():
                number, comma, phase = key.partition(",")
                if comma:
                    counts.setdefault(int(number), {})[f"{name[1:]}_{phase}"] = value
    return counts


def page(model: Model) -> Iterator[str]:
    """Return the lines of all tables that the page has."""
    for title, heads, rows in tables(model):
        if title != CHECKS:
            rule = ["---", *["---:"] * (len(heads) - 1)]
            yield from (f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


CHECKS = "Checks"
"""The table that the page does not have."""


def tables(model: Model) -> Iterator[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """Return all tables, each with a title and heads."""
    yield "Inputs", ("what", "fixed", "a GiB", "a 2 MiB region"), _inputs(model)
    rows = [
        (check.text, _number(check.predicted), _number(check.measured), f"{check.error:+.1f} %")
        for check in model.checks()
    ]
    yield CHECKS, ("what", "predicted", "run", "error"), rows
    heads = ("ms", *(f"{size(gib)}, {nodes} nodes" for gib in SIZES for nodes in NODES))
    yield "Time to populate, and share of the lock's line", heads, [*_times(model)]
    yield "All else", ("what", *map(size, SIZES)), [*_rest(model)]


SIZES = (TIB, 12 * TIB)
NODES = (2, 8)
VCPUS = (64, 256)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _inputs(model: Model) -> list[Sequence[str]]:
    named = ((case, *named) for case in CASES for named in case.figures.items())
    found = ((text, model.line(case.name, case.backing, each)) for case, each, text in named)
    return [
        (text, *map(_number, (line.fixed, line.per_gib, line.per_region)))
        for text, line in found
    ]


def _times(model: Model) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of threads, with a cell for each size and nodes."""

    def cell(backing: str, threads: int, gib: int, nodes: int) -> str:
        ms = _number(model.populate_ns(backing, gib, threads, nodes) / 1e6)
        share = model.line_share(backing, threads, nodes) * 100
        return f"{ms} ({share:.0f} %)" if threads > 1 else ms

    vms = [(gib, nodes) for gib in SIZES for nodes in NODES]
    for backing, pages in (("4k", "4 KiB"), ("thp", "2 MiB")):
        for threads in (1, 2, 4, 8):
            cells = (cell(backing, threads, *vm) for vm in vms)
            yield f"{pages} pages, threads: {threads}", *cells
    for vcpus in VCPUS:
        cells = (_number(model.fault_ns(gib, vcpus, nodes) / 1e6) for gib, nodes in vms)
        yield f"stock, {vcpus} vCPUs fault on all 4 KiB pages", *cells


def _rest(model: Model) -> Iterator[tuple[str, ...]]:
    """Yield what does not depend on nodes, for each size."""
    columns = [_of_size(model, gib) for gib in SIZES]
    for text in columns[0]:
        yield text, *(_number(column[text]) for column in columns)


def _of_size(model: Model, gib: int) -> dict[str, float]:
    def at(name: str, backing: str, figure: str = "ns") -> float:
        return model.line(name, backing, figure).at(gib)

    def ms(instructions: float) -> float:
        return ns(instructions) / 1e6

    regions = gib * REGIONS
    # To zap nothing takes nothing else but to mark it.
    awaited = model.line("sparse", "4k", "zap_ns").per_region
    return {
        "page tables, 4 KiB pages, MiB": at("vmm", "4k", "table_kib") / 1024,
        "page tables, 2 MiB pages, MiB": at("vmm", "thp", "table_kib") / 1024,
        "tracker, MiB": model.tracker_kib(gib) / 1024,
        "memslots, at least": -(-gib // (MAX_SLOT_GIB - 1)),
        "create them, ms": ms(at("sparse", "4k", "create_ns")),
        "the same without Global TDP, ms": ms(at("plain_sparse", "4k", "create_ns")),
        "follower's pass, all absent, ms": ms(at("sparse", "4k", "pass_ns")),
        "the same with the pauses in it, s": model.vain_seconds(gib),
        "follower's pass, nothing to do, ms": ms(at("follower", "4k", "done_ns")),
        "mark what is zapped, was complete, ms": ms(model.mark() * regions),
        "mark what is zapped, is pending, ms": ms(awaited * regions),
        "end the VM, all mapped by 4 KiB, ms": ms(at("vmm", "4k", "free_ns")),
        "end the VM, all mapped by 2 MiB, ms": ms(at("vmm", "thp", "free_ns")),
    }


def plot(model: Model, path: Path) -> None:
    """Draw what is predicted as lines, what was run as points."""
    figures = (("vmm", "4k", "ns"), ("vmm", "thp", "ns"), ("sparse", "4k", "pass_ns"))
    figures += (("follower", "4k", "done_ns"), ("vmm", "4k", "free_ns"))
    memory = (("vmm", "4k", "table_kib"), ("vmm", "thp", "table_kib"))
    memory += (("sparse", "4k", "vmalloc_kib"),)
    cases = {(case.name, case.backing): case for case in CASES}
    with show.figure(path, 2, width=4.7, height=4.2) as (figure, (axes,)):
        color = 0
        titles = ("instructions", "KiB")
        for axis, title, drawn in zip(axes, titles, (figures, memory), strict=True):
            for *name, what in drawn:
                _draw(axis, model, cases[tuple(name)], what, f"C{color}")
                color += 1
            show.logarithmic(axis, title=title, xlabel="GiB")
            for gib in SIZES:
                axis.axvline(gib, color="0.8", linewidth=0.8)
        style = {"fontsize": 7, "handlelength": 3, "frameon": False}
        figure.legend(loc="outside lower center", ncols=3, **style)


def _draw(axis: "Axes", model: Model, case: Case, what: str, color: str) -> None:
    line = model.lines[case.name, case.backing, what]
    sizes = [*(2**power for power in range(14)), SIZES[-1]]
    label = case.figures[what]
    axis.plot(sizes, [line.at(gib) for gib in sizes], color=color, linewidth=1, label=label)
    for points, marker in ((case.inputs, "|"), (case.checks, "o")):
        measured = [model.figure(case, gib, what) for gib in points]
        axis.plot(points, measured, marker=marker, color=color, linestyle="", markersize=4)
