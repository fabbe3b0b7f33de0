"""The suite must not call a failure a success: unit tests of its judgement."""

import argparse
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from lab.check import compare, machines, report, suite, tests, unit
from lab.check.machines import Report
from lab.check.outcome import Outcome, State, judge, must_run, tail
from lab.check.report import Part
from lab.check.tests import Test
from lab.error import LabError
from lab.machine import npt
from lab.machine.result import KILLED, Command, Result, Run
from lab.make import selftests
from lab.paths import VERSION

PASSED, FAILED, SKIPPED = State
TEST = Test("some_test", ("some_test",))
ASSERTION = "==== Test Assertion Failure ====\n  "


def outcome(state: State) -> Outcome:
    """Return an outcome of TEST."""
    return Outcome(TEST.name, state)


def ended(status: int | None, output: str = "", seconds: float = 1) -> Result:
    """Return a result of a command."""
    return Result(0, "t", status, seconds, bytearray(output.encode()))


def of_test(status: int | None, output: str = "", died: str = "") -> Outcome:
    """Return what comes of TEST if it ends so."""
    return judge(TEST.name, ended(status, output), died)


def reports(*states: State) -> list[Report]:
    """Return reports of TEST alone."""
    return [Report({TEST.name: outcome(state)}) for state in states]


def source(name: str) -> str:
    """Return the source of a test of the series."""
    return selftests.source_of(f"x86_64/global_tdp_{name}_test").read_text()


GOOD = outcome(PASSED)
BAD, ELSEWHERE = (
    of_test(254, f"{ASSERTION}a_test.c:{line}: a == b\n  pid=7 tid=7\n") for line in (7, 9)
)
PART, OTHER_PART = (of_test(1, f"ok 1 a\nnot ok 2 {name}\n") for name in "bc")
SIGNAL, LATE, LEFT = of_test(128 + 11), of_test(KILLED), of_test(4, "no such CPU\n")
STUCK = of_test(None, died=f"{npt.STILL}; see a")
DEAD = of_test(None, died="the guest died in the run; its console is a")
HALF = of_test(0, "ok 1 a\nok 2 # SKIP b\n")
UNRUN = Outcome(TEST.name, FAILED, reason=f"not run: {npt.LATE} 9 s")
_ALL = (GOOD, BAD, ELSEWHERE, PART, OTHER_PART, SIGNAL, LATE, STUCK, DEAD, LEFT, HALF, UNRUN)
WAYS = dict(zip("GBepqsltdnhu", _ALL, strict=True))
WAYS["o"] = replace(LEFT, reason="no other such CPU")


def test_status_signal_timeout_and_death() -> None:
    for status, died, state, reason in (
        (0, "", PASSED, ""),
        (4, "", SKIPPED, "ok 1 all"),
        (1, "", FAILED, "status 1"),
        (128 + 11, "", FAILED, "signal 11"),
        (KILLED, "", FAILED, "did not end"),
        (None, "the machine died", FAILED, "the machine died"),
    ):
        found = of_test(status, "ok 1 all\n", died)
        assert (found.state, reason in found.reason) == (state, True), found


def test_skips_have_a_reason_and_are_failures_of_what_must_run() -> None:
    text = "1..0 # SKIP - Requirement not met: kvm_cpu_has(X86_FEATURE_VMX)\n"
    assert "FEATURE_VMX" in of_test(4, text).reason
    assert of_test(4).reason
    assert of_test(4, "\nno such CPU\n").reason == "no such CPU"
    must = must_run(LEFT)
    assert (must.state, "no such CPU" in must.reason) == (FAILED, True)
    assert must_run(GOOD) == GOOD
    assert "b" in HALF.reason


def test_what_a_program_says_of_its_parts_counts_more_than_its_status() -> None:
    good = "Seed: 0x1\nTAP version 13\n1..3\nok 1 a\nok 2 # SKIP b\nok 3 c\n# Totals\n"
    found = judge("t", ended(0, good), tap=True)
    assert (found.state, found.parts) == (PASSED, ("b",))
    bad = [good.replace("ok 3", other) for other in ("not ok 3", "3", "ok 2")]
    bad += [good.replace("1..3\n", ""), f"{good}Bail out! x\n"]
    said = [(text, tap, FAILED) for text in bad for tap in (True, False)]
    said += [(text, True, FAILED) for text in ("", "ok 1 a\n")]
    said += [(text, False, PASSED) for text in ("", "1000 a\n", "ok, that is it\n", "ok 7 a\n")]
    for text, tap, state in said:
        assert judge("t", ended(0, text), tap=tap).state is state, (text, tap)


def test_which_say_so_is_known_by_their_sources() -> None:
    """Of both kinds; a new test of the series is to have parts, or to be named here."""
    programs = ("x86_64/sync_regs_test", "kvm_binary_stats_test", "x86_64/smm_test")
    assert [tests._test(each).tap for each in programs] == [True, True, False]
    folder = selftests.source_of("x86_64/global_tdp_api_test").parent
    ours = {f"x86_64/{path.stem}" for path in folder.glob("global_tdp_*_test.c")}
    silent = {each[18:-5] for each in ours if not selftests.prints_tap(each)}
    assert silent == {"budget", "churn", "giant", "level", "numa"}


def test_shows_what_failed_first() -> None:
    """A child's assertion, before the one of its parent that fails for it."""
    place = "child.c:1: a == b"
    said = f"{ASSERTION}{place}\n" + "     1 parent\n" * 20
    shown = tail(f"TAP version 13\n{said}")
    assert place in shown and "TAP" not in shown
    assert place not in tail(said + "more\n" * 100)
    assert tail("ok\n" * 100) == "\n".join(["ok"] * 12)


def test_what_may_skip_on_which_machine() -> None:
    """A whole test, with status 4, or a part of it."""
    faults = "1..0 # SKIP - No /proc/thread-self/fail-nth: wants CONFIG_FAULT_INJECTION\n"
    feature = "1..0 # SKIP - Requirement not met: kvm_check_cap(KVM_CAP_GLOBAL_TDP)\n"
    private, cpus = "ok 1 # SKIP private memory\n", "ok 7 # SKIP CPUs\n"
    for name, where, status, said, state in (
        ("fail_test", ("npt", "npt, checked", "ept"), 4, faults, SKIPPED),
        ("fail_test", ("ept",), 254, faults, FAILED),
        ("fail_test", ("npt",), 4, feature, FAILED),
        ("api_test", ("npt",), 4, feature, FAILED),
        ("reach_test", ("4level",), 4, feature, FAILED),
        ("api_test", ("npt",), 0, "ok 1 a\n", PASSED),
        ("PML is on", ("ept",), 4, feature, FAILED),
        ("api_test", ("npt",), 0, private, PASSED),
        ("api_test", ("npt, checked",), 0, private, FAILED),
        ("api_test, parameter=1", ("ept",), 0, private, PASSED),
        ("uffd_test", ("npt",), 0, private, FAILED),
        ("thread_test", ("ept",), 0, cpus, PASSED),
        ("thread_test", ("npt",), 0, cpus, FAILED),
        ("thread_test", ("ept",), 0, cpus + "ok 8 # SKIP signals\n", FAILED),
    ):
        for machine in where:
            outcome = judge(
                f"global_tdp_{name}".replace("global_tdp_PML", "PML"), ended(status, said)
            )
            assert tests.expect(outcome, machine).state is state, (name, machine)


def build(monkeypatch: pytest.MonkeyPatch, *ours: str) -> None:
    """Have programs of the kernel, and those of the series that are named."""
    own = ["a_test", "dirty_log_perf_test", "dirty_log_test"]
    own += [f"x86_64/{name}" for name in ("xen_vmcall_test", "smm_test", "hyperv_cpuid")]
    programs = [*own, *(f"x86_64/global_tdp_{name}_test" for name in ours)]
    monkeypatch.setattr(selftests, "programs", lambda: programs)


def test_each_that_is_named_is_there() -> None:
    """Else it would be run no more, or not as it is to be; and it says what may skip."""
    data = tests.DATA
    ours = {name for names in (tests._OURS | tests.ON_MACHINES).values() for name in names}
    ours |= {name for parts in data["variants"].values() for name in parts}
    ours.update(*(data[key] for key in ("in_turns", "by_parameter", "delayed", "ept_parts")))
    ours.update(tests._SECONDS, *map(str.split, data["moved"].values()))
    programs = {f"x86_64/global_tdp_{name}_test" for name in ours}
    for name in programs | {*data["mapped"], *tests._PRIVATE}:
        assert selftests.source_of(name).exists(), name
    for name, skips in data["skips"].items():
        for said, lack in skips.items():
            assert said.removeprefix("No /proc/thread-self/") in source(name)
            assert any(lack in lacking for lacking in tests.LACKS.values())
    for name, part in (data["by_parameter"] | data["ept_parts"]).items():
        assert not part or f'"{part}' in source(name), name


def test_parts_of_the_suite_ask_whatever_machine_they_boot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skipped = judge("global_tdp_api_test", ended(4, "1..0 # SKIP - no KVM\n"))
    done, chosen = Report({skipped.name: skipped}), [Test(skipped.name, ())]
    monkeypatch.setattr(tests, "on_machine", lambda *_, **__: chosen)
    monkeypatch.setattr(suite.probes, "build", lambda: None)
    for name in ("on_npt", "on_ept"):
        monkeypatch.setattr(machines, name, lambda *_, **__: done)
    for found in (
        suite._npt(lambda _: chosen, ["a"], suite.OFF),
        suite._ept(lambda _: chosen, ["a"]),
        suite._ept(lambda _: chosen, [], "ept, 2 CPUs"),
        suite._kind("4level", ["a"]),
        suite._inside("tools", lambda **_: chosen, suite.ON),
    ):
        assert [each.state for each in found] == [FAILED]


CHURN = "global_tdp_churn_test"


def names(chosen: Sequence[Test]) -> list[str]:
    """Return their names, short."""
    return [test.name.replace("global_tdp_", "").replace("_test", "") for test in chosen]


def test_what_is_chosen_of_what_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, "api", "churn", "dirty", "follow", "vma")
    # Whatever is not known to be of CPUs is of memory; of the longest, two are left out.
    first, perf, ring, last = names(tests.of_memory())
    assert [first, perf.partition(" ")[0], last] == ["a", "dirty_log_perf", "smm"]
    assert "dirty_log -M dirty-ring" in ring
    assert len(tests.of_memory(every=True)) == 6
    # Churn is plain on another machine.
    (late,) = (name for name in names(tests.on_npt()) if "churn" in name)
    assert "late" in late
    assert "churn" in names(tests.on_machine("4cpus"))
    assert "churn" in names(tests.on_npt([CHURN]))
    # The tests of the machines that run each once; the inner loop runs fewer.
    assert [*map(names, tests.spread(3, "not_inner"))] == [
        ["follow"],
        ["api"],
        ["dirty", "vma"],
    ]
    build(monkeypatch, "api", "churn", "manners")
    assert [name for lane in tests.spread(2, "not_once") for name in names(lane)] == ["api"]


def test_what_is_chosen_on_ept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little, or all; races only by several CPUs, or if they are wanted."""
    build(monkeypatch, "api", "churn", "dirty", "level", "notifier", "vma")
    some = names(tests.all_on_ept(every=False))
    assert some.pop(-2).partition(" -I")[0] == "dirty_log -M dirty-ring"
    late = ["notifier, memory limit, eptad=0, traced"]
    more = ["api, allow_smaller_maxphyaddr=1, traced", "PML is on", "level, EPT of 5 levels"]
    plain = ["api", "dirty, exact", "level", "notifier"]
    assert some == [*plain, "dirty, exact, eptad=0, traced", *late, *more]
    every = names(tests.all_on_ept())
    assert every[:5] == ["api", "dirty", "level", "notifier", "vma"]
    assert {"dirty, eptad=0, traced", "dirty_log -M dirty-log -i 3"} <= {*every}
    assert names(tests.no_ad()) == late
    assert names(tests.on_ept([CHURN])) == ["churn"]
    (churn,) = tests.in_turns([CHURN])
    assert churn.argv[-2] == "-t"


def test_random_tests_have_another_seed_for_each_commit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or the one that is wanted; also where they are run late, or in another machine."""
    build(monkeypatch, "churn")
    git = mock.Mock()
    git.commit.side_effect = ["0123abcdef", "4567abcdef"]
    monkeypatch.setattr(tests, "Git", lambda *_: git)
    monkeypatch.setattr(tests, "seed", cache(tests.seed.__wrapped__))
    for given, wanted in (("", "0x0123abcd"), ("", "0x4567abcd"), ("0x7", "0x7")):
        tests.seed.cache_clear()
        monkeypatch.setenv("SEED", given)
        found = [*tests.on_npt([CHURN]), *tests.on_machine("4cpus")]
        assert f"SEED={wanted}" in capsys.readouterr().out
        of_churn = [test.argv for test in found if "churn" in test.name]
        assert [argv[-2:] for argv in of_churn] == [("-s", wanted)] * 3
        assert all('"$0" "$@"' in argv[2] for argv in of_churn if len(argv) > 4)


def test_random_tests_take_a_seed() -> None:
    """And have no other one, e.g. of the process."""
    for name in tests._OURS["random"]:
        assert re.search(r'getopt\(argc, argv, "[a-z:]*s:', source(name)), name
        for seed in re.findall(r"= new_\w+_random_state\((.*)\);", source(name)):
            assert re.match(r"(guest|kvm)_random_seed\b", seed), name


def test_no_program_is_left_out_or_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a source is not run; newer kernels call its folder x86."""
    built, sources = tmp_path / "selftests", tmp_path / "linux" / selftests.SOURCE
    monkeypatch.setattr(selftests, "SELFTESTS", built)
    known = ["a_test", "x86_64/b_test", "x86_64/smm"]
    made = [*(sources / f"{name}.c" for name in (*known, "arm64/c_test"))]
    for name in (*known, "x86_64/gone_test"):
        made += [built / name, built / f"{name}.d"]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    assert selftests.programs() == known
    (sources / "x86_64").rename(sources / "x86")
    assert selftests.programs() == known
    (sources / "x86").rename(sources / "x86_64")
    (built / "x86_64/b_test").unlink()
    with pytest.raises(LabError, match=r"1 tests .* not built: x86_64/b_test"):
        selftests.programs()


@dataclass
class Bed:
    """Has steps that say what they do, and builders that build nothing."""

    capsys: pytest.CaptureFixture[str]
    done: list[str] = field(default_factory=list)
    asked: list[list[str]] = field(default_factory=list)

    def step(self, title: str, wait: threading.Event | None = None, **more: int) -> suite.Step:
        def do() -> list[Outcome]:
            if wait:
                wait.wait(60)
            self.done.append(title)
            return [outcome(PASSED)]

        return suite.Step(title, do, **more)

    def run(self, *arguments: str, every: bool = False) -> int:
        parser = argparse.ArgumentParser()
        suite.configure(parser)
        parser.set_defaults(every=every)
        return suite.run(parser.parse_args(arguments))

    def run_newer(
        self, ends: Callable[[list[str]], int], *arguments: str, every: bool = False
    ) -> int:
        """Return the status; `ends` is what processes of another series end with."""

        def other(version: str, command: Sequence[str], _: float = 0) -> int:
            assert version == "9.9"
            self.asked.append([*command])
            return ends(self.asked[-1])

        with mock.patch.object(suite, "_other", other):
            return self.run(*arguments, every=every)

    def said(self) -> list[str]:
        """Return what was printed since it was asked last."""
        return [" ".join(line.split()) for line in self.capsys.readouterr().out.splitlines()]


@pytest.fixture
def bed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Bed:
    """Build nothing."""
    monkeypatch.setattr(suite, "BUILD", tmp_path)
    for module in (suite.selftests, suite.modules):
        monkeypatch.setattr(module, "build", mock.Mock())
    monkeypatch.setattr(suite.programs, "build_restore", mock.Mock())
    monkeypatch.setattr(suite.tree, "ensure", mock.Mock())
    folder = selftests.source_of("x").parent
    programs = [path.stem for path in folder.glob("*_test.c")]
    programs += [f"x86_64/{path.stem}" for path in folder.glob("x86*/*_test.c")]
    monkeypatch.setattr(selftests, "programs", lambda: sorted(programs))
    monkeypatch.setattr(suite, "VERSIONS", (VERSION,))
    monkeypatch.setattr(suite.runs, "STOPPING", threading.Event())
    return Bed(capsys)


def run_all(steps: Sequence[suite.Step], wanted: Sequence[str] = ()) -> int:
    """Build and do steps."""
    return report.show(suite._run(steps, build=True, wanted=wanted))


def test_long_ones_go_on_while_those_with_assertions_are_built(bed: Bed) -> None:
    """And early ones while everything is."""
    built, early = threading.Event(), threading.Event()
    steps = [
        bed.step("checked", checked=True),
        bed.step("long", built, minutes=7),
        suite.Step("early", lambda: early.set() or [outcome(PASSED)], early=True),
    ]

    def build(*, checked: bool = False) -> None:
        assert early.wait(60)
        bed.done.append(f"build, {checked}")
        if checked:
            built.set()

    suite.modules.build.side_effect = build
    assert run_all(steps) == 0
    assert bed.done[:2] == ["build, False", "build, True"]
    assert {*bed.done[2:]} == {"checked", "long"}


def test_a_step_that_runs_nothing_is_a_failure(bed: Bed) -> None:
    """But if tests are named, which may be of other steps."""
    steps = [bed.step("one"), suite.Step("other", list)]
    assert run_all(steps) == 1
    assert run_all(steps, ["global_tdp_api_test"]) == 0


def test_the_longest_goes_first_and_lint_after_the_build(bed: Bed) -> None:
    """Also one with assertions before what is shorter."""
    steps = [bed.step("shorter", minutes=5), bed.step("checked", checked=True, minutes=7)]
    with mock.patch.object(suite.os, "sched_getaffinity", return_value={0}):
        assert run_all([*steps, bed.step("longest", minutes=9)]) == 0
    suite.modules.build.side_effect = lambda **_: bed.done.append("build")
    with mock.patch.object(suite, "_steps", return_value={"lint": [bed.step("lint")]}):
        assert bed.run("--only", "lint") == 0
    assert bed.done == ["longest", "checked", "shorter", "build", "lint"]


def test_what_does_not_build_is_a_failure(bed: Bed) -> None:
    stopping, wrong = suite.runs.STOPPING, LabError("no compiler")
    steps = [bed.step("short", checked=True), bed.step("long", stopping, minutes=7)]
    for fails, done in (([wrong], []), ([None, wrong], ["long"])):
        stopping.clear()
        suite.modules.build.side_effect = fails
        assert (run_all(steps), bed.done) == (1, done)


@pytest.fixture
def whole(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Have each test that is run pass, whatever machine runs it."""

    def passing(_: str, chosen: Sequence[Test], *__: object, **___: object) -> Report:
        ran = [test.name for test in chosen]
        bed.done += ran
        return Report({name: Outcome(name, PASSED) for name in ran})

    for module, name in ((suite, "_lint"), (unit, "run")):
        monkeypatch.setattr(module, name, lambda: [outcome(PASSED)])
    monkeypatch.setattr(suite.probes, "build", mock.Mock())
    monkeypatch.setattr(machines, "on_npt", passing)
    monkeypatch.setattr(machines, "on_ept", passing)
    return bed


def test_whatever_make_test_does_is_done_with_what_was_moved(whole: Bed) -> None:
    assert whole.run() == 0
    some, whole.done = {*whole.done}, []
    assert whole.run(every=True) == 0
    # The whole of a test instead of a part.
    parts = {name.split(", ")[1] for name in some - {*whole.done}}
    assert parts == {*tests.DATA["ept_parts"].values()}
    for name in ("dirty_log_test -M dirty-log -i 3", "smm_test", "xen_vmcall_test"):
        assert (name in some, name in whole.done) == (name == "smm_test", True)


def test_one_that_is_in_no_part(whole: Bed) -> None:
    """Of the series, or of the kernel, where all are run."""
    delayed = {name: how for name, how in tests.DATA["delayed"].items() if name != "churn"}
    series = (
        mock.patch.dict(tests.DATA, delayed=delayed, moved={}),
        mock.patch.dict(tests.ON_MACHINES, {"4level": ["giant"], "4cpus": ["dirty"]}),
        mock.patch.dict(tests.DATA["in_turns"], clear=True, nx=""),
    )
    kernel = (mock.patch.object(suite.compare, "judge", return_value=[outcome(PASSED)]),)
    for less, every in ((series, False), (series, True), (kernel, False), (kernel, True)):
        with ExitStack() as stack:
            for each in less:
                stack.enter_context(each)
            status = whole.run(every=every)
        assert status == int(every or less is series), (less, every)
        assert ("in no part" in " ".join(whole.said())) == bool(status)


@pytest.fixture
def newer(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Have another series' tests, by a process of its own, beside those of this one."""
    monkeypatch.setattr(suite, "VERSIONS", (VERSION, "9.9"))
    monkeypatch.setattr(suite.os, "geteuid", lambda: 0)
    monkeypatch.setattr(suite, "_steps", mock.Mock(return_value={"npt": [bed.step("own")]}))
    monkeypatch.setattr(suite, "_whole", lambda *_, **__: [])
    return bed


def telling(status: int, *outcomes: Outcome) -> Callable[[list[str]], int]:
    """Return a process that writes these outcomes."""

    def ends(command: list[str]) -> int:
        if "--outcomes" not in command:
            return 0
        report.save(Path(command[-1]), [Part("npt", [*outcomes], 2)])
        return status

    return ends


def test_what_came_of_another_series_counts(newer: Bed) -> None:
    late = Outcome("d", FAILED, reason="late", output="log")
    found = (Outcome("a", PASSED, 1.5, parts=("b",)), Outcome("c", SKIPPED), late)
    assert newer.run_newer(telling(1, *found)) == 1
    said = newer.said()
    assert said[-1] == "2 passed, 1 failed, 1 skipped"
    assert sum("passed, " in line for line in said) == 1
    # Before that, each kind apart.
    assert {"failed: Linux 9.9: npt: d", "own 1 0 0", "Linux 9.9: npt 1 1 1"} <= {*said}
    assert newer.asked[0] == ["sh", "lab/setup.sh"]
    for every in (False, True):
        newer.run_newer(telling(0, GOOD), every=every)
        assert ("all" in newer.asked[-1], "--only" in newer.asked[-1]) == (every, not every)


def test_what_keeps_another_series(newer: Bed) -> None:
    """It says nothing, or another thing than its status; or what is for it is not built."""
    for ends, words, user, last, asked in (
        (lambda _: 0, "", 0, "1 passed, 1 failed", 3),
        (telling(1), "", 0, "1 passed, 1 failed", 3),
        (telling(1, GOOD), "", 0, "2 passed, 1 failed", 3),
        (telling(0, GOOD, outcome(FAILED)), "", 0, "2 passed, 2 failed", 3),
        (lambda _: 1, "", 0, "1 passed, 1 failed", 1),
        (lambda _: 1, "", 1, "1 passed, 1 failed", 0),
        # It is left out if that is asked for.
        (lambda _: 1, "--only npt", 0, "1 passed, 0 failed", 0),
        (lambda _: 1, "--tests global_tdp_api_test", 0, "1 passed, 0 failed", 0),
        (lambda _: 1, "--without newer", 0, "1 passed, 0 failed", 0),
    ):
        newer.asked.clear()
        with mock.patch.object(suite.os, "geteuid", return_value=user):
            status = newer.run_newer(ends, *words.split())
        assert status == int("0 failed" not in last)
        assert (newer.said()[-1], len(newer.asked)) == (f"{last}, 0 skipped", asked), last


def test_another_series_goes_on_beside_all_that_is_built(newer: Bed) -> None:
    begun, done = threading.Event(), threading.Event()
    suite.selftests.build.side_effect = lambda: begun.wait(60) and done.set()
    newer.run_newer(lambda _: begun.set() or int(not done.wait(60)))
    assert done.is_set()


def test_outcomes_are_written_with_the_status(newer: Bed, tmp_path: Path) -> None:
    for state in (PASSED, FAILED):
        step = suite.Step("own", lambda state=state: [outcome(state)])
        suite._steps.return_value = {"npt": [step]}
        path = tmp_path / "outcomes"
        assert newer.run("--only", "npt", "--outcomes", str(path)) == int(state is FAILED)
        assert report.load(path)[0].outcomes == [outcome(state)]


@pytest.mark.parametrize(
    ("statuses", "stop", "boots"),
    [([0, None, 0], "", 2), ([None] * 3, "", 3), ([0] * 3, "b", 2)],
)
def test_a_machine_that_died_midway(statuses: list[int | None], stop: str, boots: int) -> None:
    """What came of the tests before is known, the others go on; no test need be running."""
    left = iter(statuses)

    def run(commands: Sequence[Command], **_: object) -> Run:
        done = Run(Path(), [])
        for number, command in enumerate(commands):
            done.results.append(Result(number, command.name, next(left)))
            if done.results[-1].status is None or command.name == stop:
                done.died = "it died"
                break
        return done

    with mock.patch.object(npt, "run", side_effect=run) as ran:
        found = machines.on_npt("label", [Test(name, ("true",)) for name in "abc"])
    splats = [each.name for each in found.splats]
    assert (ran.call_count, splats) == (boots, ["machine after b"] * bool(stop))
    for name, status in zip("abc", statuses, strict=True):
        wanted = (FAILED, "it died") if status is None else (PASSED, "")
        assert (found.outcomes[name].state, found.outcomes[name].reason) == wanted


def test_one_run_with_stock_modules() -> None:
    """Tells enough, or not (None): known to fail is what does so in the same way."""
    known = Test(TEST.name, (), known_to_fail="the CPU")
    for test, state, cases in (
        (TEST, PASSED, "GG BG nG hG hh"),
        (TEST, SKIPPED, "nn"),
        (TEST, None, "GB Gn Gh nB no BB"),
        (known, SKIPPED, "BB"),
        (known, None, "GB Be Bs Bl Bt Bn Bp"),
        (Test("t", (), left_out="slow"), SKIPPED, "GG"),
    ):
        for case in cases.split():
            both = (Report({TEST.name: WAYS[way]}) for way in case)
            clear, unclear = compare.compare([test], *both)
            assert [each.state for each in clear] + [None for _ in unclear] == [state], case


def test_ways_are_told_apart() -> None:
    """But not by what is another in each run."""
    assert len({WAYS[way].way for way in "BepqsltdnhG"}) == 11
    assert GOOD.way == ""
    text = BAD.output + "  Unhandled exception '0x{}' at guest RIP '0x4022fa'\n"
    assert len({BAD.way, *(of_test(254, text.format(number)).way for number in (3, 14))}) == 3
    assert judge(TEST.name, ended(KILLED, seconds=130)).way == LATE.way
    died = "the guest died in the run; its console is b"
    assert of_test(None, died=died).way == DEAD.way


def settle(case: str, ways: dict[str, Outcome], hangs: str = "") -> Outcome:
    """Return the verdict on runs of ours and of stock, a letter each, "/" between."""
    ours, stock = ([ways[each] for each in runs] for runs in case.split("/"))
    return compare.settle(ours, stock, hangs)


def test_repeated() -> None:
    """Five times on both: only what stock shows, too, and about as often, is excused."""
    for cases, state in (
        ("BGGGG/GGGGG BBBBB/GGGGG BBBBB/BGGGG BBBBB/BBGGG BGGGG/eeeee sBBBB/BBBBB", FAILED),
        ("BBBBt/BBBBB BBBBl/BBBBB BBBBB/nnnnn nnnnn/GGGGG hhhhh/GGGGG uuuuu/uuuuu", FAILED),
        ("BBBBB/BBBGG BGGGG/BGGGG BGGGG/BBBBB tGGGG/GtGGG", SKIPPED),
    ):
        for case in cases.split():
            verdict = settle(case, WAYS)
            assert (verdict.state, " of 5" in verdict.reason) == (state, True), case


def test_known_to_hang() -> None:
    """Another run must pass, and nothing else may go wrong; hangs make up for nothing."""
    where = "lab: after 120 s: 1 a_test in state S: kvm_vcpu_block kvm_vcpu_halt a b"
    locked = of_test(KILLED, f"{where}\nlab: after 120 s: 1 a_test in state D: c\n")
    stuck, elsewhere = of_test(None, where, f"{npt.STILL}; see a"), of_test(KILLED, "b a")
    ways = WAYS | {"h": of_test(KILLED, where), "l": locked, "e": elsewhere, "t": stuck}
    for cases, state in (
        ("hGGGG/GGGGG hhGGG/GGGGG", PASSED),
        ("hhhGG/GGGGG hhhhh/GGGGG lGGGG/GGGGG tGGGG/GGGGG eGGGG/GGGGG hBGGG/GGGGG", FAILED),
        ("BBBBB/Bhhhh hhhBB/BGGGG hBBBB/BBBBB", FAILED),
    ):
        for case in cases.split():
            verdict = settle(case, ways, "kvm_vcpu_halt a")
            assert (verdict.state, " of " in verdict.reason) == (state, True), case
            assert "GGGGG" not in case or settle(case, ways).state is FAILED, case


def test_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """What failed is told with its reason, but not the many that a machine's death left."""
    for states, status, last in (
        ([PASSED, PASSED, SKIPPED], 0, "2 passed, 0 failed, 1 skipped"),
        ([PASSED, FAILED], 1, "1 passed, 1 failed, 0 skipped"),
        ([SKIPPED], 1, "0 passed, 0 failed, 1 skipped"),
        ([], 1, "0 passed, 0 failed, 0 skipped"),
    ):
        assert report.show([Part("part", [*map(outcome, states)])]) == status
        lines = capsys.readouterr().out.splitlines()
        assert (lines[-1], lines.count(last)) == (last, 1)
    report.show([Part("part", [LATE, *[UNRUN] * 60])])
    end = capsys.readouterr().out.rpartition("failed: part")[2].splitlines()
    assert end == [": some_test", LATE.reason, "", "0 passed, 61 failed, 0 skipped"]


@pytest.mark.parametrize("states", [(PASSED,), (FAILED, *[PASSED] * (compare.RUNS - 1))])
def test_complaints_of_ours_only_count(states: Sequence[State]) -> None:
    """Of repetitions, too; then all is run on stock modules, which may have the same."""
    stocks, ours = reports(*[PASSED] * len(states)), reports(*states)

    def found() -> list[str]:
        runners = ((lambda _, n, all_of=all_of: all_of[n]) for all_of in (stocks, ours))
        return [each.name for each in compare.judge([TEST], ours[0], *runners)]

    assert found() == [TEST.name]
    ours[-1].splats.append(Outcome("kernel log", FAILED, output="[ 1.0] BUG: ours"))
    assert found() == [TEST.name, "kernel log"]
    stocks[len(stocks) // 2].splats.append(replace(ours[-1].splats[0]))
    assert found() == [TEST.name]
    assert compare.judge([TEST], reports(PASSED)[0], *[mock.Mock()] * 2) == [GOOD]


def test_the_first_run_on_stock_serves_all() -> None:
    """Of the same test; repetitions are runs of their own."""
    asked: list[tuple[list[str], int]] = []

    def runner(chosen: Sequence[Test], number: int) -> Report:
        asked.append((names(chosen), number))
        return Report({test.name: outcome(PASSED) for test in chosen})

    remembered = suite._remembered(runner)
    for chosen, number in (("a", 0), ("ab", 0), ("ab", 0), ("a", 1), ("a", 2)):
        found = remembered([Test(name, ()) for name in chosen], number)
        assert {*chosen} <= {*found.outcomes}
    assert asked == [(["a"], 0), (["b"], 0), (["a"], 1), (["a"], 2)]


def test_complaints_that_are_alike() -> None:
    """But for what is another in each run; an oops has the function in a later line."""
    old = "[   {}.5] WARNING: CPU: {} PID: 77 at arch/x86/kvm/x86.c:{} f+0x1/0x2 [kvm]\n"
    oops = "[ {}.0] Oops: int3: 0000 [#1]\nRIP: 0010:{}+0x1/0x2\n"
    for text, same, other in (
        (
            old.format(1, 77, 99),
            old.format(0, 5, 99).replace("12.5", "8.1"),
            old.format(1, 77, 100),
        ),
        (oops.format(1, "f"), oops.format(2, "f"), oops.format(1, "g")),
    ):
        stock, ours = (
            Report(splats=[Outcome("kernel log", FAILED, output=each) for each in texts])
            for texts in ([text], [same, other])
        )
        assert [each.output for each in compare.complaints([stock], [ours])] == [other]


_UNIT_TESTS = """
import sys, unittest
class Case(unittest.TestCase):
    def test_failing(self): print("the reason"); self.fail()
    def test_printing(self): print("the machine stands still", file=sys.stderr)
    @unittest.skip("not of this series")
    def test_skipped(self): pass
    def test_sub_failing(self):
        with self.subTest("a"): self.fail()
        with self.subTest("b"): self.skipTest("not there")
    def test_sub_skipped(self):
        with self.subTest("a"): self.skipTest("not there")
class Failing(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise OSError
    def test_it(self): pass
"""
_FILES = {
    "a": _UNIT_TESTS,
    "unreadable": "import nothing_such",
    "dying": "import os\ndef test_it():\n    os._exit(0)",
    "plain": "def test_it(): pass\nclass TestIt:\n    def test_it(self): pass",
}


def test_whatever_happens_is_told_as_such(
    tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("unit")
    for name, text in _FILES.items():
        (folder / f"test_{name}.py").write_text(text)
    found = {each.name.partition("test_")[2]: each for each in unit.run(folder)}
    assert "".join(capfd.readouterr()) == ""
    wrong = "unreadable dying.test_it a.Case.test_failing a.Case.test_sub_failing"
    states = dict.fromkeys([*wrong.split(), "a.Failing.test_it"], FAILED)
    states |= dict.fromkeys(("a.Case.test_skipped", "a.Case.test_sub_skipped"), SKIPPED)
    states |= dict.fromkeys(("a.Case.test_printing", "plain.test_it"), PASSED)
    states["plain.TestIt.test_it"] = PASSED
    assert {name: each.state for name, each in found.items()} == states
    assert found["a.Case.test_skipped"].reason == "not of this series"
    assert "the reason" in found["a.Case.test_failing"].output
