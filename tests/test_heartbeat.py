"""What the heartbeat makes of a machine's signs of life."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.machine import ept, heartbeat, npt, served
from lab.machine.result import Stream
from lab.paths import ROOT


@pytest.mark.parametrize(
    ("signs", "looks"),
    [
        # Beating is alive, silence is death; who comes back is alive.
        ("b" + ".b" * 999, 32),
        ("b", 32),
        ("b" + "." * 25 + "b", 32),
        # Booting takes long, and counts by the console.
        ("c" + "." * 280 + "C", 302),
        # Without a heartbeat nothing is known.
        ("n", 1000),
    ],
)
def test_signs_of_life(
    signs: str, looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many looks it takes after them until the machine is dead, at most a thousand."""
    monkeypatch.setattr(heartbeat, "_tell", lambda *_: None)
    pulse = heartbeat.Heartbeat(tmp_path)
    names = {"b": heartbeat.BEAT, "c": "console", "C": "console", "n": "begun"}
    for number, sign in enumerate(signs):
        if sign == ".":
            assert not pulse.is_dead()
        else:
            path = tmp_path / names[sign]
            path.write_text("Linux version" if sign == "C" else "Linux")
            os.utime(path, ns=(number + 1, number + 1))
    assert next((n for n in range(1, 1000) if pulse.is_dead()), 1000) == looks
    if looks == 32:
        assert "QEMU does not answer" in (tmp_path / heartbeat.STATE).read_text()


def test_an_interrupt_that_is_lost() -> None:
    """By what QEMU says to `info lapic`."""
    assert heartbeat.lost("ISR\t (none)\nIRR\t 236 \n\nAPR 0x00 TPR 0x10")
    assert not heartbeat.lost("ISR\t 236 \nIRR\t (none)\n\nAPR 0x00 TPR 0x10")


def test_what_does_not_answer_is_over(tmp_path: Path) -> None:
    """A process that never gave a sign of life is ended, as one that is late; so is Bochs."""
    assert npt.pump(["sleep", "60"], tmp_path, bytes, 1.5) == npt.Ending.LATE
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as machine:
        ept._hear(machine, tmp_path, Stream(), served.Served(tmp_path, machine.pid), 1.5)
        assert machine.poll() is None
        machine.kill()


def test_a_killed_lab_leaves_no_machine(tmp_path: Path) -> None:
    """Not even by SIGKILL."""
    pid = tmp_path / "pid"
    words = ["sh", "-c", f'echo $$ >"{pid}"; sleep 60; :']
    pump = "from pathlib import Path; from lab.machine import npt; npt.pump"
    line = f"{pump}({words}, Path({str(tmp_path)!r}), bytes, 60)"
    with subprocess.Popen([sys.executable, "-c", line], cwd=ROOT) as lab:
        machine = _until(lambda: pid.exists() and pid.read_text().strip())
        # One of them is what ends the other.
        children = Path("/proc", str(lab.pid), "task", str(lab.pid), "children")
        _until(lambda: len(children.read_text().split()) == 2)
        lab.send_signal(signal.SIGKILL)
    # A process may stay as a zombie, which has no command line.
    left = Path("/proc", machine, "cmdline")
    _until(lambda: not left.exists() or not left.read_bytes())


def _until(get: Callable[[], str | bool]) -> str:
    """Return what is got when that is something."""
    end = time.monotonic() + 20
    while not (got := get()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return str(got)
