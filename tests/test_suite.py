"""The suite must not call a failure a success: unit tests of its judgement."""

import argparse
import io
import re
import tempfile
import threading
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from unittest import mock

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


def outcome(state: State) -> Outcome:
    """Return an outcome of TEST."""
    return Outcome(TEST.name, state)


def ended(status: int | None, output: str = "", seconds: float = 1) -> Result:
    """Return a result of a command."""
    return Result(0, "t", status, seconds, bytearray(output.encode()))


def reports(*states: State) -> list[Report]:
    """Return reports of TEST alone."""
    return [Report({TEST.name: outcome(state)}) for state in states]


def asserting(place: str) -> Outcome:
    """Return what comes of TEST if an assertion there fails."""
    text = f"==== Test Assertion Failure ====\n  {place}: a == b\n  pid=7 tid=7\n"
    return judge(TEST.name, ended(254, text))


GOOD, BAD, ELSEWHERE = outcome(PASSED), asserting("a_test.c:7"), asserting("a_test.c:9")
PART, OTHER_PART = (judge(TEST.name, ended(1, f"ok 1 a\nnot ok 2 {n}\n")) for n in "bc")
SIGNAL, LATE = (judge(TEST.name, ended(status)) for status in (128 + 11, KILLED))
STUCK = judge(TEST.name, ended(None), f"{npt.STILL}; see a")
DEAD = judge(TEST.name, ended(None), "the guest died in the run; its console is a")
LEFT = judge(TEST.name, ended(4, "no such CPU\n"))
HALF = judge(TEST.name, ended(0, "ok 1 a\nok 2 # SKIP b\n"))
UNRUN = Outcome(TEST.name, State.FAILED, reason=f"not run: {npt.LATE} 9 s")


class Judge(unittest.TestCase):
    """Of the status and the words of a program."""

    def test_status_signal_timeout_and_death(self) -> None:
        for status, died, state, reason in (
            (0, "", PASSED, ""),
            (4, "", SKIPPED, "ok 1 all"),
            (1, "", FAILED, "status 1"),
            (128 + 11, "", FAILED, "signal 11"),
            (KILLED, "", FAILED, "did not end"),
            (None, "the machine died", FAILED, "the machine died"),
        ):
            found = judge("t", ended(status, "ok 1 all\n"), died)
            self.assertIs(found.state, state)
            self.assertIn(reason, found.reason)

    def test_skips(self) -> None:
        """Have a reason, and are failures of what must run."""
        text = "1..0 # SKIP - Requirement not met: kvm_cpu_has(X86_FEATURE_VMX)\n"
        self.assertIn("FEATURE_VMX", judge("t", ended(4, text)).reason)
        self.assertTrue(judge("t", ended(4)).reason)
        skipped, passed = judge("t", ended(4, "\nno such CPU\n")), judge("t", ended(0))
        self.assertEqual(skipped.reason, "no such CPU")
        self.assertIs(must_run(skipped).state, FAILED)
        self.assertIn("no such CPU", must_run(skipped).reason)
        self.assertEqual(must_run(passed), passed)
        self.assertIn("b", judge("t", ended(0, "ok 1 a\nok 2 # SKIP b\n")).reason)

    def test_what_a_program_says_of_its_parts_counts(self) -> None:
        """More than its status does."""
        good = "Seed: 0x1\nTAP version 13\n1..3\nok 1 a\nok 2 # SKIP b\nok 3 c\n# Totals\n"
        found = judge("t", ended(0, good), tap=True)
        self.assertEqual((found.state, found.parts), (PASSED, ("b",)))
        for said in ("", "ok 1 a\n"):
            self.assertIs(judge("t", ended(0, said), tap=True).state, FAILED, said)
        bad = [good.replace("ok 3", other) for other in ("not ok 3", "3", "ok 2")]
        for said in (*bad, good.replace("1..3\n", ""), f"{good}Bail out! x\n"):
            for tap in (True, False):
                self.assertIs(judge("t", ended(0, said), tap=tap).state, FAILED, (said, tap))
        for said in ("", "1000 a\n", "ok, that is it\n", "ok 7 a\n"):
            self.assertIs(judge("t", ended(0, said)).state, PASSED, said)

    def test_which_say_so_is_known_by_their_sources(self) -> None:
        """Of both kinds; a new test of the series is to have parts, or to be named here."""
        programs = ("x86_64/sync_regs_test", "kvm_binary_stats_test", "x86_64/smm_test")
        self.assertEqual([tests._test(each).tap for each in programs], [True, True, False])
        folder = selftests.source_of("x86_64/global_tdp_api_test").parent
        ours = {f"x86_64/{path.stem}" for path in folder.glob("global_tdp_*_test.c")}
        silent = {each[18:-5] for each in ours if not selftests.prints_tap(each)}
        self.assertEqual(silent, {"budget", "churn", "giant", "level", "numa"})

    def test_shows_what_failed_first(self) -> None:
        """A child's assertion, before the one of its parent that fails for it."""
        place = "child.c:1: a == b"
        said = f"==== Test Assertion Failure ====\n  {place}\n" + "     1 parent\n" * 20
        self.assertIn(place, tail(f"TAP version 13\n{said}"))
        self.assertNotIn("TAP", tail(f"TAP version 13\n{said}"))
        self.assertNotIn(place, tail(said + "more\n" * 100))
        self.assertEqual(tail("ok\n" * 100), "\n".join(["ok"] * 12))


class Expected(unittest.TestCase):
    """Of the series' tests, what may skip on which machine."""

    def test_what_may_skip(self) -> None:
        """A whole test, with status 4, or a part of it."""
        faults = "1..0 # SKIP - No /proc/thread-self/fail-nth: wants CONFIG_FAULT_INJECTION\n"
        feature = "1..0 # SKIP - Requirement not met: kvm_check_cap(KVM_CAP_GLOBAL_TDP)\n"
        private, cpus = "ok 1 # SKIP private memory\n", "ok 7 # SKIP CPUs\n"
        for name, machine, status, said, state in (
            ("global_tdp_fail_test", "npt", 4, faults, SKIPPED),
            ("global_tdp_fail_test", "npt, checked", 4, faults, SKIPPED),
            ("global_tdp_fail_test", "ept", 4, faults, SKIPPED),
            ("global_tdp_fail_test", "ept", 254, faults, FAILED),
            ("global_tdp_fail_test", "npt", 4, feature, FAILED),
            ("global_tdp_api_test", "npt", 4, feature, FAILED),
            ("global_tdp_api_test", "npt", 0, "ok 1 a\n", PASSED),
            ("global_tdp_reach_test", "4level", 4, feature, FAILED),
            ("PML is on", "ept", 4, feature, FAILED),
            ("global_tdp_api_test", "npt", 0, private, PASSED),
            ("global_tdp_api_test", "npt, checked", 0, private, FAILED),
            ("global_tdp_api_test, parameter=1", "ept", 0, private, PASSED),
            ("global_tdp_uffd_test", "npt", 0, private, FAILED),
            ("global_tdp_thread_test", "ept", 0, cpus, PASSED),
            ("global_tdp_thread_test", "npt", 0, cpus, FAILED),
            ("global_tdp_thread_test", "ept", 0, cpus + "ok 8 # SKIP signals\n", FAILED),
        ):
            found = tests.expect(judge(name, ended(status, said)), machine)
            self.assertIs(found.state, state, (name, machine))

    def test_each_that_is_named_is_there(self) -> None:
        """Else it would be run no more, or not as it is to be; and it says what may skip."""
        data = tests.DATA
        ours = {name for names in (tests._OURS | tests.ON_MACHINES).values() for name in names}
        ours |= {name for parts in data["variants"].values() for name in parts}
        ours.update(
            *(data[key] for key in ("in_turns", "by_parameter", "delayed", "ept_parts"))
        )
        ours.update(tests._SECONDS, *map(str.split, data["moved"].values()))
        programs = {f"x86_64/global_tdp_{name}_test" for name in ours}
        for name in programs | {*data["mapped"], *tests._PRIVATE}:
            self.assertTrue(selftests.source_of(name).exists(), name)
        for name, skips in data["skips"].items():
            text = selftests.source_of(f"x86_64/global_tdp_{name}_test").read_text()
            for said, lack in skips.items():
                self.assertIn(said.removeprefix("No /proc/thread-self/"), text)
                self.assertTrue(any(lack in lacking for lacking in tests.LACKS.values()))

    def test_parts_of_the_suite_ask(self) -> None:
        """Whatever machine they boot."""
        skipped = judge("global_tdp_api_test", ended(4, "1..0 # SKIP - no KVM\n"))
        done = Report({skipped.name: skipped})
        chosen = [Test(skipped.name, ())]
        with (
            mock.patch.object(tests, "on_machine", return_value=chosen),
            mock.patch.object(suite.probes, "build"),
            mock.patch.object(machines, "on_npt", return_value=done),
            mock.patch.object(machines, "on_ept", return_value=done),
        ):
            for found in (
                suite._npt(lambda _: chosen, ["a"], suite.OFF),
                suite._ept(lambda _: chosen, ["a"]),
                suite._ept(lambda _: chosen, [], "ept, 2 CPUs"),
                suite._kind("4level", ["a"]),
                suite._inside("tools", lambda **_: chosen, suite.ON),
            ):
                self.assertEqual([each.state for each in found], [FAILED])


class Chosen(unittest.TestCase):
    """What is run where, of programs that were built."""

    def setUp(self) -> None:
        self.enterContext(redirect_stdout(io.StringIO()))
        self.build("api", "churn", "dirty", "follow", "vma")

    def build(self, *ours: str) -> None:
        own = ["a_test", "dirty_log_perf_test", "dirty_log_test"]
        own += [f"x86_64/{name}" for name in ("xen_vmcall_test", "smm_test", "hyperv_cpuid")]
        programs = [*own, *(f"x86_64/global_tdp_{name}_test" for name in ours)]
        self.enterContext(mock.patch.object(selftests, "programs", return_value=programs))

    @staticmethod
    def names(chosen: Sequence[Test]) -> list[str]:
        return [test.name.replace("global_tdp_", "").replace("_test", "") for test in chosen]

    def test_whatever_is_not_known_to_be_of_cpus_is_of_memory(self) -> None:
        first, perf, ring, last = self.names(tests.of_memory())
        self.assertEqual([first, perf.partition(" ")[0], last], ["a", "dirty_log_perf", "smm"])
        self.assertIn("dirty_log -M dirty-ring", ring)
        # Of the longest, two were left out.
        self.assertEqual(len(tests.of_memory(every=True)), 6)

    def test_churn_is_plain_on_another_machine(self) -> None:
        churn = "global_tdp_churn_test"
        (late,) = (name for name in self.names(tests.on_npt()) if "churn" in name)
        self.assertIn("late", late)
        self.assertIn("churn", self.names(tests.on_machine("4cpus")))
        self.assertIn("churn", self.names(tests.on_npt([churn])))

    def test_random_tests_have_another_seed_for_each_commit(self) -> None:
        """Or the one that is wanted; also where they are run late, or in another machine."""
        self.addCleanup(tests.seed.cache_clear)
        git = mock.Mock()
        git.commit.side_effect = ["0123abcdef", "4567abcdef"]
        for given, wanted in (("", "0x0123abcd"), ("", "0x4567abcd"), ("0x7", "0x7")):
            tests.seed.cache_clear()
            with (
                mock.patch.dict(tests.os.environ, SEED=given),
                mock.patch.object(tests, "Git", return_value=git),
                redirect_stdout(io.StringIO()) as out,
            ):
                found = [*tests.on_npt(["global_tdp_churn_test"]), *tests.on_machine("4cpus")]
            self.assertIn(f"SEED={wanted}", out.getvalue())
            of_churn = [test for test in found if "churn" in test.name]
            self.assertEqual(len(of_churn), 3)
            for test in of_churn:
                self.assertEqual(test.argv[-2:], ("-s", wanted))
                self.assertIn('"$0" "$@"', test.argv[2]) if len(test.argv) > 4 else None

    def test_random_tests_take_a_seed(self) -> None:
        """And have no other one, e.g. of the process."""
        for name in tests._OURS["random"]:
            source = selftests.source_of(f"x86_64/global_tdp_{name}_test").read_text()
            taken = re.search(r'getopt\(argc, argv, "[a-z:]*s:', source)
            self.assertTrue(taken, f"{name} takes no seed")
            for seed in re.findall(r"= new_\w+_random_state\((.*)\);", source):
                self.assertRegex(seed, r"^(guest|kvm)_random_seed\b", name)

    def test_what_is_run_once_is_each_but_those_of_minutes(self) -> None:
        """By machine; the inner loop is spared more."""
        lanes = [self.names(lane) for lane in tests.inner(3)]
        self.assertEqual(lanes, [["follow"], ["api"], ["dirty", "vma"]])
        self.build("api", "churn", "manners")
        names = [name for lane in tests.spread(2) for name in self.names(lane)]
        self.assertCountEqual(names, ["api"])

    def test_on_ept(self) -> None:
        """Little, or all; races only by several CPUs, or if they are wanted."""
        level = "level, EPT of 5 levels"
        self.build("api", "churn", "dirty", "level", "notifier", "vma")
        some, ring = [*self.names(tests.all_on_ept(every=False))], "dirty_log -M dirty-ring"
        self.assertEqual(some.pop(-2).partition(" -I")[0], ring)
        late = ["notifier, memory limit, eptad=0, traced"]
        more = [*late, "api, allow_smaller_maxphyaddr=1, traced", "PML is on", level]
        plain = ["api", "dirty, exact", "level", "notifier"]
        self.assertEqual(some, [*plain, "dirty, exact, eptad=0, traced", *more])
        every = self.names(tests.all_on_ept())
        self.assertEqual(every[:5], ["api", "dirty", "level", "notifier", "vma"])
        self.assertIn("dirty, eptad=0, traced", every)
        self.assertIn("dirty_log -M dirty-log -i 3", every)
        self.assertEqual(self.names(tests.no_ad()), late)
        self.assertEqual(self.names(tests.on_ept(["global_tdp_churn_test"])), ["churn"])
        (churn,) = tests.in_turns(["global_tdp_churn_test"])
        self.assertEqual(churn.argv[-2], "-t")

    def test_parts_are_there(self) -> None:
        parts = tests.DATA["by_parameter"] | tests.DATA["ept_parts"]
        for name, part in ((name, part) for name, part in parts.items() if part):
            source = selftests.source_of(f"x86_64/global_tdp_{name}_test").read_text()
            self.assertRegex(source, rf'"{part}', name)


class Built(unittest.TestCase):
    """Programs, of which none is to be left out or taken for another one's by chance."""

    def setUp(self) -> None:
        scratch = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.built, self.sources = scratch / "selftests", scratch / "linux" / selftests.SOURCE
        self.enterContext(mock.patch.object(selftests, "SELFTESTS", self.built))
        for name in ("a_test", "x86_64/b_test", "x86_64/smm", "arm64/c_test"):
            source = self.sources / f"{name}.c"
            source.parent.mkdir(parents=True, exist_ok=True)
            source.touch()
            if "arm" not in name:
                self.build(name)

    def build(self, name: str) -> None:
        program = self.built / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.with_name(f"{program.name}.d").touch()
        program.touch(0o755)

    def test_what_has_no_source_any_more_is_not_run(self) -> None:
        self.build("x86_64/gone_test")
        self.assertEqual(selftests.programs(), ["a_test", "x86_64/b_test", "x86_64/smm"])

    def test_a_test_that_was_not_built_is_an_error(self) -> None:
        (self.built / "x86_64/b_test").unlink()
        with self.assertRaisesRegex(LabError, "1 tests .* not built: x86_64/b_test"):
            selftests.programs()

    def test_what_newer_kernels_call_x86(self) -> None:
        (self.sources / "x86_64").rename(self.sources / "x86")
        self.build("x86_64/gone_test")
        self.assertEqual(selftests.programs(), ["a_test", "x86_64/b_test", "x86_64/smm"])


class _Suite(unittest.TestCase):
    """With steps that say what they do, and builders that build nothing."""

    def setUp(self) -> None:
        self.done: list[str] = []
        scratch = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(suite, "BUILD", scratch))
        for module in (suite.selftests, suite.restore, suite.modules):
            self.enterContext(mock.patch.object(module, "build"))
        self.enterContext(mock.patch.object(suite.tree, "ensure"))
        folder = selftests.source_of("x").parent
        names = [path.stem for path in folder.glob("*_test.c")]
        names += [f"x86_64/{path.stem}" for path in folder.glob("x86*/*_test.c")]
        self.enterContext(mock.patch.object(selftests, "programs", return_value=sorted(names)))
        self.enterContext(mock.patch.object(suite, "VERSIONS", (VERSION,)))
        self.out = self.enterContext(redirect_stdout(io.StringIO()))
        self.enterContext(redirect_stderr(io.StringIO()))
        self.addCleanup(suite.runs.STOPPING.clear)

    def step(self, title: str, wait: threading.Event | None = None, **more: int) -> suite.Step:
        def do() -> list[Outcome]:
            if wait:
                wait.wait(60)
            self.done.append(title)
            return [outcome(PASSED)]

        return suite.Step(title, do, **more)

    def run_suite(self, *arguments: str, every: bool = False) -> int:
        parser = argparse.ArgumentParser()
        suite.configure(parser)
        parser.set_defaults(every=every)
        return suite.run(parser.parse_args(arguments))

    def said(self) -> list[str]:
        return [" ".join(line.split()) for line in self.out.getvalue().splitlines()]


class Order(_Suite):
    """Of builds and machines."""

    def run_all(self, steps: Sequence[suite.Step]) -> int:
        return report.show(suite._run(steps, build=True))

    def test_long_ones_go_on_while_those_with_assertions_are_built(self) -> None:
        """And early ones while everything is."""
        built, early = threading.Event(), threading.Event()
        steps = [
            self.step("checked", checked=True),
            self.step("long", built, minutes=7),
            suite.Step("early", lambda: early.set() or [outcome(PASSED)], early=True),
        ]

        def build(*, checked: bool = False) -> None:
            self.assertTrue(early.wait(60))
            self.done.append(f"build, {checked}")
            if checked:
                built.set()

        with mock.patch.object(suite.modules, "build", build):
            self.assertEqual(self.run_all(steps), 0)
        self.assertEqual(self.done[:2], ["build, False", "build, True"])
        self.assertEqual(set(self.done[2:]), {"checked", "long"})

    def test_a_step_that_runs_nothing_is_a_failure(self) -> None:
        """But if tests are named, which may be of other steps."""
        steps = [self.step("one"), suite.Step("other", list)]
        self.assertEqual(self.run_all(steps), 1)
        self.assertEqual(
            report.show(suite._run(steps, build=True, wanted=["global_tdp_api_test"])), 0
        )

    def test_a_longer_one_with_assertions_goes_before_what_is_shorter(self) -> None:
        steps = [
            self.step("shorter", minutes=5),
            self.step("checked", checked=True, minutes=7),
            self.step("longest", minutes=9),
        ]
        with mock.patch.object(suite.os, "sched_getaffinity", return_value={0}):
            self.assertEqual(self.run_all(steps), 0)
        self.assertEqual(self.done, ["longest", "checked", "shorter"])

    def test_lint_looks_at_what_was_built(self) -> None:
        suite.modules.build.side_effect = lambda **_: self.done.append("build")
        lint = self.step("lint")
        with mock.patch.object(suite, "_steps", return_value={"lint": [lint]}):
            self.assertEqual(self.run_suite("--only", "lint"), 0)
        self.assertEqual(self.done, ["build", "lint"])

    def test_what_does_not_build_is_a_failure(self) -> None:
        stopping = suite.runs.STOPPING
        steps = [self.step("short", checked=True), self.step("long", stopping, minutes=7)]
        wrong = LabError("no compiler")
        suite.modules.build.side_effect = wrong
        self.assertEqual(self.run_all(steps), 1)
        self.assertEqual(self.done, [])
        stopping.clear()
        suite.modules.build.side_effect = (None, wrong)
        self.assertEqual(self.run_all(steps), 1)
        self.assertEqual(self.done, ["long"])


class Whole(_Suite):
    """Each test of the tree, or of the series, is run, or it is said that it is not."""

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.object(suite, "_lint", return_value=[outcome(PASSED)]))
        self.enterContext(mock.patch.object(unit, "run", return_value=[outcome(PASSED)]))
        self.enterContext(mock.patch.object(suite.probes, "build"))
        for where in ("on_npt", "on_ept"):
            self.enterContext(mock.patch.object(machines, where, self.passing))

    def passing(self, _: str, chosen: Sequence[Test], *__: object, **___: object) -> Report:
        names = [test.name for test in chosen]
        self.done += names
        return Report({name: Outcome(name, PASSED) for name in names})

    def test_whatever_make_test_does_is_done_with_what_was_moved(self) -> None:
        self.assertEqual(self.run_suite(), 0)
        some, self.done = set(self.done), []
        self.assertEqual(self.run_suite(every=True), 0)
        # The whole of a test instead of a part.
        parts = {name.split(", ")[1] for name in some - set(self.done)}
        self.assertEqual(parts, {*tests.DATA["ept_parts"].values()})
        for name in ("dirty_log_test -M dirty-log -i 3", "smm_test", "xen_vmcall_test"):
            self.assertEqual((name in some, name in self.done), (name == "smm_test", True))

    def test_one_that_is_in_no_part(self) -> None:
        """Of the series, or of the kernel, where all are run."""
        delayed = {name: how for name, how in tests.DATA["delayed"].items() if name != "churn"}
        series = (
            mock.patch.dict(tests.DATA, delayed=delayed, moved={}),
            mock.patch.dict(tests.ON_MACHINES, {"4level": ["giant"], "4cpus": ["dirty"]}),
            mock.patch.dict(tests.DATA["in_turns"], clear=True, nx=""),
        )
        kernel = (mock.patch.object(suite.compare, "judge", return_value=[outcome(PASSED)]),)
        for less, every, status in (
            (series, False, 1),
            (series, True, 1),
            (kernel, False, 0),
            (kernel, True, 1),
        ):
            with ExitStack() as stack:
                for each in less:
                    stack.enter_context(each)
                self.assertEqual(self.run_suite(every=every), status, (less, every))
            if status:
                self.assertIn("in no part", self.out.getvalue())


class Newer(_Suite):
    """Another series' tests, by a process of its own, beside those of this one."""

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.object(suite, "VERSIONS", (VERSION, "9.9")))
        self.enterContext(mock.patch.object(suite.os, "geteuid", return_value=0))
        steps = {"npt": [self.step("own")]}
        self.enterContext(mock.patch.object(suite, "_steps", return_value=steps))
        self.enterContext(mock.patch.object(suite, "_whole", return_value=[]))
        self.asked: list[list[str]] = []

    def run_it(
        self, *arguments: str, ends: Callable[[list[str]], int], every: bool = False
    ) -> int:
        """Return the status; `ends` is what other processes end with."""

        def other(version: str, command: Sequence[str], _: float = 0) -> int:
            self.assertEqual(version, "9.9")
            self.asked.append([*command])
            return ends(self.asked[-1])

        with mock.patch.object(suite, "_other", other):
            return self.run_suite(*arguments, every=every)

    @staticmethod
    def telling(status: int, *outcomes: Outcome) -> Callable[[list[str]], int]:
        def ends(command: list[str]) -> int:
            if "--outcomes" not in command:
                return 0
            report.save(Path(command[-1]), [Part("npt", [*outcomes], 2)])
            return status

        return ends

    def test_what_came_of_it_counts(self) -> None:
        found = (
            Outcome("a", PASSED, 1.5, parts=("b",)),
            Outcome("c", SKIPPED),
            Outcome("d", FAILED, reason="late", output="log"),
        )
        self.assertEqual(self.run_it(ends=self.telling(1, *found)), 1)
        said = self.said()
        self.assertIn("failed: Linux 9.9: npt: d", said)
        self.assertEqual(said[-1], "2 passed, 1 failed, 1 skipped")
        self.assertEqual(sum("passed, " in line for line in said), 1)
        # Before that, each kind apart.
        for line in ("own 1 0 0", "Linux 9.9: npt 1 1 1"):
            self.assertIn(line, said)
        self.assertEqual(self.asked[0], ["sh", "lab/setup.sh"])

    def test_parts_of_it_or_all(self) -> None:
        for every in (False, True):
            self.run_it(ends=self.telling(0, outcome(PASSED)), every=every)
            self.assertEqual("all" in self.asked[-1], every)
            self.assertEqual("--only" in self.asked[-1], not every)

    def test_it_goes_on_beside_all_that_is_built(self) -> None:
        begun, done = threading.Event(), threading.Event()

        def tree(_: Sequence[str]) -> int:
            begun.set()
            return 0 if done.wait(60) else 1

        suite.selftests.build.side_effect = lambda: begun.wait(60) and done.set()
        self.run_it(ends=tree)
        self.assertTrue(done.is_set())

    def test_what_does_not_fit_is_a_failure(self) -> None:
        """It says nothing, or another thing than its status."""
        passed = outcome(PASSED)
        for ends, count in (
            (lambda _: 0, 1),
            (self.telling(1), 1),
            (self.telling(1, passed), 2),
            (self.telling(0, passed, outcome(FAILED)), 2),
        ):
            self.assertEqual(self.run_it(ends=ends), 1)
            self.assertRegex(self.said()[-1], f"^{count} passed, [12] failed")

    def test_what_keeps_it_is_known_before(self) -> None:
        """A Debian that has it no more ends with 1, too: it is not to vanish unseen."""
        for user in (0, 1):
            self.asked.clear()
            with mock.patch.object(suite.os, "geteuid", return_value=user):
                self.assertEqual(self.run_it(ends=lambda _: 1), 1)
            self.assertEqual(self.said()[-1], report.last_line(Counter({PASSED: 1, FAILED: 1})))
            self.assertEqual(len(self.asked), int(not user))

    def test_it_is_left_out_if_that_is_asked_for(self) -> None:
        for arguments in (
            ("--only", "npt"),
            ("--tests", "global_tdp_api_test"),
            ("--without", "newer"),
        ):
            self.assertEqual(self.run_it(*arguments, ends=lambda _: 1), 0)
        self.assertEqual(self.asked, [])

    def test_outcomes_are_written_with_the_status(self) -> None:
        path = suite.BUILD / "outcomes"
        for state in (PASSED, FAILED):
            step = suite.Step("own", lambda state=state: [outcome(state)])
            suite._steps.return_value = {"npt": [step]}
            status = self.run_it("--only", "npt", "--outcomes", str(path), ends=lambda _: 1)
            self.assertEqual(status, int(state is FAILED))
            self.assertEqual(report.load(path)[0].outcomes, [outcome(state)])


class Died(unittest.TestCase):
    """A machine, midway: what came of the tests before is known, the others go on."""

    def report(self, *statuses: int | None, stop: str = "") -> tuple[Report, int]:
        """Return of machines whose tests end so, or die, or die after one, and how many."""
        left = list(statuses)

        def run(commands: Sequence[Command], **_: object) -> Run:
            done = Run(Path(), [])
            for number, command in enumerate(commands):
                done.results.append(Result(number, command.name, left.pop(0)))
                if done.results[-1].status is None or command.name == stop:
                    done.died = "it died"
                    break
            return done

        with mock.patch.object(npt, "run", side_effect=run) as ran:
            found = machines.on_npt("label", [Test(name, ("true",)) for name in "abc"])
        return found, ran.call_count

    def test_in_a_test(self) -> None:
        for statuses, boots in (((0, None, 0), 2), ((None, None, None), 3)):
            found, ran = self.report(*statuses)
            self.assertEqual(ran, boots)
            for name, status in zip("abc", statuses, strict=True):
                outcome = found.outcomes[name]
                self.assertIs(outcome.state, FAILED if status is None else PASSED)
                self.assertEqual(outcome.reason, "it died" if status is None else "")

    def test_between_tests(self) -> None:
        """A death that no test was running in is a failure nevertheless."""
        found, _ = self.report(0, 0, 0, stop="b")
        self.assertEqual({each.state for each in found.outcomes.values()}, {PASSED})
        self.assertEqual([each.name for each in found.splats], ["machine after b"])


class Compare(unittest.TestCase):
    """With stock modules."""

    def verdict(self, stock: Outcome, ours: Outcome, test: Test = TEST) -> State | None:
        """Return the verdict after one run on both; None: they are to be repeated."""
        reports = (Report({TEST.name: found}) for found in (stock, ours))
        clear, unclear = compare.compare([test], *reports)
        self.assertEqual(len(clear) + len(unclear), 1)
        return clear[0].state if clear else None

    def test_one_run(self) -> None:
        """Tells enough, or not: known to fail is what does so in the same way."""
        other = replace(LEFT, reason="no other such CPU")
        known = Test(TEST.name, (), known_to_fail="the CPU")
        ways = (ELSEWHERE, SIGNAL, LATE, STUCK, LEFT, PART)
        for stock, ours, test, state in (
            *((each, GOOD, TEST, PASSED) for each in (GOOD, BAD, LEFT, HALF)),
            (HALF, HALF, TEST, PASSED),
            (LEFT, LEFT, TEST, SKIPPED),
            (GOOD, GOOD, Test("t", (), left_out="slow"), SKIPPED),
            *((GOOD, each, TEST, None) for each in (BAD, LEFT, HALF)),
            *((LEFT, each, TEST, None) for each in (BAD, other)),
            (BAD, BAD, TEST, None),
            (BAD, BAD, known, SKIPPED),
            (GOOD, BAD, known, None),
            *((BAD, each, known, None) for each in ways),
        ):
            self.assertIs(self.verdict(stock, ours, test), state, (stock, ours))

    def test_ways(self) -> None:
        """Are told apart, but not by what is another in each run."""
        all_of_them = (BAD, ELSEWHERE, PART, OTHER_PART, SIGNAL, LATE, STUCK, DEAD, LEFT, HALF)
        self.assertEqual(len({found.way for found in all_of_them}), len(all_of_them))
        self.assertEqual(GOOD.way, "")
        text = BAD.output + "  Unhandled exception '0x{}' at guest RIP '0x4022fa'\n"
        ways = {judge(TEST.name, ended(254, text.format(number))).way for number in (3, 14)}
        self.assertEqual(len(ways | {BAD.way}), 3)
        again = judge(TEST.name, ended(KILLED, seconds=130))
        self.assertEqual(again.way, LATE.way)
        again = judge(TEST.name, ended(None), "the guest died in the run; its console is b")
        self.assertEqual(again.way, DEAD.way)

    def test_repeated(self) -> None:
        """Five times on both: only what stock shows, too, and about as often, is excused."""
        always, never, once = [BAD] * 5, [GOOD] * 5, [BAD, *[GOOD] * 4]
        for ours, stock, state in (
            (once, never, FAILED),
            (always, never, FAILED),
            (always, once, FAILED),
            (always, [BAD, BAD, GOOD, GOOD, GOOD], FAILED),
            (always, [BAD, BAD, BAD, GOOD, GOOD], SKIPPED),
            (once, once, SKIPPED),
            (once, always, SKIPPED),
            (once, [ELSEWHERE] * 5, FAILED),
            ([SIGNAL, *[BAD] * 4], always, FAILED),
            ([BAD, BAD, BAD, BAD, STUCK], always, FAILED),
            ([BAD, BAD, BAD, BAD, LATE], always, FAILED),
            ([STUCK, *[GOOD] * 4], [GOOD, STUCK, *[GOOD] * 3], SKIPPED),
            (always, [LEFT] * 5, FAILED),
            ([LEFT] * 5, never, FAILED),
            ([HALF] * 5, never, FAILED),
            ([UNRUN] * 5, [UNRUN] * 5, FAILED),
        ):
            verdict = compare.settle(ours, stock)
            self.assertIs(verdict.state, state, (ours, stock))
            self.assertIn(" of 5", verdict.reason)

    def test_known_to_hang(self) -> None:
        """Another run must pass, and nothing else may go wrong."""
        where = "lab: after 120 s: 1 a_test in state S: kvm_vcpu_block kvm_vcpu_halt a b"
        hung, elsewhere, locked = (
            judge(TEST.name, ended(KILLED, text))
            for text in (where, "b a", f"{where}\nlab: after 120 s: 1 a_test in state D: c\n")
        )
        died = judge(TEST.name, ended(None, where), f"{npt.STILL}; see a")
        for ours, state in (
            ([hung, *[GOOD] * 4], PASSED),
            ([hung, hung, GOOD, GOOD, GOOD], PASSED),
            ([hung, hung, hung, GOOD, GOOD], FAILED),
            ([hung] * 5, FAILED),
            ([locked, *[GOOD] * 4], FAILED),
            ([died, *[GOOD] * 4], FAILED),
            ([elsewhere, *[GOOD] * 4], FAILED),
            ([hung, BAD, *[GOOD] * 3], FAILED),
        ):
            verdict = compare.settle(ours, [GOOD] * 5, "kvm_vcpu_halt a")
            self.assertIs(verdict.state, state, ours)
            self.assertIs(compare.settle(ours, [GOOD] * 5).state, FAILED)
            self.assertIn(" of ", verdict.reason)
        # Hangs don't make up for what else goes wrong.
        for ours, stock in (
            ([BAD] * 5, [BAD, *[hung] * 4]),
            ([hung, hung, hung, BAD, BAD], [BAD, *[GOOD] * 4]),
            ([hung, *[BAD] * 4], [BAD] * 5),
        ):
            self.assertIs(compare.settle(ours, stock, "kvm_vcpu_halt a").state, FAILED, ours)

    def test_complaints_of_ours_only_count(self) -> None:
        """Of repetitions, too; then all is run on stock modules, which may have the same."""
        for states in ((PASSED,), (FAILED, *[PASSED] * (compare.RUNS - 1))):
            stocks = reports(*[PASSED] * len(states))
            ours = reports(*states)

            def names(stocks: list[Report] = stocks, ours: list[Report] = ours) -> list[str]:
                runners = ((lambda _, n, all_of=all_of: all_of[n]) for all_of in (stocks, ours))
                return [each.name for each in compare.judge([TEST], ours[0], *runners)]

            self.assertEqual(names(), [TEST.name])
            ours[-1].splats.append(Outcome("kernel log", FAILED, output="[ 1.0] BUG: ours"))
            self.assertEqual(names(), [TEST.name, "kernel log"])
            stocks[len(stocks) // 2].splats.append(replace(ours[-1].splats[0]))
            self.assertEqual(names(), [TEST.name])
        self.assertEqual(compare.judge([TEST], reports(PASSED)[0], *[mock.Mock()] * 2), [GOOD])

    def test_the_first_run_on_stock_serves_all(self) -> None:
        """Of the same test; repetitions are runs of their own."""
        asked: list[tuple[list[str], int]] = []

        def runner(chosen: Sequence[Test], number: int) -> Report:
            asked.append(([test.name for test in chosen], number))
            return Report({test.name: outcome(PASSED) for test in chosen})

        remembered = suite._remembered(runner)
        some, more = [Test("a", ())], [Test("a", ()), Test("b", ())]
        for chosen, number in ((some, 0), (more, 0), (more, 0), (some, 1), (some, 2)):
            self.assertLessEqual(
                {t.name for t in chosen}, set(remembered(chosen, number).outcomes)
            )
        self.assertEqual(asked, [(["a"], 0), (["b"], 0), (["a"], 1), (["a"], 2)])

    def test_complaints_that_are_alike(self) -> None:
        """But for what is another in each run; an oops has the function in a later line."""
        old = "[   12.5] WARNING: CPU: 1 PID: 77 at arch/x86/kvm/x86.c:99 f+0x1/0x2 [kvm]\n"
        oops = "[ 1.0] Oops: int3: 0000 [#1]\nRIP: 0010:f+0x1/0x2\n"
        for text, same, new in (
            (old, old.replace("12.5", "8.1").replace("1 PID: 77", "0 PID: 5"), "x86.c:100"),
            (oops, oops.replace("1.0", "2.0"), "0010:g+"),
        ):
            other = text.replace("x86.c:99", new).replace("0010:f+", new)
            stock, ours = (
                Report(splats=[Outcome("kernel log", FAILED, output=each) for each in texts])
                for texts in ([text], [same, other])
            )
            found = compare.complaints([stock], [ours])
            self.assertEqual([each.output for each in found], [other])


class Show(unittest.TestCase):
    """The last line and the status of the command."""

    def test_last_line(self) -> None:
        for states, status, last in (
            ((PASSED, PASSED, SKIPPED), 0, "2 passed, 0 failed, 1 skipped"),
            ((PASSED, FAILED), 1, "1 passed, 1 failed, 0 skipped"),
            ((SKIPPED,), 1, "0 passed, 0 failed, 1 skipped"),
            ((), 1, "0 passed, 0 failed, 0 skipped"),
        ):
            with redirect_stdout(io.StringIO()) as out:
                found = report.show([Part("part", [*map(outcome, states)])])
            lines = out.getvalue().splitlines()
            self.assertEqual((found, lines[-1], lines.count(last)), (status, last, 1))

    def test_what_failed_is_at_the_end_with_its_reason(self) -> None:
        """But not the many that a machine's death left."""
        failed = replace(outcome(FAILED), reason="did not end within 9 s")
        unrun = Outcome("another", FAILED, reason="not run: it died")
        with redirect_stdout(io.StringIO()) as out:
            report.show([Part("part", [failed, *[unrun] * 60])])
        end = out.getvalue().rpartition("failed: part")[2].splitlines()
        last = "0 passed, 61 failed, 0 skipped"
        self.assertEqual(end, [": some_test", failed.reason, "", last])


_UNIT_TESTS = """
import sys
import unittest

class Case(unittest.TestCase):
    def test_failing(self):
        print("the reason")
        self.fail()

    def test_printing(self):
        print("the machine stands still", file=sys.stderr)

    @unittest.skip("not of this series")
    def test_skipped(self):
        pass

    def test_sub_failing(self):
        with self.subTest("a"):
            self.fail()
        with self.subTest("b"):
            self.skipTest("not there")

    def test_sub_skipped(self):
        with self.subTest("a"):
            self.skipTest("not there")

class Failing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise OSError

    def test_it(self):
        pass
"""


_OF_SERIES = "from lab.paths import LINUX{}\nimport subprocess\ndef test_it():\n    {}\n"
_FILES = {
    "test_a": _UNIT_TESTS,
    "test_unreadable": "import nothing_such",
    "test_dying": "import os\ndef test_it():\n    os._exit(0)",
    "test_plain": _OF_SERIES.format("", "pass"),
    "test_opening": _OF_SERIES.format("", "LINUX.joinpath('Makefile').read_text()"),
    "test_running": _OF_SERIES.format("", "subprocess.run(['true', LINUX])"),
    "test_naming": _OF_SERIES.format(", VERSION", "pass"),
}
_STATES = {
    **dict.fromkeys(("Case.test_failing", "Case.test_sub_failing", "Failing.test_it"), FAILED),
    **dict.fromkeys(("Case.test_skipped", "Case.test_sub_skipped"), SKIPPED),
    "Case.test_printing": PASSED,
}


class Unit(unittest.TestCase):
    def test_whatever_happens_is_told_as_such(self) -> None:
        """Also what depends on the series unseen: by a file, a program, a name."""
        with tempfile.TemporaryDirectory() as scratch:
            for name, text in _FILES.items():
                Path(scratch, f"{name}.py").write_text(text)
            conftest = Path(__file__).with_name("conftest.py").read_text()
            Path(scratch, "conftest.py").write_text(conftest)
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
                found = {each.name.partition("test_")[2]: each for each in unit.run(scratch)}
        self.assertEqual(out.getvalue(), "")
        states = {f"a.{name}": state for name, state in _STATES.items()} | {
            "unreadable": FAILED
        }
        wrong = dict.fromkeys(("dying", "opening", "running", "naming"), FAILED)
        states |= {
            f"{name}.test_it": state for name, state in (wrong | {"plain": PASSED}).items()
        }
        self.assertEqual({name: each.state for name, each in found.items()}, states)
        self.assertEqual(found["a.Case.test_skipped"].reason, "not of this series")
        self.assertIn("the reason", found["a.Case.test_failing"].output)
