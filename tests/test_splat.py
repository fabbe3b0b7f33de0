"""What counts as a complaint of a kernel."""

from lab.machine import splat

BEGIN = f"[    9.0] {splat.BEGIN}\n"
WARNING = (
    "[   12.5] WARNING: CPU: 1 PID: 77 at arch/x86/kvm/x86.c:99 f+0x1/0x2 [kvm]\n"
    "[   12.5] Call Trace:\n[   12.5]  <TASK>\n[   12.5]  f+0x1/0x2\n[   12.5]  </TASK>\n"
)
END = "[   12.5] ---[ end trace 0 ]---\n"
STALL = "[   30.1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks: stall"
OOPS = "[  9.1] Oops: int3: 0000 [#1] PREEMPT SMP\n[  9.1] RIP: 0010:f+0x1/0x2\n"


def test_each_with_its_trace() -> None:
    """One without an end does not swallow the next; what stands before the run is not of it."""
    assert splat.find(f"{BEGIN}quiet\n{WARNING}quiet\n{WARNING}") == [WARNING.rstrip()] * 2
    assert splat.find(f"{WARNING}{END}{BEGIN}quiet\n") == []
    text = f"{BEGIN}BUG: Bad thing\n{'x' * 9}\n" + "more\n" * 100 + WARNING
    assert len(splat.find(text)) == 2
    # A log ends within one; or has no run, of which it is not known what it complained about.
    (found,) = splat.find(BEGIN + WARNING.partition("  f+")[0])
    assert found.startswith("[   12.5] WARNING")
    for log in (WARNING, ""):
        (found,) = splat.find(log)
        assert "no 'lab: begin'" in found


def test_every_kind() -> None:
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
    for line in ("kvm: Nested Paging enabled", "warning: unused", "virtme: debug: BUGS"):
        assert splat.find(f"{BEGIN}{line}\n") == [], line


def test_breakpoints_that_the_emulator_runs_though_they_are_gone() -> None:
    """The byte before RIP tells; a line tells how many were gone."""
    for text, gone in (
        (f"{OOPS}[  9.1] Code: 41 c6 eb <3c> 4d\n", True),
        (f"{OOPS}[  9.1] Code: 41 c6 cc <3c> 4d\n", False),
        (f"{OOPS}[  9.1] Code: Unable to access opcode bytes\nCode: 41 c6 eb <3c>\n", False),
        (OOPS, False),
        ("BUG: x\nCode: 41 c6 eb <3c> 4d\n", False),
    ):
        assert splat.is_of_a_breakpoint_gone(text) == gone, text
    log = f"{BEGIN}\nlab: breakpoints gone: 1, at f\nlab: breakpoints gone: 12, at g\n"
    assert (splat.breakpoints(log), splat.breakpoints(BEGIN)) == (12, 0)
    assert splat.find(log) == []


def test_stalls_are_only_told_but_those_in_the_series() -> None:
    """A slow machine is enough for one; another CPU's trace may come first."""
    task = "[ 30.1]  <TASK>\n[ 30.1]  vcpu_run+0x1/0x2\n"
    log = f"{BEGIN}{STALL}\n{task}[ 31.0] lab: run global_tdp_populate_test\n"
    ours = f"{BEGIN}{STALL}\n{task}[ 30.1]  </TASK>\n[ 30.1]  gtdp_scan_batch+0x1/0x2 [kvm]\n"
    assert splat.stalls(log) == splat.stalls(ours) == [STALL]
    assert splat.find(log) == []
    (found,) = splat.find(ours)
    assert "gtdp_scan_batch" in found
