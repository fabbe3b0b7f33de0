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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any, BinaryIO

from lab.error import LabError
from lab.machine import heartbeat, runs, served, splat, tsc
from lab.machine import params as modules
from lab.machine.result import Command, Ended, Run, Stream
from lab.make import probes
from lab.paths import BUILD, ROOT, VENV_BIN
from lab.source import debian
from lab.source.unpacked import Qemu, Unpacked

BOOT_SECONDS = heartbeat.BOOT_SECONDS
STILL = "the emulated machine stands still"
LATE = "the machine did not end within"


@dataclass(frozen=True)
class Machine:
    """What emulated machines differ in."""

    cpu: str = "max,-erms,-fsrm"
    """Without what has the kernel copy by `rep movsb`: emulated, a byte at a time."""

    kernel: str = ""
    """Parameters of its kernel."""

    options: str = ""
    """More options of QEMU."""

    prepare: str = ""
    """A script of lab/guest that comes before the commands to run."""

    least_mib: int = 0
    """Of memory: some kinds have what they are about at the end of it."""

    cpus: int = 2
    """For the commands. There is one more, the first, for all else: on that the emulator
    loses changes that SVM makes while others run, which first_cpu.c explains."""


MACHINES = {
    "default": Machine(),
    "4level": Machine(
        cpu=f"{Machine.cpu},phys-bits=52", kernel="no5lvl hugepagesz=1G hugepages=1"
    ),
    "5level": Machine(cpu=f"{Machine.cpu},phys-bits=52"),
    "iommu": Machine(
        kernel="intel_iommu=on",
        options="-machine q35,kernel-irqchip=split -device intel-iommu -device edu",
        prepare="vfio.sh",
    ),
    "drive": Machine(
        kernel="intel_iommu=on modprobe.blacklist=nvme",
        options="-machine q35,kernel-irqchip=split -device intel-iommu"
        " -drive if=none,id=drive,snapshot=on,format=raw,file.driver=null-co,file.size=128M,"
        "file.read-zeroes=on -device nvme,serial=lab,drive=drive",
        prepare="vfio.sh",
    ),
    "4cpus": Machine(cpus=4),
    "pmem": Machine(
        kernel="memmap=256M!4G memmap=512M!0x110000000 memmap=128M!0x130000000",
        prepare="pmem.sh",
        least_mib=4096,
    ),
    "2nodes": Machine(
        options=" ".join(
            f"-object memory-backend-ram,id=node{node},size=2G"
            f" -numa node,nodeid={node},memdev=node{node},cpus={cpus}"
            for node, cpus in enumerate(("0-4", "5-8"))
        ),
        cpus=8,
    ),
    "nopat": Machine(kernel="nopat"),
}
"""Physical addresses have 40 bits, which page tables of any depth reach, or 52. With NPT, a
VM's tables have as many levels as the host's own: five, unless it is told to use four. Four
reach 48 bits, but memslots may be above that. That machine has a huge page of 1 GiB, too,
reserved before anybody has the memory: later, the kernel zeroes all of it in one go, which
takes too long. An IOMMU, and a device in a group of its own, is what VFIO takes to assign one
to a VM: one that is there for tests and does nothing, or an NVMe drive, on which nothing is
and whose contents go with the machine. Persistent memory is what lies behind 4 GiB: the kernel
is told that it is such. Two nodes have 2 GiB each: --mem is to be 4G, as it is by default.
Without PAT there is no Global TDP."""

_UNUSED = (
    "aesni_intel,ahci,evdev,ghash_clmulni_intel,i2c_i801,i6300esb,iTCO_wdt,lpc_ich,pcspkr,"
    "qemu_fw_cfg,serio_raw,sha1_ssse3,sha256_ssse3,sha512_ssse3"
)
"""Drivers of what QEMU, or its CPU, has and no command uses: to load them is a fifth of a boot.
The mouse is not among them: heartbeat.py moves it."""

_ICOUNT = "-icount shift=0,sleep=off"
THREADS = "-accel tcg,thread=multi"
"""CPUs run at the same time, a thread of the host each."""
TURNS = "-accel tcg,thread=single"
"""For machines without what the defects of threads take: a first CPU that nobody uses, and
lab_breakpoint.ko."""


PMEM_TOOLS = Unpacked("pmem", ("ndctl", "xfsprogs"))
"""Installed, they would change how this machine boots."""
_PMEM_PROGRAMS = {"ndctl": "usr/bin/ndctl", "mkfs.xfs": "usr/sbin/mkfs.xfs"}

QEMU = Qemu("emulator", backports=True)
"""The newest that Debian has made for its stable release. That of Debian 12 loses interrupts
under SVM; lab/README.md tells more."""


class Ending(Enum):
    """Why a machine is no more."""

    BY_ITSELF = 0
    LATE = 1
    DEAD = 2


class _BreakpointError(LabError):
    """A machine died of the emulator before its first command."""


def run(
    commands: Sequence[Command],
    *,
    cpus: int = 0,
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
    MACHINES, which says how many `cpus` it has by default; `swap` gives it swap space.
    `timeout` is in seconds in which the machine is served, see lab.machine.served, and
    includes the boot.
    `live` gets what the commands print, `ended` each result. A machine that dies midway has
    results, too. LabError: it does not boot, or a module does not load.
    """
    kind = MACHINES[machine]
    if _mib(mem) < kind.least_mib:
        raise LabError(f"--mem {mem}: machine {machine} wants {kind.least_mib} MiB or more")
    count = turns if icount else cpus or kind.cpus
    chosen = {"stock": stock, "checked": checked, "kvm": kvm}
    listed = "" if image else modules.to_load("kvm_amd", params, swap=swap, **chosen)
    if not image and not icount:
        probes.build()
        listed = f"{probes.BREAKPOINT}\n{listed}"
    settings = {
        "beats": "" if icount or image else "yes",
        "clock": "" if icount else served.FILE,
        "cpus": "" if icount else f"1-{count}",
        "prepare": kind.prepare,
        "tools": str(_pmem_tools()) if machine == "pmem" else "",
        "swap": runs.SWAP if swap else "",
    }
    accelerator = _ICOUNT if icount else THREADS
    # Figures per instruction are of all that a CPU can do.
    cpu = "max" if icount else kind.cpu
    options = f"-cpu {cpu} {kind.options} {accelerator}"
    given = kind.kernel
    if not icount:
        # What the kernel measures, or checks, on a busy host is wrong.
        given += f" no_timer_check tsc=reliable tsc_early_khz={tsc.khz()}"
    given += f" {params}" if image else f" modprobe.blacklist=kvm_amd,kvm_intel,{_UNUSED}"

    def boot(directory: Path) -> Run:
        runs.write_job(directory, commands, listed, settings)
        qemu = f"{options} {heartbeat.options(directory)}"
        command = (
            *(VENV_BIN / "vng", f"--qemu={QEMU.program()}", "--disable-kvm"),
            *("--run", image or debian.kernel().image),
            *("--verbose", "--force-9p", "--user", "root", "--rwdir", BUILD),
            *("--cpus", str(count + (not icount)), "--memory", mem, f"--qemu-opts={qemu}"),
            *("--append", given),
            *("--", f"sh {shlex.quote(f'{runs.GUEST}/run.sh')} {shlex.quote(str(directory))}"),
        )
        stream = Stream(live, ended)
        ending = pump(command, directory, stream.feed, timeout)
        stream.close()
        return _judge(stream, directory, ending, timeout)

    try:
        return boot(runs.new_directory())
    except _BreakpointError as error:
        print(f"lab: {error}; see lab/README.md; another is started", file=sys.stderr)
        return boot(runs.new_directory())


def _mib(mem: str) -> int:
    """Return how many MiB QEMU takes a size for."""
    number, unit = (mem[:-1], mem[-1].upper()) if mem[-1:].isalpha() else (mem, "M")
    if not number.isdecimal() or unit not in "MG":
        raise LabError(f"--mem {mem}: a number, and M or G")
    return int(number) << (10 * (unit == "G"))


def _pmem_tools() -> Path:
    """Return a directory with what makes DAX of persistent memory."""
    PMEM_TOOLS.ensure()
    for name, program in _PMEM_PROGRAMS.items():
        if not (PMEM_TOOLS.root / name).exists():
            PMEM_TOOLS.write_script(PMEM_TOOLS.root / name, program)
    return PMEM_TOOLS.root


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
    if done.died:
        print(f"lab: {done.died}", file=sys.stderr, flush=True)
    return done


def add_machine(command: argparse.ArgumentParser, default: str | None = "default") -> None:
    """Add the option that chooses one of MACHINES."""
    command.add_argument(
        "--machine",
        choices=MACHINES,
        default=default,
        help="with physical addresses of 52 bits, 4 levels of page tables and a huge page of"
        " 1 GiB, an IOMMU, a drive behind one, 4 CPUs, persistent memory, two nodes, or no PAT",
    )


def pump(
    command: Sequence[str | Path],
    directory: Path,
    hear: Callable[[bytes], None],
    timeout: float,
) -> Ending:
    """Run the machine, passing on what it prints, and end it if it must be.

    `timeout` is in seconds in which it is served, see lab.machine.served.
    """
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
        with runs.leashed(machine):
            try:
                return _wait(machine, directory, timeout)
            finally:
                _end(machine)
                for reader in readers:
                    reader.join()


def _wait(machine: subprocess.Popen[bytes], directory: Path, timeout: float) -> Ending:
    pulse, clock = heartbeat.Heartbeat(directory), served.Served(directory, machine.pid)
    while not clock.is_past(timeout):
        with suppress(subprocess.TimeoutExpired):
            machine.wait(1)
        if runs.STOPPING.is_set():
            raise KeyboardInterrupt
        if machine.returncode is not None:
            return Ending.BY_ITSELF
        clock.tick()
        if pulse.is_dead():
            return Ending.DEAD
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
    run.splats = splat.find(console) or stream.tainted
    for text in run.splats:
        print(f"lab: the kernel complained:\n{text}", file=sys.stderr)
    for line in splat.stalls(console):
        print(f"lab: a stall, likely of the emulation: {line}", file=sys.stderr)
    if gone := splat.breakpoints(console):
        print(
            f"lab: the emulator ran {gone} breakpoints that were gone; lab_breakpoint.ko went"
            " on, see lab/README.md",
            file=sys.stderr,
        )
    if stream.failure:
        raise LabError(stream.failure)
    if stream.done:
        return run
    runs.show_tail(console)
    complaints = splat.find(f"{splat.BEGIN}\n{console}")
    if not stream.results and complaints and splat.is_of_a_breakpoint_gone(complaints[0]):
        raise _BreakpointError("a guest that boots ran a breakpoint that was gone")
    if ending is Ending.DEAD:
        run.died = f"{STILL}; see {directory}"
    elif ending is Ending.LATE:
        run.died = f"{LATE} {timeout:g} s that it was served; see {directory}"
    elif (directory / "begun").exists():
        run.died = f"the guest died in the run; its console is {directory / 'console'}"
    else:
        raise LabError(f"the guest did not boot; its console is {directory / 'console'}")
    return run
