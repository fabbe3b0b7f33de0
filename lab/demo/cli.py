"""make demo: prepare, run in the lab machine, show table and figure."""

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence

from lab.demo import guest, plot, report
from lab.demo.config import BACKENDS, MODES, Demo, Job
from lab.demo.vm import QEMU
from lab.error import LabError
from lab.machine import npt, params
from lab.make import modules
from lab.paths import BUILD, ROOT, VENV_BIN
from lab.shell import console
from lab.source import debian

DIRECTORY = BUILD / "demo"

_BOOT_SECONDS = 120
_CASE_SECONDS = 240
_LEAST_MIB = 256
_LAB_MIB = 2048


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
    parser.add_argument("--stock", action="store_true", help="Debian's KVM in both columns")


def run(args: argparse.Namespace) -> int:
    """Run the demo; 1 if a guest lost data or the kernel complained."""
    if args.mem < _LEAST_MIB:
        raise LabError(f"--mem {args.mem}: Debian's kernel wants {_LEAST_MIB} or more")
    if args.runs < 1:
        raise LabError(f"--runs {args.runs}: 1 or more")
    for program in (args.qemu or QEMU, "qemu-img", "gcc", "cpio"):
        if not shutil.which(program):
            raise LabError(f"{program} is not installed: rm build/.setup, then run make setup")
    if not args.stock:
        modules.build()
    job = _job(args)
    cases = len(job.sides) * len(job.backends) * job.runs
    status = npt.command(
        _command(job),
        mem=f"{2 * args.mem + _LAB_MIB}M",
        stock=args.stock,
        # In turns, a guest within the machine takes minutes to boot.
        machine="together",
        timeout=_BOOT_SECONDS + _CASE_SECONDS * cases,
        tries=3,
    ).status
    demo = _result_of(job.mode, cases)
    report.show(demo)
    _draw(demo)
    lost = any(case.mismatches for case in demo.cases)
    return 1 if lost else status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo from a command line of its own."""
    parser = argparse.ArgumentParser(prog="python -m lab.demo.cli", description=__doc__)
    configure(parser)
    try:
        return run(parser.parse_args(argv))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _job(args: argparse.Namespace) -> Job:
    kernel = debian.kernel()
    built = [params.module(kernel, owner, stock=args.stock) for owner in ("kvm", "kvm_amd")]
    # Copies: a build that goes on meanwhile must not change a column.
    (DIRECTORY / "modules").mkdir(parents=True, exist_ok=True)
    kvm, kvm_amd = (str(shutil.copy(path, DIRECTORY / "modules")) for path in built)
    return Job(
        mode=args.mode,
        backends=list(BACKENDS) if args.backend == "both" else [args.backend],
        mem_mib=args.mem,
        runs=args.runs,
        kernel=str(kernel.image),
        initramfs=str(guest.build(DIRECTORY / "guest")),
        modules={"kvm": kvm, "kvm_amd": kvm_amd},
        qemu=args.qemu or QEMU,
        chosen_by_qemu=bool(args.qemu),
        toggle=args.toggle,
    )


def _command(job: Job) -> str:
    """Write the job down and return what runs it."""
    wanted, result = DIRECTORY / "job.json", DIRECTORY / f"{job.mode}.json"
    job.save(wanted)
    result.unlink(missing_ok=True)
    words = (VENV_BIN / "python", "-B", "-m", "lab.demo.inside", wanted, result)
    return shlex.join(str(word) for word in words)


def _result_of(mode: str, cases: int) -> Demo:
    path = DIRECTORY / f"{mode}.json"
    if not path.exists():
        raise LabError("the demo did not begin in the lab machine; see its output above")
    demo = Demo.load(path)
    if demo.error:
        console.print(demo.console, markup=False)
        raise LabError(f"{demo.error}; the guest's last lines stand above")
    if len(demo.cases) < cases:
        raise LabError(f"the demo did {len(demo.cases)} of {cases} cases; see its output above")
    return demo


def _draw(demo: Demo) -> None:
    picture, samples = (DIRECTORY / f"{demo.mode}.{kind}" for kind in ("png", "json"))
    plot.draw(demo, picture)
    print(f"figure: {picture.relative_to(ROOT)}; samples: {samples.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
