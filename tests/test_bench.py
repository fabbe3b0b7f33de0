"""The benchmark's figures against their targets."""

import io
import json
from contextlib import redirect_stdout

import pytest

from lab.error import LabError
from lab.measure import bench
from lab.measure.bench import Figure
from lab.paths import VERSION, VERSIONS


def figures(**ours: float) -> list[Figure]:
    """Return figures of all cases; `ours` overrides those of our modules, 4 KiB."""
    made = []
    for case in bench.CASES:
        for backing in bench.BACKINGS:
            whose = "stock" if case.stock else "ours"
            ns = ours.get(case.name, 1.0) if (whose, backing) == ("ours", "4k") else 1.0
            made.append(Figure(whose, case.name, backing, ns, 0))
    return made


# Of targets.


def _met(case: str, ns: float) -> bool | None:
    rows = bench.judge(figures(**{case: ns}))
    return next(c["4k"].met for row, c in rows if row.name == case and not row.stock)


def _cell(stock: float, ours: float) -> bench.Cell:
    case = next(case for case in bench.CASES if case.over_stock is not None)
    before, after = (Figure("", case.name, "4k", ns, 0) for ns in (stock, ours))
    return bench._cell(case, after, before)


def test_judge_at_most() -> None:
    case = next(case for case in bench.CASES if case.name == "populate")
    limit = case.at_most[0]
    assert limit
    assert _met("populate", limit)
    assert not _met("populate", limit + 0.1)


def test_judge_over_stock() -> None:
    """What is less than an interrupt is not looked at."""
    assert _met("touch", 1.04)
    assert not _met("touch", 1.06)
    assert _cell(1000, 1004).met
    assert not _cell(1000, 1007).met


def test_judge_a_missing_figure_is_an_error() -> None:
    for left in ([], figures()[:-1]):
        with pytest.raises(LabError):
            bench.judge(left)


def test_judge_no_target_is_far_from_what_is_told() -> None:
    """Of the documentation: a figure that rose by a quarter is noticed."""
    lines = [line.strip("| ") for line in bench.DOCUMENT.read_text().splitlines()]
    for case in bench.CASES:
        if not any(case.at_most):
            continue
        assert case.told, case.label
        told = next(line.split("|") for line in lines if line.startswith(case.told))
        figures_told = told[1 + bench.columns_before() :]
        assert len(figures_told) >= len(case.at_most), case.label
        for limit, text in zip(case.at_most, figures_told, strict=False):
            if limit is not None:
                assert limit <= 1.25 * float(text), case.label


# Of the rounds of one run.


def _drifts(*values: float) -> int:
    return len(list(bench.drift(Figure("ours", "touch", "4k", ns, 0) for ns in values)))


def test_spread_rounds_that_differ() -> None:
    assert _drifts(1000, 1001.9) == 0
    assert _drifts(1000, 1002.1) == 1
    assert _drifts(0.80, 0.84) == 0
    assert _drifts(0.80, 0.86) == 1


def test_spread_a_round_that_is_missing() -> None:
    assert _drifts(1000) == 1


def test_spread_status_and_last_line() -> None:
    """A miss, a drift, a word that is not true: each is a failure."""
    for case, drifts, wrong, failed in (
        ("touch", (), (), 0),
        ("populate", (), (), 1),
        ("touch", ("a",), (), 1),
        ("touch", (), ("a",), 1),
    ):
        rows = bench.judge(figures(**{case: 1.0 if case == "touch" else 99}))
        with redirect_stdout(io.StringIO()) as out:
            status = bench.conclude(rows, drifts, wrong)
        assert status == failed
        assert f", {failed} failed, 0 skipped\n" in out.getvalue()


# What the documentation says beside what was measured.


def _untrue(**ours: float) -> list[str]:
    told = [case.told for case in bench.CASES if case.told]
    columns = "| 1.0 (+0 %) | 1.0 " * len(VERSIONS)
    text = "\n".join(f"| {label} and more {columns}|" for label in told)
    return list(bench.untrue(text, bench.judge(figures(**ours))))


def test_document_what_is_so() -> None:
    assert _untrue(populate=1.09) == []


def test_document_what_is_not() -> None:
    assert _untrue(populate=21.4) == ["`KVM_POPULATE_MEMORY`: 1.0, not 21.4"]
    assert len(_untrue(populate=1.11)) == 1


def test_document_whole_numbers() -> None:
    """Are true within a half, and what may differ from run to run."""
    case = next(case for case in bench.CASES if case.name == "populate")
    cells = {"4k": bench.Cell(Figure("ours", "populate", "4k", 3451.0, 0))}
    for told, wrong in ((3447, 0), (3444, 0), (3443, 1), (3459, 1)):
        line = f"| {case.told} " + f"| {told} " * 2 * len(VERSIONS) + "|"
        assert len(list(bench.untrue(line, [(case, cells)]))) == wrong, told


def test_document_of_the_kernel_that_was_measured() -> None:
    """Columns of others are left alone."""
    told = [case.told for case in bench.CASES if case.told]
    columns = "".join(f"| {1.0 if each == VERSION else 9.0} " * 2 for each in VERSIONS)
    text = "\n".join(f"| {label} {columns}|" for label in told)
    assert list(bench.untrue(text, bench.judge(figures()))) == []


def test_document_every_figure_of_it_is_found() -> None:
    found = list(bench.untrue(bench.DOCUMENT.read_text(), bench.judge(figures())))
    assert "nothing" not in " ".join(found)


# Of what the program prints.


def test_parse_best_of_rounds() -> None:
    lines = [
        json.dumps({"case": "touch", "backing": "4k", "ns_per_page": ns, "faults": 3})
        for ns in (7.5, 7.25)
    ]
    found = bench.best(bench.parse("ours", "\n".join(["# for humans", *lines])))
    assert list(found) == [Figure("ours", "touch", "4k", 7.25, 3)]
