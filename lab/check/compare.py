"""Judge the kernel's own tests: none that passes on stock modules may fail with ours.

Whatever passes with ours has passed. A test that does not is run on stock modules, too, and
five times on both if it ends there in another way or fails there, for some fail now and then
on a busy or emulated machine. It has failed if, in any of the five, it fails with ours in a
way in which it never fails on stock modules, or if it fails with ours in at least three runs
more: chance alone has that, of two that fail alike, once in ten times at most. What is left is
no better on stock modules, and shows nothing: it is skipped.

A hang that is known of stock modules, by where the threads are, neither counts nor shows
anything, if another run passes and it does not hang in three runs more than with them.

The way is what the program ended with, and the assertion that it names; a signal, a time-out
and a machine that died are ways of their own, as are a skip and its reason, where stock modules
have none.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lab.check.machines import Report, signature
from lab.check.outcome import LATE, NOT_RUN, Outcome, State
from lab.check.tests import Test

RUNS = 5
_MORE = 3

Runner = Callable[[Sequence[Test], int], Report]
"""Runs tests in one configuration; the number tells repetitions apart."""


def judge(
    tests: Sequence[Test], ours: Report, on_stock: Runner, on_ours: Runner
) -> list[Outcome]:
    """Return the verdicts on tests, and what the kernel complained about with ours only.

    `ours` is of a first run; what is unclear after it is run on stock modules, then repeated.
    """
    ran = [test for test in tests if not test.left_out]
    wanted = [test for test in ran if ours.splats or ours.outcomes[test.name].way]
    stock = on_stock(wanted, 0) if wanted else Report()
    verdicts, unclear = compare(tests, stock, ours)
    stocks, all_ours = [stock], [ours]
    for number in range(1, RUNS if unclear else 1):
        all_ours.append(on_ours(unclear, number))
        stocks.append(on_stock(unclear, number))

    def of(reports: Sequence[Report], test: Test) -> list[Outcome]:
        return [report.outcomes[test.name] for report in reports]

    verdicts += [
        settle(of(all_ours, test), of(stocks, test), test.known_to_hang) for test in unclear
    ]
    return [*verdicts, *complaints(stocks, all_ours)]


def compare(
    tests: Sequence[Test], stock: Report, ours: Report
) -> tuple[list[Outcome], list[Test]]:
    """Return the verdicts that are clear, and the tests to be repeated."""
    clear, unclear = [], []
    for test in tests:
        if test.left_out:
            clear.append(Outcome(test.name, State.SKIPPED, reason=test.left_out))
            continue
        mine = ours.outcomes[test.name]
        if not mine.way:
            clear.append(mine)
            continue
        alike = mine.way == stock.outcomes[test.name].way
        if mine.state is State.FAILED and alike and test.known_to_fail:
            reason = f"fails on stock modules too: {test.known_to_fail}"
            clear.append(replace(mine, state=State.SKIPPED, reason=reason))
        elif mine.state is not State.FAILED and alike:
            clear.append(mine)
        else:
            unclear.append(test)
    return clear, unclear


def settle(on_ours: Sequence[Outcome], on_stock: Sequence[Outcome], hang: str = "") -> Outcome:
    """Return the verdict on a test that was run several times on both; `hang` is known."""
    runs, stock_runs = len(on_ours), len(on_stock)
    hung, on_ours = _split(on_ours, hang)
    stock_hung, on_stock = _split(on_stock, hang)
    known = {outcome.way for outcome in on_stock}
    wrong = [outcome for outcome in on_ours if outcome.way]
    if hung and (len(wrong) in (0, len(on_ours)) or len(hung) - len(stock_hung) >= _MORE):
        counts = f"{len(hung)} of {runs} (stock {len(stock_hung)} of {stock_runs})"
        reason = f"hung {counts}, where it is known to hang on stock modules"
        enough = on_ours and not wrong and len(hung) - len(stock_hung) < _MORE
        return replace(on_ours[0] if enough else hung[0], reason=reason)
    # What was not run shows nothing, whatever stock does.
    of_ours_only = [
        outcome
        for outcome in wrong
        if outcome.way not in known or outcome.reason.startswith(NOT_RUN)
    ]
    shown = (of_ours_only or wrong)[0]
    stock = sum(bool(outcome.way) for outcome in on_stock)
    counts = f"failed {len(wrong)} of {len(on_ours)} (stock {stock} of {len(on_stock)})"
    if of_ours_only:
        reason = f"{counts}, {len(of_ours_only)} of them as stock never does: {shown.reason}"
        return replace(shown, state=State.FAILED, reason=reason)
    if len(wrong) - stock >= _MORE:
        reason = f"{counts}: {shown.reason}"
        return replace(shown, state=State.FAILED, reason=reason)
    reason = f"fails on stock modules too: {counts}: {shown.reason}"
    return replace(shown, state=State.SKIPPED, reason=reason)


def _split(runs: Sequence[Outcome], hang: str) -> tuple[list[Outcome], list[Outcome]]:
    """Return those that hung where they are known to, and the others."""
    hung = [
        outcome
        for outcome in runs
        if hang
        and outcome.reason.startswith(LATE)
        and hang in outcome.output
        and " in state D" not in outcome.output
    ]
    return hung, [outcome for outcome in runs if outcome not in hung]


def complaints(stock: Sequence[Report], ours: Sequence[Report]) -> list[Outcome]:
    """Return what kernels complained about with our modules but never with stock ones."""
    known = {signature(splat.output) for report in stock for splat in report.splats}
    found = {signature(splat.output): splat for report in ours for splat in report.splats}
    return [splat for head, splat in found.items() if head not in known]
