"""make demo: prepare, run in the lab machine, show table and figure."""

import argparse
import shlex
import shutil
import subprocess

from lab import shell
from lab.demo import guest, plot, report
from lab.demo.config import BACKENDS, HANDED_OVER, MODES, NEW_MODES, Demo, Job
from lab.error import LabError
from lab.machine import npt
from lab.make import modules
from lab.paths import BUILD, ROOT, VENV_BIN
from lab.shell import console
from lab.source import debian
from lab.source.unpacked import Qemu

DIRECTORY = BUILD / "demo"

QEMU = "qemu-system-x86_64"
NEWER = Qemu("qemu13")
"""That of Debian 13, for what QEMU has learnt since, and beside the same with patches."""

_BOOT_SECONDS = npt.BOOT_SECONDS + 480
"""The guest boots, too, and is stored."""

_CASE_SECONDS = 240
_LEAST_MIB = 256
_LAB_MIB = 2048
_LOOK_SECONDS = 5

RINGS = tuple(1 << bit for bit in range(10, 17))
"""Sizes of a dirty ring in entries: what KVM has for itself, with PML, must fit in."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the demo's arguments."""
    parser.add_argument("--mode", choices=MODES, default="precopy")
    parser.add_argument("--backend", choices=(*BACKENDS, "both"), default="both")
    parser.add_argument("--mem", type=int, default=512, metavar="MIB", help="of the guest")
    parser.add_argument("--runs", type=int, default=1, help="of every case; medians are shown")
    parser.add_argument(
        "--qemu",
        metavar="PROGRAM",
        help="one with integration/qemu's patches (make qemu), which then turns Global TDP"
        " on and off; the distribution's runs beside it",
    )
    text = "have the guest map and unmap a PCI BAR, i.e. a memslot, all the time"
    parser.add_argument("--toggle", action="store_true", help=text)
    text = f"have each vCPU tell of what is dirty in a ring; 2^n, {min(RINGS)} to {max(RINGS)}"
    parser.add_argument("--dirty-ring", type=int, default=0, metavar="ENTRIES", help=text)


def run(args: argparse.Namespace) -> int:
    """Run the demo; 1 if a guest lost data, a target is missed, or the kernel complained."""
    if args.mem < _LEAST_MIB:
        raise LabError(f"--mem {args.mem}: Debian's kernel wants {_LEAST_MIB} or more")
    if args.runs < 1:
        raise LabError(f"--runs {args.runs}: 1 or more")
    if args.dirty_ring not in (0, *RINGS):
        raise LabError(f"--dirty-ring {args.dirty_ring}: one of {', '.join(map(str, RINGS))}")
    handed_over = HANDED_OVER.get(args.mode)
    if handed_over and args.backend not in ("both", handed_over):
        raise LabError(f"--backend: {args.mode} hands over a {handed_over}, and nothing else")
    for program in (QEMU, "qemu-img", "gcc", "cpio"):
        if not shutil.which(program):
            raise LabError(f"{program} is not installed: rm build/.setup, then run make again")
    if args.qemu and not _is_patched(args.qemu):
        raise LabError(f"--qemu {args.qemu}: without integration/qemu's patches: make qemu")
    with shell.locked("demo"):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    modules.build()
    job = _job(args)
    cases = len(job.sides) * len(job.backends) * job.runs
    status = npt.command(
        _command(job),
        mem=f"{3 * args.mem + _LAB_MIB}M",
        timeout=_BOOT_SECONDS + _CASE_SECONDS * cases,
        tries=3,
    ).status
    demo = _result_of(job.name, cases)
    met = report.show(demo)
    _draw(demo, job.name)
    return status if met else 1


def _is_patched(program: str) -> bool:
    """Whether a QEMU knows the property; it asks for that before it asks for KVM."""
    words = ["-M", "none", "-accel", "kvm,global-tdp=off", "-nodefaults", "-S"]
    words += ["-display", "none"]
    try:
        done = subprocess.run([program, *words], capture_output=True, timeout=_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        # A machine of nothing, on a host that has KVM.
        return True
    except OSError as error:
        raise LabError(f"--qemu {program}: {error.strerror}: make qemu builds one") from error
    return b"KVM" in done.stderr


def _job(args: argparse.Namespace) -> Job:
    backends = list(BACKENDS) if args.backend == "both" else [args.backend]
    if handed_over := HANDED_OVER.get(args.mode):
        backends = [handed_over]
    newer = args.qemu or args.mode in NEW_MODES
    return Job(
        mode=args.mode,
        backends=backends,
        mem_mib=args.mem,
        runs=args.runs,
        kernel=str(debian.kernel().image),
        initramfs=str(guest.build(DIRECTORY / "guest")),
        qemu=str(NEWER.program()) if newer else QEMU,
        patched=args.qemu or "",
        firmware=[str(path) for path in NEWER.firmware] if args.qemu else [],
        toggle=args.toggle,
        dirty_ring=args.dirty_ring,
    )


def _command(job: Job) -> str:
    """Write the job down and return what runs it."""
    wanted, result = DIRECTORY / "job.json", DIRECTORY / f"{job.name}.json"
    job.save(wanted)
    result.unlink(missing_ok=True)
    words = (VENV_BIN / "python", "-B", "-m", "lab.demo.inside", wanted, result)
    return shlex.join(str(word) for word in words)


def _result_of(name: str, cases: int) -> Demo:
    path = DIRECTORY / f"{name}.json"
    if not path.exists():
        raise LabError("the demo did not begin in the lab machine; see its output above")
    demo = Demo.load(path)
    if demo.error:
        console.print(demo.console, markup=False)
        raise LabError(f"{demo.error}; the guest's last lines stand above")
    if len(demo.cases) < cases:
        raise LabError(f"the demo did {len(demo.cases)} of {cases} cases; see its output above")
    return demo


def _draw(demo: Demo, name: str) -> None:
    picture, samples = (DIRECTORY / f"{name}.{kind}" for kind in ("png", "json"))
    plot.draw(demo, picture)
    print(f"figure: {picture.relative_to(ROOT)}; samples: {samples.relative_to(ROOT)}")
