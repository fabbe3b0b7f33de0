"""Notice that an emulated machine stands still: wake it up, or have it ended.

The machine's kernel writes to a file of the run every few seconds, see guest/beat.sh; before it
gets there, its console tells that it boots.

QEMU 7.2 lost an interrupt now and then, as README.md tells: the APIC had it (IRR), the CPU
did not get to know, and a kernel whose timer does not come again by itself waits for good.
Any other interrupt has QEMU look again. So whoever is silent for too long gets some, of
keyboard and mouse.
"""

import asyncio
import os
import re
import sys
from pathlib import Path

from qemu.qmp import QMPClient, QMPError

from lab.paths import ROOT

BEAT = "beat"
"""File that the machine writes to."""

STATE = "stuck"
"""File that gets what QEMU knows of a machine that stands still."""

_SOCKET = "qmp"
_PENDING = re.compile(r"^IRR\s+\d", re.M)
BOOT_SECONDS = 300
"""That a machine may be silent as it boots, beside much other work."""

_WAKE_SECONDS = 15
_DEAD_SECONDS = 30
_QMP_SECONDS = 10
_LOOK = ("info registers -a", *(f"info lapic {cpu}" for cpu in range(5)), "info irq")
"""QEMU says which CPUs there are not."""

_POKE = ("sendkey shift", "mouse_move 1 1")
"""Two: each interrupts one of the emulated CPUs, which one the kernel has chosen."""


def options(directory: Path) -> str:
    """Return QEMU's options to be asked and woken up."""
    # Relative, as the name of a socket is limited to 107 bytes.
    socket = os.path.relpath(directory / _SOCKET, ROOT)
    return f"-qmp unix:{socket},server=on,wait=off"


def lost(told: str) -> bool:
    """Whether an APIC has an interrupt that its CPU has not taken for so long."""
    return bool(_PENDING.search(told))


class Heartbeat:
    """What a machine's life looks like from outside, looked at once a second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[int, ...] = ()
        self._silent = 0
        """Looks, not time: a host that stands still, too, is nobody's fault."""

        self._woken = False

    def is_dead(self) -> bool:
        """Look; True if nothing can wake it up."""
        signs = self._signs()
        if signs != self._seen:
            self._came_back()
            self._seen = signs
            return False
        self._silent += 1
        beating = (self._directory / BEAT).exists()
        if not beating:
            begun = (self._directory / "begun").exists()
            return not begun and self._silent > BOOT_SECONDS
        if self._silent == _WAKE_SECONDS:
            self._wake()
        return self._silent > _DEAD_SECONDS

    def _signs(self) -> tuple[int, ...]:
        """Return what changes for as long as the machine lives."""
        beat, console = (self._directory / name for name in (BEAT, "console"))
        if beat.exists():
            return (beat.stat().st_mtime_ns,)
        return (console.stat().st_size,) if console.exists() else ()

    def _came_back(self) -> None:
        if self._woken:
            told = (self._directory / STATE).read_text()
            why = "the emulator had lost one" if lost(told) else "why it waited is not known"
            _tell(f"it goes on, after interrupts from outside: {why}")
        self._silent, self._woken = 0, False

    def _wake(self) -> None:
        _tell(
            f"the emulated machine has not moved for {self._silent} s;"
            f" what QEMU knows is in {self._directory / STATE}"
        )
        try:
            told = asyncio.run(_ask(self._directory / _SOCKET, (*_LOOK, *_POKE)))
        except (QMPError, OSError, EOFError, TimeoutError) as error:
            told = f"QEMU does not answer: {error!r}\n"
            _tell(told.strip())
        (self._directory / STATE).write_text(told)
        self._woken = True


async def _ask(path: Path, commands: tuple[str, ...]) -> str:
    """Return what QEMU's monitor says to each command."""
    client = QMPClient("lab")
    async with asyncio.timeout(_QMP_SECONDS):
        await client.connect(os.path.relpath(path))
        try:
            answers = [
                await client.execute("human-monitor-command", {"command-line": line})
                for line in commands
            ]
        finally:
            await client.disconnect()
    return "\n".join(
        f"({line})\n{answer}" for line, answer in zip(commands, answers, strict=True)
    )


def _tell(what: str) -> None:
    print(f"lab: {what}", file=sys.stderr, flush=True)
