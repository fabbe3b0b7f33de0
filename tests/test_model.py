"""The judgement on what the checker of the models says, and the list of mutations."""

import re
from pathlib import Path

import pytest

from lab.check import model
from lab.check.model import Model
from lab.check.outcome import Outcome, State
from lab.error import LabError

COUNTS_TO_THREE = """
byte n;
active proctype counts()
{
	do
	:: n < 3 -> n++
	:: else -> break
	od;
	assert(n == 3)
}
"""


TOLD = """\
Full statespace search for:
	assertion violations	+
	invalid end states	+
State-vector 20 byte, depth reached 9, errors: 0
      101 states, stored
unreached in proctype p
	(0 of 9 states)"""
LINES = TOLD.splitlines()
N, INVALID = "assertion violated (n!=2)", "invalid end state"
SHALLOW, FULL = "error: max search depth too small", "pan: out of memory"
HALF = (
    *(SHALLOW, FULL, "pan: reached -DMEMLIM bound", "Warning: Search not completed"),
    "pan: error, VECTORSZ too small, recompile pan.c with -DVECTORSZ=N",
)
PASSED, FAILED = State.PASSED, State.FAILED


def _wrong(found: str) -> str:
    return f"pan:1: {found} (at depth 7)\n{TOLD}".replace("errors: 0", "errors: 1")


@pytest.mark.parametrize(
    ("text", "violates", "status", "state", "reason"),
    (
        (TOLD, "", 0, PASSED, ""),
        *((_wrong(found), "", 0, FAILED, found) for found in (N, INVALID)),
        # Half a search proves nothing, and no line may be missing.
        *((f"{line}\n{TOLD}", "", 0, FAILED, line) for line in HALF),
        *(
            ("\n".join(LINES[:n] + LINES[n + 1 :]), "", 0, FAILED, "")
            for n in range(len(LINES) - 1)
        ),
        ("", "", 0, FAILED, ""),
        # A check is off.
        (TOLD.replace("end states\t+", "end states\t-"), "", 0, FAILED, ""),
        (TOLD, "", 1, FAILED, ""),
        (f"pan:1: {N} (at depth 7)", N, -9, FAILED, ""),
        # A mutation is found, is not, or breaks something else.
        (_wrong("assertion violated  !(newer)"), "assertion violated !(newer)", 0, PASSED, ""),
        *((f"{line}\n{TOLD}", N, 0, FAILED, "") for line in ("", SHALLOW, FULL)),
        (_wrong(INVALID), N, 0, FAILED, ""),
    ),
)
def test_a_report(text: str, violates: str, status: int, state: State, reason: str) -> None:
    outcome = model.judge(Model("m", "m.pml", (), "", violates), status, text)
    assert outcome.state is state
    assert reason in outcome.reason


def _counts(end: str) -> str:
    return COUNTS_TO_THREE.replace("assert(n == 3)", end)


DEAD = "assert(n == 3);\n	if :: n == 4 -> n = 5 :: else fi"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(model, "MODELS", tmp_path)
    monkeypatch.setattr(model, "DIRECTORY", tmp_path / "made")
    return tmp_path


def check(models: Path, text: str, violates: str = "", depth: int = 1000) -> Outcome:
    """Return what is made of a model."""
    (models / "m.pml").write_text(text)
    subject = Model("m", "m.pml", (), "", violates)
    return model.judge(subject, *model.check(model.make(subject, "-O0"), depth))


@pytest.mark.parametrize(
    ("text", "violates", "depth", "wanted"),
    (
        (COUNTS_TO_THREE, "", 1000, (PASSED, "")),
        (_counts("assert(n == 2)"), "", 1000, (FAILED, "")),
        (_counts("assert(n == 2)"), "assertion violated (n==2)", 1000, (PASSED, "")),
        (_counts("n == 4"), "", 1000, (FAILED, INVALID)),  # a deadlock
        (COUNTS_TO_THREE, "", 3, (FAILED, "max search depth too small")),
        (_counts(DEAD), "", 1000, (FAILED, "never executed: m.pml:10 n = 5")),
        (_counts(f"{DEAD} /* {model.NOT_REACHED} */"), "", 1000, (PASSED, "")),
    ),
)
def test_spin_itself(
    models: Path, text: str, violates: str, depth: int, wanted: tuple[State, str]
) -> None:
    """With models of a few lines."""
    outcome = check(models, text, violates, depth)
    assert outcome.state is wanted[0], outcome.reason
    assert wanted[1] in outcome.reason


def test_it_is_no_model(models: Path) -> None:
    with pytest.raises(LabError):
        check(models, COUNTS_TO_THREE.replace("active", "inactive"))


def test_mutations_are_those_of_the_sources() -> None:
    """Each is in what its model is made of, and none is left out of the list."""
    named: set[str] = set()
    for entry in model.load():
        if entry.violates:
            sources = [model.MODELS / entry.file, model.MODELS / "mmu.pml"]
            text = "".join(path.read_text() for path in sources)
            assert re.search(rf"#ifn?def {entry.define[-1]}\b", text)
            named.add(entry.define[-1])
    text = "".join(path.read_text() for path in model.MODELS.glob("*.pml"))
    assert set(re.findall(r"#ifn?def ([A-Z]\w+)", text)) - named == {"MAY_STOP"}


def test_names_are_unique() -> None:
    names = [entry.name for entry in model.load()]
    assert len(names) == len(set(names))
