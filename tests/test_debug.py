"""What `make test WHAT=debug` holds against the series, and what not."""

import itertools
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from lab.check import debug
from lab.check.machines import Report
from lab.check.outcome import Outcome, State
from lab.paths import VERSION, VERSIONS

KVM = {"kvm_faultin_pfn", "kvm_mmu_invalidate_end", "fill_holes", "tdp_mmu_zap_spte"}


def _report(what: str) -> str:
    return f"[   28.814698] BUG: {what}\n[   28.814700] \n[   28.814701] write to 0xffa0"


# That was made once is not kept for ever.


def test_configuration_of_an_older_fragment() -> None:
    with TemporaryDirectory() as scratch:
        config, *fragments = (Path(scratch, name) for name in (".config", "a", "b"))
        for number, fragment in enumerate(fragments):
            fragment.touch()
            os.utime(fragment, (100 + number, 100 + number))
        assert debug._is_older(config, fragments)
        config.touch()
        assert not debug._is_older(config, fragments)
        os.utime(config, (100, 100))
        assert debug._is_older(config, fragments)


def test_configuration_of_a_series() -> None:
    """What one of them names must not say otherwise in what all have."""
    for version in VERSIONS:
        names = ("base", version, *debug.KINDS)
        chosen = [debug._options(debug._FRAGMENTS / f"{name}.config") for name in names]
        for first, second in itertools.combinations(chosen, 2):
            assert first.keys() & second.keys() == set()


def test_configuration_where_it_is_built() -> None:
    """By the compiler of the kernel's own Debian, which may be in a root."""
    with TemporaryDirectory() as scratch:
        built = Path(scratch, "debug", "lockdep")
        with (
            mock.patch.object(debug, "BUILD", Path(scratch)),
            mock.patch.object(debug, "console"),
            mock.patch.object(debug.tree, "ensure"),
            mock.patch.object(debug, "_check"),
            mock.patch.object(debug.root, "command", lambda *args: ("enter", *args)),
            mock.patch.object(debug.shell, "output") as output,
            mock.patch.object(debug.shell, "build") as build,
        ):
            debug.build("lockdep", stock=False)
    merged = next(call.args for call in output.call_args_list if "-m" in call.args)
    assert debug._FRAGMENTS / f"{VERSION}.config" in merged
    assert build.call_args.args[:2] == ("debug", "enter")
    assert f"O={built}" in build.call_args.args
    assert f"CC=ccache {debug.root.COMPILER}" in build.call_args.args


# A detector that does not detect is no proof.


def _status(path: object, cat: str = "true") -> int:
    """Return the status with such a detector, of which `cat` is what reading it does."""
    shell, option, script, *rest = debug.leaks_command(str(path), 0)
    told = f"cat() {{ {cat}; }}\n{script}"
    done = subprocess.run([shell, option, told, *rest], capture_output=True, timeout=60)
    return done.returncode


def test_leaks_turned_off_or_not_there() -> None:
    """As kmemleak then, /dev/full refuses to be written to."""
    assert _status("/dev/full") == 1
    assert _status("/nowhere/kmemleak") == 1


def test_leaks_turned_off_meanwhile() -> None:
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "kmemleak")
        path.touch()
        assert _status(path, 'ln -sf /dev/full "$1"') == 1


def test_leaks_what_it_tells() -> None:
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "kmemleak")
        path.touch()
        for text, status in (("", 0), ("do_sys_open", 0), ("kvm_vm_ioctl", 1)):
            assert _status(path, f"echo '{text}'") == status
        assert _status(path, "return 1") == 1


# What tests of the series may be skipped.


def _state(kind: str, test: str, reason: str) -> State:
    done = Report({test: Outcome(test, State.SKIPPED, reason=reason)})
    return debug.expected(done, kind).outcomes[test].state


def test_expected_allocations_that_fail_are_nowhere_else() -> None:
    reason = "No /proc/thread-self/fail-nth: wants CONFIG_FAULT_INJECTION"
    name = "global_tdp_fail_test"
    assert _state("lockdep", name, reason) is State.FAILED
    assert _state("kcsan", name, reason) is State.SKIPPED


def test_expected_a_kernel_without_the_feature() -> None:
    """Tests of KVM's own may be skipped there."""
    for name, state in (
        ("global_tdp_api_test", State.FAILED),
        ("global_tdp_giant_test", State.FAILED),
        ("smm_test", State.SKIPPED),
    ):
        assert _state("lockdep", name, "Requirement not met: kvm_check") is state


def test_expected_parts() -> None:
    """As the series' tests on other machines."""
    test, part = "global_tdp_thread_test", "CPUs"
    for name, kind, state in (
        (test, "lockdep", State.FAILED),
        (test, "lockdep, ept", State.PASSED),
        ("smm_test", "lockdep", State.PASSED),
    ):
        done = Report({name: Outcome(name, State.PASSED, parts=(part,))})
        assert debug.expected(done, kind).outcomes[name].state is state


def _assert_known(what: str, *, known: bool) -> None:
    assert debug.is_known(_report(what), KVM) == known


def test_races_of_stock_kvm() -> None:
    race = "KCSAN: data-race in kvm_faultin_pfn / kvm_mmu_invalidate_end"
    _assert_known(race, known=True)


def test_races_outside_of_kvm() -> None:
    _assert_known("KCSAN: data-race in __d_add / __d_add", known=True)
    _assert_known("KCSAN: data-race in vring_interrupt+0xd3/0x100", known=True)


def test_races_of_the_series() -> None:
    _assert_known("KCSAN: data-race in fill_holes / tdp_mmu_zap_spte", known=False)
    _assert_known("KCSAN: data-race in __d_add / fill_holes", known=False)
    _assert_known("KCSAN: data-race in fill_holes+0xd3/0x100", known=False)


def test_races_half_of_a_known_one() -> None:
    _assert_known("KCSAN: data-race in fill_holes / kvm_faultin_pfn", known=False)


def test_races_other_complaints() -> None:
    _assert_known("KASAN: use-after-free in __d_add", known=False)
    _assert_known("sleeping function called from invalid context", known=False)
