"""What a demo is to do, and what came of it: the JSON between host and lab machine."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

BACKENDS = ("memfd", "anon")
FILE = "file"
"""The back end of CPR, which hands over a file and not what is in it."""

MODES = ("precopy", "postcopy", "multifd", "savevm", "mapped-ram", "cpr", "cpr-transfer")
NEW_MODES = ("mapped-ram", "cpr", "cpr-transfer")
"""Those that the QEMU of Debian 12 does not have: Debian 13's runs in them."""

HANDED_OVER = {"cpr": FILE, "cpr-transfer": "memfd"}
"""The memory that a mode can have, where it has no choice."""

OFF, ON = "off", "on"

Counters = dict[str, int]


@dataclass(frozen=True)
class Side:
    """A column: who decides on Global TDP, and how."""

    name: str
    parameter: bool
    """Of kvm.ko, for the VMs of this side."""

    patched: bool = False
    """By the job's own QEMU, not the distribution's."""

    accelerator: str = "kvm"

    @property
    def global_tdp(self) -> bool:
        return self.parameter or self.accelerator.endswith("=on")


@dataclass
class Job:
    """One demo. Paths are as the lab machine sees them."""

    mode: str
    backends: list[str]
    mem_mib: int
    runs: int
    kernel: str
    initramfs: str
    qemu: str
    """The distribution's."""

    patched: str = ""
    """One with integration/qemu's patches, if any, to be compared with the former."""

    firmware: list[str] = field(default_factory=list)
    """Directories of the distribution's, for the latter."""

    toggle: bool = False
    """Have the guest make a memslot come and go all the time."""

    dirty_ring: int = 0
    """Entries of each vCPU's, to learn from what is dirty; 0: from the dirty log."""

    @property
    def name(self) -> str:
        """Of its files: others than those of the same mode with other options."""
        return self.mode + "-toggle" * self.toggle + "-ring" * bool(self.dirty_ring)

    @property
    def how(self) -> str:
        """What was asked for beside the mode."""
        told = ["memslots that come and go"] * self.toggle
        if self.dirty_ring:
            told.append(f"dirty rings of {self.dirty_ring} entries")
        return ", ".join(told)

    @property
    def sides(self) -> list[Side]:
        """What is compared."""
        if not self.patched:
            return [Side(OFF, parameter=False), Side(ON, parameter=True)]
        return [
            Side("stock QEMU, off", parameter=False),
            Side("stock QEMU, kvm.global_tdp=1", parameter=True),
            Side(OFF, parameter=False, patched=True, accelerator="kvm,global-tdp=off"),
            Side(ON, parameter=False, patched=True, accelerator="kvm,global-tdp=on"),
        ]

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


@dataclass
class Case:
    """One migration, seen from its destination."""

    backend: str
    side: str
    run: int

    curve: list[tuple[float, int]] = field(default_factory=list)
    """Seconds after resume, stage-2 faults on guest memory so far."""

    progress: list[tuple[float, float]] = field(default_factory=list)
    """Seconds after resume, most of them negative, and MiB mapped ahead of the vCPUs."""

    at_resume: Counters = field(default_factory=dict)
    """KVM's counters of the destination in the last sample before its vCPUs ran."""

    at_end: Counters = field(default_factory=dict)
    """The same, WINDOW seconds after resume."""

    all_faults: int = 0
    """KVM's pf_taken since the start and until the guest was verified; kvm.differ() has
    compared it with what others count."""

    migration: dict[str, Any] = field(default_factory=dict)
    """The source's query-migrate at the end; empty where there is none."""

    sec_pagetables_kib: int | None = None
    """Stage-2 tables of the destination, with the source gone."""

    pages: int = 0
    """Stamped pages; every one was checked after resume."""

    mismatches: int = 0

    hints: Counters | None = None
    """What a QEMU with patches has told KVM to populate, and not told as a lock was taken."""

    @property
    def faults(self) -> int:
        return self.curve[-1][1]

    @property
    def downtime_ms(self) -> int | None:
        return self.migration.get("downtime")


@dataclass
class Demo:
    """All cases, or those before the failure."""

    mode: str
    mem_mib: int
    release: str = ""
    qemu: str = ""
    how: str = ""
    """As Job.how."""

    cases: list[Case] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    """Cases that were run again, and why."""

    error: str | None = None
    console: str = ""
    """Last lines of the guest, where there is an error."""

    @classmethod
    def load(cls, path: Path) -> Self:
        demo = cls(**json.loads(path.read_text()))
        demo.cases = [Case(**case) for case in demo.cases]  # type: ignore[arg-type]
        return demo

    def save(self, path: Path) -> None:
        # Whole or not at all: the machine may stand still meanwhile.
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(asdict(self)) + "\n")
        whole.rename(path)
