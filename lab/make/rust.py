"""The crate of integration/rust, and integration/minimal, by Debian's compilers.

Its one dependency, libc, is Debian's package, too: so nothing is fetched, and cargo of Debian
12 need not know how a registry is asked today.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import shell
from lab.make import packages
from lab.paths import ROOT, SHARED

CRATE = ROOT / "integration" / "rust"
MINIMAL = ROOT / "integration" / "minimal" / "minimal.c"
PROGRAM = SHARED / "minimal" / "minimal"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")

_TOOLS = ("cargo", "rustc", "rustdoc")
_NEEDED = ("cargo", "librust-libc-dev", "rustc")
_SOURCE = (
    'source.crates-io.replace-with="debian"',
    'source.debian.directory="/usr/share/cargo/registry"',
)
_HEADERS = "GLOBAL_TDP_HEADERS"
"""What tests/header.rs reads."""


@dataclass(frozen=True)
class Toolchain:
    """A cargo, and the rustc beside it."""

    name: str
    programs: Path

    @property
    def version(self) -> str:
        """As rustc says it."""
        return shell.output(self.programs / "rustc", "--version").split()[1]

    @property
    def target(self) -> Path:
        """Where it builds."""
        return SHARED / "rust" / self.name

    def example(self, name: str) -> Path:
        """Return where build() has it."""
        return self.target / "release" / "examples" / name

    def build(self) -> None:
        """Build the crate's examples."""
        # One that a newer cargo has made may not be for an older one.
        (CRATE / "Cargo.lock").unlink(missing_ok=True)
        command = self._command("build", "--release", "--examples")
        shell.build(f"rust-{self.name}", *command)

    def test(self, headers: Path) -> subprocess.CompletedProcess[str]:
        """Run the crate's tests; those that are ignored otherwise want a kernel's headers."""
        command = self._command("test", "--no-fail-fast", "--", "--include-ignored")
        words = ["env", f"{_HEADERS}={headers}", *map(str, command)]
        with shell.working(f"Testing rust-{self.name}"):
            return subprocess.run(words, capture_output=True, text=True, cwd=CRATE)

    def _command(self, verb: str, *arguments: str) -> Sequence[shell.Arg]:
        settings = {
            "CARGO_HOME": SHARED / "rust" / "home",
            "CARGO_TARGET_DIR": self.target,
            "RUSTC": self.programs / "rustc",
            "RUSTDOC": self.programs / "rustdoc",
            # What newer compilers will warn of is not known.
            "RUSTFLAGS": "-D warnings" if self is DEBIAN else "",
        }
        given = [f"{name}={value}" for name, value in settings.items()]
        options = [word for each in _SOURCE for word in ("--config", each)]
        manifest = ("--manifest-path", CRATE / "Cargo.toml")
        cargo = (self.programs / "cargo", verb, "--offline", *manifest)
        return ("env", *given, *cargo, *options, *arguments)


DEBIAN = Toolchain("debian", Path("/usr/bin"))
"""The oldest that the crate is for."""


def toolchains() -> list[Toolchain]:
    """Return Debian's and, if this machine has one beside it, the first that is found."""
    found = [
        place
        for place in map(Path, os.get_exec_path())
        if place.resolve() != DEBIAN.programs
        and all((place / name).exists() for name in _TOOLS)
    ]
    return [DEBIAN, *(Toolchain("other", place) for place in found[:1])]


def install() -> None:
    """Have Debian's compiler, and libc for it."""
    packages.install(*_NEEDED)


def build_minimal() -> None:
    """Build the C program with what headers this machine has, i.e. without the series'."""
    PROGRAM.parent.mkdir(exist_ok=True)
    shell.build("minimal", "gcc", *FLAGS, "-o", PROGRAM, MINIMAL)
