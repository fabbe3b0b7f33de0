"""What make test WHAT=cover says must be true: unit tests of its judgement."""

from pathlib import Path

import pytest

from lab.check import cover
from lab.check.outcome import State

PASSED, FAILED = State.PASSED, State.FAILED

DIFF = """\
diff --git a/virt/kvm/a.c b/virt/kvm/a.c
--- a/virt/kvm/a.c
+++ b/virt/kvm/a.c
@@ -1 +1,2 @@
-old
+new
+newer
@@ -7,2 +9,0 @@
-gone
-gone, too
@@ -20 +21 @@ function()
-one
+another
"""


ALL = dict.fromkeys(range(1, 41), 1)
TWO, THREE = ALL | {7: 0, 8: 0}, ALL | {7: 0, 8: 0, 9: 0}
NAMED = dict.fromkeys(("f: line7;", "f: line8;", "f: line9;"), (1, "why"))
SAME = "\tsame;\n" * 40
NO_TEST = "1 that no test reaches"


@pytest.mark.parametrize(
    ("counts", "ours", "reasons", "wanted"),
    (
        (ALL, None, {}, (PASSED, "40 of 40 lines, 100.0%")),
        (ALL | {7: 0}, None, {}, (FAILED, NO_TEST)),
        (ALL | {7: 0}, None, {"f: line7;": (1, "why")}, (PASSED, "")),
        (ALL | {7: 0}, None, {"g: line7;": (1, "why")}, (FAILED, NO_TEST)),
        # More of them than are excused.
        (TWO, None, {"f: same;": (1, "why")}, (FAILED, "")),
        (TWO, None, {"f: same;": (2, "why")}, (PASSED, "")),
        (TWO, None, {"f: same;": (3, "why")}, (PASSED, "")),
        # Too little, though named.
        (THREE, None, NAMED, (FAILED, "")),
        (THREE, {1, 7, 8, 9}, NAMED, (PASSED, "")),
        # Lines of others do not count.
        ({1: 0, 2: 3}, {2}, {}, (PASSED, "1 of 1 lines, 100.0%")),
        ({1: 0, 2: 3}, {3}, {}, (None, "")),
        # A file of which nothing is known.
        (None, {1}, {}, (FAILED, "")),
    ),
)
def test_judge(
    tmp_path: Path, counts: dict, ours: set, reasons: dict, wanted: tuple[State | None, str]
) -> None:
    """Lines that are executed, those that are not, and why."""
    lines = "".join(f"\tline{n};\n" for n in range(1, 41))
    (tmp_path / "a.c").write_text(SAME if "f: same;" in reasons else lines)
    known = {cover.Line(number, "f"): count for number, count in (counts or {}).items()}
    of = {"a.c": known} if counts else {}
    found = cover.judge(of, {"a.c": ours}, {"a.c": reasons}, tmp_path)
    state, words = wanted
    assert [outcome.state for outcome in found] == ([state] if state else [])
    assert all(words in outcome.reason for outcome in found)


def test_which_lines_are_the_series() -> None:
    assert cover.added(DIFF) == {1, 2, 21}


def test_names() -> None:
    """Flags name objects as KVM does."""
    spte, main = "arch/x86/kvm/mmu/spte.c", "virt/kvm/kvm_main.c"
    assert cover._relative(f"/somewhere/build/linux/{spte}") == spte
    assert cover._relative(main) == main
    assert cover._flag(spte) == "GCOV_PROFILE_mmu/spte.o=y"
    assert cover._flag(main) == "GCOV_PROFILE_../../../virt/kvm/kvm_main.o=y"
