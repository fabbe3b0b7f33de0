"""Find what a kernel complains about in its console log."""

import re
from collections.abc import Iterator

BEGIN = "lab: begin"
"""Line the guest logs before it loads KVM; what stands before it is not of the run."""

_COMPLAINT = re.compile(
    r"WARNING: |BUG: |kernel BUG at |Oops: |KASAN: |KCSAN: |UBSAN: |KFENCE: |"
    r"general protection fault|Kernel panic|INFO: task .* blocked|unable to handle|"
    r"DEBUG_LOCKS_WARN_ON|refcount_t: |Bad page |stack segment: |invalid opcode: |"
    r"BUG \S+ \((?:Not t|T)ainted|hard LOCKUP|PANIC: double fault|page allocation failure: "
)
_STALL = re.compile(r"rcu: INFO: .* stall|rcu: .*kthread starved")
_OURS = re.compile(r"(gtdp|tdp_populate)[\w.]*\+0x")
"""A function of the series in a trace; its tests have such names, too."""

_END = re.compile(r"---\[ end |</TASK>|={20}")
_LONGEST = 60
_INT3 = re.compile(
    r"[^\n]*Oops: int3: (?:(?!\bCode: ).)*"
    r"\bCode: [0-9a-f ]*\b(?P<byte>[0-9a-f]{2}) <[0-9a-f]{2}>",
    re.S,
)
_BREAKPOINTS = re.compile(r"lab: breakpoints gone: (\d+),")


def find(log: str) -> list[str]:
    """Return every complaint of the run, each with its trace; and that there is no run.

    A stall of RCU is one if a trace has a function of the series, which stock has not.
    """
    if BEGIN not in log:
        return [f"no '{BEGIN}' in the kernel's log: what it complained about is not known"]
    stalled = ("\n".join(block) for block in _stalls(log))
    return [*_blocks(_of_the_run(log)), *filter(_OURS.search, stalled)]


def stalls(log: str) -> list[str]:
    """Return all RCU stalls: under emulation a slow machine is enough for one."""
    return [block[0] for block in _stalls(log)]


def _stalls(log: str) -> Iterator[list[str]]:
    lines = _of_the_run(log)
    for number, line in enumerate(lines):
        if _STALL.search(line):
            yield lines[number : number + _LONGEST]


def is_of_a_breakpoint_gone(text: str) -> bool:
    """Whether a kernel's complaint is of a breakpoint that is none in memory any more.

    That is the emulator's defect of lab/README.md. An oops shows the byte before RIP.
    """
    found = _INT3.match(text)
    return bool(found and found["byte"] != "cc")


def breakpoints(log: str) -> int:
    """Return how many breakpoints that were gone lab_breakpoint.ko went on after."""
    found = _BREAKPOINTS.findall(log)
    return int(found[-1]) if found else 0


def _of_the_run(log: str) -> list[str]:
    return log.partition(BEGIN)[2].splitlines()


def _blocks(lines: list[str]) -> Iterator[str]:
    block: list[str] = []
    for line in lines:
        if block:
            block.append(line)
            if _END.search(line) or len(block) == _LONGEST:
                yield "\n".join(block)
                block = []
        elif _COMPLAINT.search(line):
            block = [line]
    if block:
        yield "\n".join(block)
