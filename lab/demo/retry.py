"""What of a demo may be run again: nothing that Global TDP may have done.

A guest whose kernel has complained has failed, on whatever side. QEMU that ends by itself, and
a lab machine that stands still, may be the emulator's fault, but only where Global TDP is off
that is what it must be.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.demo.vm import VmError

AGAIN = 2
"""How often a case is run again at most."""

_COMPLAINT = re.compile(
    r"^.*(?:Kernel panic|\bOops\b|BUG: |kernel BUG at|WARNING: |general protection fault"
    r"|unable to handle|double fault|Attempted to kill init|reboot: |Rebooting in ).*$",
    re.M,
)
_TAIL = 15


def may_repeat(times: int, *, global_tdp: bool) -> bool:
    """Whether what ended by itself may be run again, after it was so many times."""
    return not global_tdp and times < AGAIN


def complaint(console: str) -> str:
    """Return the first line in which a guest's kernel tells of its end; "" is none."""
    found = _COMPLAINT.search(console.replace("\r", ""))
    return found[0].strip() if found else ""


@contextmanager
def no_complaint(directory: Path) -> Iterator[None]:
    """See in the end what all guests of a case have said: VmError if one complains."""
    try:
        yield
    finally:
        for path in sorted(directory.glob("*.console")):
            text = path.read_text(errors="replace")
            if told := complaint(text):
                tail = "\n".join(text.splitlines()[-_TAIL:])
                raise VmError(f"{path.stem}: the guest's kernel complains: {told}", tail)
