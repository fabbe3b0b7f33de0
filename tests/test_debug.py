"""What `make test WHAT=debug` holds against the series, and what not."""

import itertools
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from lab.check import debug
from lab.check.machines import Report
from lab.check.outcome import Outcome, State
from lab.paths import VERSION, VERSIONS

PASSED, FAILED, SKIPPED = State
KVM = {"kvm_faultin_pfn", "kvm_mmu_invalidate_end", "fill_holes", "tdp_mmu_zap_spte"}


def test_a_series_must_not_say_otherwise_in_what_all_have() -> None:
    for version in VERSIONS:
        names = ("base", version, *debug.KINDS)
        chosen = [debug._options(debug._FRAGMENTS / f"{name}.config") for name in names]
        for first, second in itertools.combinations(chosen, 2):
            assert first.keys() & second.keys() == set()


def test_where_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the compiler of the kernel's own Debian, which may be in a root."""
    monkeypatch.setattr(debug, "BUILD", tmp_path)
    monkeypatch.setattr(debug, "_check", lambda *_: None)
    monkeypatch.setattr(debug.tree, "ensure", lambda: None)
    monkeypatch.setattr(debug.root, "command", lambda *args: ("enter", *args))
    output, build = mock.Mock(), mock.Mock()
    monkeypatch.setattr(debug.shell, "output", output)
    monkeypatch.setattr(debug.shell, "build", build)
    debug.build("lockdep", stock=False)
    merged = next(call.args for call in output.call_args_list if "-m" in call.args)
    assert debug._FRAGMENTS / f"{VERSION}.config" in merged
    assert build.call_args.args[:2] == ("debug", "enter")
    wanted = {f"O={tmp_path}/debug/lockdep", f"CC=ccache {debug.root.COMPILER}"}
    assert wanted <= {*build.call_args.args}


@pytest.mark.parametrize(
    ("path", "cat", "status"),
    [
        # As kmemleak that is turned off, /dev/full refuses to be written to.
        ("/dev/full", "true", 1),
        ("/nowhere/kmemleak", "true", 1),
        # It is turned off meanwhile.
        ("", 'ln -sf /dev/full "$1"', 1),
        ("", "echo ''", 0),
        ("", "echo 'do_sys_open'", 0),
        ("", "echo 'kvm_vm_ioctl'", 1),
        ("", "return 1", 1),
    ],
)
def test_a_detector_that_does_not_detect_is_no_proof(
    path: str, cat: str, status: int, tmp_path: Path
) -> None:
    """Of leaks; `cat` is what reading it does."""
    (tmp_path / "kmemleak").touch()
    path = path or str(tmp_path / "kmemleak")
    shell, option, script, *rest = debug.leaks_command(path, 0)
    told = f"cat() {{ {cat}; }}\n{script}"
    done = subprocess.run([shell, option, told, *rest], capture_output=True, timeout=60)
    assert done.returncode == status


def test_what_may_be_skipped() -> None:
    """Allocations that fail are in one kernel only; tests of KVM's own may be skipped."""
    fails = "No /proc/thread-self/fail-nth: wants CONFIG_FAULT_INJECTION"
    lacks, parts = "Requirement not met: kvm_check", ("CPUs",)
    for kind, test, found, state in (
        ("lockdep", "global_tdp_fail_test", fails, FAILED),
        ("kcsan", "global_tdp_fail_test", fails, SKIPPED),
        ("lockdep", "global_tdp_api_test", lacks, FAILED),
        ("lockdep", "global_tdp_giant_test", lacks, FAILED),
        ("lockdep", "smm_test", lacks, SKIPPED),
        ("lockdep", "global_tdp_thread_test", parts, FAILED),
        ("lockdep, ept", "global_tdp_thread_test", parts, PASSED),
        ("lockdep", "smm_test", parts, PASSED),
    ):
        outcome = Outcome(test, PASSED, parts=parts)
        if found != parts:
            outcome = Outcome(test, SKIPPED, reason=found)
        done = debug.expected(Report({test: outcome}), kind)
        assert done.outcomes[test].state is state, (kind, test)


def test_complaints_that_are_known() -> None:
    """Races of stock KVM, or outside of it; half of one is not known."""
    for what, known in (
        ("KCSAN: data-race in kvm_faultin_pfn / kvm_mmu_invalidate_end", True),
        ("KCSAN: data-race in __d_add / __d_add", True),
        ("KCSAN: data-race in vring_interrupt+0xd3/0x100", True),
        ("KCSAN: data-race in fill_holes / tdp_mmu_zap_spte", False),
        ("KCSAN: data-race in __d_add / fill_holes", False),
        ("KCSAN: data-race in fill_holes+0xd3/0x100", False),
        ("KCSAN: data-race in fill_holes / kvm_faultin_pfn", False),
        ("KASAN: use-after-free in __d_add", False),
        ("sleeping function called from invalid context", False),
    ):
        text = f"[   28.8] BUG: {what}\n[   28.8] \n[   28.8] write to 0xffa0"
        assert debug.is_known(text, KVM) == known, what
