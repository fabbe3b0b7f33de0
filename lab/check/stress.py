"""Run the series' randomised tests for as long as one likes, on NPT, with assertions."""

import argparse
import secrets
from collections import Counter

from lab.check import report
from lab.check.outcome import State
from lab.machine import npt
from lab.make import modules, selftests
from lab.paths import SELFTESTS

_CALLS_PER_SECOND = 100
"""That any machine manages; for the time limit only."""
_MACHINES = {
    "churn": ("default", "4level", "4cpus"),
    "fuzz": ("default", "4level"),
}
"""Of npt.MACHINES, one after the other: 4 levels allow of layouts of memslots that the others
can't have; four CPUs, where the host has less, are interrupted anywhere."""


def configure(command: argparse.ArgumentParser) -> None:
    """Add the options of `stress`."""
    command.add_argument(
        "--seconds", type=_number, default=600, help="how long; 600 by default"
    )
    _configure(command)


def configure_fuzz(command: argparse.ArgumentParser) -> None:
    """Add the options of `fuzz`."""
    text = "how many of each kind; 200000 by default"
    command.add_argument("--calls", type=_number, default=200_000, help=text)
    _configure(command)


def run(args: argparse.Namespace) -> int:
    """Race everything with everything; 1 if a test or a kernel failed."""
    return _run_all(args, "churn", "-t", "seconds", 2)


def fuzz(args: argparse.Namespace) -> int:
    """Hand random arguments to the interfaces; 1 if a test or a kernel failed."""
    return _run_all(args, "fuzz", "-n", "calls", 1 / _CALLS_PER_SECOND)


def _number(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("1 is the least")
    return number


def _configure(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=lambda text: int(text, 0), help="of an earlier run")
    command.add_argument("--params", default="global_tdp=1", help="of kvm.ko")
    command.add_argument("--cpus", type=_number, default=0, help="of the emulated machine")
    npt.add_machine(command, default=None)


def _run_all(args: argparse.Namespace, test: str, option: str, unit: str, each: float) -> int:
    """Share units out among the machines; `each` is what one may take, in seconds."""
    modules.build(checked=True)
    selftests.build()
    machines = [args.machine] if args.machine else _MACHINES[test]
    share = -(-getattr(args, unit) // len(machines))
    seed = secrets.randbits(31) if args.seed is None else args.seed
    program = SELFTESTS / "x86_64" / f"global_tdp_{test}_test"
    states = []
    for machine in machines:
        again = f"--machine {machine} --seed {seed:#x}"
        print(f"{test}: {share} {unit}, {again}", flush=True)
        status = npt.command(
            f"{program} {option} {share} -s {seed:#x}",
            cpus=args.cpus,
            params=args.params,
            machine=machine,
            checked=True,
            swap=True,
            timeout=share * each + npt.BOOT_SECONDS,
        ).status
        states.append(State.FAILED if status else State.PASSED)
        verdict = "passed" if status == 0 else f"failed, status {status}"
        print(f"{test}: {verdict}, {again}")
    return report.end(Counter(states))
