"""Boot the stock kernel under emulation with KVM's modules and run commands there.

    from lab.machine import npt
    done = npt.command("build/selftests/pre_fault_memory_test", params="global_tdp=1")
    if done.status: ...

The guest sees the host's files, read-only but for build/; commands run as root in the root
of the repository. The emulated CPU is an AMD one with SVM and nested paging.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any, BinaryIO

from lab import shell
from lab.error import LabError
from lab.machine import heartbeat, runs, splat
from lab.machine import params as modules
from lab.machine.result import Command, Ended, Run, Stream
from lab.paths import BUILD, ROOT, VENV_BIN
from lab.source import debian
from lab.source.unpacked import Unpacked

STILL = "the emulated machine stands still"
LATE = "the machine did not end within"


@dataclass(frozen=True)
class Machine:
    """What emulated machines differ in."""

    cpu: str = "max"
    kernel: str = ""
    """Parameters of its kernel."""

    options: str = ""
    """More options of QEMU."""

    prepare: str = ""
    """A script of lab/guest that comes before the commands to run."""

    together: int = 0
    """So many CPUs run at the same time, a thread of the host each; 0: they take turns."""


MACHINES = {
    "default": Machine(),
    "5level": Machine(cpu="max,phys-bits=52"),
    "4level": Machine(cpu="max,phys-bits=52", kernel="no5lvl"),
    "iommu": Machine(
        kernel="intel_iommu=on",
        options="-machine q35,kernel-irqchip=split -device intel-iommu -device edu",
        prepare="vfio.sh",
    ),
    "giant": Machine(kernel="hugepagesz=1G hugepages=1"),
    "together": Machine(together=2),
    "together4": Machine(together=4),
}
"""Physical addresses have 40 bits, which page tables of any depth reach, or 52. With NPT, a
VM's tables have as many levels as the host's own: five, unless it is told to use four. Four
reach 48 bits, but memslots may be above that. An IOMMU, and a device in a group of its own,
is what VFIO takes to assign one to a VM. A huge page of 1 GiB is reserved before anybody has
the memory: later, the kernel zeroes all of it in one go, which takes too long. CPUs that run at
the same time, if the host has as many, race as real ones do; those that take turns switch every
100 ms or when one waits."""

_ICOUNT = "-icount shift=0,sleep=off"
IN_TURNS = "-accel tcg,thread=single"
TOGETHER = "-accel tcg,thread=multi"

QEMU = Unpacked("emulator", ("qemu-system-x86",), backports=True)
"""The newest that Debian has made for its stable release. That of Debian 12 loses interrupts
under SVM and corrupts what CPUs share that run at the same time; lab/README.md tells more."""

_FIRMWARE = ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu")


class Ending(Enum):
    """Why a machine is no more."""

    BY_ITSELF = 0
    LATE = 1
    DEAD = 2


def run(
    commands: Sequence[Command],
    *,
    cpus: int = 2,
    mem: str = "4G",
    params: str = "",
    icount: bool = False,
    turns: int = 1,
    stock: bool = False,
    checked: bool = False,
    kvm: Path | None = None,
    image: Path | None = None,
    machine: str = "default",
    swap: bool = False,
    timeout: float = 600,
    live: IO[bytes] | None = None,
    ended: Ended | None = None,
) -> Run:
    """Boot, load KVM with `params`, run `commands`, and return what came of them.

    `params` are of kvm.ko, or prefixed with `kvm_amd.`. `icount` counts instructions
    as nanoseconds, on one CPU or, in turns, on so many, of which all count. `stock`, `checked`
    and `kvm` say whose modules, as in lab.machine.params. `image` is a kernel with KVM built
    in, to boot instead of Debian's; `params` are the kernel's then. `machine` is one of
    MACHINES, some of which have a number of `cpus` of their own; `swap` gives it swap space.
    `timeout` is in seconds and includes the boot.
    `live` gets what the commands print, `ended` each result. A machine that dies midway has
    results, too. LabError: it does not boot, or a module does not load.
    """
    directory, kind = runs.new_directory(), MACHINES[machine]
    chosen = {"stock": stock, "checked": checked, "kvm": kvm}
    listed = "" if image else modules.to_load("kvm_amd", params, **chosen)
    settings = {
        "beats": "" if icount or image else "yes",
        "prepare": kind.prepare,
        "swap": runs.SWAP if swap else "",
    }
    runs.write_job(directory, commands, listed, settings)
    accelerator = _ICOUNT if icount else TOGETHER if kind.together else IN_TURNS
    count = turns if icount else kind.together or cpus
    options = f"-cpu {kind.cpu} {kind.options} {accelerator} {heartbeat.options(directory)}"
    given = f"no_timer_check {kind.kernel}"  # it comes too late on a host that is busy
    given += f" {params}" if image else " modprobe.blacklist=kvm_amd,kvm_intel"
    command = (
        *(VENV_BIN / "vng", f"--qemu={emulator()}", "--disable-kvm"),
        *("--run", image or debian.kernel().image),
        *("--verbose", "--force-9p", "--user", "root", "--rwdir", BUILD),
        *("--cpus", str(count), "--memory", mem, f"--qemu-opts={options}"),
        *("--append", given),
        *("--", f"sh {shlex.quote(f'{runs.GUEST}/run.sh')} {shlex.quote(str(directory))}"),
    )
    stream = Stream(live, ended)
    ending = pump(command, directory, stream.feed, timeout)
    stream.close()
    return _judge(stream, directory, ending, timeout)


def emulator() -> Path:
    """Return the program that emulates machines, unpacked if it was not."""
    QEMU.ensure()
    script = QEMU.root / "qemu-system-x86_64"
    where = [word for name in _FIRMWARE for word in ("-L", QEMU.root / name)]
    with shell.locked("emulator"):
        if not script.exists():
            QEMU.write_script(script, "usr/bin/qemu-system-x86_64", *where)
    return script


def command(
    line: str,
    *,
    tries: int = 1,
    **options: Any,  # noqa: ANN401
) -> Run:
    """Run one command, with options as for run(); what it prints also goes to stdout.

    A machine that stands still, but whose kernel does not complain, is started again, until
    there were `tries`. LabError: the machine died, or the last one stood still, too.
    """
    for left in reversed(range(tries)):
        done = run([Command(line)], live=sys.stdout.buffer, **options)
        if STILL not in done.died or done.splats or not left:
            break
        print(f"lab: {done.died}; starting another", file=sys.stderr, flush=True)
    if done.died and LATE not in done.died:
        raise LabError(done.died)
    return done


def add_machine(command: argparse.ArgumentParser, default: str | None = "default") -> None:
    """Add the option that chooses one of MACHINES."""
    command.add_argument(
        "--machine",
        choices=MACHINES,
        default=default,
        help="with physical addresses of 52 bits, 4 levels of page tables, an IOMMU, or"
        " CPUs that run at the same time",
    )


def pump(
    command: Sequence[str | Path],
    directory: Path,
    hear: Callable[[bytes], None],
    timeout: float,
) -> Ending:
    """Run the machine, passing on what it prints, and end it if it must be."""
    if runs.STOPPING.is_set():
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
    files = (directory / name for name in ("output", "console"))
    with machine, next(files).open("wb") as output, next(files).open("wb") as console:
        readers = [
            threading.Thread(target=_copy, args=(machine.stdout, output, hear)),
            threading.Thread(target=_copy, args=(machine.stderr, console)),
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
        if runs.STOPPING.is_set():
            raise KeyboardInterrupt
        try:
            machine.wait(1)
        except subprocess.TimeoutExpired:
            if pulse.is_dead():
                return Ending.DEAD
        else:
            return Ending.BY_ITSELF
    return Ending.LATE


def _copy(
    source: BinaryIO, sink: IO[bytes], hear: Callable[[bytes], None] | None = None
) -> None:
    while chunk := source.read1():
        sink.write(chunk)
        sink.flush()
        if hear:
            hear(chunk)


def _end(machine: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(machine.pid, number)
            machine.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _judge(stream: Stream, directory: Path, ending: Ending, timeout: float) -> Run:
    run = Run(directory, stream.results)
    console = run.console
    run.splats = splat.find(console)
    for text in run.splats:
        print(f"lab: the kernel complained:\n{text}", file=sys.stderr)
    for line in splat.stalls(console):
        print(f"lab: a stall, likely of the emulation: {line}", file=sys.stderr)
    if stream.failure:
        raise LabError(stream.failure)
    if stream.done:
        return run
    runs.show_tail(console)
    if ending is Ending.DEAD:
        run.died = f"{STILL}; see {directory}"
    elif ending is Ending.LATE:
        run.died = f"{LATE} {timeout:g} s (TIMEOUT= allows more); see {directory}"
    elif (directory / "begun").exists():
        run.died = f"the guest died in the run; its console is {directory / 'console'}"
    else:
        raise LabError(f"the guest did not boot; its console is {directory / 'console'}")
    return run
