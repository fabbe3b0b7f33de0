"""Which tests notice that a file is broken, by the patches in tests/broken."""

import re
from collections import Counter, defaultdict

from lab.check import broken, ledger, pages
from lab.paths import ROOT

_OURS = re.compile(r"^global_tdp_(\w+)_test$")
_HEAD = "| file | promises | tests that notice, each with how many |\n|---|---:|---|\n"


def table() -> str:
    """Return a row a file: those of the series, and those of KVM's own that a patch breaks."""
    own = (ROOT / "arch/x86/kvm/mmu").glob("*.c")
    found: dict[str, Counter[str]] = defaultdict(Counter)
    found |= {str(path.relative_to(ROOT)): Counter() for path in own}
    promises: Counter[str] = Counter()
    for each in broken.load():
        program = each.program.partition(" ")[0].removeprefix("x86_64/")
        names = each.test.split() or [_OURS.sub(r"\1", program)]
        for file in each.files:
            promises[file] += 1
            found[file].update(names)
    rows = []
    for file in sorted(found, key=lambda file: (-promises[file], file)):
        named = ", ".join(f"{name} {count}" for name, count in found[file].most_common())
        rows.append(f"| `{file}` | {promises[file]} | {named} |\n")
    return _HEAD + "".join(rows)


SHOWN = pages.Shown("the map", table)


def write() -> None:
    """Write all tables of lab/README.md."""
    SHOWN.write()
    ledger.SHOWN.write()
