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
    nvdimm,
    package,
    qtest,
    rust,
    stress,
    suite,
)
from lab.check.ledger import FOR_ONE
from lab.demo import cli as demo
from lab.error import LabError
from lab.machine import ept, npt, runs
from lab.machine.result import Command
from lab.make import deb, modules, qemu, selftests
from lab.measure import bench, bulk, dax, locking, perf, reclaim, scale, sparse, working_set
from lab.source import docs, patches, refresh, series, tree

Target = Callable[[argparse.Namespace], int | None]

WITHOUT_PATCHES = (
    *("tree", "refresh", "modules", "selftests", "run", "clean", "qemu", "model"),
    "ledger",
)
"""What there is to do before a series has its first patch."""


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
    if args.backend == "ept":
        ept.check(args.cpus, args.quantum)
        if args.machine != "default":
            raise LabError("--machine is of NPT: Bochs has one machine")
    elif args.quantum is not None:
        raise LabError("--quantum is of EPT: add --backend ept")
    if not args.stock:
        modules.build(checked=args.checked)
    if args.backend == "ept":
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
        cpus=args.cpus,
        quantum=args.quantum,
        live=sys.stdout.buffer,
    )
    if done.died:
        raise LabError(done.died)
    return done.status


def _lint(_: argparse.Namespace) -> None:
    lint.lint()


def _ledger(_: argparse.Namespace) -> None:
    ledger.write_table()
    ledger.check()


def _docs(_: argparse.Namespace) -> int:
    return docs.build()


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


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    text = "Compose the kernel tree, build it, boot it, test it."
    top = argparse.ArgumentParser(prog="python -m lab", description=text)
    commands = top.add_subparsers(required=True, metavar="command", dest="command")

    def add(name: str, run: Target, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    add("tree", _tree, "compose the kernel tree in build/linux")
    add("series", _series, "export the mailable series to build/series and check it")
    add("refresh", _refresh, "take commits in build/linux back into patches/")
    building = add("modules", _modules, "build the KVM modules into build/modules")
    building.add_argument(
        "--checked", action="store_true", help="with assertions, into build/checked"
    )
    add("deb", _deb, "build the package kvm-global-tdp-dkms into build/")
    package.configure(add("test-package", package.run, "install, use, remove it on Debian"))
    qtest.configure(add("test-qemu", qtest.run, "run QEMU's tests of integration/qemu"))
    text = "run guests with an assigned drive while their host does what it may"
    assigned.configure(add("test-assigned", assigned.run, text))
    text = "run guests with an NVDIMM, cut the power, see what is left"
    nvdimm.configure(add("test-nvdimm", nvdimm.run, text))
    text = "run what VMM developers are given: the crate, its examples, a C program"
    rust.configure(add("test-rust", rust.run, text))
    add("selftests", _selftests, "build KVM's selftests into build/selftests")
    add("docs", _docs, "build the HTML of the documentation; no new warning")
    add("clean", _clean, "remove build/, unless it holds edits")
    suite.configure(add("test", suite.run, "run all tests: the series' and the kernel's own"))
    suite.configure_check(add("check", suite.check, "run the series' tests on NPT"))
    stress.configure(add("stress", stress.run, "run the churn test for long"))
    text = "search for races on EPT, in the code as it is and with promises broken"
    stress.configure_races(add("races", stress.races, text))
    stress.configure_fuzz(add("fuzz", stress.fuzz, "hand random arguments to the interfaces"))
    text = "break each promise of the series, see a test notice"
    broken.configure(add("test-broken", broken.run, text))
    text = "have git am take the series, build and boot after every patch"
    bisect.configure(add("bisect", bisect.run, text))
    text = "prove the protocol with spin, find what is broken in it on purpose"
    model.configure(add("model", model.run, text))
    debug.configure(add("test-debug", debug.run, "run the series' tests in a debug kernel"))
    text = "show which lines of the series its tests execute"
    cover.configure(add("cover", cover.run, text))
    _add_benches(add)
    demo.configure(add("demo", demo.run, "live-migrate a guest, Global TDP off and on"))
    add("qemu", _qemu, "build QEMU with the patches of integration/qemu")
    add("lint", _lint, "look through the lab with ruff, the series with checkpatch, sparse")
    add("ledger", _ledger, "have README show docs/ledger.toml; say what is to be run anew")
    _add_run(add("run", _run, "boot an emulated machine and run a command in it"))
    return top


def _add_benches(add: Callable[[str, Target, str], argparse.ArgumentParser]) -> None:
    bench.configure(add("bench", bench.run, "count instructions a page, stock and ours"))
    bulk.configure(add("bench-bulk", bulk.run, "tell what many VMs at rest cost, off and on"))
    dax.configure(add("bench-dax", dax.run, "count them for a vNVDIMM, stock and ours"))
    text = "count what it takes to reclaim a file that many VMs have, off and on"
    reclaim.configure(add("bench-reclaim", reclaim.run, text))
    text = "count it for guests that want few of their pages, off and on"
    sparse.configure(add("bench-sparse", sparse.run, text))
    text = "count it for guests of which it was recorded what they need"
    working_set.configure(add("bench-working-set", working_set.run, text))
    text = "time what a vCPU's fault waits for, stock and ours"
    locking.configure(add("bench-locking", locking.run, text))
    text = "run KVM's own perf tests for 1 to 8 vCPUs, stock and ours"
    perf.configure(add("bench-perf", perf.run, text))
    text = "model what large VMs cost, and check that where it can be"
    scale.configure(add("bench-scale", scale.run, text))


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
    ept.add_quantum(command)
    npt.add_machine(command)
    command.add_argument("cmd", help="shell command; runs as root in the repository's root")


def not_yet(command: str) -> str:
    """Return why there is no such command for the chosen series, "" if there is."""
    if paths.VERSIONS[0] != paths.VERSION and command in FOR_ONE:
        return f"{FOR_ONE[command]} for Linux {paths.VERSIONS[0]} only, not {paths.VERSION} yet"
    if command not in WITHOUT_PATCHES and not patches.series():
        return (
            f"{tree.FOLDER} has no patch yet, which make {command} is about: so far, there is "
            "make tree, modules, selftests and lab, and make refresh"
        )
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
    args = parser().parse_args(argv)
    if reason := not_yet(args.command):
        print(f"lab: {reason}", file=sys.stderr)
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
