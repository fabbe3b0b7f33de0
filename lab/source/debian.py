"""Debian's kernel that the series is for: find the newest, fetch it, unpack it under build/.

6.12 is this Debian's own; 7.3 is a later one's, from its backports, in other packages. Nothing
is installed: an installed kernel would rebuild the machine's initramfs and boot menu.
"""

import os
import re
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from debian.debian_support import Version

from lab import shell
from lab.error import LabError
from lab.paths import DEBIAN, VERSION
from lab.shell import locked, working
from lab.source import mirror

SOURCE = f"linux-source-{VERSION}"


@dataclass(frozen=True)
class Origin:
    """Where a kernel comes from, and how."""

    image: str
    """The package that there is for each release, as a pattern."""

    packages: tuple[str, ...]
    """All that are needed: {0} is the release, {1} the same without the architecture."""

    hint: str
    """What to look at if there is none."""

    release: str = ""
    """Of Debian, if not this machine's, with backports."""


ORIGINS = {
    "6.12": Origin(
        r"linux-image-(6\.12\.\d+\+deb12(?:\.\d+)?-amd64)-unsigned$",
        (
            *("linux-image-{0}-unsigned", "linux-headers-{0}", "linux-headers-{1}-common"),
            "linux-kbuild-{1}",
        ),
        "run apt-get update, check that bookworm-security is among the sources",
    ),
    "7.3": Origin(
        r"linux-binary-(7\.3\.\d+\+deb13(?:\.\d+)?-amd64)$",
        (
            *("linux-binary-{0}", "linux-modules-{0}", "linux-base-{0}", "linux-headers-{0}"),
            *("linux-headers-{1}-common", "linux-kbuild-{1}"),
        ),
        "it was in trixie-backports, which may have gone on to another one",
        release="trixie",
    ),
}
ORIGIN = ORIGINS[VERSION]


@dataclass(frozen=True)
class Kernel:
    """One unpacked kernel; `release` is what `uname -r` says when it runs."""

    release: str

    @property
    def root(self) -> Path:
        return DEBIAN / self.release

    @property
    def image(self) -> Path:
        return self.root / "boot" / f"vmlinuz-{self.release}"

    @property
    def headers(self) -> Path:
        return self.root / "usr" / "src" / f"linux-headers-{self.release}"

    @property
    def modules(self) -> Path:
        return self.root / "lib" / "modules" / self.release

    @property
    def source(self) -> Path:
        return self.root / "usr" / "src" / f"{SOURCE}.tar.xz"

    @property
    def upload(self) -> str:
        """Which of Debian's linux it is; a bzImage's header says where `uname -rv` is."""
        with self.image.open("rb") as image:
            head = image.read(1 << 16)
        at = 0x200 + int.from_bytes(head[0x20E:0x210], "little")
        said = re.match(rb"[^\0]* Debian (\S+) ", head[at:])
        return said[1].decode() if said else ""


def kernel() -> Kernel:
    """Return the kernel under build/, fetching the newest (or $KVER) if there is none.

    What is there stays: a newer one comes with `make clean`, or with KVER=.
    """
    wanted = os.environ.get("KVER", "")
    if not wanted:
        if there := unpacked():
            return there
    elif Kernel(wanted).source.exists():
        return Kernel(wanted)
    release, version = _resolve(wanted)
    with locked("kernel"):
        if not Kernel(release).source.exists():
            _fetch(Kernel(release), version)
    return Kernel(release)


def unpacked() -> Kernel | None:
    """Return the one under build/ that was unpacked last."""
    sources = DEBIAN.glob("*/usr/src/linux-source-*.tar.xz")
    found = sorted(sources, key=lambda path: path.stat().st_ctime)
    return Kernel(found[-1].relative_to(DEBIAN).parts[0]) if found else None


def _packages(release: str) -> list[str]:
    names = (release, release.removesuffix("-amd64"))
    return [*(package.format(*names) for package in ORIGIN.packages), SOURCE]


@cache
def _apt() -> mirror.Apt:
    """Return the apt that knows the kernel."""
    return mirror.Apt(ORIGIN.release, DEBIAN / "apt", backports=True)


def _resolve(wanted: str) -> tuple[str, str]:
    """Find the newest release of which all packages have one same version."""
    names = _apt().cache("pkgnames", ORIGIN.image.partition("(")[0]).split()
    matches = (re.match(ORIGIN.image, name) for name in names)
    found = sorted((match[1] for match in matches if match), key=Version)
    for release in reversed(found):
        if wanted and release != wanted:
            continue
        offered = _versions(_packages(release))
        common = set.intersection(*offered.values())
        if common:
            return release, max(common, key=Version)
    known = ", ".join(found) or "none"
    raise LabError(
        f"no complete Debian kernel {wanted or VERSION} in apt (known: {known}); {ORIGIN.hint}"
    )


def _versions(packages: list[str]) -> dict[str, set[str]]:
    """Return the versions apt offers of each package, under any architecture."""
    offered: dict[str, set[str]] = {package: set() for package in packages}
    for line in _apt().cache("madison", *packages).splitlines():
        package, version, *_ = (field.strip() for field in line.split("|"))
        offered[package].add(version)
    return offered


def _fetch(kernel: Kernel, version: str) -> None:
    DEBIAN.mkdir(parents=True, exist_ok=True)
    scratch = DEBIAN / f"{kernel.release}.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        with working(f"Fetching Debian kernel {kernel.release}"):
            _download([f"{name}={version}" for name in _packages(kernel.release)], scratch)
        with working(f"Unpacking Debian kernel {kernel.release}"):
            for package in sorted(scratch.glob("*.deb")):
                shell.output("dpkg-deb", "-x", package, scratch)
                package.unlink()
            _relocate(Kernel(scratch.name), kernel)
        shutil.rmtree(kernel.root, ignore_errors=True)
        scratch.rename(kernel.root)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(packages: list[str], into: Path) -> None:
    try:
        _apt().get("download", *packages, cwd=into)
    except LabError:
        # The lists may be older than the archive: once more with new ones.
        _apt().update()
        _apt().get("download", *packages, cwd=into)


def _relocate(unpacked: Kernel, final: Kernel) -> None:
    """Replace the absolute paths the packages have, and do what their scripts would."""
    release = final.release
    headers = unpacked.root / "usr" / "src" / f"linux-headers-{release}"
    makefile = headers / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{final.root}/usr/src/"))
    if not (lib := unpacked.root / "lib").exists():
        lib.symlink_to("usr/lib")
    modules = unpacked.root / "lib" / "modules" / release
    for name in ("build", "source"):
        link = modules / name
        target = link.readlink()
        if target.is_absolute():
            link.unlink()
            link.symlink_to(Path("../../..", *target.parts[1:]))
    if (image := modules / "vmlinuz").exists():
        boot = unpacked.root / "boot"
        boot.mkdir()
        image.rename(boot / f"vmlinuz-{release}")
    shell.output("depmod", "-b", unpacked.root, release)
