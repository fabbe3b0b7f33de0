"""Show a demo as a table: off beside on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.table import Table

from lab.demo.config import Case, Demo
from lab.demo.watch import WINDOW
from lab.show import stdout

NONE = "-"
_ENOUGH = 5
"""Runs that make a median of downtimes worth a verdict: emulated, they are noisy."""

MEMORY = {"memfd": "shared memfd", "anon": "anonymous memory (the default)"}

Value = Callable[[Case], float | None]


@dataclass(frozen=True)
class Pair:
    """All runs with one memory back end, off and on."""

    backend: str
    off: list[Case]
    on: list[Case]
    stock_qemu: list[Case] = field(default_factory=list)

    @property
    def real(self) -> bool:
        """False: this KVM has no global_tdp, both sides are stock."""
        return all(case.has_parameter for case in self.on)

    @property
    def sides(self) -> list[tuple[str, list[Case]]]:
        """What there is to compare, named."""
        on = "on" if self.real else "on: n/a"
        named = [("stock QEMU", self.stock_qemu), ("off", self.off), (on, self.on)]
        return [(name, cases) for name, cases in named if cases]

    @property
    def ratio(self) -> float:
        """Faults on, as a share of faults off."""
        off = median(case.faults for case in self.off)
        return median(case.faults for case in self.on) / off if off else float("inf")


def pairs(demo: Demo) -> list[Pair]:
    """Return the cases by back end, in the order they ran."""
    backends = list(dict.fromkeys(case.backend for case in demo.cases))

    def pick(*wanted: object) -> list[Case]:
        return [c for c in demo.cases if (c.backend, c.global_tdp, c.stock_qemu) == wanted]

    return [
        Pair(b, pick(b, False, False), pick(b, True, False), pick(b, False, True))
        for b in backends
    ]


def show(demo: Demo) -> None:
    """Print the table and how far the targets are met."""
    found = pairs(demo)
    console = stdout()
    console.print(_table(demo, found))
    for why in demo.repeated:
        console.print(f"repeated: {why}", soft_wrap=True)
    for line in _targets(demo.mode, found):
        console.print(line, soft_wrap=True)


def _at(name: str, scale: float = 1) -> Value:
    def value(case: Case) -> float | None:
        found = case.at_resume.get(name)
        return None if found is None else found / scale

    return value


def _end(name: str, scale: float = 1) -> Value:
    def value(case: Case) -> float | None:
        found = case.at_end.get(name)
        return None if found is None else found / scale

    return value


def _migration(*keys: str, scale: float = 1) -> Value:
    def value(case: Case) -> float | None:
        found: Any = case.migration
        for key in keys:
            found = found.get(key, {})
        return found / scale if found else None

    return value


ROWS: list[tuple[str, Value]] = [
    (f"stage-2 faults, {WINDOW:g} s from resume", lambda case: case.faults),
    ("mapped before resume, 4K pages", _at("tdp_populated_4k")),
    ("  2M pages", _at("tdp_populated_2m")),
    ("  1G pages", _at("tdp_populated_1g")),
    ("  CPU time for it, ms", _at("tdp_populate_time_ns", 1e6)),
    (f"up to {WINDOW:g} s after, CPU time, ms", _end("tdp_populate_time_ns", 1e6)),
    ("  absent when looked at", _end("tdp_populate_absent")),
    ("  re-populated", _end("tdp_repopulated")),
    ("  mapped around faults", _end("tdp_fault_around")),
    ("stage-2 tables, KiB", lambda case: case.sec_pagetables_kib),
    ("downtime, ms", lambda case: case.downtime_ms),
    ("whole migration, ms", _migration("total-time")),
    ("rounds over memory", _migration("ram", "dirty-sync-count")),
    ("MiB sent", _migration("ram", "transferred", scale=1 << 20)),
    ("pages checked after resume", lambda case: case.pages),
    ("  of them wrong", lambda case: case.mismatches),
]


def _table(demo: Demo, found: list[Pair]) -> Table:
    runs = len(found[0].off)
    title = f"{demo.mode} of a {demo.mem_mib} MiB guest, seen from its destination"
    note = f"{demo.release}; {demo.qemu}; all emulated: compare times only side by side"
    if runs > 1:
        note += f"; medians of {runs} runs (least-most)"
    table = Table(title=title, caption=note)
    table.add_column("global_tdp")
    sides = [(pair.backend, *side) for pair in found for side in pair.sides]
    for backend, side, _ in sides:
        table.add_column(f"{backend}\n{side}", justify="right")
    for label, value in ROWS:
        table.add_row(label, *(_cell(cases, value) for _, _, cases in sides))
    return table


def _cell(cases: list[Case], value: Value) -> str:
    numbers = [number for case in cases if (number := value(case)) is not None]
    if not numbers:
        return NONE
    text = f"{median(numbers):,.0f}"
    if min(numbers) != max(numbers):
        text += f" ({min(numbers):,.0f}-{max(numbers):,.0f})"
    return text


def _targets(mode: str, found: list[Pair]) -> list[str]:
    lines = []
    for pair in found:
        name = MEMORY[pair.backend]
        if not pair.real:
            lines.append(f"{name}: this KVM has no global_tdp, both sides are stock")
            continue
        strict = pair.backend == "memfd" and mode != "postcopy"
        limit, wanted = (0.01, "at most 1 % of off's") if strict else (1, "no more than off")
        verdict = "reached" if pair.ratio <= limit else "MISSED"
        lines.append(f"{name}: {pair.ratio:.2%} of the faults; target {wanted}: {verdict}")
        if line := _downtime(pair):
            lines.append(f"{name}: {line}")
    sides = (cases for pair in found for _, cases in pair.sides)
    lost = sum(case.mismatches for cases in sides for case in cases)
    lines.append(f"guest data: {'WRONG, see above' if lost else 'every stamp right'}")
    return lines


def _downtime(pair: Pair) -> str | None:
    off, on = (
        [case.downtime_ms for case in side if case.downtime_ms is not None]
        for side in (pair.off, pair.on)
    )
    if not off or not on:
        return None
    told = f"downtime {median(on):.0f} ms on, {median(off):.0f} ms off"
    if min(len(on), len(off)) < _ENOUGH:
        return f"{told}: too few runs to tell, --runs {_ENOUGH} takes medians"
    verdict = "no longer" if median(on) <= median(off) else "longer"
    return f"{told}: {verdict} (medians of {len(on)} and {len(off)} runs)"
