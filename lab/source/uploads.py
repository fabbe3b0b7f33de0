"""Debian's uploads of a version of the kernel, of which each release of Debian has some.

A version of Linux may be uploaded again, with a fix to KVM: its release (`uname -r`) then
changes a little, or not at all.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from debian.debian_support import Version

from lab import shell
from lab.paths import VERSIONS
from lab.source import mirror

SPLIT = Version("7.2")
"""From this Linux on, an image is three packages, and one that depends on them."""


@dataclass(frozen=True)
class Host:
    """A Debian that the package is tried on."""

    release: str

    mark: str
    """What its kernels have in the name."""

    series: str = VERSIONS[0]
    """The version of Linux that it runs."""

    backports: bool = False
    """Whether that is from its backports."""


HOSTS = {
    "bookworm": Host("bookworm", "deb12"),
    "trixie": Host("trixie", "deb13"),
    "trixie-backports": Host("trixie", "deb13", "7.3", backports=True),
}


@dataclass(frozen=True)
class Upload:
    """One upload of a kernel."""

    release: str
    """What `uname -r` says."""

    version: str
    """Of Debian's source package linux, as image, headers and sources have it."""

    @property
    def series(self) -> str:
        """The version of Linux, as 6.12."""
        return ".".join(self.version.split(".")[:2])

    @property
    def images(self) -> list[str]:
        """The packages with the kernel and its modules."""
        split = ("image", "binary", "base", "modules")
        parts = split if Version(self.series) >= SPLIT else split[:1]
        return [f"linux-{part}-{self.release}" for part in parts]

    @property
    def packages(self) -> list[str]:
        """What is installed of it to build modules."""
        abi = self.release.removesuffix("-amd64")
        return [
            *self.images,
            f"linux-headers-{self.release}",
            f"linux-headers-{abi}-common",
            f"linux-kbuild-{abi}",
        ]

    @property
    def source(self) -> str:
        """The package with its sources."""
        return f"linux-source-{self.series}"


def offered(apt: mirror.Apt, series: str, mark: str) -> list[Upload]:
    """Return the uploads of a version of Linux that a release's archive has, newest first."""
    name = re.compile(rf"linux-image-({re.escape(series)}\.\d+\+{mark}(\.\d+)?-amd64)$")
    names = apt.cache("pkgnames", f"linux-image-{series}.").split()
    images = {match[0]: match[1] for match in map(name.match, names) if match}
    if not images:
        return []
    lines = apt.cache("madison", *images).splitlines()
    fields = ([field.strip() for field in line.split("|")] for line in lines)
    found = {Upload(images[package], version) for package, version, *_ in fields}
    return sorted(found, key=lambda upload: Version(upload.version), reverse=True)


def sources(package: Path, names: list[str], into: Path) -> None:
    """Unpack files and directories of a package with the sources of a kernel."""
    series = package.name.partition("_")[0].rpartition("-")[2]
    packed = into / "sources.tar.xz"
    into.mkdir(parents=True)
    script = 'dpkg-deb --fsys-tarfile "$1" | tar -xO --wildcards "*.tar.xz" >"$2"'
    shell.output("sh", "-c", script, "sh", package, packed)
    wanted = [f"linux-source-{series}/{name}" for name in names]
    shell.output("tar", "-xf", packed, "-C", into, "--strip-components=1", *wanted)
    packed.unlink()
