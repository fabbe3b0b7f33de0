"""KVM's modules, built out of tree against the headers of the stock kernel.

arch/x86/kvm and virt/kvm are mirrored from build/linux to build/kmod. Headers outside
of them that the series changes or adds go to build/kmod/front, which is searched before
the stock ones. Only files whose content differs are written, so make rebuilds little.
What is in build/kmod does not depend on where it is: lab.deb packs the same mirror.
"""

import fcntl
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import debian, shell, tree
from lab.git import BASE, Git
from lab.paths import BUILD, KMOD, LINUX, MODULES
from lab.shell import console

NAMES = ("kvm", "kvm-amd", "kvm-intel")
SOURCES = ("arch/x86/kvm", "virt/kvm")
FRONT = ("arch/x86/include", "include", "arch/x86/include/uapi", "include/uapi")
BUILT = (
    *("*.o", "*.s", "*.ko", "*.mod", "*.mod.c", "*.symvers"),
    *("modules.order", ".*", "*-offsets.h"),
)
# Changed files that the modules do not need, and those they could not have.
ELSEWHERE = re.compile(r"(arch/x86/include|include|tools|Documentation|samples)/|[A-Z]+$")


def build() -> None:
    """Bring build/modules up to date with build/linux, one build at a time."""
    with locked():
        tree.ensure()
        mirror(KMOD)
        compile_in(KMOD)
        for name in NAMES:
            _install(name)
    console.print(f"build/modules: {', '.join(f'{name}.ko' for name in NAMES)}")


def compile_in(mirrored: Path, log: str = "modules", *, werror: bool = True) -> None:
    """Build the modules of what mirror() has composed; the log is build/LOG.log."""
    with console.status("Building kvm.ko, kvm-amd.ko, kvm-intel.ko"):
        shell.build(
            log,
            *("make", "-C", debian.kernel().headers, f"M={mirrored / 'arch/x86/kvm'}", "-j2"),
            *(f"CONFIG_KVM_WERROR={'y' if werror else 'n'}", "modules"),
        )


@contextmanager
def locked() -> Iterator[None]:
    """Wait for other builds of this repository to end; the kernel unlocks if this one dies."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / ".modules.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("waiting for another build of the modules to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def mirror(into: Path) -> None:
    """Compose the sources of the modules of build/linux, and a Kbuild for them, in `into`."""
    for source in SOURCES:
        target = into / source
        target.mkdir(parents=True, exist_ok=True)
        built = [f"--exclude={pattern}" for pattern in BUILT]
        shell.output(
            *("rsync", "-rlp", "--checksum", "--delete", "--exclude=/Makefile", *built),
            *(f"{LINUX / source}/", f"{target}/"),
        )
        _write(target / "Makefile", _makefile(source))
    git = Git(LINUX)
    changed = {
        *git.lines("diff", "--name-only", "--diff-filter=d", BASE),
        *git.lines("ls-files", "--others", "--exclude-standard"),
    }
    outside = sorted(name for name in changed if not name.startswith(SOURCES))
    for name in outside:
        if not ELSEWHERE.match(name):
            console.print(f"not in the modules, but changed: {name}", style="yellow")
    _mirror_headers(
        into / "front",
        [name for name in outside if name.startswith(("arch/x86/include/", "include/"))],
    )


def _makefile(source: str) -> str:
    """Return the kernel's Makefile, with paths that are good outside of its tree."""
    path = LINUX / source / "Makefile"
    if not path.exists():
        return ""
    text = path.read_text()
    text = text.replace("$(srctree)/arch/x86/kvm", "$(src)")
    text = text.replace("$(srctree)/virt/kvm", "$(src)/../../../virt/kvm")
    front = " ".join(f"-I$(src)/../../../front/{name}" for name in FRONT)
    return f"LINUXINCLUDE := {front} $(LINUXINCLUDE)\n{text}"


def _mirror_headers(front: Path, names: Iterable[str]) -> None:
    wanted = {front / name: LINUX / name for name in names}
    for directory in FRONT:
        (front / directory).mkdir(parents=True, exist_ok=True)
    present = {path for path in front.rglob("*") if path.is_file()}
    if present != set(wanted):
        # What was built has another header on record for these: start over.
        shutil.rmtree(front)
        for source in SOURCES:
            for stale in (front.parent / source).rglob("*.o"):
                stale.unlink()
    for target, origin in wanted.items():
        _write(target, origin.read_text())


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _install(name: str) -> None:
    built = KMOD / "arch/x86/kvm" / f"{name}.ko"
    target = MODULES / built.name
    if target.exists() and target.stat().st_mtime >= built.stat().st_mtime:
        return
    MODULES.mkdir(exist_ok=True)
    scratch = target.with_suffix(".tmp")
    shell.output("strip", "--strip-debug", built, "-o", scratch)
    scratch.rename(target)
