"""Boot the stock kernel under emulation with KVM's modules and run a command there.

    from lab import boot
    result = boot.run("build/selftests/pre_fault_memory_test", params="global_tdp=1")
    if result.status: ...

The guest sees the host's files, read-only but for build/; the command runs as root in
the root of the repository. The emulated CPU is an AMD one with SVM and nested paging.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, BinaryIO

from lab import debian, heartbeat, params, splat
from lab.error import LabError
from lab.paths import BUILD, ROOT, RUNS, VENV_BIN

STILL = "the emulated machine stands still"
TIMED_OUT = 124
COMPLAINED = 97
"""Status of a run whose command passed, but whose kernel complained."""


@dataclass(frozen=True)
class Machine:
    """What emulated machines differ in."""

    cpu: str = "max"
    kernel: str = ""
    """Parameters of its kernel."""

    options: str = ""
    """More options of QEMU."""

    prepare: str = ""
    """Shell commands that come before the one to run."""


MACHINES = {
    "default": Machine(),
    "5level": Machine(cpu="max,phys-bits=52"),
    "4level": Machine(cpu="max,phys-bits=52", kernel="no5lvl"),
    "iommu": Machine(
        kernel="intel_iommu=on",
        options="-machine q35,kernel-irqchip=split -device intel-iommu -device edu",
        prepare=". lab/guest-vfio.sh",
    ),
    "giant": Machine(kernel="hugepagesz=1G hugepages=1"),
    "ticking": Machine(kernel="nohz=off highres=off"),
}
"""Physical addresses have 40 bits, which page tables of any depth reach, or 52. With NPT, a
VM's tables have as many levels as the host's own: five, unless it is told to use four. Four
reach 48 bits, but memslots may be above that. An IOMMU, and a device in a group of its own,
is what VFIO takes to assign one to a VM. A huge page of 1 GiB is reserved before anybody has
the memory: later, the kernel zeroes all of it in one go, which takes too long. A timer that
comes again by itself survives that the emulator loses an interrupt, see lab.heartbeat, which it
does where a guest of the machine waits for interrupts of its own; but nothing is timed more
finely than by 4 ms then."""

STOPPING = threading.Event()
"""Set when the command is to end: machines that other threads run end, none is started."""

KEPT_RUNS = 20
_OWNER = re.compile(r"^\d+-\d+-(\d+)-\d+$")
TAIL = 30
ICOUNT = "-icount shift=0,sleep=off"
IN_TURNS = "-accel tcg,thread=single"
"""Emulated CPUs in one thread of the host. With one each, QEMU (7.2, and 10.0) corrupts
memory of guests of the emulated machine while it is zapped, and has run breakpoints of
the kernel's patching that were gone ("Oops: int3"), with stock modules, too. Most tests
take as long either way."""


class DeadError(LabError):
    """The emulated machine stood still, and an interrupt did not wake it up."""

    def __init__(self, what: str, splats: Sequence[str]) -> None:
        super().__init__(what)
        self.splats = splats


class Ending(Enum):
    """Why a machine is no more."""

    BY_ITSELF = 0
    LATE = 1
    DEAD = 2


@dataclass
class Result:
    """What came of a run."""

    status: int
    """The command's own; TIMED_OUT; or COMPLAINED."""

    output: str
    """What the command printed, stdout and stderr as one."""

    directory: Path
    """Files of the run; `console` is the kernel's log."""

    splats: list[str] = field(default_factory=list)
    """WARNING, BUG, Oops and the like of the run, with their traces."""


def run(
    cmd: str,
    *,
    cpus: int = 2,
    mem: str = "4G",
    params: str = "",
    icount: bool = False,
    turns: int = 1,
    parallel: bool = False,
    stock: bool = False,
    machine: str = "default",
    checked: bool = False,
    timeout: float = 600,
    tries: int = 1,
    log: Path | None = None,
    quiet: bool = False,
) -> Result:
    """Boot, load KVM with `params`, run `cmd`, and return what came of it.

    `params` are of kvm.ko, or prefixed with `kvm_amd.`. `icount` counts instructions
    as nanoseconds, on one CPU or, in turns, on so many, of which all count. `parallel` has
    CPUs run at the same time, if one wants to know how long that takes. `stock` takes
    the distribution's modules, `checked` ours with assertions. `machine` is one of MACHINES.
    `timeout` is in seconds and includes the boot. A machine that stands still, but whose
    kernel does not complain, is started again, until there were `tries`. `log` gets a copy
    of the output. The output also passes on live to stdout, unless `quiet`.
    DeadError: the last one stood still, too. LabError: no boot, or a module does not load.
    """
    for left in reversed(range(tries)):
        try:
            return _run(
                cmd,
                size=["--cpus", str(turns if icount else cpus), "--memory", mem],
                accelerator=ICOUNT if icount else "" if parallel else IN_TURNS,
                params=params,
                modules={"stock": stock, "checked": checked},
                beats=not icount,
                kind=MACHINES[machine],
                timeout=timeout,
                log=log,
                quiet=quiet,
            )
        except DeadError as error:
            if not left or error.splats:
                raise
            print(f"lab: {error}; starting another", file=sys.stderr, flush=True)
    raise AssertionError


def _run(
    cmd: str,
    *,
    size: list[str],
    accelerator: str,
    params: str,
    modules: dict[str, bool],
    beats: bool,
    kind: Machine,
    timeout: float,
    log: Path | None,
    quiet: bool,
) -> Result:
    directory = new_directory()
    cmd = f"{kind.prepare}\n{cmd}".lstrip()
    _write_job(directory, cmd, params, modules, beats=beats)
    options = f"-cpu {kind.cpu} {kind.options} {accelerator} {heartbeat.options(directory)}"
    command = [
        *(
            VENV_BIN / "vng",
            "--run",
            debian.kernel().image,
            "--disable-kvm",
            "--verbose",
            "--force-9p",
        ),
        *("--user", "root", "--rwdir", BUILD, *size, f"--qemu-opts={options}"),
        *("--append", f"modprobe.blacklist=kvm_amd,kvm_intel {kind.kernel}".strip()),
        *("--", f"bash lab/guest.sh {shlex.quote(str(directory))}"),
    ]
    sinks: list[IO[bytes]] = [] if quiet else [sys.stdout.buffer]
    with (directory / "output").open("wb") as output:
        ending = pump(command, directory, [*sinks, output], timeout)
    if log:
        shutil.copyfile(directory / "output", log)
    return _judge(directory, ending, timeout)


def add_machine(command: argparse.ArgumentParser, default: str | None = "default") -> None:
    """Add the option that chooses one of MACHINES."""
    command.add_argument(
        "--machine",
        choices=MACHINES,
        default=default,
        help="with physical addresses of 52 bits, 4 levels of page tables, an IOMMU, or a tick",
    )


def new_directory() -> Path:
    """Make a directory for the files of a run, and drop those of long ago that are over."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for old in sorted(RUNS.iterdir())[:-KEPT_RUNS]:
        owner = _OWNER.search(old.name)
        if owner and not Path("/proc", owner[1]).exists():
            shutil.rmtree(old, ignore_errors=True)
    directory = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns()}"
    directory.mkdir()
    return directory


def _write_job(
    directory: Path, cmd: str, wanted: str, modules: dict[str, bool], *, beats: bool
) -> None:
    kernel = debian.kernel()
    split = params.split(wanted, kernel, **modules)
    job = {f"{owner}_params": text for owner, text in split.items()}
    job["beats"] = "yes" * beats
    for owner in ("kvm", "kvm_amd"):
        job[owner] = str(params.module(kernel, owner, **modules))
    lines = (f"{name}={shlex.quote(value)}\n" for name, value in job.items())
    (directory / "job").write_text("".join(lines))
    (directory / "command").write_text(cmd + "\n")


def pump(
    command: list[str | Path], directory: Path, sinks: list[IO[bytes]], timeout: float
) -> Ending:
    """Run the machine, passing on its output, and end it if it must be."""
    if STOPPING.is_set():
        raise KeyboardInterrupt
    search = f"{VENV_BIN}:/usr/sbin:/sbin:{os.environ['PATH']}"
    machine = subprocess.Popen(
        [str(arg) for arg in command],
        cwd=ROOT,
        env={**os.environ, "PATH": search},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with (directory / "console").open("wb") as console:
        readers = [
            threading.Thread(target=_copy, args=(machine.stdout, sinks)),
            threading.Thread(target=_copy, args=(machine.stderr, [console])),
        ]
        for reader in readers:
            reader.start()
        try:
            return _wait(machine, directory, time.monotonic() + timeout)
        finally:
            _end(machine)
            for reader in readers:
                reader.join()


def _wait(machine: subprocess.Popen[bytes], directory: Path, deadline: float) -> Ending:
    pulse = heartbeat.Heartbeat(directory)
    while time.monotonic() < deadline:
        if STOPPING.is_set():
            raise KeyboardInterrupt
        try:
            machine.wait(1)
        except subprocess.TimeoutExpired:
            if pulse.is_dead():
                return Ending.DEAD
        else:
            return Ending.BY_ITSELF
    return Ending.LATE


def _copy(source: BinaryIO, sinks: list[IO[bytes]]) -> None:
    while chunk := source.read1():
        for sink in sinks:
            sink.write(chunk)
            sink.flush()


def _end(machine: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(machine.pid, number)
            machine.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _judge(directory: Path, ending: Ending, timeout: float) -> Result:
    console = (directory / "console").read_text(errors="replace")
    output = (directory / "output").read_text(errors="replace")
    result = Result(1, output, directory, splat.find(console))
    for text in result.splats:
        print(f"lab: the kernel complained:\n{text}", file=sys.stderr)
    for line in splat.stalls(console):
        print(f"lab: a stall, likely of the emulation: {line}", file=sys.stderr)
    if (directory / "failure").exists():
        raise LabError((directory / "failure").read_text().strip())
    ended = (directory / "status").exists()
    if ending == Ending.DEAD and not ended:
        show_tail(console)
        raise DeadError(f"{STILL}; see {directory}", result.splats)
    if ending == Ending.LATE:
        show_tail(console)
        print(f"lab: ended after {timeout:g} s (TIMEOUT= allows more)", file=sys.stderr)
        result.status = TIMED_OUT
    elif ended:
        status = int((directory / "status").read_text())
        result.status = COMPLAINED if result.splats and not status else status
    else:
        show_tail(console)
        what = "died in the run" if (directory / "begun").exists() else "did not boot"
        raise LabError(f"the guest {what}; its console is {directory / 'console'}")
    return result


def show_tail(console: str) -> None:
    """Show the end of a kernel's log."""
    print("\n".join(console.splitlines()[-TAIL:]), file=sys.stderr)
