"""Programs of other releases of Debian, unpacked into build/ and run with their own libraries.

Nothing of this is installed on the machine that the lab runs on.
"""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab import shell
from lab.paths import SHARED
from lab.source import mirror


@dataclass(frozen=True)
class Unpacked:
    """Packages, and what they depend on, of one release."""

    name: str
    packages: tuple[str, ...]
    release: str = "trixie"
    backports: bool = False
    """Whether to prefer those made later for the release."""

    @property
    def root(self) -> Path:
        """Where its files are, at the paths that Debian gives them."""
        return SHARED / self.name

    @property
    def libraries(self) -> Path:
        """The C library and others."""
        return self.root / "usr/lib/x86_64-linux-gnu"

    def command(self, program: str) -> list[Path | str]:
        """Return how to run a program: its loader finds the libraries of the same release."""
        loader = self.libraries / "ld-linux-x86-64.so.2"
        return [loader, "--library-path", self.libraries, self.root / program]

    def write_script(self, path: Path, program: str, *args: Path | str) -> None:
        """Write a script that runs a program, for who wants a single path."""
        words = " ".join(shlex.quote(str(word)) for word in (*self.command(program), *args))
        new = path.with_suffix(".new")
        new.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        new.chmod(0o755)
        new.rename(path)

    def ensure(self) -> None:
        """Fetch and unpack it, unless it is there."""
        with shell.locked(self.name, SHARED):
            if not self.root.exists():
                self._unpack()

    def _unpack(self) -> None:
        scratch = self.root.with_suffix(".tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        options = ["APT::Install-Recommends false", "Acquire::Retries 3"]
        if self.backports:
            options.append(f'APT::Default-Release "{self.release}-backports"')
        with shell.working(f"Unpacking {self.packages[0]} of {self.release}"):
            shell.output(
                *("mmdebstrap", "--variant=extract", f"--include={','.join(self.packages)}"),
                *(f"--aptopt={option}" for option in options),
                *(self.release, scratch),
                *mirror.sources(self.release, backports=self.backports),
            )
        scratch.rename(self.root)


@dataclass(frozen=True)
class Qemu(Unpacked):
    """QEMU for x86."""

    packages: tuple[str, ...] = ("qemu-system-x86",)

    @property
    def firmware(self) -> list[Path]:
        """Where to look for what a machine boots."""
        places = ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu")
        return [self.root / place for place in places]

    def program(self) -> Path:
        """Return a path to run it by, unpacked if it was not."""
        self.ensure()
        script = self.root / "qemu-system-x86_64"
        where = [word for place in self.firmware for word in ("-L", place)]
        with shell.locked(self.name, SHARED):
            if not script.exists():
                self.write_script(script, "usr/bin/qemu-system-x86_64", *where)
        return script
