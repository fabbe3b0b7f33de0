"""Run the series' randomised tests for as long as one likes, on NPT, with assertions."""

import argparse
import secrets

from lab import boot, modules, selftests
from lab.paths import SELFTESTS

_BOOT = 120
_SWAP = """\
set -e
modprobe zram
echo 256M >/sys/block/zram0/disksize
mkswap -q /dev/zram0
swapon /dev/zram0
"""
"""Without swap space, the host reclaims nothing of a guest."""
_CALLS_PER_SECOND = 100
"""That any machine manages; for the time limit only."""


def configure(command: argparse.ArgumentParser) -> None:
    """Add the options of `stress`."""
    command.add_argument("--seconds", type=int, default=600, help="how long; 600 by default")
    _configure(command)


def configure_fuzz(command: argparse.ArgumentParser) -> None:
    """Add the options of `fuzz`."""
    text = "how many of each kind; 200000 by default"
    command.add_argument("--calls", type=int, default=200_000, help=text)
    _configure(command)


def run(args: argparse.Namespace) -> int:
    """Race everything with everything; return the status of test or kernel."""
    return _run(args, "churn", f"-t {args.seconds}", f"{args.seconds} s", 2 * args.seconds)


def fuzz(args: argparse.Namespace) -> int:
    """Hand random arguments to the interfaces; return the status of test or kernel."""
    return _run(
        args, "fuzz", f"-n {args.calls}", f"{args.calls} calls", args.calls / _CALLS_PER_SECOND
    )


def _configure(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=lambda text: int(text, 0), help="of an earlier run")
    command.add_argument("--params", default="global_tdp=1", help="of kvm.ko")
    command.add_argument("--cpus", type=int, default=2, help="of the emulated machine")
    boot.add_machine(command)


def _run(
    args: argparse.Namespace, test: str, length: str, length_text: str, seconds: float
) -> int:
    modules.build(checked=True)
    selftests.build()
    seed = secrets.randbits(31) if args.seed is None else args.seed
    again = f"--machine {args.machine} --seed {seed:#x}"
    print(f"{test}: {length_text}, {again}", flush=True)
    program = SELFTESTS / "x86_64" / f"global_tdp_{test}_test"
    status = boot.run(
        f"{_SWAP}{program} {length} -s {seed:#x}",
        cpus=args.cpus,
        params=args.params,
        machine=args.machine,
        checked=True,
        timeout=seconds + _BOOT,
    ).status
    verdict = "passed" if status == 0 else f"failed, status {status}"
    print(f"{test}: {verdict}, {again}")
    return status
