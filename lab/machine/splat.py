"""Find what a kernel complains about in its console log."""

import re
from collections.abc import Iterator

BEGIN = "lab: begin"
"""Line the guest logs before it loads KVM; what stands before it is not of the run."""

_COMPLAINT = re.compile(
    r"WARNING: |BUG: |kernel BUG at |Oops: |KASAN: |KCSAN: |UBSAN: |KFENCE: |"
    r"general protection fault|Kernel panic|INFO: task .* blocked|unable to handle|"
    r"DEBUG_LOCKS_WARN_ON|refcount_t: |Bad page |stack segment: |invalid opcode: "
)
_STALL = re.compile(r"rcu: INFO: .* stall|rcu: .*kthread starved")
_END = re.compile(r"---\[ end |</TASK>|={20}")
_LONGEST = 60
_INT3 = re.compile(
    r"[^\n]*Oops: int3: (?:(?!\bCode: ).)*"
    r"\bCode: [0-9a-f ]*\b(?P<byte>[0-9a-f]{2}) <[0-9a-f]{2}>",
    re.S,
)
_BREAKPOINTS = re.compile(r"lab: breakpoints gone: (\d+),")


def find(log: str) -> list[str]:
    """Return every complaint of the run, each with its trace."""
    return list(_blocks(_of_the_run(log)))


def stalls(log: str) -> list[str]:
    """Return RCU stalls: under emulation a slow machine is enough for one."""
    return [line for line in _of_the_run(log) if _STALL.search(line)]


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
    _, begun, rest = log.partition(BEGIN)
    return rest.splitlines() if begun else []


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
