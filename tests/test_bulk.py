"""What the benchmark of many VMs at rest reads, and finds fault with."""

import io
import unittest
from contextlib import redirect_stdout

from lab.measure import bulk, counted

TEXT = """\
Random seed: 0x6b8b4567
before_Slab 1000
after_Slab 1600
vms 200
seconds 600
threads 200
wakeups 0
cpu_us 0
"""


class Bulk(unittest.TestCase):
    """Of a run's output."""

    def concluded(self, text: str) -> tuple[int, str]:
        with redirect_stdout(io.StringIO()) as out:
            status = counted.judge(bulk.targets(bulk.parse(text)))
        return status, out.getvalue()

    def test_memory_is_per_vm(self) -> None:
        self.assertEqual(bulk.per_vm(bulk.parse(TEXT), "Slab"), 3.0)

    def test_at_rest(self) -> None:
        status, said = self.concluded(TEXT)
        self.assertEqual(status, 0)
        self.assertIn("3 passed, 0 failed", said)

    def test_wakes_up(self) -> None:
        status, said = self.concluded(TEXT.replace("wakeups 0", "wakeups 1"))
        self.assertEqual(status, 1)
        self.assertIn("missed: 1 wake-ups in 600 s", said)

    def test_takes_time(self) -> None:
        self.assertIn("2 us", self.concluded(TEXT.replace("cpu_us 0", "cpu_us 2"))[1])

    def test_threads(self) -> None:
        self.assertIn(
            "201 threads", self.concluded(TEXT.replace("threads 200", "threads 201"))[1]
        )
