"""Read what the guest program says on the serial console."""

import re

from lab.check.assigned.config import Round

_ROUND = re.compile(
    r"^drive: round (\d+) by (drive|cpu) toggles (\d+) bytes (\d+) mismatches (\d+)\r?\n", re.M
)


def rounds(console: str) -> list[Round]:
    """Return those that have ended."""
    return [
        Round(int(number), by == "drive", int(toggles), int(size) >> 20, int(wrong))
        for number, by, toggles, size, wrong in _ROUND.findall(console)
    ]


def gone(console: str) -> bool:
    """Return whether the guest has seen that it has no drive any more."""
    return bool(re.search(r"^drive: gone\b", console, re.M))


def progress(console: str) -> str:
    """Return how far the guest is."""
    if done := rounds(console):
        return f"{len(done)} rounds"
    return "looking for the drive" if "drive: " in console else "booting"
