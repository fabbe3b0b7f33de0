"""make test WHAT=assigned: guests with devices, and what their host may do meanwhile.

An unmodified QEMU gives a Debian guest an NVMe drive by vfio-pci; `inside` runs it in the lab
machine, and `judge` looks at what came of it. lab.check.pinned has devices that pin one page.
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

from lab import shell
from lab.check import guests, pinned, report
from lab.check.assigned import judge
from lab.check.assigned.config import Case
from lab.check.guests import OFF, ON, STOCK
from lab.check.report import Part
from lab.machine import npt
from lab.make import modules
from lab.paths import BUILD

CASES = {
    "ours": (f"{ON}:anon", f"{ON}:memfd", f"{OFF}:memfd"),
    "stock": (f"{STOCK}:anon", f"{STOCK}:memfd"),
}
"""By whose modules: who decides on Global TDP, and what the guest's memory is."""

_PINNED = "pinned"
MEM_MIB = 512

_DIRECTORY = BUILD / "assigned"
_SOURCE = Path(__file__).parent / "guest" / "init.c"
_DRIVERS = ("nvme", "virtio_balloon")
_CASE_SECONDS = 2400


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    text = (
        "guests with a drive, by whose modules of KVM, one of them, or devices that pin pages"
    )
    names = (*CASES, *itertools.chain(*CASES.values()), _PINNED)
    parser.add_argument("--only", choices=names, metavar="PART", help=f"{text}: {names}")


def run(args: argparse.Namespace) -> int:
    """Run the guests and show what came of them; 1 if one failed."""
    modules.build()
    parts = []
    with shell.locked("assigned"):
        for whose, every in CASES.items():
            if cases := [name for name in every if args.only in (None, whose, name)]:
                parts.append(_guests(whose, cases))
    if args.only in (None, _PINNED):
        ways = itertools.product(pinned.BACKENDS, (False, True))
        parts += [pinned.run(backend, stock=stock) for backend, stock in ways]
    return report.show(parts)


def _guests(whose: str, cases: Sequence[str]) -> Part:
    part, found = guests.run(
        f"guests with an NVMe drive, {whose} modules",
        "lab.check.assigned.inside",
        _DIRECTORY / f"{whose}.json",
        guests.job(_DIRECTORY, _SOURCE, _DRIVERS, MEM_MIB, toggle=True),
        cases,
        case=Case,
        machine="drive",
        stock=whose == "stock",
        swap=True,
        timeout=npt.BOOT_SECONDS + _CASE_SECONDS * len(cases),
    )
    part.outcomes += judge.judge(found, cases)
    return part
