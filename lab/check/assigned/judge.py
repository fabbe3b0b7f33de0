"""What must have come of guests with an assigned drive.

What is there on stock, too, must be the same on all sides: data that is right, pages that stay
while they are pinned, a balloon that takes none of them, a memslot whose removal zaps all.
"""

from collections.abc import Iterator, Sequence

from lab.check.assigned.config import Case, Round
from lab.check.guests import OFF, ON, Promise, Report
from lab.check.outcome import Outcome

BALLOON = 128 << 20 >> 12
"""Pages that the guest gives up, and then its host has no more."""

_SHARE = 4
"""Less than so much of memory is next to nothing: a third of it is what the guest uses all the
time, and comes back at once."""

_TOGGLES = 10
"""How often a memslot must come or go in a round, if any does."""


def judge(report: Report, wanted: Sequence[str]) -> list[Outcome]:
    """Return what came of each promise, in each of the `wanted` cases, e.g. `on:memfd`."""
    cases = {f"{case.side}:{case.backend}": case for case in report.cases}

    def promises(case: Case) -> Iterator[Promise]:
        yield from _promises(case)
        if case.side == ON and (off := cases.get(f"{OFF}:{case.backend}")):
            yield _faults(case, off)

    return report.judge({name: cases.get(name) for name in wanted}, promises)


def _promises(case: Case) -> Iterator[Promise]:
    attached, unplugged = case.attached, case.unplugged
    by_drive = [each for each in case.rounds if each.drive]
    by_cpu = [each for each in case.rounds if not each.drive]
    for what, rounds in (("copied by the drive", by_drive), ("without it", by_cpu)):
        yield f"data is right, {what}", *_data(rounds)
    yield (
        "its memory is pinned, and no more when the drive is gone",
        attached.locked_kib >= case.pages * 4 and not unplugged.locked_kib,
        f"{attached.locked_kib} KiB, then {unplugged.locked_kib}",
    )
    yield (
        "pinned pages stay, whatever the host does",
        bool(attached.moved) and not any(attached.moved.values()),
        _moved(attached.moved),
    )
    yield (
        "the same moves pages when the drive is gone",
        any(unplugged.moved.values()),
        _moved(unplugged.moved),
    )
    yield (
        "the balloon takes no page with the drive, and does without",
        attached.balloon_mib == unplugged.balloon_mib > 0
        and not attached.balloon_gone
        and unplugged.balloon_gone >= BALLOON * 9 // 10,
        f"{attached.balloon_gone} pages, then {unplugged.balloon_gone}",
    )
    yield "removal of a memslot zaps all", *_zaps_all(case, by_drive)
    if case.side == ON:
        yield "removal zaps that memslot only when the drive is gone", *_keeps(case, by_cpu)
        yield (
            "all is mapped before a vCPU runs",
            case.mapped_ahead >= case.pages,
            f"{case.mapped_ahead} of {case.pages} pages",
        )
        count = case.at_end.get("tdp_repopulated", 0)
        yield "what was zapped is mapped again", count > 0, f"{count} pages"
    else:
        count = sum(n for name, n in case.at_end.items() if name.startswith("tdp_populated"))
        yield "nothing is mapped ahead", not count, f"{count} pages"


def _data(rounds: Sequence[Round]) -> tuple[bool, str]:
    mib = sum(each.mib for each in rounds)
    wrong = rounds[-1].mismatches if rounds else 0
    found = f"{mib} MiB in {len(rounds)} rounds, {wrong} words are wrong"
    kinds = {each.toggles >= _TOGGLES for each in rounds}
    return mib > 0 and not wrong and len(kinds) == 2, found


def _zaps_all(case: Case, rounds: Sequence[Round]) -> tuple[bool, str]:
    """Whether at some time in a round with many removals next to nothing was mapped."""
    seen = [each.least_mapped for each in rounds if each.toggles >= _TOGGLES]
    found = f"{min(seen, default=-1)} pages are mapped at least, of {case.pages}"
    return bool(seen) and min(seen) < case.pages // _SHARE, found


def _keeps(case: Case, rounds: Sequence[Round]) -> tuple[bool, str]:
    # The host zaps, too, in some rounds, but not in all.
    seen = [each.least_mapped for each in rounds if each.toggles >= _TOGGLES]
    found = f"{max(seen, default=-1)} pages stay mapped, of {case.pages}"
    return bool(seen) and max(seen) >= case.pages // _SHARE, found


def _quiet(case: Case) -> int:
    """Return the stage-2 faults of rounds in which no memslot comes or goes.

    One that was under way may still be counted.
    """
    rounds = (each for each in case.rounds[1:] if each.drive and each.toggles < _TOGGLES)
    return sum(each.faults for each in rounds)


def _faults(on: Case, off: Case) -> Promise:
    ours, others = _quiet(on), _quiet(off)
    return "fewer faults than off", ours < others, f"{ours}, off {others}"


def _moved(moved: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in moved.items())
