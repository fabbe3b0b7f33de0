"""Comments of the kernel that are renamed by mistake."""

import unittest

from lab.check import comments

RENAMED = """\
@@ -6742,7 +6746,7 @@
-\t * capacity so that KVM doesn't have to drop mmu_lock to topup if KVM
+\t * capacity so that KVM doesn't have to drop mmu_lock to topup_sps if KVM
"""


class Renamed(unittest.TestCase):
    """comments.renamed()."""

    def test_word_of_ours(self) -> None:
        """It is told of, with its line."""
        told = list(comments.renamed(RENAMED, {"topup_sps"}))
        self.assertEqual(len(told), 1)
        self.assertIn("topup_sps in", told[0])

    def test_other_words(self) -> None:
        """What the kernel has, too, may be what is meant."""
        self.assertFalse(list(comments.renamed(RENAMED, {"root"})))

    def test_rewritten(self) -> None:
        """A line that says something else is no mistake."""
        patch = "-	 * The root is there.\n+	 * No topup_sps() for the root here.\n"
        self.assertFalse(list(comments.renamed(patch, {"topup_sps"})))

    def test_code(self) -> None:
        """Code may be renamed."""
        self.assertFalse(
            list(comments.renamed("-	topup();\n+	topup_sps();\n", {"topup_sps"}))
        )


if __name__ == "__main__":
    unittest.main()
