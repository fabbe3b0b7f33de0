"""make bench WHAT=dax: a guest's first pass over a vNVDIMM, on stock modules and on ours.

The program of integration/restore has a file of a file system that is mounted with DAX for
a guest's memory, by a shared mapping, as QEMU's memory-backend-file with share=on has. One
boot under -icount, with huge pages and without.
"""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.error import LabError
from lab.machine import npt, params
from lab.make import modules, selftests
from lab.make import restore as make_restore
from lab.measure import counted, restore
from lab.measure.restore import Run
from lab.paths import BUILD, RESTORE
from lab.shell import console

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


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--timeout", type=float, default=1200, help="seconds, with the boot")


def run(args: argparse.Namespace) -> int:
    """Measure and show; 1 if a fault is left where there must be none."""
    selftests.build()
    make_restore.build()
    modules.build()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for old in DIRECTORY.glob("*.txt"):
        old.unlink()
    console.print("Counting instructions: stock modules, then ours; some minutes")
    status = npt.command(
        _script(), icount=True, stock=True, machine="pmem", timeout=args.timeout
    ).status
    if status:
        raise LabError(f"the benchmark ended with status {status}; see its output above")
    logs = {
        (whose, size): (DIRECTORY / f"{whose}.{size}.txt").read_text()
        for whose in ("stock", "ours")
        for size in _OPTIONS
    }
    runs = restore.figures(logs)
    restore.show(runs, _TITLES, _NOTE)
    counted.save(DIRECTORY / "dax.json", mib=MIB, note=_NOTE, runs=runs)
    return counted.judge(targets(runs))


def targets(runs: Sequence[Run]) -> Iterator[tuple[str, bool]]:
    """What is populated takes no fault; what DAX has to be told of, i.e. writes, may."""
    for size in _OPTIONS:
        found = {run["way"]: run for run in runs if _is(run, size)}
        for way, writes in (("read+populate", False), ("copy+populate", True)):
            checks = int(found[way]["check_faults"])
            # The guest's code is in a page of its own.
            yield f"{size}, {way}: {checks} faults to read", checks <= 1
            if writes:
                left = int(found[way]["write_faults"])
                yield f"{size}, {way}: {left} faults to write", not left


def _is(run: Mapping[str, int | str], size: str) -> bool:
    return run["modules"] == "ours" and run["cache"] == size


def _script() -> str:
    """Return what the machine runs, which comes up with stock modules."""
    lines, program = ['. "$LAB_GUEST/modules.sh"', "set -e"], shlex.quote(str(RESTORE))
    for whose in ("stock", "ours"):
        listed = DIRECTORY / f"{whose}.modules"
        listed.write_text(params.to_load("kvm_amd", stock=whose == "stock"))
        lines += [f"load {shlex.quote(str(listed))}", f"echo '  {whose} modules'"]
        lines += [_measured(program, whose, size) for size in _OPTIONS]
    return "\n".join(lines)


def _measured(program: str, whose: str, size: str) -> str:
    log = shlex.quote(str(Path(DIRECTORY) / f"{whose}.{size}.txt"))
    command = f"{program} -s {_OPTIONS[size]} -m {MIB} {_FILE}"
    # The first run makes the file.
    return f"{command} plain >/dev/null; {command} >{log} 2>&1 || {{ cat {log}; exit 1; }}"
