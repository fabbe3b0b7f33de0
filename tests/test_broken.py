"""The patches that break promises fit the sources, and what is to notice them is told apart."""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from lab.check import broken
from lab.check.outcome import State
from lab.error import LabError
from lab.machine.result import Command, Result, Run
from lab.make import selftests
from lab.paths import LINUX, ROOT
from lab.source import tree

_ASSERTION = re.compile(
    r"\b(?:(TEST_ASSERT_EQ)|TEST_ASSERT|TEST_FAIL|__GUEST_ASSERT|\w*wait_until)\("
)
_LIB = "lib/x86_64/global_tdp*.c"
_AMBIGUOUS = {
    "a-harvest-that-could-not-be-told-is-not-lost",
    "a-harvest-that-the-result-of-can-not-be-told-takes-nothing",
    "harvests-are-for-those-who-ask",
    "page-tables-are-on-the-node-of-the-memory-that-they-map",
    "a-harvest-that-is-interrupted-gets-on",
    "what-was-harvested-is-not-harvested-again",
    "what-was-harvested-is-young-to-the-host",
    "what-was-populated-and-not-accessed-is-not-harvested",
}
"""Promises of which several assertions of their test say what they are noticed by. No more."""

_FAILED = "==== Test Assertion Failure ====\n  x86_64/a_test.c:7: a == b\n  pid=1\n  a is 3\n"


_FAILED_RUN = Run(Path("nowhere"), [Result(0, "t", 254, printed=bytearray(_FAILED.encode()))])


@cache
def _said(path: Path) -> list[str]:
    """Return what each assertion of a source says if it fails: its condition, its format."""
    text, all_of_them = path.read_text(), []
    for found in _ASSERTION.finditer(text):
        depth, quoted, end, words = 1, False, found.end(), [""]
        while depth:
            letter, end = text[end], end + 1
            quoted ^= letter == '"' and text[end - 2] != "\\"
            depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
            if letter == "," and depth == 1 and not quoted:
                words.append("")
            elif depth:
                words[-1] += letter
        words = [" ".join(word.replace('"\n', "").split()) for word in words]
        all_of_them.append(" == ".join(words[:2]) if found[1] else ", ".join(words))
    return all_of_them


# DECORATOR @unittest.skipUnless(VERSIONS[0] == VERSION, "they are of the oldest series")
# Of tests/broken.


def test_patches_each_applies_and_names_a_test() -> None:
    """To the sources as they are; the test is in the series, or in the kernel."""
    tree.ensure()
    for entry in broken.load():
        with self.subTest(entry.promise):
            broken.apply(entry, LINUX, "--dry-run")
            for command in entry.commands:
                program = command.name.split()[0]
                assert selftests.source_of(program).exists(), program


def test_patches_one_assertion_says_so() -> None:
    """Where several do, a function is named, too; of several tests, each has its own."""
    folder = LINUX / selftests.SOURCE
    shared = [text for path in folder.glob(_LIB) for text in _said(path)]
    unclear = set()
    for entry in broken.load():
        for command in entry.commands[: len(entry.commands) == 1]:
            path = selftests.source_of(command.name.split()[0])
            text = "\n".join(each.read_text() for each in (path, *folder.glob(_LIB)))
            assert re.search(rf"\b{entry.where}\(", text), entry.promise
            # Traces take addr2line, which Bochs has not.
            assert not (entry.where and entry.machine == "ept"), entry.promise
            said = [*shared, *_said(path)]
            for way in filter(None, map(str.strip, entry.noticed.splitlines())):
                alike = sum(way in each for each in said)
                if not (way.startswith(broken.KERNEL) or entry.where) and alike != 1:
                    unclear.add(entry.path.stem)
    assert unclear <= _AMBIGUOUS


def test_patches_what_does_not_fit_or_is_not_said_is_refused() -> None:
    """Each is an error that names the file."""
    whole = {"Promise": "p", "Test": "api", "Noticed": "a is 3"}
    diff = "\n--- a/virt/kvm/kvm_main.c\n+++ b/virt/kvm/kvm_main.c\n@@ -1 +1 @@\n-no\n+yes\n"
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch:
        path = Path(scratch, "some.patch")
        for name in (*whole, "Tset"):
            head = {**whole, "Tset": "x"} if name == "Tset" else dict(whole)
            head.pop(name, None) if name != "Tset" else None
            path.write_text("".join(f"{k}: {v}\n" for k, v in head.items()) + diff)
            with pytest.raises(LabError, match="some.patch"):
                broken.parse(path)
        for head, wrong in (
            ("Test: api\nNoticed: \n", "no Noticed:"),
            ("Test: api\nNoticed: a\nNoticed: b\n", "twice"),
            ("Test: api age\nNoticed: kernel: a\n", "several tests"),
        ):
            path.write_text(f"Promise: p\n{head}{diff}")
            with pytest.raises(LabError, match=wrong):
                broken.parse(path)
        path.write_text("".join(f"{k}: {v}\n" for k, v in whole.items()) + diff)
        with pytest.raises(LabError, match="some.patch does not apply"):
            broken.apply(broken.parse(path), LINUX, "--dry-run")


# With nothing broken, all must pass.


def _wrong(*statuses: int | None, died: str = "", splats: Sequence[str] = ()) -> int:
    """Return how many failures two commands are that end so."""
    results = [Result(number, "t", status) for number, status in enumerate(statuses)]
    commands = [Command("true", name) for name in "ab"]
    done = Run(Path("nowhere"), results, list(splats), died)
    return sum(bool(wrong) for _, wrong in broken.passes(commands, done))


def test_control_what_is_none() -> None:
    """A failure, a skip, a kill, a death in, after and between tests, a complaint."""
    assert _wrong(0, 0) == 0
    for status in (254, 4, 137):
        assert _wrong(0, status) == 1
    assert _wrong(0, None, died="it died") == 2
    assert _wrong(0, died="it died") == 2
    assert _wrong(0, 0, died="it died") == 1
    assert _wrong(0, 0, splats=["WARNING: "]) == 1


def test_control_what_does_not_even_run_has_noticed_nothing() -> None:
    """Others are tried after it."""
    entry = broken.load()[0]
    with (
        mock.patch.object(broken, "build"),
        mock.patch.object(broken, "_run", side_effect=LabError("no boot")),
    ):
        assert broken._try(entry, Path("a")) == (State.FAILED, "not by the assertion: no boot")


def test_control_a_race_takes_a_delay_or_churn() -> None:
    for name, late, races in (("api", "f", True), ("churn", "", True), ("api", "", False)):
        entry = broken.Broken(Path("a"), "p", "a is 3", test=name, late=late)
        assert entry.is_race is races


def test_control_a_delay_that_is_not_there_is_no_pass() -> None:
    """The test would prove nothing."""
    entry = broken.Broken(Path("a"), "p", "a is 3", test="api", late="f")
    with tempfile.TemporaryDirectory() as guest:
        Path(guest, "modules.sh").write_text("put() { return 1; }\n")
        script = entry.commands[0].line.partition("\n")[2]
        done = subprocess.run(["sh", "-c", script], env={"LAB_GUEST": guest})
    assert done.returncode == 1


# What counts as noticed.


def _state(noticed: str, output: str, status: int | None, *splats: str) -> State:
    result = Result(0, "t", status, printed=bytearray(output.encode()))
    died = "" if status is not None else "the guest died"
    done = Run(Path("nowhere"), [result], list(splats), died)
    return broken.judge(noticed, done)[0]


def test_judge_only_the_assertion_that_is_named() -> None:
    """In its words, or its place in the source."""
    assert _state("a is 3", _FAILED, 254) is State.PASSED
    assert _state("a == b", _FAILED, 254) is State.PASSED
    assert _state("another", _FAILED, 254) is State.FAILED
    assert _state("", _FAILED, 254) is State.FAILED


def test_judge_only_in_the_function_that_is_named() -> None:
    """Not in one that the failure of a parent's assertion has in its trace."""
    trace = "     1\t0x4027: check at a_test.c:7\n     2\t (inlined by) test_b at a_test.c:9\n"
    parent = _FAILED.replace("a == b", "child") + trace.replace("check", "wait")
    said = _FAILED + trace + parent
    for where, state in (
        *(("check", State.PASSED), ("test_b", State.PASSED), ("", State.PASSED)),
        *(("wait", State.FAILED), ("test_", State.FAILED)),
    ):
        result = Result(0, "t", 254, printed=bytearray(said.encode()))
        done = Run(Path("nowhere"), [result])
        assert broken.judge("a == b", done, where)[0] is state, where


def test_judge_one_of_several() -> None:
    """A line each, as the head of a patch has them."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "some.patch")
        path.write_text("Promise: p\nTest: api\nNoticed:\n kernel: NULL\n a is 3\n\n--- a\n")
        noticed = broken.parse(path).noticed
    assert _state(noticed, _FAILED, 254) is State.PASSED
    assert _state(noticed, "", None, "BUG: NULL") is State.PASSED
    other = _FAILED.replace("3", "4")
    for wrong in (noticed, " \n"):
        assert _state(wrong, other, 254) is State.FAILED


def test_judge_neither_a_pass_nor_a_skip_nor_a_kill() -> None:
    """Even if they print the words."""
    for status in (0, 4, 137, None):
        for noticed in ("a is 3", ""):
            assert _state(noticed, "a is 3\n", status) is State.FAILED


def test_judge_the_kernel_only_where_it_is_named() -> None:
    """Its complaint is not the assertion, and the other way round."""
    said = "BUG: kernel NULL pointer dereference"
    assert _state("kernel: NULL pointer", "", None, said) is State.PASSED
    assert _state("kernel: NULL pointer", _FAILED, 254) is State.FAILED
    assert _state("a is 3", "", None, said) is State.FAILED
