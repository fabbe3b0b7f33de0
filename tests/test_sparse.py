"""What `make lint` holds against the series of what sparse says."""

import unittest
from collections import Counter
from pathlib import Path

from lab.check import sparse

TREE = Path("/somewhere/kmod")
KBUILD = (
    "savedcmd_/somewhere/kmod/a.o := ccache x86_64-linux-gnu-gcc-12"
    " -Wp,-MMD,/somewhere/kmod/.a.o.d -nostdinc -I/somewhere/kmod/front/include"
    " -DKBUILD_MODNAME='\"kvm\"' -c -o /somewhere/kmod/a.o /somewhere/kmod/a.c"
    " ; ./tools/objtool/objtool --link a.o\n"
    "\nsource_/somewhere/kmod/a.o := /somewhere/kmod/a.c\n"
)
PRINTED = """\
/somewhere/kmod/arch/x86/kvm/x86.c:26:1: warning: context imbalance in 'f' - unexpected unlock
/somewhere/kmod/arch/x86/kvm/../../../virt/kvm/kvm_main.c:6:2: warning: cast removes it
/somewhere/kmod/arch/x86/kvm/x86.c: note: in included file (through include/linux/rbtree.h):
/d/usr/src/linux-headers-6.12-common/include/linux/rcupdate.h:881:9: warning: imbalance
/somewhere/kmod/arch/x86/kvm/x86.c:99:1: warning: context imbalance in 'f' - unexpected unlock
"""
X86 = ("arch/x86/kvm/x86.c", "context imbalance in 'f' - unexpected unlock")
NEW = ("arch/x86/kvm/mmu/mmu.c", "dereference of noderef expression")


class Command(unittest.TestCase):
    """That compiled a file."""

    def test_compiler_and_what_comes_after_are_left_out(self) -> None:
        found = sparse.arguments(KBUILD, TREE, Path("/stock"))
        self.assertEqual(found[0], "-nostdinc")
        self.assertEqual(found[-1], "/stock/a.c")
        self.assertIn("-I/stock/front/include", found)
        self.assertIn('-DKBUILD_MODNAME="kvm"', found)
        self.assertFalse([word for word in found if "-MMD" in word or str(TREE) in word])


class Parse(unittest.TestCase):
    """What it prints."""

    def test_places(self) -> None:
        found = sparse.parse(PRINTED, TREE)
        self.assertEqual(found[X86], 2)
        self.assertEqual(found["virt/kvm/kvm_main.c", "cast removes it"], 1)
        self.assertEqual(found["include/linux/rcupdate.h", "imbalance"], 1)
        self.assertEqual(found.total(), 4)

    def test_relative_places(self) -> None:
        """As seen from where newer kernels compile."""
        relative = PRINTED.replace("/somewhere/kmod/arch/x86/kvm/", "")
        self.assertEqual(sparse.parse(relative, TREE), sparse.parse(PRINTED, TREE))


class Judge(unittest.TestCase):
    """What stock does not have."""

    def test_new_ones_and_accepted_ones(self) -> None:
        accepted = Counter(sparse.ACCEPTED)
        self.assertEqual(sparse.judge(accepted), [])
        self.assertEqual(sparse.judge(accepted + Counter([NEW])), [": ".join(NEW)])

    def test_what_was_accepted_and_is_gone(self) -> None:
        self.assertEqual(len(sparse.judge(Counter())), len(sparse.ACCEPTED))


if __name__ == "__main__":
    unittest.main()
