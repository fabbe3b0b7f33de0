"""Sentences that the documents must not have."""

import unittest

from lab.check import prose

LONG = "word " * 26
WRONG = (
    LONG + "ends.",
    f"- {LONG}",
    "What is mapped stays.",
    "It ends. What is mapped stays.",
    "Whoever asks gets it.",
    "It is for whoever asks.",
    "It has nobody.",
    "It waits in vain.",
    "It is to be told.",
    "It is as ever.",
    "It has so many pages.",
    "It is that which counts.",
)
RIGHT = (
    "word " * 25,
    "What does it cost?",
    "**What does it cost?** Little.",
    "The `in vain` part of the test.",
    f"    {LONG}",
    f"```\n{LONG}\n```",
    f"| {LONG} |",
    f"# {LONG}",
    f"It is [here]({LONG.replace(' ', '-')}), in `{LONG}`.",
    "word " * 20 + "ends. " + "Word " * 20,
)

TITLE = f"{LONG.strip()}\n{'=' * 130}\n\n"
TABLE = f"""\
====== ===
number {LONG}
====== ===
1      What is mapped stays.
====== ===

"""
RST_RIGHT = (
    TITLE,
    f".. SPDX: {LONG}",
    TABLE,
    f"Some code::\n\n    {LONG}\n\n        {LONG}\n\nIt ends.",
    f"  In a definition::\n\n    {LONG}\n\n  It ends.",
    f"{LONG}\n  It is explained.",
    f"It is ``{LONG}``, and ends.",
)
RST_WRONG = (
    f"{TITLE}{LONG}",
    f"{TABLE}  {LONG}",
    f"Some code::\n\n    {LONG}\n\n{LONG}",
    f"Term\n  {LONG}\n  {LONG}",
    f"- {LONG}\n  continued.",
    "``term``\n  What is mapped stays.",
)


class Faults(unittest.TestCase):
    """prose.faults()."""

    def test_wrong(self) -> None:
        for text in WRONG:
            with self.subTest(text):
                self.assertEqual(len(list(prose.faults(text))), 1)

    def test_right(self) -> None:
        for text in RIGHT:
            with self.subTest(text):
                self.assertEqual(list(prose.faults(text)), [])

    def test_line(self) -> None:
        self.assertEqual(next(prose.faults(f"Short.\n\n{LONG}"))[0], 3)

    def test_rst(self) -> None:
        for text in RST_RIGHT:
            with self.subTest(text):
                self.assertEqual(list(prose.faults(prose.of_rst(text))), [])
        for text in RST_WRONG:
            with self.subTest(text):
                self.assertEqual(len(list(prose.faults(prose.of_rst(text)))), 1)
        self.assertEqual(next(prose.faults(prose.of_rst(RST_WRONG[0])))[0], 4)


if __name__ == "__main__":
    unittest.main()
