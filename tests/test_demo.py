"""What the demo must not overlook: counts that differ, guests that die, missed targets."""

import io
import shutil
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

from lab.demo import cli, inside, kvm, report, retry
from lab.demo.config import Case, Demo, Job, Side
from lab.demo.vm import QemuGoneError, VmError
from lab.error import LabError

_PANIC = "stamps: cpu 0 ready pages 9\n[    7.5] Kernel panic - not syncing: Attempted\n"


def _differ(taken: int, devices: int, qmp: int, traced: int) -> str:
    return kvm.differ({"pf_taken": taken, "pf_mmio_spte_created": devices}, qmp, traced)


class Faults(unittest.TestCase):
    """Of a guest that is stopped."""

    def test_agreement(self) -> None:
        assert _differ(700, 20, 700, 700) == ""

    def test_a_device_that_was_found_anew(self) -> None:
        """KVM counts it, the tracepoint does not."""
        assert _differ(700, 20, 700, 680) == ""
        assert "tracepoint 679" in _differ(700, 20, 700, 679)

    def test_more_than_kvm_counts(self) -> None:
        assert "tracepoint 701" in _differ(700, 20, 700, 701)

    def test_another_counter(self) -> None:
        assert "query-stats 699" in _differ(700, 20, 699, 700)


def _case(side: str, faults: int = 0, mismatches: int = 0) -> Case:
    curve = [(0.0, 0), (5.0, faults)]
    at_end = {"tdp_populated_4k": 9} if side == "on" else {}
    return Case("memfd", side, 0, curve, at_end=at_end, pages=9, mismatches=mismatches)


class Options(unittest.TestCase):
    """Of a demo, which its files and its table tell."""

    def test_names_and_titles(self) -> None:
        job = Job("precopy", ["memfd"], 512, 1, "", "", "")
        assert (job.name, job.how) == ("precopy", "")
        other = Job("precopy", ["memfd"], 512, 1, "", "", "", toggle=True, dirty_ring=4096)
        assert other.name == "precopy-toggle-ring"
        assert "rings of 4096 entries" in other.how


class Repetition(unittest.TestCase):
    """Of cases, and what must not be repeated."""

    def test_complaints(self) -> None:
        for text in (
            _PANIC,
            "[ 1.0] Oops: 0000 [#1] PREEMPT SMP NOPTI\r\n",
            "[ 1.0] BUG: unable to handle page fault for address: 0\n",
            "[ 1.0] reboot: Restarting system\n",
        ):
            assert retry.complaint(text) in text
            assert retry.complaint(text)
        assert retry.complaint("stamps: cpu 0 pass 1 pages 9 mismatches 0\n") == ""

    def _tries(self, *, on: bool, console: str = "", gone: int = 9) -> tuple[str, int]:
        """Return how a case ended whose QEMU goes so many times, and after how many tries."""
        tries = 0

        def do(directory: Path, _: object) -> None:
            nonlocal tries
            tries += 1
            (directory / "destination.console").write_text(console)
            if tries <= gone:
                raise QemuGoneError("source: QEMU is gone", "")

        demo = Demo("precopy", 512)
        with redirect_stdout(io.StringIO()):
            try:
                inside._tried(do, "a case", Side("a side", parameter=on), demo)
            except VmError as error:
                return str(error), tries
        assert len(demo.repeated) == tries - 1
        return "", tries

    def test_qemu_is_gone(self) -> None:
        """Twice it may be, without Global TDP."""
        assert self._tries(on=False, gone=2) == ("", 3)
        assert self._tries(on=False) == ("source: QEMU is gone", 3)
        assert self._tries(on=True) == ("source: QEMU is gone", 1)

    def test_a_panic_is_a_failure(self) -> None:
        """Whether QEMU goes with it or not, whoever it is that tells of QEMU's end."""
        for on in (False, True):
            for gone in (0, 9):
                told, tries = self._tries(on=on, console=_PANIC, gone=gone)
                assert "Kernel panic" in told
                assert tries == 1

    def test_a_machine_that_stood_still(self) -> None:
        """It is excused in a case without Global TDP."""
        for done, goes_on in ((0, True), (1, False)):
            with tempfile.TemporaryDirectory() as scratch:
                job, result = Path(scratch, "job"), Path(scratch, "result")
                Job("precopy", ["memfd"], 512, 1, "kernel", "initramfs", "qemu").save(job)
                Demo("precopy", 512, cases=[_case("off")] * done).save(result)
                with (
                    mock.patch.object(sys, "argv", ["", str(job), str(result)]),
                    mock.patch("lab.shell.output", return_value="QEMU"),
                    mock.patch.object(inside, "_run"),
                ):
                    assert inside.main() == (0 if goes_on else 1)
                assert bool(Demo.load(result).error) == not goes_on
                assert bool(Demo.load(result).repeated) == goes_on


class Targets(unittest.TestCase):
    """A miss is told to whoever asks for the status."""

    def _met(self, *cases: Case) -> bool:
        with redirect_stdout(io.StringIO()):
            return report.show(Demo("precopy", 512, cases=list(cases)))

    def test_faults(self) -> None:
        assert self._met(_case("off", 200), _case("on", 2))
        assert not self._met(_case("off", 200), _case("on", 3))

    def test_nothing_was_mapped(self) -> None:
        idle = _case("on")
        idle.at_end = {"tdp_populated_4k": 0}
        assert not self._met(_case("off", 200), idle)

    def test_status(self) -> None:
        """Of the command: that of the machine if all targets are met."""
        for faults, ran, status in ((2, 0, 0), (2, 97, 97), (3, 0, 1)):
            demo = Demo("precopy", 512, cases=[_case("off", 200)])
            demo.cases.append(_case("on", faults))
            with (
                mock.patch.multiple(
                    cli, _job=mock.DEFAULT, _command=mock.DEFAULT, _draw=mock.DEFAULT
                ),
                mock.patch.object(cli, "_result_of", return_value=demo),
                mock.patch.object(shutil, "which", return_value="there"),
                mock.patch("lab.machine.npt.command") as command,
                redirect_stdout(io.StringIO()),
            ):
                cli._job.return_value = Job("precopy", ["memfd"], 512, 1, "", "", "")
                command.return_value.status = ran
                args = mock.Mock(mem=512, runs=1, stock=True, qemu="", dirty_ring=0)
                assert cli.run(args) == status

    def test_a_ring_that_kvm_does_not_take(self) -> None:
        for size in (5, 512, 1000, 1 << 17, -1024):
            args = mock.Mock(mem=512, runs=1, dirty_ring=size)
            with pytest.raises(LabError, match="--dirty-ring"):
                cli.run(args)

    def test_data(self) -> None:
        for on in (False, True):
            cases = [_case("off", 200), _case("on")]
            cases[on].mismatches = 1
            assert not self._met(*cases)

    def test_a_longer_downtime_is_none(self) -> None:
        cases = [
            _case(side, faults) for side, faults in (("off", 200), ("on", 0)) for _ in range(5)
        ]
        for case in cases:
            case.migration = {"downtime": 300 if case.side == "on" else 200}
        assert self._met(*cases)


if __name__ == "__main__":
    unittest.main()
