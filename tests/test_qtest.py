"""What is made of the output of QEMU's migration-test."""

import unittest

from lab.check import qtest
from lab.check.outcome import State

HINT = "kvm_populate gpa 0x1000 size 0x200000 ret 0\n"


class JudgeParts(unittest.TestCase):
    LINES = tuple(
        f"{HINT}ok {number} /x86_64{qtest.GROUP}/{name}\n"
        for number, name in enumerate(qtest.WANTED, 1)
    )

    def states(self, text: str) -> list[State]:
        """Return those of the tests in the order in which they are wanted."""
        return [outcome.state for outcome in qtest.judge_parts(text)]

    def test_all_passed(self) -> None:
        text = f"TAP version 14\n{''.join(self.LINES)}1..4\n"
        self.assertEqual(self.states(text), [State.PASSED] * 4)

    def test_what_is_not_there_has_failed(self) -> None:
        """As on a KVM without the capability, where the program does not add it."""
        (precopy, *others) = qtest.judge_parts("TAP version 14\n1..0\n" + self.LINES[0])
        self.assertEqual(precopy.state, State.PASSED)
        self.assertEqual([each.reason for each in others], ["is not there"] * 3)

    def test_an_assertion_ends_all(self) -> None:
        (precopy, *others) = qtest.judge_parts(self.LINES[0], ended=False)
        self.assertEqual(precopy.state, State.PASSED)
        self.assertEqual({each.reason for each in others}, {"did not end, or was not run"})

    def test_what_failed_or_skips(self) -> None:
        text = self.LINES[0].replace("ok 1", "not ok 1")
        text += f"{self.LINES[1].strip()} # SKIP no userfaultfd\n"
        states = self.states(text + "".join(self.LINES[2:]))
        self.assertEqual(states, [State.FAILED] * 2 + [State.PASSED] * 2)

    def test_who_gave_no_hint_has_failed(self) -> None:
        """Each has hints of its own, which KVM has taken."""
        for hint in ("", HINT.replace("ret 0", "ret -14")):
            (precopy, multifd, *others) = qtest.judge_parts(
                self.LINES[0] + self.LINES[1].replace(HINT, hint) + "".join(self.LINES[2:])
            )
            self.assertEqual(multifd.reason, "no hint was given")
            self.assertEqual({each.state for each in (precopy, *others)}, {State.PASSED})


if __name__ == "__main__":
    unittest.main()
