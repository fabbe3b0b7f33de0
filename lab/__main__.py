"""python -m lab <command>."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lab import paths
from lab.check import (
    assigned,
    bisect,
    broken,
    cover,
    debug,
    ledger,
    lint,
    model,
    noticed,
    nvdimm,
    package,
    qtest,
    rust,
    stress,
    suite,
    tested,
)
from lab.check.ledger import FOR_ONE
from lab.demo import cli as demo
from lab.error import LabError
from lab.machine import ept, npt, runs
from lab.machine.result import Command
from lab.make import deb, modules, qemu, selftests
from lab.measure import bench, bulk, dax, locking, perf, reclaim, scale, sparse, working_set
from lab.paths import SELFTESTS
from lab.source import checkpatch, docs, refresh, series, tree

Configure = Callable[[argparse.ArgumentParser], None]
Target = Callable[[argparse.Namespace], int | None]


def _refresh(_: argparse.Namespace) -> None:
    refresh.refresh()
    noticed.write()


def _deb(args: argparse.Namespace) -> None:
    if args.tested:
        tested.add()
    else:
        deb.build()
        tested.warn()


def _qemu(_: argparse.Namespace) -> None:
    qemu.build()


def _run(args: argparse.Namespace) -> int:
    if args.backend == "ept":
        ept.check(args.cpus, args.quantum)
        if args.machine != "default":
            raise LabError("--machine is of NPT: Bochs has one machine")
    elif args.quantum is not None:
        raise LabError("--quantum is of EPT: add --backend ept")
    if not args.stock:
        modules.build(checked=args.checked)
    names = ["params", "cpus", "stock", "checked", "timeout"]
    names += ["quantum"] if args.backend == "ept" else ["mem", "icount", "machine"]
    options = {name: getattr(args, name) for name in names}
    if args.backend == "npt":
        return npt.command(args.cmd, **options).status
    # Programs of build/selftests that the command names go along.
    named = [paths.ROOT / word for word in args.cmd.split()]
    programs = [path for path in named if path.is_file() and path.is_relative_to(SELFTESTS)]
    done = ept.run([Command(args.cmd)], programs, live=sys.stdout.buffer, **options)
    if done.died:
        raise LabError(done.died)
    return done.status


def _docs(_: argparse.Namespace) -> int:
    noticed.write()
    return docs.build()


def _suite(**chosen: object) -> Configure:
    def configure(command: argparse.ArgumentParser) -> None:
        suite.configure(command)
        command.set_defaults(**chosen)

    return configure


def _plain(_: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def _checked(command: argparse.ArgumentParser) -> None:
    text = "with assertions, into build/checked"
    command.add_argument("--checked", action="store_true", help=text)


def _configure_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("--cpus", type=int, default=0)
    command.add_argument("--mem", default="4G")
    command.add_argument(
        "--params", default="", help="of kvm.ko; kvm_amd.NAME=VALUE of kvm-amd"
    )
    command.add_argument("--icount", action="store_true", help="1 ns is 1 instruction; 1 CPU")
    whose = command.add_mutually_exclusive_group()
    whose.add_argument("--stock", action="store_true", help="the distribution's KVM")
    whose.add_argument("--checked", action="store_true", help="ours with assertions")
    command.add_argument("--timeout", type=float, default=600, help="seconds, with the boot")
    command.add_argument("--backend", choices=debug.BACKENDS, default="npt")
    ept.add_quantum(command)
    npt.add_machine(command)
    command.add_argument("cmd", help="shell command; runs as root in the repository's root")


def _clean(_: argparse.Namespace) -> None:
    if paths.LINUX.exists() and (reason := tree.unsaved()):
        raise LabError(reason)
    for version in paths.VERSIONS:
        other = paths.SHARED / version
        if other != paths.BUILD and other.is_relative_to(paths.BUILD) and other.exists():
            command = (sys.executable, "-m", "lab", "clean")
            env = {**os.environ, "SERIES": version, "KVER": "", "TESTS_OF": ""}
            if subprocess.run(command, cwd=paths.ROOT, env=env).returncode:
                raise LabError(f"build/{version}, which is in it, stays")
    shutil.rmtree(paths.BUILD)


WHATS: dict[str, dict[str, tuple[Configure, Target, str]]] = {
    "test": {
        "all": (_suite(every=True), suite.run, "run all tests that there are, of all series"),
        "broken": (broken.configure, broken.run, "break each promise, see a test notice"),
        "debug": (debug.configure, debug.run, "run the series' tests in a debug kernel"),
        "cover": (cover.configure, cover.run, "show which lines of the series tests execute"),
        "model": (model.configure, model.run, "prove the protocol with spin, and break it"),
        "bisect": (bisect.configure, bisect.run, "build and boot after every patch"),
        "stress": (stress.configure, stress.run, "run the churn test for long"),
        "races": (stress.configure_races, stress.races, "search for races on EPT"),
        "fuzz": (stress.configure_fuzz, stress.fuzz, "hand random arguments to the ioctls"),
        "package": (package.configure, package.run, "install, use, remove it on Debian"),
        "qemu": (_plain, qtest.run, "run QEMU's tests of integration/qemu"),
        "assigned": (assigned.configure, assigned.run, "run guests with an assigned drive"),
        "nvdimm": (nvdimm.configure, nvdimm.run, "run guests with an NVDIMM, cut the power"),
        "rust": (_plain, rust.run, "run the crate, its examples, a C program"),
        "tools": (_suite(only=["tools"]), suite.run, "run the bpftrace tools"),
        "host-check": (_suite(only=["host"]), suite.run, "run packaging/global-tdp-check"),
    },
    "bench": {
        "bulk": (bulk.configure, bulk.run, "tell what many VMs at rest cost"),
        "dax": (_plain, dax.run, "count instructions a page of a vNVDIMM"),
        "locking": (locking.configure, locking.run, "time what a vCPU's fault waits for"),
        "perf": (perf.configure, perf.run, "run KVM's own perf tests for 1 to 8 vCPUs"),
        "reclaim": (reclaim.configure, reclaim.run, "count reclaim of a file of many VMs"),
        "scale": (scale.configure, scale.run, "model what large VMs cost, and check that"),
        "sparse": (_plain, sparse.run, "count for guests that want few pages"),
        "working-set": (_plain, working_set.run, "count for recorded guests"),
    },
}
"""What `make test WHAT=…` and `make bench WHAT=…` can run: the commands "test broken" etc."""


def words(argv: Sequence[str]) -> list[str]:
    """Return the command line with WHAT as a part of its command; LabError if there is none."""
    name, what = (*argv, "", "")[:2]
    if name not in WHATS or not what or what.startswith("-"):
        return list(argv)
    if what not in WHATS[name]:
        raise LabError(f"make {name} has no WHAT={what}: choose {', '.join(WHATS[name])}")
    return [f"{name} {what}", *argv[2:]]


COMMANDS: dict[str, tuple[Configure, Target, str]] = {
    "tree": (_plain, lambda _: tree.compose(), "compose the kernel tree in build/linux"),
    "series": (
        _plain,
        lambda _: checkpatch.check(series.export()),
        "export the mailable series",
    ),
    "refresh": (_plain, _refresh, "take commits in build/linux back into patches/"),
    "modules": (_checked, lambda args: modules.build(checked=args.checked), "build KVM"),
    "deb": (tested.configure, _deb, "build the package kvm-global-tdp-dkms into build/"),
    "selftests": (_plain, lambda _: selftests.build(), "build them into build/selftests"),
    "docs": (_plain, _docs, "build the HTML of the documentation; no new warning"),
    "clean": (_plain, _clean, "remove build/, unless it holds edits"),
    "test": (suite.configure, suite.run, "run all tests: the series' and the kernel's own"),
    "check": (suite.configure_check, suite.check, "run the series' tests on NPT"),
    "bench": (_plain, bench.run, "count instructions a page, stock and ours"),
    **{f"{name} {what}": each for name, whats in WHATS.items() for what, each in whats.items()},
    "demo": (demo.configure, demo.run, "live-migrate a guest, Global TDP off and on"),
    "qemu": (_plain, _qemu, "build QEMU with the patches of integration/qemu"),
    "lint": (_plain, lambda _: lint.lint(), "look through the lab and the series for faults"),
    "run": (_configure_run, _run, "boot an emulated machine and run a command in it"),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    text = "Compose the kernel tree, build it, boot it, test it."
    top = argparse.ArgumentParser(prog="python -m lab", description=text)
    commands = top.add_subparsers(required=True, metavar="command", dest="command")
    for name, (configure, run, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        configure(command)
    return top


def not_yet(command: str) -> str:
    """Return why there is no such command for the chosen series, "" if there is."""
    if paths.VERSIONS[0] != paths.VERSION and command in FOR_ONE:
        return f"{FOR_ONE[command]} for Linux {paths.VERSIONS[0]} only, not {paths.VERSION} yet"
    return ""


def _interrupt(*_: object) -> None:
    """End what was started, and then unwind, which ends the emulated machines."""
    runs.STOPPING.set()
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGTERM)
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error a user can mend is one line."""
    try:
        args = parser().parse_args(words(sys.argv[1:] if argv is None else argv))
        if reason := not_yet(args.command):
            raise LabError(reason)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup ignores the last.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    run = ledger.begin(args, parser().parse_args)
    try:
        status, counted = args.run(args) or 0, True
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        status, counted = 1, False
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return 130
    except Exception:
        # It is no reason to keep what an earlier run has recorded.
        if run:
            run.end(1, counted=False)
        raise
    if run:
        run.end(status, counted)
    return status


if __name__ == "__main__":
    sys.exit(main())
