"""make bench: what it costs to map a page, on stock modules and on ours, side by side.

One boot of an emulated CPU under -icount, where a nanosecond is an instruction: the
benchmark runs on the distribution's modules, on ours, and once more on both, so that a
drift of the machine would show. global_tdp is off; the cases turn on what they measure.
Then the same for restoring a guest's memory from a snapshot file (lab.measure.restore).
"""

import argparse
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import show
from lab.error import LabError
from lab.measure import counted, restore
from lab.measure.counted import Verdict
from lab.paths import BUILD, LIVES, ROOT, SELFTESTS, VERSION, VERSIONS

DIRECTORY = BUILD / "bench"
PROGRAM = SELFTESTS / "x86_64" / "global_tdp_bench"
DOCUMENT = ROOT / "docs" / "costs.md"

BACKINGS = {"4k": "4 KiB", "thp": "THP"}
ROUNDS = 2
MIB = 64
"""Of guest memory."""

_LIVES = {"stock": ("",), "ours": ("", "-g")}
"""How the program of short-lived VMs is called, by whose modules."""
_NUMBER = re.compile(r"\s*([\d.]+)")

NOTE = """\
touch: a vCPU's first access; prefault: KVM_PRE_FAULT_MEMORY; populate: KVM_POPULATE_MEMORY;
harvest: KVM_HARVEST_ACCESSED; discarded: MADV_DONTNEED, with what the host does for it; the VM
ends: less the end of a VM in which nothing is mapped. Instructions executed per 4 KiB page,
counted by the emulator (-icount). VM entry and exit count as one instruction each there and
cost over a thousand cycles on silicon: this understates what an avoided exit is worth."""


@dataclass(frozen=True)
class Case:
    """A row: a case of the program, on whose modules, and what it is to reach."""

    name: str
    label: str
    stock: bool = False
    faults_at_most: int | None = None
    over_stock: float | None = None
    """Per cent over the same case on stock modules."""

    beyond: tuple[str, float] | None = None
    """Another case of ours, and by how many instructions a page it may be exceeded."""

    told: str = ""
    """How the row begins in which DOCUMENT has the figures."""


AT_MOST: dict[str, dict[str, tuple[float, float]]] = {
    "fault_around": {"6.12": (31, 7), "7.3": (32, 8)},
    "populate": {"6.12": (22.6, 2), "7.3": (23, 2.3)},
    "prefault_populate": {"6.12": (25, 2.2), "7.3": (26, 2.5)},
    "populate_again": {"6.12": (10, 1), "7.3": (10, 1.2)},
    "populate_runs": {"6.12": (46, 10), "7.3": (50, 15)},
    "harvest_all": {"6.12": (240, 2.2), "7.3": (265, 2.2)},
    "harvest_none": {"6.12": (34, 1.4), "7.3": (41, 1.4)},
}
"""Instructions a page with 4 KiB pages, and with THP, by the name of the case and the kernel:
the figures of DOCUMENT, rounded up."""

_OVER_STOCK = {"6.12": 0.5, "7.3": 0.6}[VERSION]


CASES = (
    Case("touch", "touch, stock modules", stock=True, told="stock: a vCPU's first touch"),
    Case(
        "prefault", "prefault, stock modules", stock=True, told="stock: `KVM_PRE_FAULT_MEMORY`"
    ),
    Case("touch", "touch, feature off", over_stock=_OVER_STOCK, told="first touch, Global TDP"),
    Case(
        "prefault",
        "prefault, feature off",
        over_stock=_OVER_STOCK,
        told="`KVM_PRE_FAULT_MEMORY`, the",
    ),
    Case("discard", "touched, discarded, stock modules", stock=True),
    Case("discard", "touched, discarded, feature off", over_stock=_OVER_STOCK),
    Case("discard_unmapped", "not mapped, discarded"),
    Case("discard_populated", "populated, discarded", beyond=("discard_unmapped", 100)),
    Case("end", "touched, the VM ends, stock modules", stock=True),
    Case("end", "touched, the VM ends, feature off", over_stock=_OVER_STOCK),
    Case("end_populated", "populated, the VM ends"),
    Case("fault_around", "touch, fault-around", told="first touch with"),
    Case("populate", "populate", told="`KVM_POPULATE_MEMORY`"),
    Case("prefault_populate", "prefault, populate", told="`KVM_PRE_FAULT_MEMORY`, Global"),
    Case("populate_touch", "populate, then touch", faults_at_most=1),
    Case("populate_again", "populate again", told="looking at"),
    Case("populate_runs", "populate by a bitmap, half of it in runs of 8", told="half of it,"),
    Case("harvest_all", "harvest, all was accessed", told="`KVM_HARVEST_ACCESSED`, all"),
    Case("harvest_none", "harvest, nothing was", told="`KVM_HARVEST_ACCESSED`, none"),
)

SPREAD = 0.002
"""As a share: no two rounds may differ by more, nor may DOCUMENT from what is measured, beside
its own rounding. Two measurements, of two builds, had 0.04 % between figures of stock modules:
instructions are counted, and other work of the host changes nothing."""

SPREAD_LEAST = 0.05
"""The same in instructions a page: of so few, a timer interrupt is a larger share."""


@dataclass(frozen=True)
class Figure:
    """What one case on one backing came to."""

    modules: str
    case: str
    backing: str
    ns_per_page: float
    faults: int


@dataclass(frozen=True)
class Cell:
    """A figure beside its target; `met` is None where there is none."""

    figure: Figure
    target: str = ""
    met: bool | None = None


Rows = Sequence[tuple[Case, dict[str, Cell]]]


def run(_: argparse.Namespace) -> int:
    """Measure and show; 1 if a target is missed."""
    counted.build(PROGRAM)
    counted.run(DIRECTORY, "Counting instructions: stock modules, then ours", _script)
    logs = sorted(DIRECTORY.glob("*.[0-9].txt"))
    measured = [
        each for log in logs for each in parse(log.name.partition(".")[0], log.read_text())
    ]
    figures = list(best(measured))
    rows = judge(figures)
    restored = restore.figures(
        {
            (whose, cache): (DIRECTORY / f"restore.{whose}.{cache}.txt").read_text()
            for whose, cache in itertools.product(_LIVES, restore.CACHES)
        }
    )
    lives = read_lives()
    _show(rows)
    restore.show(restored)
    counted.save(
        DIRECTORY / "bench.json",
        mib=MIB,
        note=NOTE,
        figures=[asdict(figure) for figure in figures],
        restore=restored,
        lives=lives,
    )
    wrong = list(untrue(DOCUMENT.read_text(), rows))
    more = (*restore.targets(restored), *judge_lives(lives))
    return counted.judge([*conclude(rows, list(drift(measured)), wrong), *more])


def conclude(rows: Rows, drifts: Sequence[str], wrong: Sequence[str]) -> Iterator[Verdict]:
    """Return the verdicts on targets, which the table has, and on what must be so beside."""
    cells = (cell for _, row in rows for cell in row.values())
    yield from (("", cell.met) for cell in cells if cell.met is not None)
    of_document = f"figures of {DOCUMENT.relative_to(ROOT)}"
    for what, faults in (("rounds agree", drifts), (of_document, wrong)):
        yield ": ".join((what, *["; ".join(faults)] * bool(faults))), not faults


def _script() -> str:
    """Return what the machine runs, which comes up with stock modules."""
    lines, program = [*counted.BEGIN], shlex.quote(str(PROGRAM))
    for number, whose in itertools.product(range(1, ROUNDS + 1), _LIVES):
        lines += [counted.load(whose, DIRECTORY)]
        lines += [f"echo '  round {number} of {ROUNDS}, {whose} modules'"]
        log = DIRECTORY / f"{whose}.{number}.txt"
        lines += [counted.logged(f"{program} -m {MIB} -r 5", log)]
        if number == ROUNDS:
            lines += [restore.script(DIRECTORY / f"restore.{whose}")]
        for how in _LIVES[whose]:
            lines += [counted.logged(f"{shlex.quote(str(LIVES))} {how}", _lives(whose, how))]
    return "\n".join(lines)


def _lives(whose: str, how: str) -> Path:
    return DIRECTORY / f"lives.{whose}{how}.txt"


def read_lives() -> dict[str, int]:
    """Return the instructions of a short-lived VM, the lowest of all rounds."""
    return {
        f"{whose}{how}": min(
            got["ns"] for got in counted.objects(_lives(whose, how).read_text())
        )
        for whose, hows in _LIVES.items()
        for how in hows
    }


def judge_lives(lives: dict[str, int]) -> Iterator[Verdict]:
    """Return what a short-lived VM takes beside stock, and whether that is within bounds."""
    stock = lives["stock"]
    for name, label, most in (("ours", "off", _OVER_STOCK), ("ours-g", "on", 3)):
        over = (lives[name] / stock - 1) * 100
        text = f"a VM that reads 40 pages, writes to ten, and ends: stock {stock:,}, "
        yield (
            f"{text}{label} {lives[name]:,} instructions, {over:+.2f} %, ≤ {most} %",
            over <= most,
        )


def parse(whose: str, text: str) -> Iterator[Figure]:
    """Return the figures in the output of the program."""
    for got in counted.objects(text):
        yield Figure(whose, got["case"], got["backing"], got["ns_per_page"], got["faults"])


def _by_case(figures: Iterable[Figure]) -> dict[tuple[str, str, str], list[Figure]]:
    """Return those of all rounds."""
    rounds: dict[tuple[str, str, str], list[Figure]] = {}
    for figure in figures:
        key = (figure.modules, figure.case, figure.backing)
        rounds.setdefault(key, []).append(figure)
    return rounds


def best(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Return the lowest figure of all rounds for each case."""
    for rounds in _by_case(figures).values():
        yield min(rounds, key=lambda figure: figure.ns_per_page)


def drift(figures: Iterable[Figure]) -> Iterator[str]:
    """Return what a machine that drifts, or a case that is not steady, has not measured."""
    for key, rounds in _by_case(figures).items():
        values = [figure.ns_per_page for figure in rounds]
        if len(values) != ROUNDS:
            yield f"{', '.join(key)}: {len(values)} rounds of {ROUNDS}"
        elif max(values) - min(values) > _tolerance(min(values)):
            yield f"{', '.join(key)}: {min(values):.2f} to {max(values):.2f}"


def _tolerance(measured: float) -> float:
    return max(SPREAD * measured, SPREAD_LEAST)


def judge(figures: Iterable[Figure]) -> Rows:
    """Return each row with a cell for each backing; LabError if a figure is missing."""
    known = {(figure.modules, figure.case, figure.backing): figure for figure in figures}
    rows = []
    for case in CASES:
        cells = {}
        for backing in BACKINGS:
            figure = known.get(("stock" if case.stock else "ours", case.name, backing))
            if not figure:
                raise LabError(f"the benchmark has no figure for {case.name}, {backing}")
            whose, name = ("ours", case.beyond[0]) if case.beyond else ("stock", case.name)
            cells[backing] = _cell(case, figure, known.get((whose, name, backing)))
        rows.append((case, cells))
    return rows


def _cell(case: Case, figure: Figure, other: Figure | None) -> Cell:
    if case.name in AT_MOST:
        limit = AT_MOST[case.name][VERSION][list(BACKINGS).index(figure.backing)]
        return Cell(figure, f"≤ {limit:g}", figure.ns_per_page <= limit)
    if case.faults_at_most is not None:
        target = f"≤ {case.faults_at_most} fault"
        return Cell(figure, target, figure.faults <= case.faults_at_most)
    if case.beyond and other:
        more = figure.ns_per_page - other.ns_per_page
        return Cell(figure, f"{more:+.1f}, ≤ {case.beyond[1]:g}", more <= case.beyond[1])
    # The end of 32 huge pages is lost in what differs between the ends of two VMs.
    judged = case.name != "end" or figure.backing != "thp"
    if case.over_stock is not None and other and judged:
        over = (figure.ns_per_page / other.ns_per_page - 1) * 100
        target = f"{over:+.2f} %, ≤ {case.over_stock} %"
        least = figure.ns_per_page - other.ns_per_page <= SPREAD_LEAST
        return Cell(figure, target, least or over <= case.over_stock)
    return Cell(figure)


def columns_before() -> int:
    """Return how many figures a row of DOCUMENT has before those of this kernel."""
    return len(BACKINGS) * VERSIONS.index(VERSION)


def untrue(text: str, rows: Rows) -> Iterator[str]:
    """Return where a table of the documentation is not what was measured, rounded.

    It has a column a backing, of a kernel beside those of another.
    """
    before = columns_before()
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("|")]
    for case, cells in rows:
        if not case.told:
            continue
        told = next((line.split("|") for line in lines if line.startswith(case.told)), [])
        for column, cell in enumerate(cells.values(), before + 1):
            number = _NUMBER.match(told[column]) if len(told) > column else None
            measured = cell.figure.ns_per_page
            rounding = 0.05 if number and "." in number[1] else 0.5
            allowed = rounding + _tolerance(measured)
            if not number or abs(float(number[1]) - measured) > allowed:
                yield f"{case.told}: {number[1] if number else 'nothing'}, not {measured:.1f}"


def _show(rows: Rows) -> None:
    out, table = show.stdout(), show.table("Instructions per 4 KiB page", ["case"])
    for backing in BACKINGS.values():
        for head in (backing, "faults", "target", ""):
            table.add_column(head, justify="left" if head in ("target", "") else "right")
    for case, cells in rows:
        row = [case.label]
        for cell in cells.values():
            word = "" if cell.met is None else show.met(cell.met)
            figure = cell.figure
            row += [f"{figure.ns_per_page:.1f}", str(figure.faults), cell.target, word]
        table.add_row(*row)
    out.print(table)
    out.print(NOTE, soft_wrap=True)
