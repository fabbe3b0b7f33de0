"""make test WHAT=nvdimm: guests with an NVDIMM, stock KVM and ours, and a power cut.

An unmodified QEMU has a guest's NVDIMM in a file with DAX, in a DAX device, or in an ordinary
file. The guest reads it, writes to it, flushes, while the host syncs the file; in the end QEMU
is killed and the file system stopped before it can write what it holds. `inside` does that in
the lab machine, and `judge` looks at what came of it.
"""

import argparse

from lab import shell
from lab.check import guests, report
from lab.check.guests import ON, STOCK, Report
from lab.check.nvdimm import judge
from lab.check.nvdimm.config import KINDS, Case
from lab.check.report import Part
from lab.machine import npt
from lab.make import modules
from lab.paths import BUILD, ROOT

_MEM_MIB = 256
_DIRECTORY = BUILD / "nvdimm"
_SOURCE = ROOT / "lab/check/nvdimm/guest/init.c"
_DRIVERS = ("nfit", "nd_pmem")
_CASE_SECONDS = 1200


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--only", choices=(STOCK, ON), help="Debian's KVM, or ours with global_tdp=1"
    )


def run(args: argparse.Namespace) -> int:
    """Run the guests and show what came of them; 1 if one failed."""
    modules.build()
    parts, stock = [], None
    with shell.locked("nvdimm"):
        for side in (STOCK, ON):
            if args.only in (None, side):
                part, stock = _guests(side, stock)
                parts.append(part)
    return report.show(parts)


def _guests(side: str, stock: Report | None) -> tuple[Part, Report]:
    part, found = guests.run(
        f"guests with an NVDIMM, {side}",
        "lab.check.nvdimm.inside",
        _DIRECTORY / f"{side}.json",
        guests.job(_DIRECTORY, _SOURCE, _DRIVERS, _MEM_MIB),
        (side,),
        case=Case,
        machine="pmem",
        stock=side == STOCK,
        timeout=npt.BOOT_SECONDS + _CASE_SECONDS * len(KINDS),
    )
    part.outcomes += judge.judge(found, side, stock)
    return part, found
