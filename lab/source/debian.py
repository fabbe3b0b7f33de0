"""Debian's 6.12 kernel: find the newest, fetch it, unpack it under build/.

Nothing is installed: an installed kernel would rebuild the machine's initramfs and
boot menu.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from debian.debian_support import Version

from lab import shell
from lab.error import LabError
from lab.paths import BUILD, DEBIAN
from lab.shell import locked, working

SOURCE = "linux-source-6.12"
IMAGE = re.compile(r"linux-image-(6\.12\.\d+\+deb12(?:\.\d+)?-amd64)-unsigned$")


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


def kernel() -> Kernel:
    """Return the kernel under build/, fetching the newest (or $KVER) if there is none.

    What is there stays: a newer one comes with `make clean`, or with KVER=.
    """
    wanted = os.environ.get("KVER", "")
    if not wanted:
        unpacked = sorted(DEBIAN.glob("*/usr/src/linux-source-*.tar.xz"), key=_age)
        if unpacked:
            return Kernel(unpacked[-1].relative_to(DEBIAN).parts[0])
    elif Kernel(wanted).source.exists():
        return Kernel(wanted)
    release, version = _resolve(wanted)
    with locked("kernel"):
        if not Kernel(release).source.exists():
            _fetch(Kernel(release), version)
    return Kernel(release)


def _age(path: Path) -> float:
    return path.stat().st_ctime


def _packages(release: str) -> list[str]:
    abi = release.removesuffix("-amd64")
    return [
        f"linux-image-{release}-unsigned",
        f"linux-headers-{release}",
        f"linux-headers-{abi}-common",
        f"linux-kbuild-{abi}",
        SOURCE,
    ]


def _resolve(wanted: str) -> tuple[str, str]:
    """Find the newest release of which all packages have one same version."""
    names = shell.output("apt-cache", "pkgnames", "linux-image-6.12.").split()
    found = sorted((match[1] for match in map(IMAGE.match, names) if match), key=Version)
    for release in reversed(found):
        if wanted and release != wanted:
            continue
        offered = _versions(_packages(release))
        common = set.intersection(*offered.values())
        if common:
            return release, max(common, key=Version)
    known = ", ".join(found) or "none"
    raise LabError(
        f"no complete Debian kernel {wanted or '6.12'} in apt (known: {known}); "
        "run apt-get update, check that bookworm-security is among the sources"
    )


def _versions(packages: list[str]) -> dict[str, set[str]]:
    """Return the versions apt offers of each package, under any architecture."""
    offered: dict[str, set[str]] = {package: set() for package in packages}
    for line in shell.output("apt-cache", "madison", *packages).splitlines():
        package, version, *_ = (field.strip() for field in line.split("|"))
        offered[package].add(version)
    return offered


def _fetch(kernel: Kernel, version: str) -> None:
    BUILD.mkdir(exist_ok=True)
    DEBIAN.mkdir(exist_ok=True)
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
    command = ["apt-get", "-q", "download", *packages]
    if subprocess.run(
        command, cwd=into, capture_output=True, stdin=subprocess.DEVNULL
    ).returncode:
        # The lists may be older than the archive: once more with new ones.
        shell.output("apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update")
        shell.output(*command, cwd=into)


def _relocate(unpacked: Kernel, final: Kernel) -> None:
    """Replace the absolute paths the packages have, and do what their scripts would."""
    release = final.release
    headers = unpacked.root / "usr" / "src" / f"linux-headers-{release}"
    makefile = headers / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{final.root}/usr/src/"))
    modules = unpacked.root / "lib" / "modules" / release
    for name in ("build", "source"):
        link = modules / name
        target = link.readlink()
        link.unlink()
        link.symlink_to(Path("../../..", *target.parts[1:]))
    shell.output("depmod", "-b", unpacked.root, release)
