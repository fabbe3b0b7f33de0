"""What make test WHAT=cover says must be true: unit tests of its judgement."""

import io
import tempfile
import unittest
from contextlib import redirect_stderr
from pathlib import Path

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


class Judge(unittest.TestCase):
    """Lines that are executed, those that are not, and why."""

    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "a.c").write_text("".join(f"\tline{n};\n" for n in range(1, 41)))
        self.enterContext(redirect_stderr(io.StringIO()))

    def judge(
        self,
        counts: dict[int, int],
        ours: set[int] | None,
        reasons: dict[str, tuple[int, str]],
    ) -> list[tuple[State, str]]:
        lines = {cover.Line(number, "f"): count for number, count in counts.items()}
        found = cover.judge({"a.c": lines}, {"a.c": ours}, {"a.c": reasons}, self.root)
        return [(outcome.state, outcome.reason) for outcome in found]

    def test_all(self) -> None:
        told = "40 of 40 lines, 100.0%"
        self.assertEqual(self.judge(dict.fromkeys(range(1, 41), 1), None, {}), [(PASSED, told)])

    def test_what_is_not_named(self) -> None:
        counts = dict.fromkeys(range(1, 41), 1) | {7: 0}
        ((state, reason),) = self.judge(counts, None, {})
        self.assertIs(state, FAILED)
        self.assertIn("1 that no test reaches", reason)
        self.assertEqual(self.judge(counts, None, {"f: line7;": (1, "why")})[0][0], PASSED)
        self.assertEqual(self.judge(counts, None, {"g: line7;": (1, "why")})[0][0], FAILED)

    def test_more_of_them_than_are_excused(self) -> None:
        text = "".join("\tsame;\n" for _ in range(40))
        (self.root / "a.c").write_text(text)
        counts = dict.fromkeys(range(1, 41), 1) | {7: 0, 8: 0}
        self.assertEqual(self.judge(counts, None, {"f: same;": (1, "why")})[0][0], FAILED)
        self.assertEqual(self.judge(counts, None, {"f: same;": (2, "why")})[0][0], PASSED)
        self.assertEqual(self.judge(counts, None, {"f: same;": (3, "why")})[0][0], PASSED)

    def test_too_little_though_named(self) -> None:
        counts = dict.fromkeys(range(1, 41), 1) | {7: 0, 8: 0, 9: 0}
        reasons = dict.fromkeys(("f: line7;", "f: line8;", "f: line9;"), (1, "why"))
        self.assertEqual(self.judge(counts, None, reasons)[0][0], FAILED)
        self.assertEqual(self.judge(counts, {1, 7, 8, 9}, reasons)[0][0], PASSED)

    def test_lines_of_others_do_not_count(self) -> None:
        counts = {1: 0, 2: 3}
        self.assertEqual(self.judge(counts, {2}, {}), [(PASSED, "1 of 1 lines, 100.0%")])
        self.assertEqual(self.judge(counts, {3}, {}), [])

    def test_a_file_of_which_nothing_is_known(self) -> None:
        found = cover.judge({}, {"a.c": {1}}, {}, self.root)
        self.assertIs(found[0].state, FAILED)


class Changed(unittest.TestCase):
    """Which lines are the series'."""

    def test_added(self) -> None:
        self.assertEqual(cover.added(DIFF), {1, 2, 21})

    def test_names(self) -> None:
        absolute = "/somewhere/build/linux/arch/x86/kvm/mmu/spte.h"
        self.assertEqual(cover._relative(absolute), "arch/x86/kvm/mmu/spte.h")
        self.assertEqual(cover._relative("virt/kvm/kvm_main.c"), "virt/kvm/kvm_main.c")

    def test_flags_name_objects_as_kvm_does(self) -> None:
        self.assertEqual(cover._flag("arch/x86/kvm/mmu/spte.c"), "GCOV_PROFILE_mmu/spte.o=y")
        self.assertEqual(
            cover._flag("virt/kvm/kvm_main.c"), "GCOV_PROFILE_../../../virt/kvm/kvm_main.o=y"
        )
