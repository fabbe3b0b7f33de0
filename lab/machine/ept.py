"""Run commands on an emulated Intel CPU with VMX and EPT, which QEMU cannot emulate.

    from lab.machine import ept
    program = paths.SELFTESTS / "pre_fault_memory_test"
    done = ept.run([Command("build/selftests/pre_fault_memory_test")], [program])
    for result in done.results: ...

Bochs has no virtio and no host files: what runs there goes into an initramfs, at the paths
that it has on the host. The boot takes minutes, so one boot runs a list of commands. They have
a serial port of their own: the kernel writes its log into the midst of others' lines.

Several CPUs take turns, deterministically: each executes `quantum` instructions, then the next.
The smaller that is, the finer they interleave, and the more races show.

It is that of Debian 13, unpacked into build/bochs and run with the C library it came with:
with page modification logging (PML), that of Debian 12 logs addresses of bytes, not of
pages, of each of which KVM warns.
"""

import argparse
import os
import pty
import re
import shutil
import subprocess
import threading
import time
import tty
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from lab import shell
from lab.error import LabError
from lab.machine import disk, runs, served, splat
from lab.machine import params as modules
from lab.machine.result import Command, Ended, Run, Stream
from lab.source import debian
from lab.source.unpacked import Unpacked

BOCHS = Unpacked("bochs", ("bochs", "bochs-term", "bochsbios", "vgabios"))
_SHARED = BOCHS.root / "usr/share"
_PLUGINS = BOCHS.libraries / "bochs/plugins"
_ENVIRONMENT = {"TERM": "xterm", "LTDL_LIBRARY_PATH": str(_PLUGINS)}

_KVM_INTEL = "kvm_intel.enable_apicv=0"
"""Bochs has posted interrupts, but does not take KVM's descriptor of them."""

MOST_CPUS = 4
QUANTA = range(1, 17)
_QUANTUM = 16
"""Bochs' default."""

_SETTINGS = """\
megs: 2048
cpu: count={cpus}:1:1, quantum={quantum}, model=corei7_skylake_x, ips=50000000
clock: sync=none
romimage: file={shared}/bochs/BIOS-bochs-latest
vgaromimage: file={shared}/bochs/VGABIOS-lgpl-latest
ata0-master: type=cdrom, path=disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=console
com2: enabled=1, mode=file, dev=output
display_library: term
sound: driver=dummy
log: bochs.log
panic: action=fatal
"""
_KERNEL = (
    "console=ttyS0,115200 rdinit=/init nokaslr tsc=reliable tsc_early_khz=400000 panic=-1"
    " lab_guest={guest} lab_run={run} {params}"
)
_SCREEN = re.compile(rb'connected to screen "(/dev/pts/\d+)"')


def run(
    commands: Sequence[Command],
    programs: Iterable[Path],
    params: str = "",
    *,
    stock: bool = False,
    checked: bool = False,
    kvm: Path | None = None,
    image: Path | None = None,
    timeout: float = 1800,
    cpus: int = 0,
    quantum: int | None = None,
    live: IO[bytes] | None = None,
    ended: Ended | None = None,
) -> Run:
    """Boot once, load KVM, run `commands`, and return what came of them.

    `programs` are static. A command's limit is in seconds of the machine, of
    which one takes up to eight, or 25 with two CPUs and a quantum of 3. `cpus` and `quantum`
    are as check() wants them. The rest is as in lab.machine.npt.
    """
    check(cpus, quantum)
    BOCHS.ensure()
    directory = runs.new_directory()
    wanted = f"{_KVM_INTEL} {params}"
    chosen = {"stock": stock, "checked": checked, "kvm": kvm}
    listed = "" if image else modules.to_load("kvm_intel", wanted, swap=True, **chosen)
    _make_initramfs(directory, commands, listed, programs)
    given = _KERNEL.format(guest=runs.GUEST, run=directory, params=wanted if image else "")
    kernel = image or debian.kernel().image
    disk.make_iso(directory / "disc.iso", kernel, directory / "initrd", given)
    turns = {"cpus": cpus or 1, "quantum": quantum or _QUANTUM}
    (directory / "bochsrc").write_text(_SETTINGS.format(shared=_SHARED, **turns))
    (directory / "debugger").write_text("c\n")
    stream = Stream(live, ended)
    _power_on(directory, stream, timeout)
    stream.close()
    return _judge(stream, directory, timeout)


def check(cpus: int, quantum: int | None) -> None:
    """Refuse what Bochs can't do; 0 CPUs are one, no quantum is its default."""
    if not 0 <= cpus <= MOST_CPUS:
        raise LabError(f"--cpus {cpus}: on EPT there are 1 to {MOST_CPUS}")
    if quantum is not None and quantum not in QUANTA:
        raise LabError(f"--quantum {quantum}: {QUANTA[0]} to {QUANTA[-1]} instructions")
    if quantum and cpus < 2:
        raise LabError(f"--quantum {quantum}: it takes --cpus 2 or more to take turns")


def add_quantum(command: argparse.ArgumentParser) -> None:
    """Add the option that says after how many instructions another CPU has its turn."""
    command.add_argument(
        "--quantum", type=int, help=f"of Bochs' CPUs, instructions in turn; {_QUANTUM}"
    )


def _make_initramfs(
    directory: Path, commands: Sequence[Command], listed: str, programs: Iterable[Path]
) -> None:
    root = directory / "root"
    (root / "bin").mkdir(parents=True)
    (root / "dev").mkdir()
    shutil.copy("/bin/busybox", root / "bin")
    shutil.copytree(runs.GUEST, _at(root, runs.GUEST))
    shutil.copy(runs.GUEST / "init.sh", root / "init")
    (root / "init").chmod(0o755)
    for line in listed.splitlines():
        _copy_module(Path(line.split()[0]), root)
    settings = {"beats": "", "clock": "", "cpus": "", "prepare": "", "swap": runs.SWAP}
    runs.write_job(directory, commands, listed.replace(".ko.xz", ".ko"), settings)
    for path in directory.iterdir():
        if path.is_file():
            shutil.copy(path, _at(root, path))
    for program in set(programs):
        debug = ("--strip-debug",) if program.suffix == ".ko" else ()
        shell.output("strip", *debug, "-o", _at(root, program), program)
    disk.make_initramfs(root, directory / "initrd")
    shutil.rmtree(root)


def _at(root: Path, path: Path) -> Path:
    """Return where a file of the host is in the machine, with a directory to put it into."""
    target = root / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _copy_module(file: Path, root: Path) -> None:
    if file.suffix == ".xz":
        unpacked = subprocess.run(["xz", "-dc", file], capture_output=True, check=True).stdout
        _at(root, file.with_suffix("")).write_bytes(unpacked)
    else:
        shutil.copy(file, _at(root, file))


def _power_on(directory: Path, stream: Stream, timeout: float) -> None:
    """Run the machine until its init is done or the time is up, and hear what it prints."""
    ours, its = pty.openpty()
    machine = subprocess.Popen(
        [*BOCHS.command("usr/bin/bochs-bin"), "-q", "-f", "bochsrc", "-rc", "debugger"],
        cwd=directory,
        env={**os.environ, **_ENVIRONMENT},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    os.write(ours, b"\n")  # Bochs sleeps with its CPU while nothing is there to be read
    drain = threading.Thread(target=_drain, args=(ours,), daemon=True)
    drain.start()
    clock = served.Served(directory, machine.pid)
    with runs.leashed(machine):
        try:
            with shell.working("Bochs", lambda: f"{len(stream.results)} begun"):
                _hear(machine, directory, stream, clock, timeout)
        finally:
            machine.kill()
            machine.wait()
            drain.join()
            (directory / "disc.iso").unlink()


def _hear(
    machine: subprocess.Popen[bytes],
    directory: Path,
    stream: Stream,
    clock: served.Served,
    timeout: float,
) -> None:
    output, console = directory / "output", directory / "console"
    heard, panic = 0, False
    while not (stream.done or stream.failure or panic or clock.is_past(timeout)):
        if runs.STOPPING.is_set():
            raise KeyboardInterrupt
        gone = machine.poll() is not None
        if console.exists():
            panic = b"Kernel panic" in console.read_bytes()
        if output.exists():
            with output.open("rb") as file:
                file.seek(heard)
                text = file.read()
            heard += len(text)
            stream.feed(text)
        if gone:
            break
        time.sleep(1)
        clock.tick()


def _drain(terminal: int) -> None:
    """Read what Bochs prints, and its screen: nobody doing so stops it when that is full."""
    printed = b""
    while text := _read(terminal):
        printed += text
        if match := _SCREEN.search(printed):
            screen = os.open(match[1], os.O_RDONLY | os.O_NOCTTY)
            tty.setraw(screen)
            threading.Thread(target=_drain, args=(screen,), daemon=True).start()
            printed = b""
    os.close(terminal)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side is gone
        return b""


def _judge(stream: Stream, directory: Path, timeout: float) -> Run:
    if not (directory / "console").exists():
        raise LabError(f"bochs did not start; {directory / 'bochs.log'} may say why")
    run = Run(directory, stream.results)
    if stream.failure:
        raise LabError(stream.failure)
    console = run.console.replace("\r", "")
    if splat.BEGIN not in console:
        runs.show_tail(console)
        raise LabError(f"the guest did not boot; its console is {directory / 'console'}")
    run.splats = splat.find(console) or stream.tainted
    if not stream.done:
        run.died = f"the machine died, or its {timeout:.0f} s were up; see {directory}"
    return run
