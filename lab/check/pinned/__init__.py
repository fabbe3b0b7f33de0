"""VMs with a device of software that pins a single page, as mediated devices do.

lab/make/probes has the device, which takes no IOMMU: so there is one on EPT, too, where its
DMA, which is not coherent, has the guest choose memory types. `pinned.c` is the test.
"""

import lzma
from collections.abc import Sequence
from pathlib import Path

from lab.check import machines
from lab.check.outcome import must_run
from lab.check.report import Part
from lab.check.tests import Test
from lab.machine import params
from lab.make import pinned, probes, selftests
from lab.source import debian

BACKENDS = ("npt", "ept")

_LIMIT = 120
"""Seconds of the machine; on EPT, one takes up to eight."""

_EPT_SECONDS = 1200
_SCRIPT = """\
. "$LAB_GUEST/modules.sh"
whose=$1
shift
for file in "$@"; do
	grep -q "^$(module_name "$file") " /proc/modules || put "$file" || exit 1
done
exec "$0" "$whose"
"""


def run(backend: str, *, stock: bool) -> Part:
    """Run the test on NPT or EPT; the modules of KVM are built."""
    whose = "stock" if stock else "ours"
    part = Part(f"VMs with a device that pins a page, {backend.upper()}, {whose}")
    selftests.build()
    pinned.build()
    probes.build()
    argv = ("sh", "-c", _SCRIPT, pinned.PROGRAM, whose, *_modules(), probes.PIN)
    test = Test("pinned", tuple(map(str, argv)), _LIMIT)
    label = f"{backend} {whose}"
    if backend == "npt":
        done = machines.on_npt(label, [test], stock=stock)
    else:
        done = machines.on_ept(label, [test], "", _EPT_SECONDS, stock=stock)
    part.outcomes += [*map(must_run, done.outcomes.values()), *done.splats]
    part.seconds = sum(outcome.seconds for outcome in part.outcomes)
    return part


def _modules() -> Sequence[Path]:
    """Return VFIO's, as files that any machine can load."""
    made = []
    for name in params.needed(debian.kernel(), "vfio_iommu_type1"):
        file = pinned.PROGRAM.parent / Path(name).name.removesuffix(".xz")
        file.write_bytes(lzma.decompress(Path(name).read_bytes()))
        made.append(file)
    return made
