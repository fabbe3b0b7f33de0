"""Read what the guest program says on the serial console."""

import re
from dataclasses import dataclass

_READY = re.compile(r"^stamps: cpu (\d+) ready pages (\d+)\s*$", re.M)
_PASS = re.compile(r"^stamps: cpu (\d+) pass (\d+) pages (\d+) mismatches (\d+)\s*$", re.M)


@dataclass(frozen=True)
class Verdict:
    """What is known after every page was checked once since resume."""

    pages: int
    mismatches: int


def ready(console: str, cpus: int) -> bool:
    """Return True once every page has its first stamp and was checked once."""
    stamped = {cpu for cpu, _ in _READY.findall(console)}
    checked = {cpu for cpu, *_ in _PASS.findall(console)}
    return len(stamped) == len(checked) == cpus


def progress(console: str, cpus: int) -> str:
    """Return how far the guest is with its memory."""
    if told := _PASS.findall(console):
        checked = sum(int(pages) for _, _, pages, _ in told)
        return f"{checked} pages checked"
    if stamped := len(_READY.findall(console)):
        return f"memory stamped by {stamped} of {cpus} CPUs"
    return "booting, or stamping its memory"


def mismatch(console: str) -> str | None:
    """Return the first mismatch told, None if there is none."""
    found = re.search(r"stamps: MISMATCH.*", console)
    return found[0].strip() if found else None


def verdict(console: str, cpus: int) -> Verdict | None:
    """Return the verdict on a guest that resumed with an empty console.

    The first pass told may have begun before the migration, the second has not.
    """
    passes: dict[str, list[tuple[int, ...]]] = {}
    for cpu, *numbers in _PASS.findall(console):
        passes.setdefault(cpu, []).append(tuple(int(number) for number in numbers))
    if len(passes) < cpus or any(len(told) < 2 for told in passes.values()):
        return None
    return Verdict(
        pages=sum(told[1][1] for told in passes.values()),
        mismatches=sum(told[-1][2] for told in passes.values()),
    )


def toggled(console: str) -> bool:
    """Return True once a memslot has come and gone many times."""
    return bool(re.search(r"^toggle: \d+\s*$", console, re.M))
