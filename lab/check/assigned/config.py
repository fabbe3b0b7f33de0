"""What came of the guests with an assigned drive: the JSON between host and lab machine."""

from dataclasses import dataclass, field


@dataclass
class Round:
    """The guest's memory copied once, and checked."""

    number: int
    drive: bool
    """Whether the drive copied it, not the CPU."""

    toggles: int
    """How often a memslot came or went meanwhile."""

    mib: int
    mismatches: int
    """Since the boot."""

    faults: int = 0
    """Stage-2 faults on memory from the last sample before the round to the first after it."""

    seconds: float = 0
    """Of the lab machine, told for who looks into what takes long: no test looks at it."""

    least_mapped: int = -1
    """Pages of 4 KiB that stage 2 mapped, in that of its samples that has the fewest."""


@dataclass
class Phase:
    """With the drive, or without."""

    locked_kib: int = 0
    """Of guest memory, pinned by VFIO."""

    moved: dict[str, int] = field(default_factory=dict)
    """Pages that were another page of the host's after each attempt to make them that."""

    balloon_mib: int = 0
    """What the guest took for the size of its memory, with a balloon in it."""

    balloon_gone: int = 0
    """Pages that were no more the guest's then."""


@dataclass
class Case:
    """One guest, from its start until it ran without the drive."""

    backend: str
    side: str
    pages: int = 0
    """Of guest memory that is looked at."""

    mapped_ahead: int = 0
    """Pages of 4 KiB that stage 2 mapped before a vCPU had run."""

    attached: Phase = field(default_factory=Phase)
    unplugged: Phase = field(default_factory=Phase)
    rounds: list[Round] = field(default_factory=list)
    at_end: dict[str, int] = field(default_factory=dict)
    """KVM's counters."""

    def __post_init__(self) -> None:
        """Of what was JSON, make what it was before."""
        for name in ("attached", "unplugged"):
            if isinstance(phase := getattr(self, name), dict):
                setattr(self, name, Phase(**phase))
        self.rounds = [
            Round(**each) if isinstance(each, dict) else each for each in self.rounds
        ]

    @property
    def ended(self) -> bool:
        """Whether that is all."""
        return bool(self.at_end)
