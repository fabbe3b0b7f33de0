"""Show a demo as a table: off beside on."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from lab.demo import kvm
from lab.demo.config import HANDED_OVER, OFF, ON, Case, Demo
from lab.demo.vm import BUSY, REFUSED, TOLD
from lab.demo.watch import WINDOW
from lab.show import stdout

NONE = "-"
MISSED, WRONG = "MISSED", "WRONG"
_ENOUGH = 5
"""Runs that make a median of downtimes worth a verdict: emulated, they are noisy."""

_BY_FAULTS = ("postcopy", "cpr-transfer")
"""Modes in which a guest resumes before its memory is there, or mapped by its new process."""

MEMORY = {
    "memfd": "shared memfd",
    "anon": "anonymous memory (the default)",
    "file": "a file in shared memory",
}

Value = Callable[[Case], float | None]


@dataclass(frozen=True)
class Pair:
    """All runs with one memory back end, off and on, and what else stands beside them."""

    backend: str
    sides: dict[str, list[Case]]
    """By name, in the order of columns."""

    @property
    def ratio(self) -> float:
        """Faults on, as a share of faults off."""
        off = median(case.faults for case in self.sides[OFF])
        return median(case.faults for case in self.sides[ON]) / off if off else float("inf")


def pairs(demo: Demo) -> list[Pair]:
    """Return the cases by back end and side, in the order they ran."""
    found: dict[str, dict[str, list[Case]]] = {}
    for case in demo.cases:
        found.setdefault(case.backend, {}).setdefault(case.side, []).append(case)
    return [Pair(backend, sides) for backend, sides in found.items()]


def show(demo: Demo) -> bool:
    """Print the table and how far the targets are met; return whether all are."""
    found = pairs(demo)
    console = stdout()
    console.print(_table(demo, found))
    for why in demo.repeated:
        console.print(f"repeated: {why}", soft_wrap=True)
    if demo.repeated:
        console.print(f"{len(demo.repeated)} repeated, for {len(demo.cases)} cases")
    lines = _targets(demo, found)
    for line in lines:
        console.print(line, soft_wrap=True)
    return not any(bad in line for line in lines for bad in (MISSED, WRONG))


def _of(when: str, name: str, scale: float = 1) -> Value:
    """Return one of KVM's counters at_resume or at_end; or one of the migration's own."""

    def value(case: Case) -> float | None:
        found: Any = getattr(case, when)
        for key in name.split("."):
            found = found.get(key, {})
        return None if found == {} else found / scale

    return value


def _hints(name: str) -> Value:
    def value(case: Case) -> float | None:
        return None if case.hints is None else case.hints.get(name, 0)

    return value


ROWS: list[tuple[str, Value]] = [
    (f"stage-2 faults, {WINDOW:g} s from resume", lambda case: case.faults),
    ("mapped before resume, 4K pages", _of("at_resume", "tdp_populated_4k")),
    ("  2M pages", _of("at_resume", "tdp_populated_2m")),
    ("  1G pages", _of("at_resume", "tdp_populated_1g")),
    ("  CPU time for it, ms", _of("at_resume", "tdp_populate_time_ns", 1e6)),
    (f"up to {WINDOW:g} s after, CPU time, ms", _of("at_end", "tdp_populate_time_ns", 1e6)),
    ("  absent when looked at", _of("at_end", "tdp_populate_absent")),
    ("  re-populated", _of("at_end", "tdp_repopulated")),
    ("  mapped around faults", _of("at_end", "tdp_fault_around")),
    ("stage-2 tables, KiB", lambda case: case.sec_pagetables_kib),
    ("downtime, ms", lambda case: case.downtime_ms),
    ("whole migration, ms", _of("migration", "total-time")),
    ("rounds over memory", _of("migration", "ram.dirty-sync-count")),
    ("MiB sent", _of("migration", "ram.transferred", 1 << 20)),
    ("hints of QEMU to KVM", _hints(TOLD)),
    ("  not given, for a lock", _hints(BUSY)),
    ("  that KVM refused", _hints(REFUSED)),
    ("pages checked after resume", lambda case: case.pages),
    ("  of them wrong", lambda case: case.mismatches),
]


def _table(demo: Demo, found: list[Pair]) -> Table:
    runs = len(found[0].sides[OFF])
    title = f"{demo.mode} of a {demo.mem_mib} MiB guest, seen from its destination"
    note = f"{demo.release}; {demo.qemu}; all emulated: compare times only side by side"
    if demo.how:
        title += f"; {demo.how}"
    if runs > 1:
        note += f"; medians of {runs} runs (least-most)"
    table = Table(title=title, caption=note)
    table.add_column("global_tdp")
    sides = [(pair.backend, *side) for pair in found for side in pair.sides.items()]
    for backend, side, _ in sides:
        table.add_column(f"{backend}\n{side}", justify="right")
    for label, value in ROWS:
        cells = [_cell(cases, value) for _, _, cases in sides]
        if any(cell != NONE for cell in cells):
            table.add_row(label, *cells)
    return table


def _cell(cases: list[Case], value: Value) -> str:
    numbers = [number for case in cases if (number := value(case)) is not None]
    if not numbers:
        return NONE
    text = f"{median(numbers):,.0f}"
    if min(numbers) != max(numbers):
        text += f" ({min(numbers):,.0f}-{max(numbers):,.0f})"
    return text


def _targets(demo: Demo, found: list[Pair]) -> list[str]:
    lines = []
    for pair in found:
        name = MEMORY[pair.backend]
        strict = pair.backend != "anon" and demo.mode not in _BY_FAULTS
        limit, wanted = (0.01, "at most 1 % of off's") if strict else (1, "no more than off")
        mapped = all(kvm.mapped_mib(case.at_end) for case in pair.sides[ON])
        verdict = "reached" if mapped and pair.ratio <= limit else MISSED
        lines.append(f"{name}: {pair.ratio:.2%} of the faults; target {wanted}: {verdict}")
        if any(_lacks_hints(demo, case) for case in pair.sides[ON]):
            lines.append(f"{name}: KVM has taken no hint of QEMU's, or refused one: {MISSED}")
        if line := _downtime(pair):
            lines.append(f"{name}: {line}")
    sides = (cases for pair in found for cases in pair.sides.values())
    lost = sum(case.mismatches for cases in sides for case in cases)
    lines.append(f"guest data: {f'{WRONG}, see above' if lost else 'every stamp right'}")
    return lines


def _lacks_hints(demo: Demo, case: Case) -> bool:
    """Whether a QEMU with patches did not do what they are for; in CPR, no page arrives."""
    if case.hints is None:
        return False
    told = case.hints[TOLD] or demo.mode in HANDED_OVER
    return bool(case.hints.get(REFUSED)) or not told


def _downtime(pair: Pair) -> str | None:
    off, on = (
        [case.downtime_ms for case in pair.sides[side] if case.downtime_ms is not None]
        for side in (OFF, ON)
    )
    if not off or not on:
        return None
    told = f"downtime {median(on):.0f} ms on, {median(off):.0f} ms off"
    if min(len(on), len(off)) < _ENOUGH:
        return f"{told}: too few runs to tell, --runs {_ENOUGH} takes medians"
    verdict = "no longer" if median(on) <= median(off) else "longer"
    return f"{told}: {verdict} (medians of {len(on)} and {len(off)} runs)"
