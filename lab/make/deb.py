"""The package kvm-global-tdp-dkms: the sources of the modules, built by DKMS on the host.

It is for one version of the kernel, the one that the series was composed on, in those
uploads of Debian that have its KVM: see lab.source.uploads. Others keep their own KVM: that of
another kernel would take back fixes, and KVM's internal headers change between them.
"""

import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.make import modules
from lab.paths import BUILD, DEB, LINUX, PACKAGING, ROOT
from lab.shell import console, locked, working
from lab.source import tree, uploads
from lab.source.git import BASE, Git
from lab.source.uploads import Upload

NAME = "kvm-global-tdp-dkms"
CHECK = "global-tdp-check"
"""The other package of the same source: for any host, also without ours."""

VERSIONED = ("x86.c", "svm/svm.c", "vmx/vmx.c")
"""A source of each module, to say the version in."""

HEADERS = "headers.sha256"
HOOK = "dkms-global-tdp"
"""Sorts after dkms, and before what makes an initramfs: dracut, initramfs-tools."""

_IN_SOURCES = ("check-kernel", "check-load", "keep-stock", "dkms.conf")
_PROGRAMS = {
    "usr/lib/kvm-global-tdp": ("kernel-hook", "remake-initramfs"),
    "usr/sbin": ("global-tdp-status",),
}


@dataclass(frozen=True)
class Package:
    """What make deb builds."""

    uploads: tuple[Upload, ...]
    """Of the kernel, that it is for."""

    version: str
    """Of the package, the series and the modules: the kernel's, and when of which commit."""

    @property
    def kernel(self) -> str:
        """Version of the kernel, as 6.12.117."""
        return uploads.upstream(self.uploads[0].version)

    @property
    def path(self) -> Path:
        return BUILD / f"{NAME}_{self.version}_all.deb"

    @property
    def check_path(self) -> Path:
        return BUILD / f"{CHECK}_{self.version}_amd64.deb"

    @property
    def pattern(self) -> str:
        """What `uname -r` says on the kernels this is for, for bash."""
        releases = sorted({upload.release for upload in self.uploads})
        return rf"^({'|'.join(map(re.escape, releases))})$".replace(r"\-", "-")

    @property
    def kernels(self) -> str:
        """The uploads, one a line."""
        return "".join(f"{upload.release} {upload.version}\n" for upload in self.uploads)

    @property
    def supported(self) -> str:
        """The uploads, for people."""
        known = (f"{upload.release} ({upload.version})" for upload in self.uploads)
        return f"Debian's {', '.join(known)}"


def build() -> Package:
    """Build build/*.deb from what is committed in patches/ and the new files."""
    with locked("modules"):
        tree.compose()
        package = _describe(uploads.same_kvm())
        for name in (NAME, CHECK):
            for old in BUILD.glob(f"{name}_*.deb"):
                old.unlink()
        pack(package)
    console.print(f"{package.path.relative_to(ROOT)}: for {package.supported}")
    console.print(f"{package.check_path.relative_to(ROOT)}: for any host")
    return package


def pack(package: Package) -> None:
    """Build the package as it is described, and the one of CHECK."""
    shutil.rmtree(DEB, ignore_errors=True)
    work = DEB / "package"
    # Times in it are those of the commit: the same sources make the same package.
    epoch = {"SOURCE_DATE_EPOCH": _commit("%ct")}
    with working(f"Building {package.path.name}"):
        _fill(work, package)
        shell.output("dpkg-buildpackage", "-us", "-uc", "-b", cwd=work, env=epoch)
        for path in (package.path, package.check_path):
            shutil.move(DEB / path.name, path)


def _describe(known: Sequence[Upload]) -> Package:
    edited = ".edited" if Git(ROOT)("status", "--porcelain") else ""
    kernel = uploads.upstream(known[0].version)
    return Package(tuple(known), f"{kernel}+{_commit('%cd')}.g{_commit('%h')}{edited}")


def _commit(what: str) -> str:
    """Return what `git log` tells of the last commit, however little is known before it."""
    command = ("git", "log", "-1", "--date=format-local:%Y%m%d.%H%M%S", f"--format={what}")
    try:
        # Of a given length: that of %h depends on how many commits there are.
        env = {"TZ": "UTC", "GIT_CONFIG_PARAMETERS": "'core.abbrev=8'"}
        return shell.output(*command, cwd=ROOT, env=env).strip()
    except LabError as error:
        raise LabError(
            "the package's version comes from git: build it in a clone of this repository"
        ) from error


def _fill(work: Path, package: Package) -> None:
    """Write a Debian source package, all but its name and version from packaging/."""
    shutil.copytree(PACKAGING / "debian", work / "debian")
    sources = work / "sources"
    modules.mirror(sources)
    shell.output("patch", "-d", sources, "-p1", "-i", PACKAGING / "origin.patch")
    for name in VERSIONED:
        with (sources / "arch/x86/kvm" / name).open("a") as source:
            source.write(f'MODULE_VERSION("{package.version}");\n')
    (sources / HEADERS).write_text(_checksums(sources / "front"))
    (sources / "kernels").write_text(package.kernels)
    words = _words(package)
    for path in (work / "debian").iterdir():
        if path.is_file():
            path.write_text(_replace(path.read_text(), words))
    installed = [f"sources/* usr/src/kvm-global-tdp-{package.version}"]
    for name in _IN_SOURCES:
        _copy(PACKAGING / name, sources / name, words)
    for directory, names in _PROGRAMS.items():
        for name in names:
            _copy(PACKAGING / name, work / name, words)
            installed.append(f"{name} {directory}")
    for when, remake in (("postinst.d", ""), ("header_postinst.d", " --initramfs")):
        (work / when).mkdir()
        _copy(PACKAGING / "hook-stub", work / when / HOOK, {"REMAKE": remake})
        installed.append(f"{when}/{HOOK} etc/kernel/{when}")
    (work / "debian" / f"{NAME}.install").write_text("\n".join(installed) + "\n")
    for name, page in ((NAME, "global-tdp-status.8"), (CHECK, f"{CHECK}.8")):
        shutil.copy(PACKAGING / page, work)
        (work / "debian" / f"{name}.manpages").write_text(f"{page}\n")
    shutil.copy(PACKAGING / f"{CHECK}.c", work)
    (work / "debian" / f"{CHECK}.install").write_text(f"{CHECK} usr/sbin\n")


def _words(package: Package) -> dict[str, str]:
    headers = (f"linux-headers-{upload.release}" for upload in package.uploads)
    return {
        "VERSION": package.version,
        "PATTERN": package.pattern,
        "SUPPORTED": package.supported,
        "KERNELS": re.sub("^", "  ", package.kernels.rstrip(), flags=re.MULTILINE),
        "HEADERS": " | ".join(dict.fromkeys(headers)),
        "COMMIT": _commit("%H"),
        "MAINTAINER": _commit("%an <%ae>"),
        "DATE": _commit("%cD"),
    }


def _copy(source: Path, target: Path, words: dict[str, str]) -> None:
    shutil.copy(source, target)
    target.write_text(_replace(source.read_text(), words))


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
