"""What the benchmark of a vNVDIMM finds fault with."""

import io
import unittest
from contextlib import redirect_stdout

from lab.measure import counted, dax


def runs(**faults: int) -> list[dict[str, int | str]]:
    """Return runs of our modules; keywords are the faults that are left."""
    return [
        {
            "modules": "ours",
            "cache": size,
            "way": way,
            "check_faults": faults.get("check", 1),
            "write_faults": faults.get("write", 0) if way == "copy+populate" else 8,
        }
        for size in ("small", "huge")
        for way in ("read+populate", "copy+populate")
    ]


class Conclude(unittest.TestCase):
    """Of faults that are left."""

    def concluded(self, found: list[dict[str, int | str]]) -> tuple[int, str]:
        with redirect_stdout(io.StringIO()) as out:
            status = counted.judge(dax.targets(found))
        return status, out.getvalue()

    def test_none_is_left(self) -> None:
        status, said = self.concluded(runs())
        self.assertEqual(status, 0)
        self.assertIn("6 passed, 0 failed", said)

    def test_faults_to_read(self) -> None:
        status, said = self.concluded(runs(check=2))
        self.assertEqual(status, 1)
        self.assertIn("missed: small, read+populate: 2 faults to read", said)

    def test_faults_to_write_after_all_is_made_writable(self) -> None:
        status, said = self.concluded(runs(write=1))
        self.assertEqual(status, 1)
        self.assertIn("2 failed", said)
