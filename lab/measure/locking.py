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
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab import show
from lab.check import report
from lab.check.outcome import State
from lab.error import LabError
from lab.machine import npt, params, runs
from lab.machine.result import TIMED_OUT
from lab.make import modules, selftests
from lab.paths import BUILD, DOCUMENTED, ROOT, SELFTESTS
from lab.shell import console
from lab.source import debian

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

    holds: int = 0


@dataclass(frozen=True)
class Verdict:
    """On a target; `met` is None where there is nothing to be judged by."""

    text: str
    met: bool | None

    @property
    def state(self) -> State:
        """As what it counts."""
        if self.met is None:
            return State.SKIPPED
        return State.PASSED if self.met else State.FAILED

    def __str__(self) -> str:
        return f"{self.text}: {'unknown' if self.met is None else show.met(self.met)}"


Known = dict[tuple[str, str, str, int], Figure]
"""By mode, modules, path and MiB."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="in MiB")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--rounds", type=int, default=1, help="at the largest size")
    parser.add_argument("--no-build", action="store_true", help="take what is built")
    text = "show the last figures of other machines, too; they are not judged again"
    parser.add_argument("--keep", action="store_true", help=text)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds per machine")


def run(args: argparse.Namespace) -> int:
    """Measure and show; 1 if a target is missed."""
    if min(*args.sizes, args.rounds) < 1:
        raise LabError("--sizes, --rounds: 1 or more")
    if not args.no_build:
        modules.build()
        selftests.build()
    if not PROGRAM.exists():
        raise LabError(f"{PROGRAM.relative_to(ROOT)} is not there: is it in the series?")
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    _measure_all(args)
    figures = [
        figure for mode in MODES if args.keep or mode in args.modes for figure in read(mode)
    ]
    _show(figures)
    verdicts = list(conclude(figures, args))
    out = show.stdout()
    for verdict in verdicts:
        out.print(str(verdict))
    # Only what was measured as a whole is to be shown to all.
    plot = PLOT if _is_whole(args) and args.modes == list(MODES) else DIRECTORY / PLOT.name
    _plot(figures, plot)
    saved = DIRECTORY / "locking.json"
    content = {"kernel": debian.kernel().release}
    content["figures"] = [asdict(figure) for figure in figures]
    saved.write_text(json.dumps(content, indent=1) + "\n")
    print(f"saved: {saved.relative_to(ROOT)}, {plot.relative_to(ROOT)}")
    return report.end(Counter(verdict.state for verdict in verdicts))


def _is_whole(args: argparse.Namespace) -> bool:
    return tuple(args.sizes) == SIZES and args.paths == list(PATHS)


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


def _measure_all(args: argparse.Namespace) -> None:
    # Instructions hardly depend on what else the host does; time does.
    counted = [mode for mode in MODES if mode in args.modes and _counts(mode)]
    with ThreadPoolExecutor(max(1, min(len(counted), len(os.sched_getaffinity(0))))) as pool:
        jobs = [pool.submit(_measure, args, mode) for mode in counted]
    for error in filter(None, (job.exception() for job in jobs)):
        # The other one was interrupted then.
        if isinstance(error, LabError):
            raise error
    for job in jobs:
        job.result()
    for mode in MODES:
        if mode in args.modes and not _counts(mode):
            _measure(args, mode)


def _measure(args: argparse.Namespace, mode: str) -> None:
    """Run a machine, which leaves in DIRECTORY what it has measured."""
    for old in DIRECTORY.glob(f"{mode}.*"):
        old.unlink()
    console.print(f"Machine '{mode}': stock modules, then ours")
    try:
        status = npt.command(
            _script(mode, args),
            icount=_counts(mode),
            turns=1 if mode == "alone" else 2,
            stock=True,
            timeout=args.timeout,
        ).status
        if status == TIMED_OUT:
            raise LabError(f"machine '{mode}' took longer than --timeout {args.timeout:g}")
        if status:
            raise LabError(f"machine '{mode}' ended with status {status}; see above")
    except LabError:
        # There is nothing to wait for in the other one.
        runs.STOPPING.set()
        raise


def conclude(figures: Sequence[Figure], args: argparse.Namespace) -> Iterator[Verdict]:
    """Judge what was measured in this run; LabError if a figure is missing."""
    known = {(f.mode, f.modules, f.path, f.mib): f for f in figures if f.mode in args.modes}
    wanted = itertools.product(args.modes, ("stock", "ours"), args.paths, args.sizes)
    if missing := [key for key in wanted if key not in known]:
        words = ", ".join(map(str, missing[0]))
        raise LabError(f"the benchmark has {len(missing)} figures too few: {words} MiB")
    yield from judge(known)
    if DOCUMENTED and "alone" in args.modes and _is_whole(args):
        wrong = list(untrue(DOCUMENT.read_text(), known))
        text = f"holds in {DOCUMENT.relative_to(ROOT)}, stock's at {min(SIZES)} MiB"
        yield Verdict(f"{text}: {'; '.join(wrong) or 'as measured'}", not wrong)
    if "time" in args.modes:
        yield from judge_threads(_objects(DIRECTORY / "time.threads.txt"))


def _script(mode: str, args: argparse.Namespace) -> str:
    """Return what the machine runs, which comes up with stock modules."""
    trace = shlex.quote(str(DIRECTORY / f"{mode}.trace"))
    lines = [
        '. "$LAB_GUEST/modules.sh"',
        "set -e",
        f"bpftrace -f json {shlex.quote(str(TRACER))} >{trace} 2>&1 & tracer=$!",
        f"until grep -q ready {trace}; do",
        f"  kill -0 $tracer || {{ cat {trace}; exit 1; }}; sleep 1; done",
        "ticker=",
    ]
    if mode == "turns":
        lines += [f"bpftrace -e {shlex.quote(TICKS)} >/dev/null & ticker=$!; sleep 2"]
    for whose in ("stock", "ours"):
        if whose == "ours":
            listed = DIRECTORY / f"{mode}.ours.modules"
            listed.write_text(params.to_load("kvm_amd"))
            lines += [f"load {shlex.quote(str(listed))}"]
        for size in sorted(args.sizes):
            rounds = min(5, args.rounds * max(args.sizes) // size)
            for path in args.paths:
                log = shlex.quote(str(DIRECTORY / f"{mode}.{whose}.txt"))
                command = f"{shlex.quote(str(PROGRAM))} -m {size} -r {rounds} -p {path}"
                lines += [f"echo '  {mode}: {whose}, {size} MiB, {path}'"]
                lines += [f"{command} >>{log} 2>&1 || {{ tail -n 30 {log}; exit 1; }}"]
                lines += ["sleep 1  # the tracer prints and clears its maps"]
    if mode == "time":
        log = shlex.quote(str(DIRECTORY / "time.threads.txt"))
        run = f"{shlex.quote(str(PROGRAM))} -m {POPULATED} -r {POPULATE_ROUNDS}"
        lines += [f"kill -INT $tracer; wait $tracer || true; echo '  {mode}: ours, populate'"]
        counts = " ".join(map(str, THREADS))
        lines += [
            f"for n in {counts}; do {run} -t $n; done >{log} 2>&1 || {{ cat {log}; exit 1; }}"
        ]
    return "\n".join([*lines, "kill -INT $tracer $ticker 2>/dev/null || true; wait || true"])


def read(mode: str) -> Iterator[Figure]:
    """Return the figures of a machine, with the holds that the tracer has seen.

    LabError if it has not seen as many runs as there were: nobody knows then which are whose.
    """
    trace = DIRECTORY / f"{mode}.trace"
    seen = list(parse_trace(trace.read_text()) if trace.exists() else ())
    told = [
        (whose, got)
        for whose in ("stock", "ours")
        for got in _objects(DIRECTORY / f"{mode}.{whose}.txt")
    ]
    if len(seen) != len(told):
        raise LabError(f"machine '{mode}': the tracer has seen {len(seen)} of {len(told)} runs")
    for (whose, got), (longest, holds) in zip(told, seen, strict=True):
        name = f"{got['path']}:{got['mib']}"
        yield Figure(
            *(mode, whose, got["path"], got["mib"], got["storm_ns"], got["faults"]),
            *(int(got.get(key, 0)) for key in ("p50_ns", "p99_ns", "max_ns")),
            *(longest.get(name, 0), holds.get(name, 0)),
        )


def _objects(log: Path) -> Iterator[dict]:
    for line in log.read_text().splitlines() if log.exists() else ():
        if line.startswith("{"):
            yield json.loads(line)


def parse_trace(text: str) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Return the longest hold and the number of holds, by phase, of each run."""
    maps: dict[str, dict[str, int]] = {}
    begun = False
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        got = json.loads(line)
        if got["type"] == "printf" and got["data"] == "run\n":
            if begun:
                yield maps.get("@longest", {}), maps.get("@holds", {})
            begun, maps = True, {}
        elif got["type"] == "map":
            maps |= got["data"]
    if begun:
        yield maps.get("@longest", {}), maps.get("@holds", {})


def _show(figures: Sequence[Figure]) -> None:
    out = show.stdout()
    known: Known = {(f.mode, f.modules, f.path, f.mib): f for f in figures}
    for mode, unit in MODES.items():
        if not any(f.mode == mode for f in figures):
            continue
        heads = ("MiB", "longest hold", "p50", "p99", "worst fault", "faults", "storm")
        table = show.table(f"{mode}, in 1000 {unit}: stock | ours", ["path"], heads)
        for path in PATHS:
            for mib in sorted({f.mib for f in figures}):
                pair = [known.get((mode, whose, path, mib)) for whose in ("stock", "ours")]
                if all(pair):
                    table.add_row(*_row(path, mib, *pair))
        out.print(table)


def _row(path: str, mib: int, stock: Figure, ours: Figure) -> list[str]:
    def both(name: str) -> str:
        return " | ".join(_thousand(getattr(figure, name)) for figure in (stock, ours))

    faults = f"{stock.faults} | {ours.faults}"
    return [
        PATHS[path],
        str(mib),
        *map(both, ("hold", "p50", "p99", "worst")),
        faults,
        both("storm"),
    ]


def _thousand(value: int) -> str:
    return f"{value / 1000:,.0f}" if value >= 100_000 else f"{value / 1000:.1f}"


def judge(known: Known) -> Iterator[Verdict]:
    """Return a verdict on each target that can be judged by what is known."""
    sizes = sorted({key[3] for key in known})
    small, large = sizes[0], sizes[-1]

    for path, label in PATHS.items():
        first = known.get(("alone", "ours", path, small))
        last = known.get(("alone", "ours", path, large))
        stock = known.get(("alone", "stock", path, large))
        if first and last and stock and small != large:
            yield _judge_holds(f"{label}: longest hold at {large} MiB", first, last, stock)
        if last and stock:
            over = (last.storm / stock.storm - 1) * 100
            text = f"{label}: the storm takes {over:+.1f} %, ≤ +{STORM_OVER} %"
            yield Verdict(text, over <= STORM_OVER)
        for mode, faster in FASTER.items():
            stock = known.get((mode, "stock", path, large))
            ours = known.get((mode, "ours", path, large))
            if stock and ours and path in faster:
                yield _judge_faults(f"{label}: worst fault ({mode})", stock, ours, faster[path])


def _judge_holds(text: str, first: Figure, last: Figure, stock: Figure) -> Verdict:
    """Judge whether holds grow; that none was seen says something only if stock's were."""
    if not first.hold and not last.hold:
        return Verdict(f"{text}: none, on stock {stock.hold}", True if stock.hold else None)
    if not first.hold:
        return Verdict(f"{text} is {last.hold}, none was seen at {first.mib} MiB", False)
    over = (last.hold / first.hold - 1) * 100
    text = f"{text} is {over:+.0f} % of that at {first.mib} MiB, ≤ ±{HOLD_GROWS} %"
    # A first one that something interrupted tells nothing of whether they grow.
    return Verdict(text, abs(over) <= HOLD_GROWS)


def _judge_faults(text: str, stock: Figure, ours: Figure, least: float) -> Verdict:
    if not ours.worst or not stock.worst:
        return Verdict(f"{text}: none was timed", False)
    ratio = stock.worst / ours.worst
    return Verdict(f"{text} is {ratio:.1f} times below stock, ≥ {least:g}", ratio >= least)


def judge_threads(runs: Iterable[dict]) -> Iterator[Verdict]:
    """Return a verdict on how much faster two threads are than one."""
    known = list(runs)
    times: dict[int, int] = {}
    for run in known:
        key = run["threads"]
        times[key] = min(run["ns"], times.get(key, run["ns"]))
    one, two = (times.get(threads) for threads in (1, 2))
    if not one or not two:
        yield Verdict("populate by the VMM's threads: no figure", False)
        return
    text = (
        f"populate {known[0]['mib']} MiB: 1 thread of the VMM {one / 1e6:.1f} ms, "
        f"2 of them {two / 1e6:.1f} ms, {one / two:.2f} times, ≥ {THREADS_FASTER}"
    )
    yield Verdict(text, one / two >= THREADS_FASTER)


def _plot(figures: Sequence[Figure], plot: Path) -> None:
    """Draw the worst fault over the range, and the longest hold."""
    panels = [("turns", "worst", "worst fault"), ("alone", "hold", "longest exclusive hold")]
    panels = [panel for panel in panels if any(f.mode == panel[0] for f in figures)]
    if not panels:
        return
    with show.figure(plot, len(panels)) as (figure, (axes,)):
        for axis, (mode, name, title) in zip(axes, panels, strict=True):
            chosen = [f for f in figures if f.mode == mode]
            for number, path in enumerate(GROWS):
                for whose, style in (("stock", "--"), ("ours", "-")):
                    label = f"{PATHS[path]}, {whose}"
                    of = [f for f in chosen if (f.modules, f.path) == (whose, path)]
                    _line(axis, of, name, color=f"C{number}", linestyle=style, label=label)
            axis.set(title=title, xlabel="MiB that the host changes", ylabel="instructions")
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(sorted({f.mib for f in chosen}))
            axis.xaxis.set_major_formatter("{x:g}")
        # Below the panels: within, it would lie on the lines.
        lines, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            lines,
            labels,
            loc="outside lower center",
            ncols=4,
            fontsize=7,
            handlelength=4,
            frameon=False,
        )


def _line(axis: "Axes", figures: Sequence[Figure], name: str, **style: str) -> None:
    if points := sorted((f.mib, getattr(f, name)) for f in figures):
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, **style)
