"""The patches that break promises fit the sources, and what is to notice them is told apart."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lab.check import broken
from lab.check.outcome import State
from lab.error import LabError
from lab.machine.result import Command, Result, Run
from lab.make import selftests
from lab.paths import LINUX, VERSION, VERSIONS
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
_OF_OLDEST = pytest.mark.skipif(VERSIONS[0] != VERSION, reason="they are of the oldest series")
_HEAD = {"Promise": "p", "Test": "api", "Noticed": "a is 3"}
_DIFF = "\n--- a/virt/kvm/kvm_main.c\n+++ b/virt/kvm/kvm_main.c\n@@ -1 +1 @@\n-no\n+yes\n"


def _run(*statuses: int | None, said: str = "", splats: str = "", died: str = "") -> Run:
    """Return a run of commands that end so."""
    printed = said.encode()
    results = [Result(0, "t", status, printed=bytearray(printed)) for status in statuses]
    return Run(Path("nowhere"), results, splats.splitlines(), died)


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


@_OF_OLDEST
def test_each_patch_applies_and_names_a_test(subtests: pytest.Subtests) -> None:
    """To the sources as they are; the test is in the series, or in the kernel."""
    tree.ensure()
    for entry in broken.load():
        with subtests.test(entry.promise):
            broken.apply(entry, LINUX, "--dry-run")
            for command in entry.commands:
                assert selftests.source_of(command.name.split()[0]).exists(), command.name


@_OF_OLDEST
def test_one_assertion_says_so() -> None:
    """Where several do, a function is named, too; of several tests, each has its own."""
    library = [*(LINUX / selftests.SOURCE).glob(_LIB)]
    unclear = set()
    for entry in broken.load():
        for command in entry.commands[: len(entry.commands) == 1]:
            sources = [selftests.source_of(command.name.split()[0]), *library]
            text = "\n".join(path.read_text() for path in sources)
            assert re.search(rf"\b{entry.where}\(", text), entry.promise
            # Traces take addr2line, which Bochs has not.
            assert not (entry.where and entry.machine == "ept"), entry.promise
            said = [each for path in sources for each in _said(path)]
            for way in filter(None, map(str.strip, entry.noticed.splitlines())):
                alike = sum(way in each for each in said)
                if not (way.startswith(broken.KERNEL) or entry.where) and alike != 1:
                    unclear.add(entry.path.stem)
    assert unclear <= _AMBIGUOUS


@_OF_OLDEST
def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an error that names the file."""
    monkeypatch.setattr(broken, "ROOT", tmp_path)
    path = tmp_path / "some.patch"
    for changed, wrong in (
        *(({name: None}, r"some\.patch: no ") for name in _HEAD),
        ({"Tset": "x"}, r"some\.patch: what is Tset"),
        ({"Noticed": ""}, "no Noticed:"),
        ({"Noticed": "a\nNoticed: b"}, "twice"),
        ({"Test": "api age", "Noticed": "kernel: a"}, "several tests"),
        ({}, r"some\.patch does not apply"),
    ):
        head = (
            f"{key}: {text}\n" for key, text in (_HEAD | changed).items() if text is not None
        )
        path.write_text("".join(head) + _DIFF)
        with pytest.raises(LabError, match=wrong):
            broken.apply(broken.parse(path), LINUX, "--dry-run")


def test_with_nothing_broken_all_must_pass() -> None:
    """A failure, a skip, a kill, a death in, after and between tests, a complaint is none."""
    for run, failures in (
        (_run(0, 0), 0),
        *((_run(0, status), 1) for status in (254, 4, 137)),
        (_run(0, None, died="it died"), 2),
        (_run(0, died="it died"), 2),
        (_run(0, 0, died="it died"), 1),
        (_run(0, 0, splats="WARNING: "), 1),
    ):
        for number, result in enumerate(run.results):
            run.results[number] = Result(number, "t", result.status)
        found = broken.passes([Command("true", name) for name in "ab"], run)
        assert sum(bool(wrong) for _, wrong in found) == failures, run


def test_what_does_not_even_run_has_noticed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are tried after it."""

    def run(*_: object, **__: object) -> Run:
        raise LabError("no boot")

    monkeypatch.setattr(broken, "build", lambda *_, **__: None)
    monkeypatch.setattr(broken, "_run", run)
    found = broken._try(broken.load()[0], Path("a"))
    assert found == (State.FAILED, "not by the assertion: no boot")


def test_a_race_takes_a_delay_that_is_there_or_churn(tmp_path: Path) -> None:
    """Without it, the test would prove nothing."""
    for name, late, races in (("api", "f", True), ("churn", "", True), ("api", "", False)):
        entry = broken.Broken(Path("a"), "p", "a is 3", test=name, late=late)
        assert entry.is_race is races
    (tmp_path / "modules.sh").write_text("put() { return 1; }\n")
    entry = broken.Broken(Path("a"), "p", "a is 3", test="api", late="f")
    script = entry.commands[0].line.partition("\n")[2]
    assert (
        subprocess.run(["sh", "-c", script], env={"LAB_GUEST": str(tmp_path)}).returncode == 1
    )


def test_what_counts_as_noticed() -> None:
    """The assertion that is named, in its words or its place, or the kernel, if named."""
    bug, ways = "BUG: kernel NULL pointer dereference", "\n kernel: NULL\n a is 3"
    for noticed, said, status, splat, good in (
        ("a is 3", _FAILED, 254, "", True),
        ("a == b", _FAILED, 254, "", True),
        ("another", _FAILED, 254, "", False),
        ("", _FAILED, 254, "", False),
        # One of several.
        (ways, _FAILED, 254, "", True),
        (ways, "", None, bug, True),
        (ways, _FAILED.replace("3", "4"), 254, "", False),
        (" \n", _FAILED.replace("3", "4"), 254, "", False),
        # Neither a pass nor a skip nor a kill, even if they print the words.
        *(("a is 3", "a is 3\n", status, "", False) for status in (0, 4, 137, None)),
        *(("", "a is 3\n", status, "", False) for status in (0, 4, 137, None)),
        # The kernel only where it is named, and the other way round.
        ("kernel: NULL pointer", "", None, bug, True),
        ("kernel: NULL pointer", _FAILED, 254, "", False),
        ("a is 3", "", None, bug, False),
    ):
        died = "the guest died" * (status is None)
        state = broken.judge(noticed, _run(status, said=said, splats=splat, died=died))[0]
        assert (state is State.PASSED) is good, (noticed, said, status)


def test_several_are_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "some.patch"
    path.write_text("Promise: p\nTest: api\nNoticed:\n kernel: NULL\n a is 3\n\n--- a\n")
    assert broken.parse(path).noticed.split("\n")[-2:] == [" kernel: NULL", " a is 3"]


def test_only_in_the_function_that_is_named() -> None:
    """Not in one that the failure of a parent's assertion has in its trace."""
    trace = "     1\t0x4027: check at a_test.c:7\n     2\t (inlined by) test_b at a_test.c:9\n"
    parent = _FAILED.replace("a == b", "child") + trace.replace("check", "wait")
    run = _run(254, said=_FAILED + trace + parent)
    for where in ("check", "test_b", ""):
        assert broken.judge("a == b", run, where)[0] is State.PASSED, where
    for where in ("wait", "test_"):
        assert broken.judge("a == b", run, where)[0] is State.FAILED, where
