"""What counts as a complaint of a kernel."""

import unittest

from lab.machine import splat

BEGIN = f"[    9.0] {splat.BEGIN}\n"
WARNING = (
    "[   12.5] WARNING: CPU: 1 PID: 77 at arch/x86/kvm/x86.c:99 f+0x1/0x2 [kvm]\n"
    "[   12.5] Call Trace:\n[   12.5]  <TASK>\n[   12.5]  f+0x1/0x2\n[   12.5]  </TASK>\n"
)
END = "[   12.5] ---[ end trace 0 ]---\n"


def test_find_each_with_its_trace() -> None:
    found = splat.find(f"{BEGIN}quiet\n{WARNING}quiet\n{WARNING}")
    assert found == [WARNING.rstrip()] * 2


def test_find_what_stands_before_the_run_is_not_of_it() -> None:
    assert splat.find(f"{WARNING}{END}{BEGIN}quiet\n") == []


def test_find_a_log_without_a_run() -> None:
    """What it complained about in the run is not known."""
    for log in (WARNING, ""):
        (found,) = splat.find(log)
        assert "no 'lab: begin'" in found


def test_find_a_log_that_ends_within() -> None:
    (found,) = splat.find(BEGIN + WARNING.partition("  f+")[0])
    assert found.startswith("[   12.5] WARNING")


def test_find_one_without_an_end_does_not_swallow_the_next() -> None:
    found = splat.find(f"{BEGIN}BUG: Bad thing\n{'x' * 9}\n" + "more\n" * 100 + WARNING)
    assert len(found) == 2


def test_find_every_kind() -> None:
    for line in (
        "BUG: KASAN: slab-use-after-free in f+0x1/0x2",
        "BUG: KCSAN: data-race in f / g",
        "kernel BUG at mm/slub.c:1!",
        "Oops: general protection fault, probably for non-canonical address",
        "Oops: int3: 0000 [#1]",
        "Kernel panic - not syncing: x",
        "INFO: task kvm:12 blocked for more than 120 seconds.",
        "UBSAN: shift-out-of-bounds in a.c:1:2",
        "refcount_t: underflow; use-after-free.",
        "DEBUG_LOCKS_WARN_ON(1)",
        "BUG pte_list_desc (Tainted: G           OE     ): Objects remaining on shutdown",
        "BUG kvm_vcpu (Not tainted): Poison overwritten",
        "watchdog: Watchdog detected hard LOCKUP on cpu 1",
        "traps: PANIC: double fault, error_code: 0x0",
        "CPU 0/KVM: page allocation failure: order:0, mode:0x400dc0(GFP_KERNEL_ACCOUNT)",
    ):
        assert splat.find(f"{BEGIN}[    9.1] {line}\n") == [f"[    9.1] {line}"]


def test_find_what_is_none() -> None:
    for line in ("kvm: Nested Paging enabled", "warning: unused", "virtme: debug: BUGS"):
        assert splat.find(f"{BEGIN}{line}\n") == [], line


# That the emulator runs though they are gone.

OOPS = "[  9.1] Oops: int3: 0000 [#1] PREEMPT SMP\n[  9.1] RIP: 0010:f+0x1/0x2\n{}"


def test_breakpoints_the_byte_before_rip_tells() -> None:
    for code, gone in (
        ("[  9.1] Code: 41 c6 eb <3c> 4d\n", True),
        ("[  9.1] Code: 41 c6 cc <3c> 4d\n", False),
        ("[  9.1] Code: Unable to access opcode bytes\nCode: 41 c6 eb <3c>\n", False),
        ("", False),
    ):
        told = splat.is_of_a_breakpoint_gone(OOPS.format(code))
        assert told == gone, code
    assert not splat.is_of_a_breakpoint_gone("BUG: x\nCode: 41 c6 eb <3c> 4d\n")


def test_breakpoints_how_many_were_gone_after() -> None:
    log = f"{BEGIN}\nlab: breakpoints gone: 1, at f\nlab: breakpoints gone: 12, at g\n"
    assert (splat.breakpoints(log), splat.breakpoints(BEGIN)) == (12, 0)
    assert splat.find(log) == []


# Of RCU: a slow machine is enough for one, so they are only told.

STALL = "[   30.1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks: stall"


def test_stalls_they_are_no_complaint() -> None:
    log = f"{BEGIN}{STALL}\n[ 30.1]  <TASK>\n[ 30.1]  vcpu_run+0x1/0x2\n"
    log += "[ 31.0] lab: run global_tdp_populate_test\n"
    assert splat.stalls(log) == [STALL]
    assert splat.find(log) == []


def test_stalls_those_in_the_series_are() -> None:
    """Also if another CPU's trace comes first."""
    other = "[ 30.1]  <TASK>\n[ 30.1]  vcpu_run+0x1/0x2\n[ 30.1]  </TASK>\n"
    log = f"{BEGIN}{STALL}\n{other}[ 30.1]  gtdp_scan_batch+0x1/0x2 [kvm]\n"
    (found,) = splat.find(log)
    assert "gtdp_scan_batch" in found
    assert splat.stalls(log) == [STALL]


if __name__ == "__main__":
    unittest.main()
