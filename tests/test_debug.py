"""What `make test-debug` holds against the series, and what not."""

import os
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.check import debug

KVM = {"kvm_faultin_pfn", "kvm_mmu_invalidate_end", "fill_holes", "tdp_mmu_zap_spte"}


def _report(what: str) -> str:
    return f"[   28.814698] BUG: {what}\n[   28.814700] \n[   28.814701] write to 0xffa0"


class Configuration(unittest.TestCase):
    """That was made once is not kept for ever."""

    def test_of_an_older_fragment(self) -> None:
        with TemporaryDirectory() as scratch:
            config, *fragments = (Path(scratch, name) for name in (".config", "a", "b"))
            for number, fragment in enumerate(fragments):
                fragment.touch()
                os.utime(fragment, (100 + number, 100 + number))
            self.assertTrue(debug._is_older(config, fragments))
            config.touch()
            self.assertFalse(debug._is_older(config, fragments))
            os.utime(config, (100, 100))
            self.assertTrue(debug._is_older(config, fragments))


class Races(unittest.TestCase):
    def _assert_known(self, what: str, *, known: bool) -> None:
        self.assertEqual(debug.is_known(_report(what), KVM), known)

    def test_of_stock_kvm(self) -> None:
        race = "KCSAN: data-race in kvm_faultin_pfn / kvm_mmu_invalidate_end"
        self._assert_known(race, known=True)

    def test_outside_of_kvm(self) -> None:
        self._assert_known("KCSAN: data-race in __d_add / __d_add", known=True)
        self._assert_known("KCSAN: data-race in vring_interrupt+0xd3/0x100", known=True)

    def test_of_the_series(self) -> None:
        self._assert_known("KCSAN: data-race in fill_holes / tdp_mmu_zap_spte", known=False)
        self._assert_known("KCSAN: data-race in __d_add / fill_holes", known=False)
        self._assert_known("KCSAN: data-race in fill_holes+0xd3/0x100", known=False)

    def test_half_of_a_known_one(self) -> None:
        self._assert_known("KCSAN: data-race in fill_holes / kvm_faultin_pfn", known=False)

    def test_other_complaints(self) -> None:
        self._assert_known("KASAN: use-after-free in __d_add", known=False)
        self._assert_known("sleeping function called from invalid context", known=False)
