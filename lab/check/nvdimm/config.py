"""What came of the guests with an NVDIMM: the JSON between host and lab machine."""

from dataclasses import dataclass, field

KINDS = ("dax", "unsynced", "devdax", "file")
"""What the NVDIMM is on the host: a file of a file system with DAX, the same with nobody ever
syncing anything but by MAP_SYNC, a device that is all DAX, or an ordinary file, in the page
cache."""

LAST = 3
"""The round after which the power is cut. Nobody has synced the file since the one before."""


@dataclass
class Case:
    """One guest, from its start until its NVDIMM was read after a power cut."""

    kind: str
    side: str
    pages: int = 0
    """Of the NVDIMM."""

    mapped_ahead: int = 0
    """Pages of 4 KiB that stage 2 maps before a vCPU runs, those of other memory among them."""

    faults: list[int] = field(default_factory=list)
    """Stage-2 faults on memory in the guest's first pass over the NVDIMM, and in each round."""

    mismatches: list[int] = field(default_factory=list)
    """Words that were wrong as the guest read its NVDIMM, in the first pass and each round."""

    syncs: int = 0
    """How often the file was synced while the guest was writing to it."""

    repopulated: int = 0
    """Pages that were mapped ahead of a fault again, from the first round to the last sync."""

    left: dict[int, int] = field(default_factory=dict)
    """After the power cut: how many pages were as that round has left them; -1 is none."""

    def __post_init__(self) -> None:
        """Have numbers where JSON has names."""
        self.left = {int(number): pages for number, pages in self.left.items()}

    @property
    def ended(self) -> bool:
        """Whether that is all."""
        return bool(self.left)
