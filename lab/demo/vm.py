"""One QEMU process: started, spoken to over QMP, ended."""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from qemu.qmp import ExecuteError, QMPClient, QMPError

from lab.demo import stamps
from lab.demo.config import Counters, Job, Side
from lab.error import LabError

CPUS = 2
SPARE_MIB = 160
"""Guest memory without stamps: its kernel, and some air."""

_TAIL = 15
# Of what ended by itself, nothing may be run again that Global TDP may have done. A guest whose
# kernel has complained has failed, on whatever side.
AGAIN = 2
"""How often a case is run again at most."""

_COMPLAINT = re.compile(
    r"^.*(?:Kernel panic|\bOops\b|BUG: |kernel BUG at|WARNING: |general protection fault"
    r"|unable to handle|double fault|Attempted to kill init|reboot: |Rebooting in ).*$",
    re.M,
)
_LOOK = ("info registers -a", "info lapic 0", "info lapic 1", "info registers -a")
_LOOK_SECONDS = 10
_MONITOR = "human-monitor-command"
_QMP_SECONDS = 180
"""Of one command: savevm takes the longest."""

TOLD, BUSY = "kvm_populate", "kvm_populate_busy"
"""Events of a QEMU with integration/qemu's patches: a hint, and one dropped for a lock."""
REFUSED = "refused"
"""A hint that KVM has answered with an error."""

_OLD = ("device_add", "device_del")
"""Commands that are older than QMP's way of naming them."""

_QUIET_SECONDS = 20
_T = TypeVar("_T")


class Progress:
    """What a case is at: when that changes, and every now and then while it does not."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told = 0.0

    def now(self, what: str) -> None:
        """Tell what is reached."""
        self._told = time.monotonic()
        print(f"demo: {self._told - self._began:5.0f} s  {what}", flush=True)

    def still(self, what: str) -> None:
        """Tell what is waited for, unless something was told just before."""
        if time.monotonic() > max(self._told, self._began) + _QUIET_SECONDS:
            self.now(what)


class VmError(LabError):
    """What failed with a guest, and the last lines of its console."""

    def __init__(self, what: str, console: str) -> None:
        super().__init__(what)
        self.console = console


class QemuGoneError(VmError):
    """QEMU ended by itself, e.g. as an emulated CPU had its guest reset."""


@dataclass(frozen=True)
class Setting:
    """What the guests of a case have in common."""

    job: Job
    side: Side
    backend: str
    stored: Path
    """The guest as it was when it was stored."""

    directory: Path
    """For their files."""

    progress: Progress


class Vm:
    """A guest under `-accel kvm`; use as `async with Vm(...) as vm`."""

    def __init__(self, name: str, setting: Setting, *more: str) -> None:
        self.name = name
        self.console = setting.directory / f"{name}.console"
        self.log = setting.directory / f"{name}.log"
        job = setting.job
        self.mem_mib = job.mem_mib
        self.patched = setting.side.patched
        self.toggle = job.toggle
        options = [*_options(setting), f"-serial=file:{self.console}", *more]
        self._traces = setting.directory / f"{name}.traces"
        if self.patched:
            options += [f"-trace={TOLD}*", f"-D={self._traces}"]
        self._command = [job.patched if setting.side.patched else job.qemu, *options]
        self._qmp = QMPClient(name)
        self.progress = setting.progress
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        control = [f"-chardev=socket,id=qmp,fd={fd}", "-mon=chardev=qmp,mode=control"]
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(word for option in [*self._command, *control] for word in _words(option)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[fd],
            )
        theirs.close()
        try:
            await self._qmp.connect(ours)
        except QMPError as error:
            await self.end()
            raise self.error("QEMU does not start") from error
        except BaseException:
            # It may wait for somebody else, who has failed.
            await self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """End QEMU, as a power cut does."""
        with contextlib.suppress(QMPError, EOFError, OSError):
            await self._qmp.disconnect()
        with contextlib.suppress(ProcessLookupError):
            self._running.kill()
        await self._running.wait()

    @property
    def _running(self) -> asyncio.subprocess.Process:
        assert self._process
        return self._process

    @property
    def pid(self) -> int:
        return self._running.pid

    async def do(self, command: str, **arguments: Any) -> Any:  # noqa: ANN401
        """Run a QMP command, `-` for `_` in its name and arguments."""
        name = command if command in _OLD else command.replace("_", "-")
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        try:
            async with asyncio.timeout(_QMP_SECONDS):
                return await self._qmp.execute(name, given)
        except TimeoutError:
            raise self.error(f"QMP {command} is not answered in {_QMP_SECONDS} s") from None
        except ExecuteError as error:
            raise self.error(f"QMP {command} fails: {error}") from error
        except QMPError as error:
            raise self.error("QEMU is gone", kind=QemuGoneError) from error

    def on(self, event: str) -> contextlib.AbstractContextManager[Any]:
        """Listen to a QMP event."""
        return self._qmp.listener(event)

    async def said(self, what: str, hear: Callable[[str], _T | None], seconds: float) -> _T:
        """Wait until `hear` makes something of the console; a mismatch ends it at once."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    text = self.text()
                    if told := stamps.mismatch(text):
                        raise self.error(f"guest data is wrong: {told}")
                    if heard := hear(text):
                        return heard
                    if self._running.returncode is not None:
                        why = f"the guest or QEMU died, {what}"
                        raise self.error(why, kind=QemuGoneError)
                    self.progress.still(f"{self.name}: {self.how_far(text)}")
                    await asyncio.sleep(0.1)
        except TimeoutError:
            late = self.error(f"{what} after {seconds:g} s")
            raise VmError(str(late), f"{await self._state()}\n{late.console}") from None

    def hints(self) -> Counters:
        """Count what QEMU has told KVM of memory, by what it traces."""
        text = self._traces.read_text(errors="replace") if self._traces.exists() else ""
        given = re.findall(rf"^{TOLD} .* ret (-?\d+)$", text, re.M)
        taken = given.count("0")
        busy = len(re.findall(rf"^{BUSY} ", text, re.M))
        return {TOLD: taken, REFUSED: len(given) - taken, BUSY: busy}

    def how_far(self, text: str) -> str:
        """Return what the console tells of the guest's work."""
        return stamps.progress(text, CPUS)

    async def _state(self) -> str:
        """Return what is known of vCPUs that may hang."""
        told = []
        for thread in Path(f"/proc/{self.pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                name = (thread / "comm").read_text().strip()
                told.append(f"({name})\n{(thread / 'stack').read_text()}")
        for line in _LOOK:
            with contextlib.suppress(QMPError, TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    said = await self._qmp.execute(_MONITOR, {"command-line": line})
                told.append(f"({line})\n{said}")
        return "\n".join(told)

    def text(self) -> str:
        """Return the console so far."""
        if not self.console.exists():
            return ""
        return self.console.read_text(errors="replace")

    def last_words(self) -> str:
        """Return whether QEMU runs, what it said, and the guest's last line."""
        status = self._running.returncode
        said = [
            path.read_text(errors="replace").splitlines() for path in (self.log, self.console)
        ]
        ends = "; ".join(lines[-1] for lines in said if lines)
        return f"{self.name}: {'runs' if status is None else f'status {status}'}: {ends}"

    def error(
        self, what: str, blame: "Vm | None" = None, kind: type[VmError] = VmError
    ) -> VmError:
        """Return an error: what failed, what QEMU (that of `blame`) says, the guest's end."""
        told = (blame or self).log.read_text(errors="replace").splitlines()
        said = f" (QEMU says: {told[-1]})" if told else ""
        tail = "\n".join(self.text().splitlines()[-_TAIL:])
        return kind(f"{self.name}: {what}{said}", tail)


def _words(option: str) -> list[str]:
    """Split `-option=value` as QEMU wants it."""
    name, equals, value = option.partition("=")
    return [name, value] if equals and name.startswith("-") else [option]


def _options(setting: Setting) -> list[str]:
    job, side = setting.job, setting.side
    firmware = [f"-L={directory}" for directory in job.firmware] if side.patched else []
    # A host that stands still for a while is nobody's fault.
    given = f"nosoftlockup tsc=reliable stamp_mib={job.mem_mib - SPARE_MIB}"
    if job.toggle:
        firmware += ["-device=VGA"]
        given += " toggle=1"
    ring = f",dirty-ring-size={job.dirty_ring}" if job.dirty_ring else ""
    return [
        *("-nodefaults", "-no-user-config", "-display=none", "-no-reboot", "-cpu=host"),
        *(f"-accel={side.accelerator}{ring}", f"-m={job.mem_mib}M", f"-smp={CPUS}"),
        *(*_memory(setting), *firmware),
        *(f"-kernel={job.kernel}", f"-initrd={job.initramfs}"),
        f"-append=console=ttyS0 loglevel=5 panic=-1 mitigations=off {given}",
    ]


def _memory(setting: Setting) -> list[str]:
    """Return the options for memory: always by the same name, for a guest to move between."""
    file = setting.directory / "ram"
    kind = {
        "anon": "memory-backend-ram",
        "memfd": "memory-backend-memfd,share=on",
        "file": f"memory-backend-file,share=on,prealloc=on,mem-path={file}",
    }
    ram = f"{kind[setting.backend]},id=pc.ram,size={setting.job.mem_mib}M"
    shared = ",aux-ram-share=on" * (setting.job.mode == "cpr-transfer")
    return [f"-object={ram}", f"-machine=q35,memory-backend=pc.ram{shared}"]


def may_repeat(times: int, *, global_tdp: bool) -> bool:
    """Whether what ended by itself may be run again, after it was so many times."""
    return not global_tdp and times < AGAIN


def complaint(console: str) -> str:
    """Return the first line in which a guest's kernel tells of its end; "" is none."""
    found = _COMPLAINT.search(console.replace("\r", ""))
    return found[0].strip() if found else ""


@contextlib.contextmanager
def no_complaint(directory: Path) -> Iterator[None]:
    """See in the end what all guests of a case have said: VmError if one complains."""
    try:
        yield
    finally:
        for path in sorted(directory.glob("*.console")):
            text = path.read_text(errors="replace")
            if told := complaint(text):
                tail = "\n".join(text.splitlines()[-_TAIL:])
                raise VmError(f"{path.stem}: the guest's kernel complains: {told}", tail)
