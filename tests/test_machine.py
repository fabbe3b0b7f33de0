"""What machines are told to load and to do, and what an NPT machine is excused for."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from lab import shell
from lab.error import LabError
from lab.machine import npt, params, runs, served
from lab.machine.result import Command, Run
from lab.make import probes
from lab.source.debian import Kernel

KERNEL = Kernel("6.12.1+deb12-amd64")
KNOWN = {"kvm": {"global_tdp", "tdp_mmu"}, "kvm_amd": {"npt", "vgif"}, "kvm_intel": {"eptad"}}
LISTED = {
    "zram": "insmod /debian/zsmalloc.ko.xz \ninsmod /debian/zram.ko.xz \n",
    "kvm_amd": "insmod /debian/irqbypass.ko.xz \ninsmod /debian/kvm.ko.xz \n"
    "insmod /debian/kvm-amd.ko \n",
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have modules, of Debian's and of ours, and their parameters."""

    def module(_: Kernel, owner: str, *, stock: bool, **__: bool) -> Path:
        return Path("/stock" if stock else "/ours", f"{owner}.ko")

    monkeypatch.setattr(params, "module", module)
    monkeypatch.setattr(params, "_known", lambda path: KNOWN[path.stem])
    monkeypatch.setattr(params.debian, "kernel", lambda: KERNEL)
    monkeypatch.setattr(params.shell, "output", lambda *args: LISTED[args[-1]])


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("text", "wanted"),
    (
        ("global_tdp=1 kvm.tdp_mmu=N", {"kvm": "global_tdp=1 tdp_mmu=N"}),
        ("kvm_amd.vgif=0 kvm_intel.eptad=0", {"kvm_amd": "vgif=0", "kvm_intel": "eptad=0"}),
        ("  ", {}),
        # A switch has no value.
        ("global_tdp", {"kvm": "global_tdp"}),
        *((f"{name}=1", "has no parameter") for name in ("globaltdp", "kvm_amd.global_tdp")),
        *((text, "has no parameter") for text in ("kvm_arm.x=1", "=1", "kvm.=1")),
        ("global_tdp='1", "No closing quotation"),
    ),
)
def test_parameters_go_to_the_module_that_knows_them(
    text: str, wanted: dict[str, str] | str
) -> None:
    if isinstance(wanted, str):
        with pytest.raises(LabError, match=wanted):
            params.split(text, KERNEL, stock=False)
    else:
        found = params.split(text, KERNEL, stock=False)
        assert {owner: given for owner, given in found.items() if given} == wanted


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("options", "wanted"),
    (
        (
            {"params": "global_tdp=1 kvm_amd.vgif=0", "swap": True},
            "/debian/zsmalloc.ko.xz\n/debian/zram.ko.xz\n/debian/irqbypass.ko.xz\n"
            "/ours/kvm.ko global_tdp=1\n/ours/kvm_amd.ko vgif=0\n",
        ),
        (
            {"params": "global_tdp=1", "kvm": Path("/broken/kvm.ko")},
            "/debian/irqbypass.ko.xz\n/broken/kvm.ko global_tdp=1\n/ours/kvm_amd.ko\n",
        ),
        ({"stock": True}, "/debian/irqbypass.ko.xz\n/stock/kvm.ko\n/stock/kvm_amd.ko\n"),
    ),
)
def test_what_is_needed_is_loaded_first(options: dict, wanted: str) -> None:
    assert params.to_load("kvm_amd", **options) == wanted


def test_files_of_old_runs_go_but_not_of_one_that_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RUNS", tmp_path)
    old = [tmp_path / f"20200101-000000-{pid}-1" for pid in (2**22 + 1, os.getpid())]
    for path in old:
        path.mkdir()
    made = [runs.new_directory() for _ in range(runs.KEPT_RUNS + 1)]
    assert [path.exists() for path in (*old, made[-1])] == [False, True, True]


_OOPS = "[ 1.0] Oops: int3: 0000 [#1]\nRIP: 0010:f+0x1/0x2\nCode: 00 {} <90> 66\n"
_GONE, _THERE = _OOPS.format("e9"), _OOPS.format("cc")
_ENDS, _DIES_RUNNING = b"\x1elab: done\n", b"\x1elab: run 0 a\n"


@dataclass
class Machines:
    """Boots that log and print what they are to."""

    lists: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)

    def run(self, *boots: tuple[str, bytes], **options: bool) -> Run:
        left = list(boots)

        def pump(
            _: Sequence[str], directory: Path, hear: Callable[[bytes], None], __: float
        ) -> npt.Ending:
            self.lists.append((directory / "modules").read_text())
            self.jobs.append((directory / "job").read_text())
            logged, printed = left.pop(0)
            (directory / "console").write_text(logged)
            if printed:
                (directory / "begun").touch()
            hear(printed)
            return npt.Ending.BY_ITSELF

        with mock.patch.object(npt, "pump", pump):
            return npt.run([Command("true", "a")], **options)


@pytest.fixture
def booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Boot nothing."""
    monkeypatch.setattr(runs, "RUNS", tmp_path)
    monkeypatch.setattr(npt.modules, "to_load", lambda *_, **__: "kvm.ko\n")
    monkeypatch.setattr(npt.debian, "kernel", lambda: SimpleNamespace(image="an image"))
    monkeypatch.setattr(npt, "QEMU", SimpleNamespace(program=lambda: "qemu"))
    monkeypatch.setattr(npt.probes, "build", lambda: None)
    return Machines()


@pytest.mark.parametrize(
    ("icount", "listed", "clock"),
    ((False, f"{probes.BREAKPOINT}\nkvm.ko\n", served.FILE), (True, "kvm.ko\n", "''")),
)
def test_a_machine_has_a_module_and_a_clock_but_under_icount(
    icount: bool, listed: str, clock: str, booted: Machines
) -> None:
    """Where CPUs take turns, and have a clock of their own."""
    booted.run(("", _ENDS), icount=icount)
    assert booted.lists == [listed]
    assert f"\nclock={clock}\n" in booted.jobs[0]


def test_a_boot_that_runs_a_breakpoint_which_is_gone_is_repeated_once(booted: Machines) -> None:
    assert booted.run((_GONE, b""), ("", _ENDS)).died == ""
    with pytest.raises(LabError):
        booted.run((_GONE, b""), (_GONE, b""))
    assert len(booted.lists) == 4
    # No other death is excused: one that is there, after a complaint, or of a command.
    for logged in (_THERE, f"[ 0.9] BUG: any\n---[ end trace\n{_GONE}"):
        with pytest.raises(LabError):
            booted.run((logged, b""))
    assert "died in the run" in booted.run((_GONE, _DIES_RUNNING)).died
    assert len(booted.lists) == 7


def test_it_is_told_that_something_goes_on() -> None:
    with (
        mock.patch.object(shell, "TELL_SECONDS", 0.01),
        mock.patch.object(shell, "console") as console,
        shell.working("filling", lambda: "3 of 5"),
    ):
        while console.print.call_count < 2:
            time.sleep(0.01)
    first, second, *_ = (call.args[0] for call in console.print.call_args_list)
    assert (first, second.rpartition(",")[0]) == ("filling", "filling: 3 of 5")
