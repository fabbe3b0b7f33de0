"""make test WHAT=rust: what VMM developers are given, on stock modules and on ours.

The crate's own tests run here. In the lab machine, under -icount, its examples restore a guest
from a snapshot file, and integration/minimal populates one.
"""

import argparse
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab.check import machines, report
from lab.check.outcome import Outcome, State, judged, must_run
from lab.check.report import Part
from lab.check.tests import Test
from lab.make import modules, rust, selftests
from lab.make.rust import Toolchain

FEW = 16
"""Faults that are left, at most, of a guest whose memory is mapped: its own program's, say."""

_TIMEOUT = 120
_TEST = re.compile(r"^test (.+?) \.\.\. (ok|FAILED|ignored)", re.M)
_COUNTS = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", re.M)
_STATES = {"ok": State.PASSED, "FAILED": State.FAILED, "ignored": State.SKIPPED}

_TOUCHES = re.compile(r"^a guest of \d+ MiB touches (\d+) pages of (\d+)$", re.M)
_LINE = re.compile(r"^(.+?) +(\d+) faults, +(\d+) pages mapped before;", re.M)
_RECORDED = re.compile(r"^recorded: \[([\d, ]+)\] pages, (.*?) that were touched", re.M)
_DURING = re.compile(r"^while it is recorded +(\d+) faults$", re.M)
_NOTHING, _ALL, _REPLAYED = "nothing is mapped", "all is populated", "the set is replayed"
_NO_CAP = "KVM_CAP_GLOBAL_TDP is missing"
_PERIODS = 4

MINIMAL = {
    "minimal.rs": (
        r"^populated: 0 bytes mapped, [1-9]\d* left$",
        r"^populated: [1-9]\d* bytes mapped, 0 left$",
    ),
    "minimal.c": (r"^populated: nothing, ", r"^populated: 0$"),
}
"""What they say on stock modules, and on ours."""


def run(_: argparse.Namespace) -> int:
    """Build, test and run all; 1 if something is not as it is to be."""
    rust.install()
    headers = selftests.build_headers()
    parts = [_crate(tools, headers) for tools in rust.toolchains()]
    if len(parts) == 1:
        reason = "this machine has no other Rust than Debian's"
        skipped = Outcome("cargo test", State.SKIPPED, reason=reason)
        parts.append(Part("the crate's tests, a newer Rust", [skipped]))
    rust.build_minimal()
    modules.build()
    return report.show([*parts, *(_machine(stock=stock) for stock in (True, False))])


def _crate(tools: Toolchain, headers: Path) -> Part:
    with report.doing(f"the crate's tests, Rust {tools.version}") as part:
        tools.build()
        part.outcomes += judge_tests(tools.test(headers))
    return part


def judge_tests(done: subprocess.CompletedProcess[str]) -> list[Outcome]:
    """Return what came of each test of cargo's."""
    found = _TEST.findall(done.stdout)
    outcomes = [must_run(Outcome(name, _STATES[verdict])) for name, verdict in found]
    failed = any(verdict == "FAILED" for _, verdict in found)
    counted = sum(int(number) for counts in _COUNTS.findall(done.stdout) for number in counts)
    if counted != len(found) or bool(done.returncode) != failed or not found:
        reason = f"status {done.returncode}, {counted} tests, {len(found)} of them seen"
        outcomes.append(Outcome("cargo test", State.FAILED, reason=reason))
    if failed or done.returncode:
        output = done.stdout + done.stderr
        outcomes.append(Outcome("what cargo says", State.FAILED, output=output))
    return outcomes


def _machine(*, stock: bool) -> Part:
    name = "stock modules" if stock else "ours"
    snapshot = "/tmp/lab-snapshot"
    programs = {
        "restore": rust.DEBIAN.example("restore"),
        "minimal.rs": rust.DEBIAN.example("minimal"),
        "minimal.c": rust.PROGRAM,
    }
    tests = [
        Test(name, (str(program), snapshot), _TIMEOUT) for name, program in programs.items()
    ]
    with report.doing(f"in a VMM, {name}") as part:
        done = machines.on_npt(f"rust {name}", tests, stock=stock, icount=True)
        part.outcomes += [*map(must_run, done.outcomes.values()), *done.splats]
        said = {name: outcome.output for name, outcome in done.outcomes.items()}
        print(said["restore"], end="", flush=True)
        part.outcomes += judge_restore(said["restore"], stock=stock)
        part.outcomes += [judge_minimal(name, said[name], stock=stock) for name in MINIMAL]
    return part


def judge_minimal(name: str, said: str, *, stock: bool) -> Outcome:
    """Return whether all was populated, or the program said that it could not be."""
    text = "says that nothing can be populated" if stock else "has all populated"
    good = re.search(MINIMAL[name][not stock], said, re.M)
    return judged(f"{name} {text}", good, output=said)


def judge_restore(said: str, *, stock: bool) -> list[Outcome]:
    """Return what is to be seen of the example's words.

    That the guest found each page as it was, the example's status says.
    """
    return [
        judged(name, good, "" if good else found)
        for name, good, found in _claims(said, stock=stock)
    ]


def _claims(said: str, *, stock: bool) -> Iterator[tuple[str, bool, str]]:
    """Yield what is to be so, whether it is, and what there is instead."""
    touches = _TOUCHES.search(said)
    touched, pages = map(int, touches.groups()) if touches else (0, 0)
    lines = {what: (int(faults), int(mapped)) for what, faults, mapped in _LINE.findall(said)}

    def mapped_ahead(what: str, wanted: int) -> tuple[bool, str]:
        faults, mapped = lines.get(what, (-1, -1))
        good = 0 <= faults <= FEW and 0 < wanted <= mapped <= wanted + FEW
        return good, f"{faults} faults, {mapped} pages"

    faults, mapped = lines.get(_NOTHING, (-1, -1))
    good = 0 < touched <= faults <= touched + FEW and not mapped
    yield "a fault for each page, if nothing is mapped", good, f"{faults} for {touched}"
    if stock:
        good = _NO_CAP in said and list(lines) == [_NOTHING]
        yield "it says what is missing, and goes without", good, "it does not"
        return
    yield "no faults, if all is populated", *mapped_ahead(_ALL, pages)
    during = _DURING.search(said)
    good = bool(during) and int(during[1]) <= FEW
    yield "no faults, while a set is recorded", good, during[0] if during else "none told"
    recorded = _RECORDED.search(said)
    periods = [int(number) for number in recorded[1].split(",")] if recorded else []
    good = len(periods) == _PERIODS and sum(periods) == touched
    good = good and bool(recorded) and recorded[2] == "just those"
    yield "the working set is what was touched", good, f"{periods} pages"
    yield "no faults, if that is mapped, and no other page", *mapped_ahead(_REPLAYED, touched)
