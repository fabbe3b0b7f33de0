"""Debian's uploads of the kernel that the series is composed on, and whether KVM is theirs.

The same version of Linux is uploaded for each release of Debian, and may be uploaded again,
with a fix to KVM: its release (`uname -r`) then changes a little, or not at all. The package
is for an upload only if its KVM is, file by file, the one in build/linux.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.paths import BUILD, LINUX
from lab.shell import console, working
from lab.source import debian, mirror
from lab.source.git import BASE, Git

RELEASES = {"bookworm": "deb12", "trixie": "deb13"}
"""Debian's releases that the package is for, and what their kernels have in the name."""

KVM = (
    *("arch/x86/kvm", "virt/kvm", "include/kvm", "include/trace/events/kvm.h"),
    *("arch/x86/include/asm/svm.h", "arch/x86/include/asm/vmx.h"),
    *("arch/x86/include/uapi/asm/svm.h", "arch/x86/include/uapi/asm/vmx.h"),
)
"""KVM's sources, and headers that are read for it only; those named kvm* are, too."""

_NAMED_KVM = (
    *("include/linux/kvm*", "include/uapi/linux/kvm*"),
    *("arch/x86/include/asm/kvm*", "arch/x86/include/uapi/asm/kvm*"),
)
_DIRECTORY = BUILD / "uploads"
_PACKAGE_ID = re.compile(r'LINUX_PACKAGE_ID " Debian (\S+)"')


@dataclass(frozen=True, order=True)
class Upload:
    """One upload of a kernel."""

    release: str
    """What `uname -r` says."""

    version: str
    """Of Debian's source package linux, as image and headers have it."""


def composed() -> Upload:
    """Return the upload that the series is composed on."""
    kernel = debian.kernel()
    header = kernel.headers / "include/generated/package.h"
    match = _PACKAGE_ID.search(header.read_text())
    if not match:
        raise LabError(f"{header} does not say which upload it is of")
    return Upload(kernel.release, match[1])


def same_kvm() -> list[Upload]:
    """Return all uploads that have the KVM of the composed one, which is one of them."""
    own = composed()
    found = [own]
    for debian_release, mark in RELEASES.items():
        apt = mirror.Apt(debian_release, _DIRECTORY / debian_release)
        offered = _offered(apt, upstream(own.version), mark)
        if not offered and mark not in own.release:
            console.print(
                f"{debian_release}: has no linux {upstream(own.version)}: not supported"
            )
        for upload in offered:
            if upload != own and _has_same_kvm(apt, upload, debian_release):
                found.append(upload)
    return sorted(found)


def upstream(version: str) -> str:
    """Return the version of Linux in that of a Debian package."""
    return version.rpartition("-")[0]


def _offered(apt: mirror.Apt, linux: str, mark: str) -> list[Upload]:
    """Return the uploads of a version of Linux that a release's archive has."""
    name = re.compile(rf"linux-headers-({re.escape(linux)}\+{mark}(\.\d+)?-amd64)$")
    names = apt.cache("pkgnames", f"linux-headers-{linux}+").split()
    headers = {match[0]: match[1] for match in map(name.match, names) if match}
    if not headers:
        return []
    lines = apt.cache("madison", *headers).splitlines()
    fields = ([field.strip() for field in line.split("|")] for line in lines)
    return sorted({Upload(headers[package], version) for package, version, *_ in fields})


def _has_same_kvm(apt: mirror.Apt, upload: Upload, debian_release: str) -> bool:
    what = f"{debian_release}'s linux {upload.version}"
    with working(f"Comparing KVM of {what} with build/linux"):
        theirs = _files(_fetch(apt, upload))
    ours = _files(_own())
    differ = sorted(
        name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)
    )
    if differ:
        others = f" and {len(differ) - 1} others" if len(differ) > 1 else ""
        console.print(f"{what}: not supported, its {differ[0]}{others} differ", style="yellow")
    else:
        console.print(f"{what}: all {len(ours)} files of KVM are those of build/linux")
    return not differ


def _fetch(apt: mirror.Apt, upload: Upload) -> Path:
    """Return a directory with KVM's files of an upload, fetched if it is not there."""
    directory = _DIRECTORY / upload.version
    if directory.exists():
        return directory
    series = ".".join(upload.version.split(".")[:2])
    package = apt.download(f"linux-source-{series}={upload.version}")
    patterns = [f"linux-source-{series}/{name}" for name in (*KVM, *_NAMED_KVM)]
    scratch = directory.with_suffix(".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    shell.output("dpkg-deb", "-x", package, scratch / "package")
    package.unlink()
    archive = next(scratch.glob("package/usr/src/*.tar.xz"))
    where = ("-C", scratch, "--strip-components=1", "--wildcards")
    shell.output("tar", "-xf", archive, *where, *patterns)
    shutil.rmtree(scratch / "package")
    scratch.rename(directory)
    return directory


def _own() -> Path:
    """Return a directory with KVM's files as build/linux had them before the series."""
    directory = _DIRECTORY / "own"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    chosen = [*KVM, *(f":(glob){name}" for name in _NAMED_KVM)]
    command = ("git", "-C", LINUX, "archive", "--format=tar", Git(LINUX).commit(BASE), *chosen)
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    subprocess.run(("tar", "-xf", "-", "-C", directory), input=archive, check=True)
    return directory


def _files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
