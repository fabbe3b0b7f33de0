"""make test WHAT=qemu: what integration/qemu adds to QEMU's migration-test.

It runs in a machine with our KVM, on the QEMU that make qemu builds.
"""

import argparse
import re
import shlex

from lab.check import report
from lab.check.outcome import Outcome, State, judge, judged
from lab.check.report import Part
from lab.demo.cli import NEWER
from lab.machine import npt
from lab.machine.result import Command
from lab.make import modules, qemu

GROUP = "/migration/global_tdp"
WANTED = ("precopy", "multifd", "postcopy", "mapped-ram")
"""The tests that the patches add."""

_SECONDS = 900
_LINE = re.compile(rf"^(not ok|ok) \d+ \S*{re.escape(GROUP)}/(\S+)(.*)")
_HINT = re.compile(r"^kvm_populate gpa .* ret 0$")
"""What QEMU traces of each hint that KVM has taken; a follower populates without any."""
_SILENT = {True: "is not there", False: "did not end, or was not run"}


def run(_: argparse.Namespace) -> int:
    """Run the tests and show what came of them; 1 if one failed, or was not run."""
    qemu.build()
    modules.build()
    # What the program boots is in no source package.
    NEWER.ensure()
    script = qemu.WORK / "qtest" / qemu.PROGRAM.name
    script.parent.mkdir(exist_ok=True)
    words = [qemu.PROGRAM, *(word for place in NEWER.firmware for word in ("-L", place))]
    words += ["-trace", "kvm_populate"]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    script.chmod(0o755)
    line = f"cd /tmp && QTEST_QEMU_BINARY={shlex.quote(str(script))}"
    line += f" exec {shlex.quote(str(qemu.TESTS))} --full --tap -p /x86_64{GROUP}"
    command = Command(line, "migration-test", _SECONDS)
    done = npt.run([command], timeout=npt.BOOT_SECONDS + _SECONDS)
    part = Part("QEMU's migration-test")
    for result in done.results:
        part.outcomes.append(judge(command.name, result, done.died))
        part.outcomes += judge_parts(result.output, ended=result.status == 0)
        part.seconds += result.seconds
    if not done.results:
        part.outcomes.append(Outcome(command.name, State.FAILED, reason=done.died))
    part.outcomes += [Outcome("the kernel", State.FAILED, output=text) for text in done.splats]
    return report.show([part])


def judge_parts(output: str, *, ended: bool = True) -> list[Outcome]:
    """Return what came of each test that is wanted, by what the program printed.

    An assertion of the program ends it: what has no line by then failed, or was not run.
    """
    found: dict[str, tuple[str, str, int]] = {}
    hints = 0
    for line in output.splitlines():
        if match := _LINE.match(line):
            verdict, name, rest = match.groups()
            found[name] = verdict, rest, hints
            hints = 0
        elif _HINT.match(line):
            hints += 1
    outcomes = []
    for name in WANTED:
        verdict, rest, hints = found.get(name, ("", "", 0))
        passed = verdict == "ok" and "SKIP" not in rest
        reason = "" if passed else f"{verdict}{rest}".strip() or _SILENT[ended]
        if passed and not hints:
            passed, reason = False, "no hint was given"
        outcomes.append(judged(f"{GROUP}/{name}", passed, reason))
    return outcomes
