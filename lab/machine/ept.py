"""Run commands on an emulated Intel CPU with VMX and EPT, which QEMU cannot emulate.

    from lab import bochs
    program = paths.SELFTESTS / "pre_fault_memory_test"
    for outcome in bochs.run(["build/selftests/pre_fault_memory_test"], [program]): ...

Bochs has one CPU, no virtio and no host files: what runs there goes into an initramfs,
programs at the paths they have below the root of the repository. The boot takes
minutes, so one boot runs a list of commands, each in a busybox shell.

It is that of Debian 13, unpacked into build/bochs and run with the C library it came with:
with page modification logging (PML), that of Debian 12 logs addresses of bytes, not of
pages, of each of which KVM warns.
"""

import os
import pty
import re
import shutil
import subprocess
import threading
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lab import shell
from lab.error import LabError
from lab.machine import npt, params, splat
from lab.paths import ROOT
from lab.source import debian
from lab.source.unpacked import Unpacked

BOCHS = Unpacked("bochs", ("bochs", "bochs-term", "bochsbios", "vgabios"))
_SHARED = BOCHS.root / "usr/share"
_PLUGINS = BOCHS.libraries / "bochs/plugins"
_ENVIRONMENT = {"TERM": "xterm", "LTDL_LIBRARY_PATH": str(_PLUGINS)}

KVM_INTEL = "enable_apicv=0"
"""Bochs has posted interrupts, but does not take KVM's descriptor of them."""

SETTINGS = """\
megs: {mem}
cpu: model=corei7_skylake_x, ips=50000000
clock: sync=none
romimage: file={shared}/bochs/BIOS-bochs-latest
vgaromimage: file={shared}/bochs/VGABIOS-lgpl-latest
ata0-master: type=cdrom, path=disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=console
display_library: term
sound: driver=dummy
log: bochs.log
panic: action=fatal
"""
LOADER = """\
default linux
prompt 0
label linux
kernel /vmlinuz
append initrd=/initrd console=ttyS0,115200 rdinit=/init nokaslr tsc=reliable panic=-1 {params}
"""
LOADER_FILES = ("/usr/lib/ISOLINUX/isolinux.bin", "/usr/lib/syslinux/modules/bios/ldlinux.c32")
_SCREEN = re.compile(rb'connected to screen "(/dev/pts/\d+)"')
ISO = ("-b", "isolinux.bin", "-c", "npt.cat", "-no-emul-boot", "-boot-load-size", "4")


class Outcome(NamedTuple):
    """What came of one command; `status` as in lab.machine.npt."""

    cmd: str
    status: int
    output: str
    seconds: float
    """Of the real clock, give or take one; those of the guest are 20 times longer."""


def run(
    commands: Sequence[str],
    programs: Sequence[Path],
    params: str = "",
    *,
    stock: bool = False,
    checked: bool = False,
    kvm: Path | None = None,
    image: Path | None = None,
    timeout: float = 1800,
    mem: int = 2048,
) -> list[Outcome]:
    """Boot once, load KVM, run `commands`, and return what came of each.

    `programs` are static and under the root of the repository. `mem` is in MiB. A
    command that did not end in `timeout` seconds, and those after it, are TIMED_OUT.
    `stock` and `checked` are as in lab.machine.npt. `kvm` is to be loaded as kvm.ko. `image`
    is a kernel with KVM built in, to boot instead of Debian's.
    """
    BOCHS.ensure()
    directory = npt.new_directory()
    wanted = f"kvm_intel.{KVM_INTEL} {params}"
    modules = {} if image else _modules(wanted, kvm, stock=stock, checked=checked)
    _make_initramfs(directory, modules, commands, programs)
    _make_disc(directory, image or debian.kernel().image, wanted if image else "")
    (directory / "bochsrc").write_text(SETTINGS.format(mem=mem, shared=_SHARED))
    (directory / "debugger").write_text("c\n")
    marks = _power_on(directory, timeout)
    if not (directory / "console").exists():
        raise LabError(f"bochs did not start; {directory / 'bochs.log'} may say why")
    console = (directory / "console").read_text(errors="replace").replace("\r", "")
    if match := re.search(r"^lab: failure: (.*)", console, flags=re.M):
        raise LabError(match[1])
    if splat.BEGIN not in console:
        npt.show_tail(console)
        raise LabError(f"the guest did not boot; its console is {directory / 'console'}")
    return list(_outcomes(commands, console, marks))


def _modules(wanted: str, kvm: Path | None, *, stock: bool, checked: bool) -> dict[Path, str]:
    """Return modules, of swap space and of KVM, in the order to load them; parameters."""
    kernel = debian.kernel()
    chosen = params.split(wanted, kernel, stock=stock, checked=checked)
    where = ("-d", kernel.root, "-S", kernel.release)
    needed = shell.output("/sbin/modprobe", *where, "--show-depends", "zram").splitlines()
    found = {Path(line.split()[1]): "" for line in needed}
    found[kernel.modules / "kernel/virt/lib/irqbypass.ko.xz"] = ""
    for owner in ("kvm", "kvm_intel"):
        module = params.module(kernel, owner, stock=stock, checked=checked)
        if owner == "kvm" and kvm:
            module = kvm
        found[module] = chosen[owner]
    return found


def _make_initramfs(
    directory: Path,
    modules: Mapping[Path, str],
    commands: Sequence[str],
    programs: Sequence[Path],
) -> None:
    root = directory / "root"
    for name in ("bin", "lab", "proc", "sys", "dev", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    shutil.copy(ROOT / "lab/guest/ept.sh", root / "init")
    (root / "init").chmod(0o755)
    loads = []
    for module, chosen in modules.items():
        loads.append(f"load /lab/{_copy_module(module, root / 'lab')} {chosen}\n")
    (root / "lab/load").write_text("".join(loads))
    for number, command in enumerate(commands):
        (root / f"lab/command.{number:03}").write_text(command + "\n")
    for program in programs:
        target = root / program.resolve().relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shell.output("strip", "-o", target, program)
    archive = "find . | cpio -o -H newc --quiet -R 0:0 | gzip -1 > ../initrd"
    shell.output("sh", "-c", archive, cwd=root)
    shutil.rmtree(root)


def _copy_module(source: Path, into: Path) -> str:
    if source.suffix == ".xz":
        content = subprocess.run(["xz", "-dc", source], capture_output=True, check=True).stdout
        (into / source.stem).write_bytes(content)
        return source.stem
    shutil.copy(source, into)
    return source.name


def _make_disc(directory: Path, image: Path, params: str) -> None:
    disc = directory / "disc"
    disc.mkdir()
    for file in LOADER_FILES:
        shutil.copy(file, disc)
    (disc / "isolinux.cfg").write_text(LOADER.format(params=params))
    shutil.copy(image, disc / "vmlinuz")
    (directory / "initrd").rename(disc / "initrd")
    iso = directory / "disc.iso"
    shell.output(
        "xorriso", "-as", "mkisofs", "-quiet", "-o", iso, *ISO, "-boot-info-table", disc
    )
    shutil.rmtree(disc)


def _power_on(directory: Path, timeout: float) -> list[float]:
    """Run the machine until its init is done or the time is up.

    Return when each command began and ended, in turns.
    """
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
    console, end = directory / "console", time.monotonic() + timeout
    marks: list[float] = []
    try:
        with shell.working("Bochs", lambda: f"{(len(marks) + 1) // 2} begun"):
            while machine.poll() is None and time.monotonic() < end and not _done(console):
                if npt.STOPPING.is_set():
                    raise KeyboardInterrupt
                time.sleep(1)
                marks += [time.monotonic()] * (_marks(console) - len(marks))
    finally:
        machine.kill()
        machine.wait()
        drain.join()
        (directory / "disc.iso").unlink()
    return [*marks, *[time.monotonic()] * (_marks(console) + 1 - len(marks))]


def _done(console: Path) -> bool:
    text = _read_console(console)
    return any(mark in text for mark in (b"lab: end", b"lab: failure", b"Kernel panic"))


def _marks(console: Path) -> int:
    return len(re.findall(rb"^lab: (?:run|status) \d", _read_console(console), flags=re.M))


def _read_console(console: Path) -> bytes:
    return console.read_bytes() if console.exists() else b""


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


def _outcomes(
    commands: Sequence[str], console: str, marks: Sequence[float]
) -> Iterator[Outcome]:
    for number, cmd in enumerate(commands):
        _, _, rest = console.partition(f"lab: run {number:03}\n")
        output, done, after = rest.partition(f"lab: status {number:03} ")
        status = int(after.split()[0]) if done else npt.TIMED_OUT
        if splat.find(splat.BEGIN + output) and not status:
            status = npt.COMPLAINED
        took = marks[2 * number : 2 * number + 2]
        yield Outcome(cmd, status, output, took[-1] - took[0] if took else 0)
