"""The package kvm-global-tdp-dkms: the sources of the modules, built by DKMS on the host.

It is for one version of the kernel, the one that the series was composed on, of any
Debian release that has it. With other kernels DKMS skips it: KVM of an older kernel would
take back fixes, and KVM's internal headers change between them.
"""

import email.utils
import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.make import modules
from lab.paths import BUILD, DEB, LINUX, PACKAGING, ROOT
from lab.shell import console, working
from lab.source import debian, tree
from lab.source.git import BASE, Git

NAME = "kvm-global-tdp-dkms"
RELEASES = {"bookworm": "deb12", "trixie": "deb13"}
"""Debian's releases that the package is for, and what their kernels have in the name."""

VERSIONED = ("x86.c", "svm/svm.c", "vmx/vmx.c")
"""A source of each module, to say the version in."""

HEADERS = "headers.sha256"


@dataclass(frozen=True)
class Package:
    """What make deb builds."""

    kernel: str
    """Version of the kernel, as 6.12.117."""

    version: str
    """Of the package, the series and the modules; ordered by commits of this repository."""

    @property
    def path(self) -> Path:
        return BUILD / f"{NAME}_{self.version}_all.deb"

    @property
    def pattern(self) -> str:
        """What `uname -r` says on the kernels this is for, for grep -E and bash."""
        release = "|".join(RELEASES.values())
        return rf"^{re.escape(self.kernel)}\+({release})(\.[0-9]+)?-amd64$"


def build() -> Package:
    """Build build/*.deb from what is committed in patches/ and the new files."""
    with modules.locked():
        tree.compose()
        package = _describe()
        shutil.rmtree(DEB, ignore_errors=True)
        work = DEB / "package"
        with working(f"Building {package.path.name}"):
            _fill(work, package)
            shell.output("dpkg-buildpackage", "-us", "-uc", "-b", cwd=work)
            for old in BUILD.glob(f"{NAME}_*.deb"):
                old.unlink()
            shutil.move(DEB / package.path.name, package.path)
    console.print(f"{package.path.relative_to(ROOT)}: for {_supported(package)}")
    return package


def _describe() -> Package:
    kernel = debian.kernel().release.partition("+")[0]
    repository = Git(ROOT)
    try:
        count = repository("rev-list", "--count", "HEAD").strip()
        commit = repository("rev-parse", "--short", "HEAD").strip()
    except LabError as error:
        raise LabError(
            "the package's version comes from git: build it in a clone of this repository"
        ) from error
    edited = ".edited" if repository("status", "--porcelain") else ""
    return Package(kernel, f"{kernel}+{count}.g{commit}{edited}")


def _supported(package: Package) -> str:
    return f"linux {package.kernel} (-amd64) of Debian 12 and Debian 13"


def _fill(work: Path, package: Package) -> None:
    """Write a Debian source package, all but its name and version from packaging/."""
    shutil.copytree(PACKAGING / "debian", work / "debian")
    sources = work / "sources"
    modules.mirror(sources)
    shell.output("patch", "-d", sources, "-p1", "-i", PACKAGING / "origin.patch")
    for name in VERSIONED:
        with (sources / "arch/x86/kvm" / name).open("a") as source:
            source.write(f'MODULE_VERSION("{package.version}");\n')
    for name in ("check-headers", "keep-stock"):
        shutil.copy(PACKAGING / name, sources)
    (sources / HEADERS).write_text(_checksums(sources / "front"))
    shutil.copy(PACKAGING / "dkms.conf", work / "debian" / f"{NAME}.dkms")
    shutil.copy(PACKAGING / "modprobe.conf", work / "kvm-global-tdp.conf")
    installed = ["kvm-global-tdp.conf etc/modprobe.d"]
    for when in ("postinst.d", "header_postinst.d"):
        (work / when).mkdir()
        shutil.copy(PACKAGING / "kernel-hook", work / when / "kvm-global-tdp")
        installed.append(f"{when}/kvm-global-tdp etc/kernel/{when}")
    (work / "debian" / f"{NAME}.install").write_text("\n".join(installed) + "\n")
    words = {
        "VERSION": package.version,
        "PATTERN": package.pattern,
        "SUPPORTED": _supported(package),
        "COMMIT": Git(ROOT)("log", "-1", "--format=%H").strip(),
        "MAINTAINER": Git(ROOT)("log", "-1", "--format=%an <%ae>").strip(),
        "DATE": email.utils.formatdate(),
    }
    hooks = work.glob("*postinst.d/*")
    for path in (*(work / "debian").iterdir(), *hooks, sources / "check-headers"):
        if path.is_file():
            path.write_text(_replace(path.read_text(), words))


def _replace(text: str, words: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], text)


def _checksums(front: Path) -> str:
    """Return checksums of the headers that the series changes, as the kernel has them."""
    git = Git(LINUX)
    names = (str(path.relative_to(front)) for path in sorted(front.rglob("*.h")))
    return "".join(
        f"{hashlib.sha256(git('show', f'{BASE}:{name}').encode()).hexdigest()}  {name}\n"
        for name in names
        if git.exists(BASE, name)
    )
