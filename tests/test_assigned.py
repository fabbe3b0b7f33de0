"""What is made of guests with an assigned drive: what they say, what must have come of them."""

import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from lab.check.assigned import judge, words
from lab.check.assigned.config import OFF, ON, STOCK, Case, Phase, Report, Round
from lab.check.outcome import Outcome, State

PAGES = 1 << 17
ROUND = "drive: round {} by {} toggles {} bytes 67108864 mismatches {}\r\n"


def test_words_rounds() -> None:
    text = "drive: up\r\n" + ROUND.format(0, "drive", 0, 0) + ROUND.format(1, "cpu", 7, 2)
    assert words.rounds(text) == [Round(0, True, 0, 64, 0), Round(1, False, 7, 64, 2)]


def test_words_half_a_line_is_no_round() -> None:
    assert words.rounds(ROUND.format(0, "drive", 0, 12)[:-3]) == []
    assert words.rounds("drive: round 0 by drive toggles 0 bytes 671\n") == []


def test_words_what_the_guest_could_not_do() -> None:
    assert (
        words.failure("drive: FAILED there is none: No such\r\n")
        == "FAILED there is none: No such"
    )
    assert words.failure("drive: gone, by Input/output error\n") == ""


def test_words_gone() -> None:
    assert words.gone("x\ndrive: gone, by Input/output error\n")
    assert not words.gone(ROUND.format(0, "drive", 0, 0))


def test_words_progress() -> None:
    assert words.progress("[ 1.0] Linux\n") == "booting"
    assert words.progress("drive: up\n") == "looking for the drive"
    assert words.progress(ROUND.format(0, "drive", 0, 0)) == "1 rounds"


def a_case(side: str, faults: int = 9) -> Case:
    """Return one in which all is as it must be."""
    kept = PAGES if side == ON else 10
    return Case(
        "memfd",
        side,
        pages=PAGES,
        mapped_ahead=PAGES if side == ON else 0,
        attached=Phase(PAGES * 4, {"page out": 0, "merge": 0}, 384, 0),
        unplugged=Phase(0, {"page out": 90000, "merge": 0}, 384, judge.BALLOON),
        rounds=[
            Round(0, True, 0, 64, 0, faults=99999, least_mapped=0),
            Round(1, True, 500, 64, 0, faults=777, least_mapped=20),
            Round(2, True, 0, 64, 0, faults=faults, least_mapped=PAGES),
            Round(3, False, 500, 64, 0, faults=1, least_mapped=kept),
            Round(4, False, 0, 64, 0, faults=1, least_mapped=kept),
        ],
        at_end={
            "pf_taken": 1,
            "tdp_populated_4k": 5 * (side == ON),
            "tdp_repopulated": 1 * (side == ON),
        },
    )


def failed(outcomes: list[Outcome]) -> list[str]:
    return [each.name for each in outcomes if each.state is not State.PASSED]


NAMES = (f"{ON}:memfd", f"{OFF}:memfd")


def _of(on: Case) -> list[str]:
    """Return what failed, the side that is off being as it must be."""
    return failed(judge.judge(Report(cases=[on, a_case(OFF, faults=4000)]), NAMES))


def test_judge_all_is_well() -> None:
    assert _of(a_case(ON)) == []
    stock = judge.judge(Report(False, [a_case(STOCK)]), [f"{STOCK}:memfd"])
    assert failed(stock) == []


def test_judge_a_case_that_is_not_there() -> None:
    outcomes = judge.judge(Report(error="no guest was started"), NAMES)
    assert failed(outcomes) == list(NAMES)
    assert outcomes[0].reason == "no guest was started"


def test_judge_a_case_that_did_not_end() -> None:
    report = Report(cases=[replace(a_case(ON), at_end={})], error="gone", console="panic")
    outcomes = judge.judge(report, NAMES[:1])
    assert [(each.reason, each.output) for each in outcomes] == [("gone", "panic")]


def test_judge_an_error_in_the_end() -> None:
    report = Report(cases=[a_case(STOCK)], error="no space")
    assert failed(judge.judge(report, [f"{STOCK}:memfd"])) == ["the end"]


def test_judge_wrong_data() -> None:
    case = a_case(ON)
    case.rounds[2].mismatches = 1
    assert _of(case) == ["on:memfd: data is right, copied by the drive"]
    case = a_case(ON)
    case.rounds[4].mismatches = 1
    assert _of(case) == ["on:memfd: data is right, without it"]


def test_judge_no_round_with_a_memslot_that_comes_and_goes() -> None:
    case = a_case(ON)
    case.rounds = [each for each in case.rounds if not (each.drive and each.toggles)]
    assert _of(case) == [
        "on:memfd: data is right, copied by the drive",
        "on:memfd: removal of a memslot zaps all",
    ]


def test_judge_a_pinned_page_that_moved() -> None:
    case = a_case(ON)
    case.attached.moved["merge"] = 1
    what = "on:memfd: pinned pages stay, whatever the host does"
    assert _of(case) == [what]
    case.attached.moved.clear()
    assert _of(case) == [what]


def test_judge_a_host_that_did_nothing() -> None:
    case = a_case(ON)
    case.unplugged.moved = dict.fromkeys(case.unplugged.moved, 0)
    assert _of(case) == ["on:memfd: the same moves pages when the drive is gone"]


def test_judge_memory_that_is_not_pinned_or_remains_so() -> None:
    what = ["on:memfd: its memory is pinned, and no more when the drive is gone"]
    case = a_case(ON)
    case.attached.locked_kib -= 4
    assert _of(case) == what
    case = a_case(ON)
    case.unplugged.locked_kib = 4
    assert _of(case) == what


def test_judge_the_balloon() -> None:
    what = ["on:memfd: the balloon takes no page with the drive, and does without"]
    for phase, field, value in (
        ("attached", "balloon_gone", 1),
        ("unplugged", "balloon_gone", judge.BALLOON // 2),
        ("attached", "balloon_mib", 512),
    ):
        case = a_case(ON)
        setattr(getattr(case, phase), field, value)
        assert _of(case) == what


def test_judge_memslots() -> None:
    case = a_case(ON)
    case.rounds[1].least_mapped = PAGES
    assert _of(case) == ["on:memfd: removal of a memslot zaps all"]
    case = a_case(ON)
    case.rounds[3].least_mapped = PAGES // 8
    assert _of(case) == ["on:memfd: removal zaps that memslot only when the drive is gone"]


def test_judge_population() -> None:
    case = a_case(ON)
    case.mapped_ahead -= 1
    assert _of(case) == ["on:memfd: all is mapped before a vCPU runs"]
    case = a_case(ON)
    case.at_end["tdp_repopulated"] = 0
    assert _of(case) == ["on:memfd: what was zapped is mapped again"]
    assert _of(a_case(ON, faults=4000)) == ["on:memfd: fewer faults than off"]


def test_judge_stock_that_maps_ahead() -> None:
    case = a_case(STOCK)
    case.at_end["tdp_populated_2m"] = 1
    assert failed(judge.judge(Report(cases=[case]), [f"{STOCK}:memfd"])) == [
        "stock:memfd: nothing is mapped ahead"
    ]


def test_saved_there_and_back() -> None:
    report = Report(False, [a_case(ON)], error="why", console="last words")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "report.json"
        report.save(path)
        assert Report.load(path) == report


if __name__ == "__main__":
    unittest.main()
