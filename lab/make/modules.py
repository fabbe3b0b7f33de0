"""KVM's modules, built out of tree against the headers of the stock kernel.

arch/x86/kvm and virt/kvm are mirrored from build/linux to build/kmod. Headers outside
of them that the series changes or adds go to build/kmod/front, which is searched before
the stock ones. Only files whose content differs are written, so make rebuilds little.
The package does the same on hosts, with packaging/take-sources.

build/checked has the modules once more, for tests: with the MMU's assertions, with stack
variables that are not zeroed, and with KVM_SW_PROTECTED_VM, i.e. VMs with memory attributes.
These options are KVM's own, or the compiler's, and change nothing that the rest of the
kernel shares with KVM. What is counted or timed is counted and timed in build/modules.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lab import shell
from lab.make import root
from lab.paths import CHECKED, KMOD, LINUX, MODULES, ROOT
from lab.shell import console, locked
from lab.source import debian, tree
from lab.source.git import Git

NAMES = ("kvm", "kvm-amd", "kvm-intel")
SOURCES = ("arch/x86/kvm", "virt/kvm")
FRONT = ("arch/x86/include", "include", "arch/x86/include/uapi", "include/uapi")
BUILT = (
    *("*.o", "*.s", "*.ko", "*.mod", "*.mod.c", "*.symvers"),
    *("modules.order", ".*", "*-offsets.h"),
)
CHECKS = (
    *("-DCONFIG_KVM_PROVE_MMU=1", "-DCONFIG_KVM_SW_PROTECTED_VM=1"),
    # Debian's kernel has =zero, which hides what was forgotten to be initialised.
    "-ftrivial-auto-var-init=pattern",
    # Nobody debugs these; without it, they are built in half the time.
    "-g0",
)
"""What the compiler is told for build/checked."""
CCACHE = "CCACHE_NODIRECT=1"
"""Has ccache look at what the preprocessor makes. Otherwise it looks whether source and headers
are as they were, and does not see that another has come to front/, which comes first."""

_PATHS = {
    "$(srctree)/arch/x86/kvm": "$(src)",
    "$(srctree)/virt/kvm": "$(src)/../../../virt/kvm",
}
_FRONT_FLAGS = " ".join(f"-I$(src)/../../../front/{name}" for name in FRONT)
_INCLUDES = f"LINUXINCLUDE := {_FRONT_FLAGS} $(LINUXINCLUDE)"
# Changed files that the modules do not need, and those they could not have.
ELSEWHERE = re.compile(r"(arch/x86/include|include|tools|Documentation|samples)/|[A-Z]+$")


class Kind(NamedTuple):
    """A build of the modules: where its sources are composed, where it is put."""

    sources: Path
    into: Path
    checked: bool


PLAIN = Kind(KMOD, MODULES, checked=False)
WITH_CHECKS = Kind(CHECKED / "kmod", CHECKED, checked=True)


def build(*, checked: bool = False) -> None:
    """Bring build/modules, or build/checked, up to date with build/linux."""
    kind = WITH_CHECKS if checked else PLAIN
    with locked("modules"):
        tree.ensure()
        mirror(kind.sources, checked=checked)
        compile_in(kind.sources, kind.into.name, checked=checked)
        for name in NAMES:
            install(kind.sources, kind.into, name)
    made = ", ".join(f"{name}.ko" for name in NAMES)
    console.print(f"{kind.into.relative_to(ROOT)}: {made}")


def compile_in(
    mirrored: Path, log: str = "modules", *, werror: bool = True, checked: bool = False
) -> None:
    """Build the modules of what mirror() has composed; the log is build/LOG.log."""
    options = ["DEBIAN_KERNEL_USE_CCACHE=1"]
    if checked:
        # It is made of the debug information, which these don't have.
        options.append("CONFIG_DEBUG_INFO_BTF_MODULES=")
    make = ("env", CCACHE, "make", "-C", debian.kernel().headers, "-j2")
    options.append(f"CONFIG_KVM_WERROR={'y' if werror else 'n'}")
    where = f"M={mirrored / 'arch/x86/kvm'}"
    shell.build(log, *root.command(*make, where, *options, "modules"))


def mirror(into: Path, *, checked: bool = False, linux: Path = LINUX) -> None:
    """Compose the sources of the modules of a kernel tree, and a Kbuild for them, in `into`."""
    for source in SOURCES:
        target = into / source
        target.mkdir(parents=True, exist_ok=True)
        built = [f"--exclude={pattern}" for pattern in BUILT]
        shell.output(
            *("rsync", "-rlp", "--checksum", "--delete", "--exclude=/Makefile", *built),
            *(f"{linux / source}/", f"{target}/"),
        )
        _write(target / "Makefile", _makefile(linux / source, checked=checked))
    outside = sorted(name for name in Git(linux).changed() if not name.startswith(SOURCES))
    for name in outside:
        if not ELSEWHERE.match(name):
            console.print(f"not in the modules, but changed: {name}", style="yellow")
    _mirror_headers(
        into / "front",
        linux,
        [name for name in outside if name.startswith(("arch/x86/include/", "include/"))],
    )


def _makefile(source: Path, *, checked: bool) -> str:
    """Return the kernel's Makefile, with paths that are good outside of its tree."""
    path = source / "Makefile"
    if not path.exists():
        return ""
    text = path.read_text()
    for inside, outside in _PATHS.items():
        text = text.replace(inside, outside)
    if checked:
        text = f"ccflags-y += {' '.join(CHECKS)}\n{text}"
    return f"{_INCLUDES}\n{text}"


def makefile_sed() -> str:
    """Return a script of sed, for where there is no Python, that makes the same of it."""
    paths = (f"s,{inside},{outside},g\n" for inside, outside in _PATHS.items())
    return f"{''.join(paths)}1i\\\n{_INCLUDES}\n"


def _mirror_headers(front: Path, linux: Path, names: Iterable[str]) -> None:
    wanted = {front / name: linux / name for name in names}
    present = {path for path in front.rglob("*") if path.is_file()}
    if present != set(wanted):
        # What was built has another header on record for these: start over.
        shutil.rmtree(front, ignore_errors=True)
        for source in SOURCES:
            for stale in (front.parent / source).rglob("*.o"):
                stale.unlink()
    # Those of tracepoints are found as seen from one of these, also if it is empty.
    for directory in FRONT:
        (front / directory).mkdir(parents=True, exist_ok=True)
    for target, origin in wanted.items():
        _write(target, origin.read_text())


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def install(mirrored: Path, into: Path, name: str) -> Path:
    """Return a module that compile_in() has built, put in `into` without debug information."""
    built = mirrored / "arch/x86/kvm" / f"{name}.ko"
    target = into / built.name
    if not target.exists() or target.stat().st_mtime < built.stat().st_mtime:
        into.mkdir(exist_ok=True)
        scratch = target.with_suffix(".tmp")
        shell.output(*root.command("strip", "--strip-debug", built, "-o", scratch))
        scratch.rename(target)
    return target
