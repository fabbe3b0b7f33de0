"""make bench WHAT=locking: what a vCPU that faults has to wait for, stock beside ours.

The host does something to much memory of a VM; a vCPU faults on other memory of it.
Three machines, each with the distribution's modules and then ours in one boot:

    alone   one CPU under -icount: how long mmu_lock is held for write, and what the
            storm itself costs, in instructions
    turns   two CPUs under -icount, emulated in turns: how long a fault takes while
            the other CPU storms, in instructions of both CPUs
    time    two CPUs at once: the same in time, as noisy as the machine is busy; and
            how much faster two threads populate than one
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
from lab.measure import counted
from lab.measure.counted import OURS, STOCK, Verdict
from lab.paths import BUILD, DOCUMENTED, ROOT, SELFTESTS

DIRECTORY = BUILD / "locking"
PROGRAM = SELFTESTS / "x86_64" / "global_tdp_locking_bench"
TRACER = Path(__file__).with_name("locking.bt")
PLOT = ROOT / "images" / "locking.png"
DOCUMENT = ROOT / "docs" / "locking.md"

MODES = {"alone": "instructions", "turns": "instructions", "time": "ns"}
SIZES = (16, 256, 1024)
PATHS = {
    "notifier": "MMU notifier",
    "age": "ageing",
    "clear_log": "CLEAR_DIRTY_LOG",
    "reset_ring": "RESET_DIRTY_RINGS",
    "delete": "slot delete (stock: drops roots)",
    "delete_one": "slot delete, that slot only",
    "nx": "NX huge page recovery",
    "log_off": "dirty logging off",
}
GROWS = ("notifier", "clear_log", "delete_one", "nx")
"""Where stock holds mmu_lock for write for a time that grows with the range."""

TOLD = {
    "notifier": "host takes memory away",
    "age": "ageing",
    "clear_log": "`KVM_CLEAR_DIRTY_LOG`",
    "reset_ring": "`KVM_RESET_DIRTY_RINGS`",
    "delete_one": "memslot deleted",
    "nx": "NX huge page recovery",
}
"""How a row of DOCUMENT's table begins: the longest holds, by size, stock's and ours."""

YIELDS = ("age", "nx")
"""Where stock yields even at the smallest size, i.e. how long it holds is another each time."""

TOLD_DIFFERS = 10
"""Per cent between what DOCUMENT tells and what is measured."""

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

HOLD_GROWS = 10
"""Per cent that the longest hold may differ by between the smallest range and the largest. It
was the same at all sizes, to 0.1 of some 1.1 thousand instructions."""

STORM_OVER = 3
"""Per cent over stock that the storm itself may take: it took 1 % at most, of used pages."""

FASTER = {
    "turns": {"notifier": 50, "clear_log": 50, "delete_one": 50, "nx": 1.5},
    "time": {"notifier": 50, "clear_log": 50, "delete_one": 50},
}
"""How many times below stock's the worst fault is to be. In turns it was 81 to 587 times, and
1.8 or more for NX recovery, which yields on stock."""

THREADS_FASTER = 1.6
"""How many times faster two threads are to be than one: it was 1.8 to 2.0."""

TICKS = "interval:us:100 { @ticks = 1; }"
"""CPUs that take turns do so whenever a timer is due: have one, for the turns to be short.
A turn, and the timer, are part of what a fault takes, on stock modules and on ours."""

POPULATED, POPULATE_ROUNDS = 512, 5
THREADS = (1, 2, 1, 2)
"""MiB of the program's memory, which it maps many times, and rounds; the fastest counts."""


@dataclass(frozen=True)
class Figure:
    """What one path came to in one machine, on whose modules."""

    mode: str
    modules: str
    path: str
    mib: int
    storm: int
    faults: int = 0
    p50: int = 0
    p99: int = 0
    worst: int = 0
    hold: int = 0
    """The longest; 0: the tracer has seen none, in a run that it has seen."""


Known = dict[tuple[str, str, str, int], Figure]
"""By mode, modules, path and MiB."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))


def run(args: argparse.Namespace) -> int:
    """Measure and show; 1 if a target is missed."""
    counted.build(PROGRAM)
    for mode in args.modes:
        counted.run(
            DIRECTORY,
            f"Machine '{mode}': stock modules, then ours",
            lambda mode=mode: _script(mode),
            f"{mode}.*",
            icount=_counts(mode),
            turns=1 if mode == "alone" else 2,
            stock=True,
        )
    figures = [figure for mode in args.modes for figure in read(mode)]
    _show(figures)
    # Only what was measured as a whole is to be shown to all.
    plot = PLOT if args.modes == list(MODES) else DIRECTORY / PLOT.name
    _plot(figures, plot)
    print(f"saved: {plot.relative_to(ROOT)}")
    counted.save(DIRECTORY / "locking.json", figures=[asdict(figure) for figure in figures])
    return counted.judge(conclude(figures, args.modes))


def untrue(text: str, known: Known) -> Iterator[str]:
    """Return where a table of the documentation is not what was measured.

    Of stock, what it is at the smallest size: at others it may yield, to a timer or a reader.
    """
    rows = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("|")]
    for path, head in TOLD.items():
        told = next((row for row in rows if row[0].startswith(head)), [])
        for column, whose in enumerate(("stock", "ours"), 1):
            if whose == "stock" and path in YIELDS:
                continue
            cell = told[column] if len(told) > column else ""
            numbers = [float(word.replace(",", "")) for word in _NUMBER.findall(cell)]
            holds = [known["alone", whose, path, mib].hold / 1000 for mib in SIZES]
            judged = list(zip(numbers, holds, strict=False))[: 1 if whose == "stock" else None]
            if len(numbers) != len(holds) or any(
                abs(number - hold) > 0.05 + hold * TOLD_DIFFERS / 100 for number, hold in judged
            ):
                measured = " / ".join(f"{hold:,.1f}" for hold in holds)
                yield f"{head}, {whose}: {cell.strip() or 'nothing'}, not {measured}"


def _counts(mode: str) -> bool:
    return MODES[mode] == "instructions"


def conclude(figures: Sequence[Figure], modes: Sequence[str]) -> Iterator[Verdict]:
    """Judge what was measured in this run; LabError if a figure is missing."""
    known = _known(figures)
    wanted = itertools.product(modes, (STOCK, OURS), PATHS, SIZES)
    if missing := [key for key in wanted if key not in known]:
        words = ", ".join(map(str, missing[0]))
        raise LabError(f"the benchmark has {len(missing)} figures too few: {words} MiB")
    yield from judge(known)
    if DOCUMENTED and "alone" in modes:
        wrong = list(untrue(DOCUMENT.read_text(), known))
        text = f"holds in {DOCUMENT.relative_to(ROOT)}, stock's at {min(SIZES)} MiB"
        yield f"{text}: {'; '.join(wrong) or 'as measured'}", not wrong
    if "time" in modes:
        yield from judge_threads(counted.objects((DIRECTORY / "time.threads.txt").read_text()))


def _known(figures: Iterable[Figure]) -> Known:
    return {(f.mode, f.modules, f.path, f.mib): f for f in figures}


def _script(mode: str) -> str:
    """Return what the machine runs, which comes up with stock modules."""
    lines, program = [], shlex.quote(str(PROGRAM))
    for whose in (STOCK, OURS):
        if whose == OURS:
            lines += [counted.load(whose, DIRECTORY)]
        log = DIRECTORY / f"{mode}.{whose}.txt"
        for size, path in itertools.product(SIZES, PATHS):
            lines += [f"echo '  {mode}: {whose}, {size} MiB, {path}'"]
            rounds = min(5, max(SIZES) // size)
            lines += [counted.logged(f"{program} -m {size} -r {rounds} -p {path}", log)]
            lines += ["sleep 1  # the tracer prints and clears its maps"]
    lines = counted.traced(TRACER, DIRECTORY / f"{mode}.trace", lines)
    if mode == "turns":
        begun = f"bpftrace -e {shlex.quote(TICKS)} >/dev/null & ticker=$!; sleep 2"
        lines = [begun, *lines, "kill -INT $ticker; wait $ticker || true"]
    if mode == "time":
        lines += [f"echo '  {mode}: ours, populate'"]
        run = f"{program} -m {POPULATED} -r {POPULATE_ROUNDS} -t"
        log = DIRECTORY / "time.threads.txt"
        lines += [counted.logged(f"{run} {threads}", log) for threads in THREADS]
    return "\n".join([*counted.BEGIN, *lines])


def read(mode: str) -> Iterator[Figure]:
    """Return the figures of a machine, with the holds that the tracer has seen.

    LabError if it has not seen as many runs as there were: nobody knows then which are whose.
    """
    seen = parse_trace((DIRECTORY / f"{mode}.trace").read_text())
    told = [
        (whose, got)
        for whose in (STOCK, OURS)
        for got in counted.objects((DIRECTORY / f"{mode}.{whose}.txt").read_text())
    ]
    if len(seen) != len(told):
        raise LabError(f"machine '{mode}': the tracer has seen {len(seen)} of {len(told)} runs")
    for (whose, got), longest in zip(told, seen, strict=True):
        yield Figure(
            *(mode, whose, got["path"], got["mib"], got["storm_ns"], got["faults"]),
            *(int(got.get(key, 0)) for key in ("p50_ns", "p99_ns", "max_ns")),
            longest.get(f"{got['path']}:{got['mib']}", 0),
        )


def parse_trace(text: str) -> list[dict[str, int]]:
    """Return the longest hold, by phase, of each run."""
    runs: list[dict[str, int]] = []
    for got in counted.objects(text):
        if got["type"] == "printf" and got["data"] == "run\n":
            runs.append({})
        elif got["type"] == "map" and runs:
            runs[-1] = got["data"].get("@longest", runs[-1])
    return runs


def _show(figures: Sequence[Figure]) -> None:
    known = _known(figures)
    heads = ("MiB", "longest hold", "p50", "p99", "worst fault", "faults", "storm")
    for mode, unit in MODES.items():
        found = (
            _row(*(known[mode, whose, path, mib] for whose in (STOCK, OURS)))
            for path, mib in itertools.product(PATHS, SIZES)
            if (mode, STOCK, path, mib) in known
        )
        title = f"{mode}, in 1000 {unit}: stock | ours"
        if any(figure.mode == mode for figure in figures):
            show.rows(title, ["path"], heads, found)


def _row(stock: Figure, ours: Figure) -> list[str]:
    def both(name: str) -> str:
        values = (getattr(figure, name) / 1000 for figure in (stock, ours))
        return " | ".join(f"{each:,.0f}" if each >= 100 else f"{each:.1f}" for each in values)

    faults = f"{stock.faults} | {ours.faults}"
    figures = map(both, ("hold", "p50", "p99", "worst"))
    return [PATHS[ours.path], str(ours.mib), *figures, faults, both("storm")]


def judge(known: Known) -> Iterator[Verdict]:
    """Return a verdict on each target that can be judged by what is known."""
    small, large = min(SIZES), max(SIZES)
    for path, label in PATHS.items():
        first = known.get(("alone", OURS, path, small))
        last = known.get(("alone", OURS, path, large))
        stock = known.get(("alone", STOCK, path, large))
        if first and last and stock:
            yield _judge_holds(f"{label}: longest hold at {large} MiB", first, last, stock)
        if last and stock:
            over = (last.storm / stock.storm - 1) * 100
            text = f"{label}: the storm takes {over:+.1f} %, ≤ +{STORM_OVER} %"
            yield text, over <= STORM_OVER
        for mode, faster in FASTER.items():
            stock = known.get((mode, STOCK, path, large))
            ours = known.get((mode, OURS, path, large))
            if stock and ours and path in faster:
                yield _judge_faults(f"{label}: worst fault ({mode})", stock, ours, faster[path])


def _judge_holds(text: str, first: Figure, last: Figure, stock: Figure) -> Verdict:
    """Judge whether holds grow; that none was seen says something only if stock's were."""
    if not first.hold and not last.hold:
        return f"{text}: none, on stock {stock.hold}", True if stock.hold else None
    if not first.hold:
        return f"{text} is {last.hold}, none was seen at {first.mib} MiB", False
    over = (last.hold / first.hold - 1) * 100
    text = f"{text} is {over:+.0f} % of that at {first.mib} MiB, ≤ ±{HOLD_GROWS} %"
    # A first one that something interrupted tells nothing of whether they grow.
    return text, abs(over) <= HOLD_GROWS


def _judge_faults(text: str, stock: Figure, ours: Figure, least: float) -> Verdict:
    if not ours.worst or not stock.worst:
        return f"{text}: none was timed", False
    ratio = stock.worst / ours.worst
    return f"{text} is {ratio:.1f} times below stock, ≥ {least:g}", ratio >= least


def judge_threads(runs: Iterable[dict]) -> Iterator[Verdict]:
    """Return a verdict on how much faster two threads are than one."""
    known = list(runs)
    times: dict[int, int] = {}
    for run in known:
        key = run["threads"]
        times[key] = min(run["ns"], times.get(key, run["ns"]))
    one, two = (times.get(threads) for threads in (1, 2))
    if not one or not two:
        yield "populate by the VMM's threads: no figure", False
        return
    text = (
        f"populate {known[0]['mib']} MiB: 1 thread of the VMM {one / 1e6:.1f} ms, "
        f"2 of them {two / 1e6:.1f} ms, {one / two:.2f} times, ≥ {THREADS_FASTER}"
    )
    yield text, one / two >= THREADS_FASTER


def _plot(figures: Sequence[Figure], plot: Path) -> None:
    """Draw the worst fault over the range, and the longest hold."""
    panels = [("turns", "worst", "worst fault"), ("alone", "hold", "longest exclusive hold")]
    panels = [panel for panel in panels if any(f.mode == panel[0] for f in figures)]
    if not panels:
        return
    with show.figure(plot, len(panels)) as (figure, (axes,)):
        for axis, (mode, name, title) in zip(axes, panels, strict=True):
            for number, path in enumerate(GROWS):
                for whose, style in ((STOCK, "--"), (OURS, "-")):
                    points = (
                        (f.mib, getattr(f, name))
                        for f in figures
                        if (f.mode, f.modules, f.path) == (mode, whose, path)
                    )
                    marks = {"color": f"C{number}", "linestyle": style}
                    show.draw_points(axis, points, label=f"{PATHS[path]}, {whose}", **marks)
            labels = {"xlabel": "MiB that the host changes", "ylabel": "instructions"}
            show.logarithmic(axis, SIZES, title=title, **labels)
        show.legend_below(figure, axes[0], 4)
