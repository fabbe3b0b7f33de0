"""Where a kernel's modules, and programs for it, are built: here, or in a newer Debian.

What Debian's headers of a newer kernel bring, objtool and resolve_btfids, wants a newer C
library than this machine has. Then a root of that Debian, with a compiler in it, is made by
mmdebstrap in build/VERSION/root. Commands run there in a chroot that has this repository at
its own path; nothing of it is installed on this machine.
"""

import os
import shutil

from lab import shell
from lab.error import LabError
from lab.paths import BUILD, ROOT, VERSION
from lab.shell import Arg, locked, working
from lab.source import debian, mirror

DIRECTORY = BUILD / "root"
PACKAGES = (
    *("bc", "bison", "ccache", "cpio", "flex", "gcc", "gcc-14", "kmod", "libc6-dev"),
    *("libelf-dev", "libssl-dev", "make", "pahole", "perl", "python3", "rsync", "uuid-dev"),
    "xz-utils",
)
COMPILER = "gcc-14" if debian.ORIGIN.release else "gcc-12"
"""What Debian builds the kernel with, there and here."""

_ENTER = """\
for path in /dev /proc "$1"; do
    mkdir -p "$0$path" && mount --rbind "$path" "$0$path" || exit
done
shift
exec chroot "$0" "$@"
"""


def command(*args: Arg) -> tuple[Arg, ...]:
    """Return what runs a command where things are built for the kernel."""
    if not debian.ORIGIN.release:
        return args
    if os.geteuid():
        raise LabError(
            f"what is for Linux {VERSION} is built in a root of {debian.ORIGIN.release}, which "
            "only root can make and enter: run this as root"
        )
    with locked("root"):
        if not DIRECTORY.exists():
            _make()
    # Each is executed by the one before: who ends this process ends the last one.
    enter = ("unshare", "--mount", "sh", "-c", _ENTER, DIRECTORY, ROOT)
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    return (*enter, "env", "-C", ROOT, path, "HOME=/root", "LC_ALL=C.UTF-8", *args)


def _make() -> None:
    scratch = DIRECTORY.with_suffix(".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    release = debian.ORIGIN.release
    with working(f"Making a root of {release} to build in, a minute"):
        shell.output(
            *("mmdebstrap", "--variant=essential", f"--include={','.join(PACKAGES)}"),
            *("--aptopt=APT::Install-Recommends false", release, scratch),
            *mirror.sources(release),
        )
    scratch.rename(DIRECTORY)
