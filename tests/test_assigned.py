"""What is made of guests with an assigned drive: what they say, what must have come of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.check.assigned import inside, judge
from lab.check.assigned.config import Case, Phase, Round
from lab.check.guests import OFF, ON, STOCK, Report, failure
from lab.check.outcome import Outcome, State

PAGES = 1 << 17
ROUND = "drive: round {} by {} toggles {} bytes 67108864 mismatches {}\r\n"
ONE = ROUND.format(0, "drive", 0, 0)
GONE = "drive: gone, by Input/output error\n"


def test_words() -> None:
    """Half a line is no round."""
    text = "drive: up\r\n" + ONE + ROUND.format(1, "cpu", 7, 2)
    assert inside.rounds(text) == [Round(0, True, 0, 64, 0), Round(1, False, 7, 64, 2)]
    assert inside.rounds(ROUND.format(0, "drive", 0, 12)[:-3]) == []
    assert inside.rounds("drive: round 0 by drive toggles 0 bytes 671\n") == []
    told = "FAILED there is none: No such"
    assert [failure(text, "drive") for text in (f"drive: {told}\r\n", GONE)] == [told, ""]
    assert [inside.gone(text) for text in (f"x\n{GONE}", ONE)] == [True, False]
    said = ("[ 1.0] Linux\n", "drive: up\n", ONE)
    wanted = ["booting", "looking for the drive", "1 rounds"]
    assert [inside.progress(text) for text in said] == wanted


def a_case(side: str, faults: int = 9) -> Case:
    """Return one in which all is as it must be."""
    on = side == ON
    kept = PAGES if on else 10
    return Case(
        "memfd",
        side,
        pages=PAGES,
        mapped_ahead=PAGES * on,
        attached=Phase(PAGES * 4, {"page out": 0, "merge": 0}, 384, 0),
        unplugged=Phase(0, {"page out": 90000, "merge": 0}, 384, judge.BALLOON),
        rounds=[
            Round(0, True, 0, 64, 0, faults=99999, least_mapped=0),
            Round(1, True, 500, 64, 0, faults=777, least_mapped=20),
            Round(2, True, 0, 64, 0, faults=faults, least_mapped=PAGES),
            Round(3, False, 500, 64, 0, faults=1, least_mapped=kept),
            Round(4, False, 0, 64, 0, faults=1, least_mapped=kept),
        ],
        at_end={"pf_taken": 1, "tdp_populated_4k": 5 * on, "tdp_repopulated": 1 * on},
    )


def failed(outcomes: list[Outcome]) -> list[str]:
    """Return what failed."""
    return [each.name for each in outcomes if each.state is not State.PASSED]


NAMES = (f"{ON}:memfd", f"{OFF}:memfd")
OF_STOCK = [f"{STOCK}:memfd"]
COPIED, WITHOUT = "data is right, copied by the drive", "data is right, without it"
ZAPS = "removal of a memslot zaps all"
STAYS = "pinned pages stay, whatever the host does"
PINNED = "its memory is pinned, and no more when the drive is gone"
KEEPS = "removal zaps that memslot only when the drive is gone"
BALLOON = "the balloon takes no page with the drive, and does without"


def change(case: Case, path: str, value: object) -> None:
    """Have another value of what is there by that path, or of each that is there, if "*"."""
    *steps, last = path.split(".")
    found: Any = case
    for step in steps:
        found = found[int(step)] if step.isdecimal() else getattr(found, step)
    if isinstance(found, dict):
        found.update(dict.fromkeys(found if last == "*" else [last], value))
    else:
        setattr(found, last, value)


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        ("pages", PAGES, []),
        ("rounds.2.mismatches", 1, [COPIED]),
        ("rounds.4.mismatches", 1, [WITHOUT]),
        # No round with the drive has a memslot that comes and goes.
        ("rounds.1.toggles", 0, [COPIED, ZAPS]),
        # A pinned page moved, or none was looked at.
        ("attached.moved.merge", 1, [STAYS]),
        ("attached.moved", {}, [STAYS]),
        # The host did nothing.
        ("unplugged.moved.*", 0, ["the same moves pages when the drive is gone"]),
        ("attached.locked_kib", PAGES * 4 - 4, [PINNED]),
        ("unplugged.locked_kib", 4, [PINNED]),
        ("attached.balloon_gone", 1, [BALLOON]),
        ("unplugged.balloon_gone", judge.BALLOON // 2, [BALLOON]),
        ("attached.balloon_mib", 512, [BALLOON]),
        ("rounds.1.least_mapped", PAGES, [ZAPS]),
        ("rounds.3.least_mapped", PAGES // 8, [KEEPS]),
        ("mapped_ahead", PAGES - 1, ["all is mapped before a vCPU runs"]),
        ("at_end.tdp_repopulated", 0, ["what was zapped is mapped again"]),
        ("rounds.2.faults", 4000, ["fewer faults than off"]),
    ],
)
def test_a_case(path: str, value: object, wanted: list[str]) -> None:
    """The side that is off is as it must be."""
    case = a_case(ON)
    change(case, path, value)
    outcomes = judge.judge(Report(cases=[case, a_case(OFF, faults=4000)]), NAMES)
    assert failed(outcomes) == [f"on:memfd: {each}" for each in wanted]


def test_stock() -> None:
    """It may map nothing ahead."""
    case = a_case(STOCK)
    assert failed(judge.judge(Report(cases=[case]), OF_STOCK)) == []
    assert failed(judge.judge(Report(cases=[case], error="no space"), OF_STOCK)) == ["the end"]
    case.at_end["tdp_populated_2m"] = 1
    wanted = ["stock:memfd: nothing is mapped ahead"]
    assert failed(judge.judge(Report(cases=[case]), OF_STOCK)) == wanted


def test_a_case_that_is_not_there_or_did_not_end() -> None:
    outcomes = judge.judge(Report(error="no guest was started"), NAMES)
    assert (failed(outcomes), outcomes[0].reason) == ([*NAMES], "no guest was started")
    report = Report(cases=[replace(a_case(ON), at_end={})], error="gone", console="panic")
    outcomes = judge.judge(report, NAMES[:1])
    assert [(each.reason, each.output) for each in outcomes] == [("gone", "panic")]


def test_a_report_is_saved_as_it_is(tmp_path: Path) -> None:
    report = Report(cases=[a_case(ON)], error="why", console="last words")
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json", Case) == report
