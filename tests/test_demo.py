"""What the demo must not overlook: counts that differ, guests that die, missed targets."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from lab.demo import cli, inside, kvm, report, stamps
from lab.demo.config import Case, Demo, Job, Side
from lab.demo.stamps import Verdict
from lab.demo.vm import QemuGoneError, VmError, complaint
from lab.error import LabError

_PANIC = "stamps: cpu 0 ready pages 9\n[    7.5] Kernel panic - not syncing: Attempted\n"
_GONE = "source: QEMU is gone"
_JOB = ("precopy", ["memfd"], 512, 1, "kernel", "initramfs", "qemu")


def test_faults_of_a_guest_that_is_stopped() -> None:
    """KVM counts a device that was found anew, the tracepoint does not."""
    for qmp, traced, said in (
        (700, 700, ""),
        (700, 680, ""),
        (700, 679, "tracepoint 679"),
        (700, 701, "tracepoint 701"),
        (699, 700, "query-stats 699"),
    ):
        told = kvm.differ({"pf_taken": 700, "pf_mmio_spte_created": 20}, qmp, traced)
        assert said in told and bool(said) == bool(told), told


def _case(side: str, faults: int = 0, **more: object) -> Case:
    at_end = {"tdp_populated_4k": 9} if side == "on" else {}
    curve = [(0.0, 0), (5.0, faults)]
    return Case("memfd", side, 0, curve, **{"at_end": at_end, "pages": 9, **more})


def test_names_and_titles() -> None:
    job = Job(*_JOB)
    assert (job.name, job.how) == ("precopy", "")
    other = Job(*_JOB, toggle=True, dirty_ring=4096)
    assert other.name == "precopy-toggle-ring"
    assert "rings of 4096 entries" in other.how


def test_complaints() -> None:
    for text in (
        _PANIC,
        "[ 1.0] Oops: 0000 [#1] PREEMPT SMP NOPTI\r\n",
        "[ 1.0] BUG: unable to handle page fault for address: 0\n",
        "[ 1.0] reboot: Restarting system\n",
    ):
        told = complaint(text)
        assert told and told in text
    assert complaint("stamps: cpu 0 pass 1 pages 9 mismatches 0\n") == ""


@pytest.mark.parametrize(
    ("on", "console", "gone", "told", "tries"),
    [
        # Twice QEMU may be gone, without Global TDP.
        (False, "", 2, "", 3),
        (False, "", 9, _GONE, 3),
        (True, "", 9, _GONE, 1),
        # A panic is a failure, whether QEMU ends with it or not.
        *((on, _PANIC, gone, "Kernel panic", 1) for on in (False, True) for gone in (0, 9)),
    ],
)
def test_repetition(*, on: bool, console: str, gone: int, told: str, tries: int) -> None:
    done, demo, said = [], Demo("precopy", 512), ""

    def do(directory: Path, _: object) -> None:
        done.append(directory)
        (directory / "destination.console").write_text(console)
        if len(done) <= gone:
            raise QemuGoneError(_GONE, "")

    try:
        inside._tried(do, "a case", Side("a side", parameter=on), demo)
        assert len(demo.repeated) == tries - 1
    except VmError as error:
        said = str(error)
    assert (len(done), bool(said), told in said) == (tries, bool(told), True)
    assert told in ("Kernel panic", said)


@pytest.mark.parametrize("done", [0, 1])
def test_a_machine_that_stood_still(
    done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is excused in a case without Global TDP."""
    job, result = tmp_path / "job", tmp_path / "result"
    Job(*_JOB).save(job)
    Demo("precopy", 512, cases=[_case("off")] * done).save(result)
    monkeypatch.setattr(sys, "argv", ["", str(job), str(result)])
    monkeypatch.setattr(inside, "_run", lambda *_: None)
    monkeypatch.setattr(kvm, "has_parameter", lambda: True)
    with mock.patch("lab.shell.output", return_value="QEMU"):
        assert inside.main() == done
    demo = Demo.load(result)
    assert (bool(demo.error), bool(demo.repeated)) == (bool(done), not done)


def test_the_status_tells_of_a_missed_target() -> None:
    off, on = _case("off", 200), _case("on")
    runs = [
        _case(side, faults, migration={"downtime": downtime})
        for side, faults, downtime in (("off", 200, 200), ("on", 0, 300))
        for _ in range(5)
    ]
    for cases, met in (
        ([off, _case("on", 2)], True),
        ([off, _case("on", 3)], False),
        # Nothing was mapped.
        ([off, _case("on", at_end={"tdp_populated_4k": 0})], False),
        # Data is wrong.
        ([_case("off", 200, mismatches=1), on], False),
        ([off, _case("on", mismatches=1)], False),
        # A longer downtime is none.
        (runs, True),
    ):
        assert report.show(Demo("precopy", 512, cases=cases)) is met, cases


def test_what_is_compared() -> None:
    """Off and on; a QEMU of its own has stock beside it, which is no part of the ratio."""
    cases = [_case("stock QEMU, off", 1000), _case("off", 100), _case("on", 10)]
    (pair,) = report.pairs(Demo("precopy", 512, cases=cases))
    assert (list(pair.sides), pair.ratio) == (["stock QEMU, off", "off", "on"], 0.1)
    job = Job(*_JOB)
    assert [(side.name, side.parameter) for side in job.sides] == [("off", False), ("on", True)]
    job.patched = "patched"
    assert [side.patched for side in job.sides] == [False, False, True, True]
    assert [side.parameter for side in job.sides] == [False, True, False, False]


@pytest.mark.parametrize(
    ("mode", "told", "refused", "met"),
    (
        ("precopy", 0, 0, False),
        ("precopy", 1, 0, True),
        ("precopy", 1, 1, False),
        ("cpr", 0, 0, True),
        ("cpr-transfer", 0, 0, True),
    ),
)
def test_a_patched_qemu_that_tells_kvm_nothing_misses_its_target(
    mode: str, told: int, refused: int, met: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    hints = {"kvm_populate": told, "refused": refused, "kvm_populate_busy": 1}
    demo = Demo(mode, 512, cases=[_case("off", 200), _case("on", hints=hints)])
    assert report.show(demo) is met
    assert "not given, for a lock" in capsys.readouterr().out


def test_status() -> None:
    """Of the command: that of the machine if all targets are met."""
    args = mock.Mock(mem=512, runs=1, qemu="", dirty_ring=0)
    for faults, ran, status in ((2, 0, 0), (2, 97, 97), (3, 0, 1)):
        demo = Demo("precopy", 512, cases=[_case("off", 200), _case("on", faults)])
        with (
            mock.patch.multiple(cli, _command=mock.DEFAULT, _draw=mock.DEFAULT),
            mock.patch.object(cli, "_job", return_value=Job(*_JOB)),
            mock.patch.object(cli, "_result_of", return_value=demo),
            mock.patch.object(shutil, "which", return_value="there"),
            mock.patch("lab.machine.npt.command") as command,
            mock.patch("lab.make.modules.build"),
        ):
            command.return_value.status = ran
            assert cli.run(args) == status


def test_a_ring_that_kvm_does_not_take() -> None:
    for size in (5, 512, 1000, 1 << 17, -1024):
        with pytest.raises(LabError, match="--dirty-ring"):
            cli.run(mock.Mock(mem=512, runs=1, dirty_ring=size))


def _ready(cpu: int) -> str:
    return f"stamps: cpu {cpu} ready pages 100\n"


def _pass(cpu: int, number: int, wrong: int = 0) -> str:
    return f"stamps: cpu {cpu} pass {number} pages 100 mismatches {wrong}\r\n"


_BOTH, _HALF = _ready(0) + _ready(1) + _pass(0, 1), _pass(0, 7) + _pass(0, 8) + _pass(1, 5)
_WRONG = f"{_ready(0)}stamps: MISMATCH cpu 0 page 7 \nstamps: MISMATCH cpu 1\n"


@pytest.mark.parametrize(
    ("hear", "text", "found"),
    (
        # Stamped and checked by all; who is ahead is not two, half a line says nothing.
        (stamps.ready, _BOTH, False),
        (stamps.ready, _BOTH + _pass(1, 1), True),
        (stamps.ready, _BOTH + _pass(0, 2), False),
        (stamps.ready, _BOTH + _pass(1, 1).partition(" mismatches")[0], False),
        # Two passes of each: the first may have begun before the migration.
        (stamps.verdict, _HALF, None),
        (stamps.verdict, _HALF + _pass(1, 6), Verdict(200, 0)),
        (stamps.verdict, _pass(0, 7) + _pass(0, 8), None),
        (stamps.verdict, "", None),
        (
            stamps.verdict,
            _HALF + _pass(1, 5, 1) + _pass(1, 6, 2) + _pass(0, 9, 3),
            Verdict(200, 5),
        ),
        (stamps.progress, "Linux", "booting, or stamping its memory"),
        (stamps.progress, _ready(0), "memory stamped by 1 of 2 CPUs"),
        (stamps.progress, _pass(0, 1) + _pass(0, 2), "200 pages checked"),
        # The first mismatch is told.
        (lambda text, _: stamps.mismatch(text), _WRONG, "stamps: MISMATCH cpu 0 page 7"),
        (lambda text, _: stamps.mismatch(text), _BOTH, None),
        (lambda text, _: stamps.toggled(text), "stamps: x\ntoggle: 1000\r\n", True),
        *(
            (lambda text, _: stamps.toggled(text), text, False)
            for text in ("", "toggle: no graphics adapter\n", "toggle: failed\n")
        ),
    ),
)
def test_what_the_guest_says(hear: Callable, text: str, found: object) -> None:
    assert hear(text, 2) == found
