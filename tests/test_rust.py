"""What the crate's tests, and its examples, say."""

import subprocess

import pytest

from lab.check import rust
from lab.check.outcome import State

TESTS = """
running 2 tests
test bitmap::tests::sets ... ok
test a::header ... ignored, wants headers

test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.05s

   Doc-tests global-tdp
test src/lib.rs - (line 7) - compile ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out
"""

STOCK = """\
a guest of 64 MiB touches 1024 pages of 16384
this kernel has of Global TDP: nothing
nothing is mapped      1025 faults,      0 pages mapped before; 88 ns before, 2 ns of the guest
KVM_CAP_GLOBAL_TDP is missing: nothing can be mapped ahead, and nothing is lost
"""
POPULATED = """\
a guest of 64 MiB touches 1024 pages of 16384
nothing is mapped      1025 faults,      0 pages mapped before; 88 ns before, 2 ns of the guest
all is populated          1 faults,  16384 pages mapped before; 88 ns before, 2 ns of the guest
"""
OLD = f"{POPULATED}KVM_GLOBAL_TDP_HARVEST is missing: no working set can be recorded\n"
OURS = f"""{POPULATED}\
while it is recorded      1 faults
recorded: [256, 256, 256, 256] pages, just those that were touched, in 8240 bytes
the set is replayed       1 faults,   1024 pages mapped before; 88 ns before, 2 ns of the guest
"""


PASSED, FAILED = State.PASSED, State.FAILED
SETS, RAN = "bitmap::tests::sets", TESTS.replace("ignored, wants headers", "ok")
LOST = TESTS.replace(f"test {SETS} ... ok\n", "")
RED = TESTS.replace("sets ... ok", "sets ... FAILED").replace("ok. 1", "FAILED. 1")
COMPILED = ("src/lib.rs - (line 7) - compile", PASSED)


@pytest.mark.parametrize(
    ("status", "text", "wanted"),
    (
        (0, TESTS, [(SETS, PASSED), ("a::header", FAILED), COMPILED]),
        (0, RAN, [(SETS, PASSED), ("a::header", PASSED), COMPILED]),
        (101, RED, [(SETS, FAILED), ("what cargo says", FAILED)]),
        *((101, text, [("cargo test", FAILED)]) for text in (TESTS, "error: no")),
        *((0, text, [("cargo test", FAILED)]) for text in (LOST, "")),
    ),
)
def test_cargo(status: int, text: str, wanted: list[tuple[str, State]]) -> None:
    """Each is one, and none may be ignored; a failure is told; all must add up."""
    done = subprocess.CompletedProcess([], status, text, "")
    found = [(outcome.name, outcome.state) for outcome in rust.judge_tests(done)]
    assert set(wanted) <= set(found)
    assert text != RAN or found == wanted


CHANGED = (
    (" 1025 faults", "    1 faults"),
    ("1 faults,  16384", "999 faults,  16384"),
    ("16384 pages mapped", "16383 pages mapped"),
    ("recorded      1 faults", "recorded   1025 faults"),
    ("just those", "NOT those"),
    ("256, 256]", "256]"),
    ("1 faults,   1024", "17 faults,   1024"),
    ("1024 pages mapped", "16384 pages mapped"),
)


@pytest.mark.parametrize(
    ("said", "stock", "failed"),
    (
        *((STOCK, True, 0), (POPULATED, True, 1), ("", True, 2)),
        *((OURS, False, 0), (OLD, False, 3), ("", False, 5)),
        *((OURS.replace(*words), False, 1) for words in CHANGED),
    ),
)
def test_restore(said: str, stock: bool, failed: int) -> None:
    """Stock goes without, ours does all, and each claim can fail."""
    states = [outcome.state for outcome in rust.judge_restore(said, stock=stock)]
    assert states.count(FAILED) == failed


RS = tuple(f"populated: {n} bytes mapped, {4096 - n} left\n" for n in (0, 4096))
C = ("populated: nothing, this kernel has no Global TDP\n", "populated: 0\n")


@pytest.mark.parametrize("stock", (True, False))
@pytest.mark.parametrize(("name", "texts"), (("minimal.rs", RS), ("minimal.c", C)))
def test_the_shortest_programs(name: str, texts: tuple[str, str], stock: bool) -> None:
    for text in (*texts, ""):
        state = rust.judge_minimal(name, text, stock=stock).state
        assert (state is PASSED) == (text == texts[not stock])
