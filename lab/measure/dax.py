"""make bench WHAT=dax: a guest's first pass over a vNVDIMM, on stock modules and on ours.

The program of integration/restore has a file of a file system that is mounted with DAX for
a guest's memory, by a shared mapping, as QEMU's memory-backend-file with share=on has. One
boot under -icount, with huge pages and without.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from lab.measure import counted, restore
from lab.measure.counted import OURS, STOCK, Verdict
from lab.measure.restore import Run
from lab.paths import BUILD, RESTORE

DIRECTORY = BUILD / "dax"
MIB = 256
_FILE = "/tmp/xfs/memory"
_OPTIONS = {"small": "-4", "huge": ""}
_TITLES = {
    "small": f"A vNVDIMM of {MIB} MiB, DAX, 4 KiB pages",
    "huge": f"A vNVDIMM of {MIB} MiB, DAX, 2 MiB pages",
}
_NOTE = f"""\
Instructions per 4 KiB page: prepare is from mmap() to the first KVM_RUN, check until the
guest has read all pages, write until it has written to one of {restore.WRITE_STEP}; CPU is the
whole of it; faults are those of check and of write. DAX has no page cache:
MADV_POPULATE_READ and _WRITE map the device's pages, for reading only or for writing, too."""


def run(_: argparse.Namespace) -> int:
    """Measure and show; 1 if a fault is left where there must be none."""
    counted.build()
    doing = "Counting instructions: stock modules, then ours; some minutes"
    counted.run(DIRECTORY, doing, _script, stock=True, machine="pmem")
    runs = restore.figures(
        {key: _log(*key).read_text() for key in product((STOCK, OURS), _OPTIONS)}
    )
    restore.show(runs, _TITLES, _NOTE)
    counted.save(DIRECTORY / "dax.json", mib=MIB, note=_NOTE, runs=runs)
    return counted.judge(targets(runs))


def targets(runs: Sequence[Run]) -> Iterator[Verdict]:
    """What is populated takes no fault; what DAX has to be told of, i.e. writes, may."""
    for size in _OPTIONS:
        found = {
            run["way"]: run for run in runs if (run["modules"], run["cache"]) == (OURS, size)
        }
        for way, writes in (("read+populate", False), ("copy+populate", True)):
            checks = int(found[way]["check_faults"])
            # The guest's code is in a page of its own.
            yield f"{size}, {way}: {checks} faults to read", checks <= 1
            if writes:
                left = int(found[way]["write_faults"])
                yield f"{size}, {way}: {left} faults to write", not left


def _script() -> str:
    """Return what the machine runs, which comes up with stock modules."""
    lines = [*counted.BEGIN]
    for whose in (STOCK, OURS):
        lines += [counted.load(whose, DIRECTORY), f"echo '  {whose} modules'"]
        for size, options in _OPTIONS.items():
            command = f"{shlex.quote(str(RESTORE))} -s {options} -m {MIB} {_FILE}"
            # The first run makes the file.
            lines += [f"{command} plain >/dev/null", counted.logged(command, _log(whose, size))]
    return "\n".join(lines)


def _log(whose: str, size: str) -> Path:
    return DIRECTORY / f"{whose}.{size}.txt"
