"""Parameters of modules, and the list that a machine loads."""

import unittest
from pathlib import Path
from unittest import mock

from lab.error import LabError
from lab.machine import params
from lab.source.debian import Kernel

KERNEL = Kernel("6.12.1+deb12-amd64")
KNOWN = {"kvm": {"global_tdp", "tdp_mmu"}, "kvm_amd": {"npt", "vgif"}, "kvm_intel": {"eptad"}}
ZRAM = "insmod /debian/zsmalloc.ko.xz \ninsmod /debian/zram.ko.xz \n"
AMD = "insmod /debian/irqbypass.ko.xz \ninsmod /debian/kvm.ko.xz \ninsmod /debian/kvm-amd.ko \n"


def module(_: Kernel, owner: str, **whose: bool) -> Path:
    return Path("/stock" if whose["stock"] else "/ours", f"{owner}.ko")


class Modules(unittest.TestCase):
    def setUp(self) -> None:
        listed = {"zram": ZRAM, "kvm_amd": AMD}
        for target, name, new in (
            (params, "module", module),
            (params, "_known", lambda path: KNOWN[path.stem]),
            (params.debian, "kernel", lambda: KERNEL),
            (params.shell, "output", lambda *args: listed[args[-1]]),
        ):
            patch = mock.patch.object(target, name, new)
            patch.start()
            self.addCleanup(patch.stop)


class Split(Modules):
    def split(self, text: str) -> dict[str, str]:
        found = params.split(text, KERNEL, stock=False)
        return {owner: given for owner, given in found.items() if given}

    def test_whose_they_are(self) -> None:
        given = self.split("global_tdp=1 kvm_amd.vgif=0 kvm.tdp_mmu=N kvm_intel.eptad=0")
        wanted = {"kvm": "global_tdp=1 tdp_mmu=N", "kvm_amd": "vgif=0", "kvm_intel": "eptad=0"}
        self.assertEqual(given, wanted)
        self.assertEqual(self.split("  "), {})

    def test_a_switch_has_no_value(self) -> None:
        self.assertEqual(self.split("global_tdp"), {"kvm": "global_tdp"})

    def test_what_a_module_does_not_know(self) -> None:
        for text in ("globaltdp=1", "kvm_amd.global_tdp=1", "kvm_arm.x=1", "=1", "kvm.=1"):
            with self.assertRaisesRegex(LabError, "has no parameter"):
                self.split(text)

    def test_a_quote_that_does_not_end(self) -> None:
        with self.assertRaises(LabError):
            self.split("global_tdp='1")


class ToLoad(Modules):
    def test_what_is_needed_comes_first(self) -> None:
        listed = params.to_load("kvm_amd", "global_tdp=1 kvm_amd.vgif=0", swap=True)
        self.assertEqual(
            listed.splitlines(),
            [
                "/debian/zsmalloc.ko.xz",
                "/debian/zram.ko.xz",
                "/debian/irqbypass.ko.xz",
                "/ours/kvm.ko global_tdp=1",
                "/ours/kvm_amd.ko vgif=0",
            ],
        )

    def test_another_kvm(self) -> None:
        listed = params.to_load("kvm_amd", "global_tdp=1", kvm=Path("/broken/kvm.ko"))
        self.assertIn("\n/broken/kvm.ko global_tdp=1\n/ours/kvm_amd.ko\n", listed)
        self.assertNotIn("zram", listed)

    def test_stock(self) -> None:
        self.assertIn("\n/stock/kvm.ko\n", params.to_load("kvm_amd", stock=True))


if __name__ == "__main__":
    unittest.main()
