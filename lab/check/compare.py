"""Judge the kernel's own tests: none that passes on stock modules may fail with ours.

A test that does is repeated on both; what fails now and then on a busy or emulated
machine is told from what our modules break by how often each of the two fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lab.check.machines import Report, signature
from lab.check.outcome import Outcome, State
from lab.check.tests import Test
from lab.machine import npt

REPEATS = 2

_LOST = (State.SKIPPED, State.PASSED)

Runner = Callable[[Sequence[Test], int], Report]
"""Runs tests in one configuration; the number tells repetitions apart."""


def compare(
    tests: Sequence[Test], stock: Report, ours: Report
) -> tuple[list[Outcome], list[Test]]:
    """Return the verdicts that are clear, and the tests to be repeated."""
    clear, unclear = [], []
    for test in tests:
        if test.left_out:
            clear.append(Outcome(test.name, State.SKIPPED, reason=test.left_out))
            continue
        theirs, mine = stock.outcomes[test.name].state, ours.outcomes[test.name]
        if test.known_to_fail and theirs is mine.state is State.FAILED:
            reason = f"fails on stock modules too: {test.known_to_fail}"
            clear.append(replace(mine, state=State.SKIPPED, reason=reason))
        elif mine.state is State.FAILED or (mine.state, theirs) == _LOST:
            unclear.append(test)
        else:
            clear.append(mine)
    return clear, unclear


def settle(on_ours: Sequence[Outcome], on_stock: Sequence[Outcome]) -> Outcome:
    """Return the verdict on a test that was run several times on both."""
    first, times = on_ours[0], len(on_ours)
    may_skip = any(outcome.state is State.SKIPPED for outcome in on_stock)
    ours, stock = (_count(outcomes, may_skip) for outcomes in (on_ours, on_stock))
    counts = f"failed {ours} of {times} (stock {stock} of {len(on_stock)}): {first.reason}"
    if ours == times and stock * 2 > times:
        reason = f"fails on stock modules too: {counts}"
        return replace(first, state=State.SKIPPED, reason=reason)
    if any(npt.STILL in outcome.reason for outcome in on_ours):
        return replace(first, state=State.FAILED, reason=counts)
    if ours == times or (stock == 0 and ours * 2 > times):
        return replace(first, state=State.FAILED, reason=counts)
    return replace(first, state=State.PASSED, reason=f"flaky: {counts}")


def _count(outcomes: Sequence[Outcome], may_skip: bool) -> int:
    fine = {State.PASSED, State.SKIPPED} if may_skip else {State.PASSED}
    return sum(outcome.state not in fine for outcome in outcomes)


def repeat(
    tests: Sequence[Test], stock: Report, ours: Report, on_stock: Runner, on_ours: Runner
) -> list[Outcome]:
    """Repeat the tests on both alike, and return the verdicts; `stock`, `ours`: so far."""
    stocks, all_ours = [stock], [ours]
    for number in range(1, REPEATS + 1):
        all_ours.append(on_ours(tests, number))
        stocks.append(on_stock(tests, number))

    def of(reports: Sequence[Report], name: str) -> list[Outcome]:
        return [report.outcomes[name] for report in reports]

    return [settle(of(all_ours, test.name), of(stocks, test.name)) for test in tests]


def complaints(stock: Report, ours: Report) -> list[Outcome]:
    """Return what the kernel complained about with our modules but not with stock ones."""
    known = {signature(splat.output) for splat in stock.splats}
    return [splat for splat in ours.splats if signature(splat.output) not in known]
