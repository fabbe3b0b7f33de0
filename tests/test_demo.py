"""The demo's figures hold only if all who count faults agree."""

import unittest

from lab.demo import kvm


def _differ(taken: int, devices: int, qmp: int, traced: int) -> str:
    return kvm.differ({"pf_taken": taken, "pf_mmio_spte_created": devices}, qmp, traced)


class Faults(unittest.TestCase):
    """Of a guest that is stopped."""

    def test_agreement(self) -> None:
        self.assertEqual(_differ(700, 20, 700, 700), "")

    def test_a_device_that_was_found_anew(self) -> None:
        """KVM counts it, the tracepoint does not."""
        self.assertEqual(_differ(700, 20, 700, 680), "")
        self.assertIn("tracepoint 679", _differ(700, 20, 700, 679))

    def test_more_than_kvm_counts(self) -> None:
        self.assertIn("tracepoint 701", _differ(700, 20, 700, 701))

    def test_another_counter(self) -> None:
        self.assertIn("query-stats 699", _differ(700, 20, 699, 700))


if __name__ == "__main__":
    unittest.main()
