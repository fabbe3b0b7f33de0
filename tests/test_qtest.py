"""What is made of the output of QEMU's migration-test."""

import pytest

from lab.check import qtest

HINT = "kvm_populate gpa 0x1000 size 0x200000 ret 0\n"
FIRST, SECOND, *REST = (
    f"{HINT}ok {number} /x86_64{qtest.GROUP}/{name}\n"
    for number, name in enumerate(qtest.WANTED, 1)
)
SKIPPED = f"{SECOND.strip()} # SKIP no userfaultfd\n"
ALL = FIRST + SECOND + "".join(REST)


NO_HINT = ["", "no hint was given", "", ""]


@pytest.mark.parametrize(
    ("text", "ended", "reasons"),
    (
        (f"TAP version 14\n{ALL}1..4\n", True, [""] * 4),
        # As on a KVM without the capability, where the program does not add it.
        (f"TAP version 14\n1..0\n{FIRST}", True, ["", *["is not there"] * 3]),
        # An assertion ends all.
        (FIRST, False, ["", *["did not end, or was not run"] * 3]),
        (ALL.replace("ok 1", "not ok 1"), True, ["not ok", "", "", ""]),
        (FIRST + SKIPPED + "".join(REST), True, ["", "ok # SKIP no userfaultfd", "", ""]),
        # Each has hints of its own, which KVM has taken.
        (FIRST + SECOND.replace(HINT, "") + "".join(REST), True, NO_HINT),
        (FIRST + SECOND.replace("ret 0", "ret -14") + "".join(REST), True, NO_HINT),
    ),
)
def test_parts(text: str, ended: bool, reasons: list[str]) -> None:
    """Those that have a reason have failed."""
    found = qtest.judge_parts(text, ended=ended)
    assert [each.reason for each in found] == reasons
    states = ["failed" if reason else "passed" for reason in reasons]
    assert [each.state for each in found] == states
