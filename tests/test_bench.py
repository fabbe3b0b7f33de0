"""The benchmark's figures against their targets."""

import json

import pytest

from lab.error import LabError
from lab.measure import bench
from lab.measure.bench import Figure
from lab.paths import VERSION, VERSIONS

POPULATE = next(case for case in bench.CASES if case.name == "populate")
TOLD = [case.told for case in bench.CASES if case.told]


def figures(**ours: float) -> list[Figure]:
    """Return figures of all cases; `ours` overrides those of our modules, 4 KiB."""
    made = []
    for case in bench.CASES:
        ns = 1.0 if case.stock else ours.get(case.name, 1.0)
        for backing in bench.BACKINGS:
            whose = "stock" if case.stock else "ours"
            made.append(Figure(whose, case.name, backing, ns if backing == "4k" else 1.0, 0))
    return made


def test_targets() -> None:
    """Of what is compared with stock, what is less than an interrupt is not looked at."""
    limit, _ = bench.AT_MOST["populate"][VERSION]
    for name, ns, met in (
        ("populate", limit, True),
        ("populate", limit + 0.1, False),
        ("touch", 1.04, True),
        ("touch", 1.06, False),
    ):
        rows = bench.judge(figures(**{name: ns}))
        (cells,) = (cells for row, cells in rows if row.name == name and not row.stock)
        assert cells["4k"].met == met, (name, ns)
    case = next(case for case in bench.CASES if case.over_stock is not None)
    for ns, met in ((1004, True), (1007, False)):
        after, before = (Figure("", case.name, "4k", value, 0) for value in (ns, 1000))
        assert bench._cell(case, after, before).met == met, ns
    # What is lost in the noise may have been measured as nothing.
    end = next(case for case in bench.CASES if case.name == "end" and not case.stock)
    after, before = (Figure("", "end", "thp", value, 0) for value in (2.9, 0))
    assert bench._cell(end, after, before).met is None
    for left in ([], figures()[:-1]):
        with pytest.raises(LabError):
            bench.judge(left)


def test_no_target_is_far_from_what_is_told() -> None:
    """Of the documentation: a figure that rose by a quarter is noticed."""
    lines = [line.strip("| ") for line in bench.DOCUMENT.read_text().splitlines()]
    for case in (case for case in bench.CASES if case.name in bench.AT_MOST):
        assert case.told, case.label
        told = next(line.split("|") for line in lines if line.startswith(case.told))
        figures_told = told[1 + bench.columns_before() :]
        limits = bench.AT_MOST[case.name][VERSION]
        assert len(figures_told) >= len(limits), case.label
        for limit, text in zip(limits, figures_told, strict=False):
            assert limit <= 1.25 * float(text), case.label


def test_rounds_that_differ_or_are_missing() -> None:
    for values, drifts in (
        ((1000, 1001.9), 0),
        ((1000, 1002.1), 1),
        ((0.80, 0.84), 0),
        ((0.80, 0.86), 1),
        ((1000,), 1),
    ):
        rounds = (Figure("ours", "touch", "4k", ns, 0) for ns in values)
        assert len(list(bench.drift(rounds))) == drifts, values


@pytest.mark.parametrize(
    ("populate", "drifts", "wrong"),
    ((1, (), ()), (99, (), ()), (1, ("a",), ()), (1, (), ("a",))),
)
def test_a_miss_a_drift_and_a_word_that_is_not_true_are_failures(
    populate: float, drifts: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    found = bench.conclude(bench.judge(figures(populate=populate)), drifts, wrong)
    failed = [text for text, good in found if not good]
    assert len(failed) == int(bool(populate > 1 or drifts or wrong))
    assert not (drifts or wrong) or failed[0].endswith(": a")


def untrue(columns: str, **ours: float) -> list[str]:
    """Return what is not so of a document with such columns in each line."""
    text = "\n".join(f"| {label} and more {columns}|" for label in TOLD)
    return list(bench.untrue(text, bench.judge(figures(**ours))))


def test_what_the_documentation_says_was_measured() -> None:
    """Columns of other kernels are left alone."""
    columns = "| 1.0 (+0 %) | 1.0 " * len(VERSIONS)
    assert untrue(columns, populate=1.09) == []
    assert untrue(columns, populate=21.4) == ["`KVM_POPULATE_MEMORY`: 1.0, not 21.4"]
    assert len(untrue(columns, populate=1.11)) == 1
    others = (f"| {1.0 if each == VERSION else 9.0} " * 2 for each in VERSIONS)
    assert untrue("".join(others)) == []
    # Whole numbers are true within a half, and what may differ from run to run.
    cells = {"4k": bench.Cell(Figure("ours", "populate", "4k", 3451.0, 0))}
    for told, wrong in ((3447, 0), (3444, 0), (3443, 1), (3459, 1)):
        line = f"| {POPULATE.told} " + f"| {told} " * 2 * len(VERSIONS) + "|"
        assert len(list(bench.untrue(line, [(POPULATE, cells)]))) == wrong, told


def test_every_figure_of_the_documentation_is_found() -> None:
    found = list(bench.untrue(bench.DOCUMENT.read_text(), bench.judge(figures())))
    assert "nothing" not in " ".join(found)


def test_best_of_rounds() -> None:
    got = {"case": "touch", "backing": "4k", "faults": 3}
    lines = ["# for humans", *(json.dumps(got | {"ns_per_page": ns}) for ns in (7.5, 7.25))]
    found = bench.best(bench.parse("ours", "\n".join(lines)))
    assert list(found) == [Figure("ours", "touch", "4k", 7.25, 3)]
