"""Run the series' randomised tests for as long as one likes: on NPT, with assertions.

A search for races is on Bochs, whose CPUs take turns: what they do is the same for a seed.
"""

import argparse
import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lab.check import broken, report
from lab.check.outcome import State, tail
from lab.machine import ept, npt
from lab.machine.result import Command
from lab.make import modules, selftests
from lab.paths import SELFTESTS
from lab.shell import console, locked

_CALLS_PER_SECOND = 100
"""That any machine manages; for the time limit only."""
_MACHINES = {
    "churn": ("default", "4level", "4cpus"),
    "fuzz": ("default", "4level"),
}
"""Of npt.MACHINES, one after the other: 4 levels allow of layouts of memslots that the others
can't have; four CPUs, where the host has less, are interrupted anywhere."""

_EPT_BOOT = 600
_EPT_TIMES = 200
"""Seconds that a boot of Bochs takes, and one of its own, at most: with four CPUs; 25 with two
in turns of three instructions."""

_TURNS = ((2, 3), (2, 1), (2, 5), (3, 3), (2, 2), (4, 2), (4, 5), (3, 1), (2, 8), (2, 16))
"""CPUs and quanta to look for races with, those first that have found more."""


def configure(command: argparse.ArgumentParser) -> None:
    """Add the options of `stress`."""
    text = "how long; 600 by default"
    command.add_argument("--seconds", type=_number, default=600, help=text)
    _configure(command)


def configure_fuzz(command: argparse.ArgumentParser) -> None:
    """Add the options of `fuzz`."""
    text = "how many of each kind; 200000 by default"
    command.add_argument("--calls", type=_number, default=200_000, help=text)
    _configure(command)


def configure_races(command: argparse.ArgumentParser) -> None:
    """Add the options of `races`."""
    command.add_argument("--only", default="", help="promises that contain this text")
    command.add_argument("--seconds", type=_number, default=5, help="of the machine; 5")
    command.add_argument("--seeds", type=_number, default=1, help="to try; 1")
    command.add_argument("--seed", type=_seed, default=1, help="the first of them; 1")
    command.add_argument("--cpus", type=_number, default=0, help="no other machines")
    ept.add_quantum(command)


def run(args: argparse.Namespace) -> int:
    """Race everything with everything; 1 if a test or a kernel failed."""
    return _run_all(args, "churn", "-t", "seconds", 2)


def fuzz(args: argparse.Namespace) -> int:
    """Hand random arguments to the interfaces; 1 if a test or a kernel failed."""
    return _run_all(args, "fuzz", "-n", "calls", 1 / _CALLS_PER_SECOND)


def races(args: argparse.Namespace) -> int:
    """Search for races: none is to show as the code is, then those of broken promises.

    The latter are those that take a delay on NPT, or churn. That none shows is no failure.
    """
    turns = _TURNS
    if args.cpus or args.quantum is not None:
        ept.check(args.cpus, args.quantum)
        turns = ((args.cpus, args.quantum),)
    seeds = range(args.seed, args.seed + args.seeds)
    cases = [(seed, *turn) for seed in seeds for turn in turns]
    chosen = [each for each in broken.load() if each.is_race and args.only in each.promise]
    modules.build()
    selftests.build()
    states: Counter[State] = Counter()
    with locked("broken"):
        for entry in (None, *chosen):
            told = _race(entry, cases, args.seconds)
            shows, none = State.FAILED, State.PASSED
            if entry:
                shows, none = State.PASSED, State.SKIPPED
            states[shows if told else none] += 1
            name = entry.promise if entry else "nothing broken"
            console.print(f"{name}\n    {told or 'no race shows'}", markup=False)
    return report.end(states)


def _race(
    entry: broken.Broken | None, cases: Sequence[tuple[int, int, int | None]], seconds: int
) -> str:
    """Return how a race shows, and how to have that again; "" if none does."""
    options = {}
    if entry:
        kvm = broken.build(entry, broken.DIRECTORY / "races")
        options = {"kvm": kvm, "checked": bool(entry.checked)}
    for seed, cpus, quantum in cases:
        program = _program("churn")
        line = f"{broken.PANIC}\n{program} -t {seconds} -s {seed:#x}"
        options["timeout"] = _EPT_BOOT + _EPT_TIMES * seconds
        options |= {"cpus": cpus, "quantum": quantum}
        done = ept.run([Command(line, "churn")], [program], "global_tdp=1", **options)
        if done.status:
            told = done.splats or [tail(result.output) for result in done.results]
            turns = f"--cpus {cpus}" * bool(cpus) + f" --quantum {quantum}" * bool(quantum)
            again = f"{turns} --seconds {seconds} --seed {seed:#x}"
            return f"{again}: {told[0] if told else done.died}"
    return ""


def _program(test: str) -> Path:
    return SELFTESTS / "x86_64" / f"global_tdp_{test}_test"


def _seed(text: str) -> int:
    return int(text, 0)


def _number(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("1 is the least")
    return number


def _configure(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=_seed, help="of an earlier run")
    npt.add_machine(command, default=None)


def _run_all(args: argparse.Namespace, test: str, option: str, unit: str, each: float) -> int:
    """Share units out among the machines; `each` is what one may take, in seconds."""
    modules.build(checked=True)
    selftests.build()
    machines = [args.machine] if args.machine else _MACHINES[test]
    share = -(-getattr(args, unit) // len(machines))
    seed = secrets.randbits(31) if args.seed is None else args.seed
    states = []
    for machine in machines:
        again = f"--machine {machine} --seed {seed:#x}"
        print(f"{test}: {share} {unit}, {again}", flush=True)
        status = npt.command(
            f"{_program(test)} {option} {share} -s {seed:#x}",
            params="global_tdp=1",
            machine=machine,
            checked=True,
            swap=True,
            timeout=share * each + npt.BOOT_SECONDS,
        ).status
        states.append(State.FAILED if status else State.PASSED)
        verdict = "passed" if status == 0 else f"failed, status {status}"
        print(f"{test}: {verdict}, {again}")
    return report.end(Counter(states))
