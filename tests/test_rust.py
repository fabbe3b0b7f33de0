"""What the crate's tests, and its examples, say."""

import subprocess
import unittest

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


class Cargo(unittest.TestCase):
    """What came of the crate's own tests."""

    def states(self, status: int, text: str) -> list[tuple[str, State]]:
        done = subprocess.CompletedProcess([], status, text, "")
        return [(outcome.name, outcome.state) for outcome in rust.judge_tests(done)]

    def test_each_is_one_and_none_may_be_ignored(self) -> None:
        wanted = [
            ("bitmap::tests::sets", State.PASSED),
            ("a::header", State.FAILED),
            ("src/lib.rs - (line 7) - compile", State.PASSED),
        ]
        self.assertEqual(self.states(0, TESTS)[:3], wanted)
        run = TESTS.replace("ignored, wants headers", "ok")
        self.assertEqual([state for _, state in self.states(0, run)], [State.PASSED] * 3)

    def test_a_failure_is_told_with_its_words(self) -> None:
        text = TESTS.replace("sets ... ok", "sets ... FAILED").replace("ok. 1", "FAILED. 1")
        found = self.states(101, text)
        self.assertIn(("bitmap::tests::sets", State.FAILED), found)
        self.assertIn(("what cargo says", State.FAILED), found)

    def test_what_does_not_add_up_fails(self) -> None:
        lost = TESTS.replace("test bitmap::tests::sets ... ok\n", "")
        for status, text in (
            (101, TESTS),
            (0, lost),
            (101, "error: it does not compile"),
            (0, ""),
        ):
            self.assertIn(("cargo test", State.FAILED), self.states(status, text), text)


class Restore(unittest.TestCase):
    """What the example says."""

    def failed(self, said: str, *, stock: bool = False) -> list[str]:
        outcomes = rust.judge_restore(said, stock=stock)
        return [outcome.name for outcome in outcomes if outcome.state is State.FAILED]

    def test_stock_goes_without(self) -> None:
        self.assertEqual(self.failed(STOCK, stock=True), [])
        self.assertEqual(len(self.failed(POPULATED, stock=True)), 1)
        self.assertEqual(len(self.failed("", stock=True)), 2)

    def test_ours_does_all(self) -> None:
        self.assertEqual(self.failed(OURS), [])
        self.assertEqual(len(self.failed(OLD)), 3)
        self.assertEqual(len(self.failed("")), 5)

    def test_each_claim_can_fail(self) -> None:
        for old, new in (
            (" 1025 faults", "    1 faults"),
            ("1 faults,  16384", "999 faults,  16384"),
            ("16384 pages mapped", "16383 pages mapped"),
            ("recorded      1 faults", "recorded   1025 faults"),
            ("just those", "NOT those"),
            ("256, 256]", "256]"),
            ("1 faults,   1024", "17 faults,   1024"),
            ("1024 pages mapped", "16384 pages mapped"),
        ):
            self.assertIn(old, OURS)
            self.assertEqual(len(self.failed(OURS.replace(old, new))), 1, new)


class Minimal(unittest.TestCase):
    """What the shortest programs say."""

    def test_both_say_what_they_did(self) -> None:
        said = {
            "minimal.rs": (
                "populated: 0 bytes mapped, 4096 left\n",
                "populated: 4096 bytes mapped, 0 left\n",
            ),
            "minimal.c": (
                "populated: nothing, this kernel has no Global TDP\n",
                "populated: 0\n",
            ),
        }
        for name, texts in said.items():
            for stock in (True, False):
                for text in (*texts, ""):
                    good = text == texts[not stock]
                    state = rust.judge_minimal(name, text, stock=stock).state
                    self.assertEqual(state is State.PASSED, good, (name, stock, text))
