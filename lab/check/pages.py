"""Tables that the lab writes into lab/README.md, each between two lines that name it."""

from collections.abc import Callable
from dataclasses import dataclass

from lab.error import LabError
from lab.paths import ROOT

LAB = ROOT / "lab" / "README.md"


@dataclass(frozen=True)
class Shown:
    """One of them."""

    name: str
    table: Callable[[], str]

    def write(self) -> None:
        """Put the table there as it is now."""
        LAB.write_text(self._text())

    def check(self) -> None:
        """LabError if the page has another."""
        if LAB.read_text() != self._text():
            raise LabError(f"lab/README.md: {self.name} is not up to date: make docs")

    def _text(self) -> str:
        begin = f"<!-- {self.name}: written by the lab -->\n"
        end = f"<!-- end of {self.name} -->\n"
        before, begun, rest = LAB.read_text().partition(begin)
        _, ended, after = rest.partition(end)
        if not (begun and ended):
            raise LabError(f"lab/README.md has no lines {begin.strip()} and {end.strip()}")
        return f"{before}{begin}{self.table()}{end}{after}"
