"""python -m lab <command>."""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lab import paths
from lab.check import (
    assigned,
    broken,
    cover,
    debug,
    lint,
    model,
    nvdimm,
    package,
    qtest,
    stress,
    suite,
)
from lab.demo import cli as demo
from lab.error import LabError
from lab.machine import ept, npt, runs
from lab.machine.result import Command
from lab.make import deb, modules, qemu, selftests
from lab.measure import bench, bulk, dax, locking, perf, scale
from lab.source import docs, refresh, series, tree

Target = Callable[[argparse.Namespace], int | None]


def _tree(_: argparse.Namespace) -> None:
    tree.compose()


def _series(_: argparse.Namespace) -> None:
    series.export_and_check()


def _refresh(_: argparse.Namespace) -> None:
    refresh.refresh()


def _modules(args: argparse.Namespace) -> None:
    modules.build(checked=args.checked)


def _deb(_: argparse.Namespace) -> None:
    deb.build()


def _qemu(_: argparse.Namespace) -> None:
    qemu.build()


def _selftests(_: argparse.Namespace) -> None:
    selftests.build()


def _run(args: argparse.Namespace) -> int:
    if not args.stock:
        modules.build(checked=args.checked)
    if args.backend == "ept":
        if args.machine != "default":
            raise LabError("--machine is of NPT: Bochs has one machine")
        return _run_on_bochs(args)
    return npt.command(
        args.cmd,
        cpus=args.cpus,
        mem=args.mem,
        params=args.params,
        icount=args.icount,
        stock=args.stock,
        machine=args.machine,
        checked=args.checked,
        timeout=args.timeout,
    ).status


def _run_on_bochs(args: argparse.Namespace) -> int:
    """Programs of build/selftests that the command names go along."""
    named = [paths.ROOT / word for word in args.cmd.split()]
    done = ept.run(
        [Command(args.cmd)],
        [path for path in named if path.is_file() and path.is_relative_to(paths.SELFTESTS)],
        args.params,
        stock=args.stock,
        checked=args.checked,
        timeout=args.timeout,
        live=sys.stdout.buffer,
    )
    if done.died:
        raise LabError(done.died)
    return done.status


def _lint(_: argparse.Namespace) -> None:
    lint.lint()


def _docs(_: argparse.Namespace) -> int:
    return docs.build()


def _clean(_: argparse.Namespace) -> None:
    if paths.LINUX.exists() and (reason := tree.unsaved()):
        raise LabError(reason)
    shutil.rmtree(paths.BUILD)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    text = "Compose the kernel tree, build it, boot it, test it."
    top = argparse.ArgumentParser(prog="python -m lab", description=text)
    commands = top.add_subparsers(required=True, metavar="command")

    def add(name: str, run: Target, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    add("tree", _tree, "compose the kernel tree in build/linux")
    add("series", _series, "export the mailable series to build/series and check it")
    add("refresh", _refresh, "take commits in build/linux back into patches/6.12")
    building = add("modules", _modules, "build the KVM modules into build/modules")
    text = "with assertions, into build/checked"
    building.add_argument("--checked", action="store_true", help=text)
    add("deb", _deb, "build the package kvm-global-tdp-dkms into build/")
    testing = add("test-package", package.run, "install, use, remove it on Debian 12, 13")
    package.configure(testing)
    qtest.configure(add("test-qemu", qtest.run, "run QEMU's tests of integration/qemu"))
    text = "run guests with an assigned drive while their host does what it may"
    assigned.configure(add("test-assigned", assigned.run, text))
    text = "run guests with an NVDIMM, cut the power, see what is left"
    nvdimm.configure(add("test-nvdimm", nvdimm.run, text))
    add("selftests", _selftests, "build KVM's selftests into build/selftests")
    add("docs", _docs, "build the HTML of the documentation; no new warning")
    add("clean", _clean, "remove build/, unless it holds edits")
    suite.configure(add("test", suite.run, "run all tests: the series' and the kernel's own"))
    suite.configure_check(add("check", suite.check, "run the series' tests on NPT"))
    stress.configure(add("stress", stress.run, "run the churn test for long"))
    stress.configure_fuzz(add("fuzz", stress.fuzz, "hand random arguments to the interfaces"))
    text = "break each promise of the series, see a test notice"
    broken.configure(add("test-broken", broken.run, text))
    text = "prove the protocol with spin, find what is broken in it on purpose"
    model.configure(add("model", model.run, text))
    debug.configure(add("test-debug", debug.run, "run the series' tests in a debug kernel"))
    text = "show which lines of the series its tests execute"
    cover.configure(add("cover", cover.run, text))
    bench.configure(add("bench", bench.run, "count instructions a page, stock and ours"))
    bulk.configure(add("bench-bulk", bulk.run, "tell what many VMs at rest cost, off and on"))
    dax.configure(add("bench-dax", dax.run, "count them for a vNVDIMM, stock and ours"))
    text = "time what a vCPU's fault waits for, stock and ours"
    locking.configure(add("bench-locking", locking.run, text))
    text = "run KVM's own perf tests for 1 to 8 vCPUs, stock and ours"
    perf.configure(add("bench-perf", perf.run, text))
    text = "model what large VMs cost, and check that where it can be"
    scale.configure(add("bench-scale", scale.run, text))
    demo.configure(add("demo", demo.run, "live-migrate a guest, Global TDP off and on"))
    add("qemu", _qemu, "build QEMU with the patches of integration/qemu")
    add("lint", _lint, "look through the lab with ruff, the series with checkpatch, sparse")
    _add_run(add("run", _run, "boot an emulated machine and run a command in it"))
    return top


def _add_run(command: argparse.ArgumentParser) -> None:
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
    command.add_argument(
        "--backend", choices=("npt", "ept"), default="npt", help="AMD or Intel"
    )
    npt.add_machine(command)
    command.add_argument("cmd", help="shell command; runs as root in the repository's root")


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
    args = parser().parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup ignores the last.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        return args.run(args) or 0
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
