"""Look through the C files that the series touches with sparse, and through stock's beside.

Stock KVM has warnings, too, and sparse cannot follow a lock that is taken under a
condition. So what counts is what stock's files do not have. Each file is looked at as it
was compiled for build/modules, by the command that Kbuild left behind.
"""

import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.make import modules
from lab.paths import BUILD, KMOD, LINUX, VERSION, VERSIONS
from lab.shell import console, working
from lab.source import debian
from lab.source.git import BASE, Git

STOCK = BUILD / "sparse" / "kmod"
"""Stock's sources, laid out like build/kmod; its headers are Debian's."""

_FLAGS = (
    *("-D__linux__", "-Dlinux", "-D__STDC__", "-Dunix", "-D__unix__", "-D__x86_64__"),
    *("--arch=x86", "-m64", "-mlittle-endian"),
    *("-Wbitwise", "-Wno-return-void", "-Wno-unknown-attribute", "-fmax-warnings=unlimited"),
    *("-D__typeof_unqual__=__typeof__", "-D__builtin_strlen(text)=(sizeof(text)-1)"),
)
"""As the kernel's Makefile has them, and no end after the first hundred; and what newer kernels
have in headers, and sparse does not know, or not as a constant."""

_WARNING = re.compile(r"^(\S+):\d+:\d+: warning: (.*)$", re.M)
_ERROR = re.compile(r"^\S+:\d+:\d+: error: .*$", re.M)
_HEADERS = re.compile(r".*/linux-headers-[^/]*/")

_AT_EXIT = "context imbalance in '{}' - wrong count at exit"
_OF_612 = {
    # guard() unlocks by a cleanup attribute, of which sparse knows nothing.
    ("arch/x86/kvm/mmu/gtdp_pass.c", _AT_EXIT.format("gtdp_scan_batch")),
    ("arch/x86/kvm/mmu/global_tdp.c", _AT_EXIT.format("gtdp_populate_batch")),
    ("arch/x86/kvm/mmu/gtdp_harvest.c", _AT_EXIT.format("harvest_roots")),
    ("arch/x86/kvm/mmu/tdp_populate.c", _AT_EXIT.format("populate_under_lock")),
    # tdp_mmu_iter_cond_resched(), which is inlined, drops the caller's lock for a writer.
    (
        "arch/x86/kvm/mmu/tdp_mmu.c",
        "context imbalance in '__tdp_mmu_zap_root' - unexpected unlock",
    ),
    # __kvm_handle_hva_range() locks once it has found a memslot; it is inlined, and stock
    # has this of each of its callers, too.
    (
        "virt/kvm/kvm_main.c",
        "context imbalance in 'kvm_mmu_invalidate_shared' - different lock contexts"
        " for basic block",
    ),
}
ACCEPTED = _OF_612 if VERSIONS[0] == VERSION else set()
"""What the series has and stock has not, though nothing is wrong."""

Warnings = Counter[tuple[str, str]]
"""How often a file has a warning; lines move, so they do not tell one from another."""


def check() -> None:
    """Look through what build/modules was built from; LabError if stock was better."""
    if reasons := judge(list_new()):
        for reason in reasons:
            console.print(reason, markup=False, soft_wrap=True)
        raise LabError(f"sparse objects to KVM in {len(reasons)} places: {reasons[0]}")


def judge(new: Warnings) -> list[str]:
    """Return what is wrong with the warnings that stock does not have."""
    reasons = [
        f"{path}: {text}" for path, text in new.elements() if (path, text) not in ACCEPTED
    ]
    # Else the next function of that name would be excused, too.
    reasons += [
        f"{path}: no longer so, remove it from lab/check/sparse.py: {text}"
        for path, text in sorted(ACCEPTED)
        if (path, text) not in new
    ]
    return reasons


def list_new() -> Warnings:
    """Return the warnings that stock does not have."""
    sources = touched()
    _lay_out_stock()
    with working("Looking through KVM with sparse"):
        ours = _most(_look_at(KMOD, name) for name in sources)
        stock = _most(_look_at(STOCK, name) for name in sources if (STOCK / name).exists())
    return ours - stock


def touched() -> list[str]:
    """Return the C files of the modules that build/linux has changed or added."""
    changed = Git(LINUX).changed()
    found = sorted(
        name for name in changed if name.endswith(".c") and name.startswith(modules.SOURCES)
    )
    if not found:
        raise LabError("build/linux changes no file of KVM: run make tree")
    return found


def _lay_out_stock() -> None:
    shutil.rmtree(STOCK, ignore_errors=True)
    STOCK.mkdir(parents=True)
    archive = STOCK.parent / "stock.tar"
    Git(LINUX)("archive", "-o", archive, BASE, *modules.SOURCES)
    shell.output("tar", "-x", "-f", archive, "-C", STOCK)
    archive.unlink()
    for directory in modules.FRONT:
        # That of a tracepoint includes ../../arch/x86/kvm, as seen from one of them.
        (STOCK / "front" / directory).mkdir(parents=True)


def _most(found: Iterable[Warnings]) -> Warnings:
    """Return all warnings; what several C files have of a header counts once."""
    most: Warnings = Counter()
    for warnings in found:
        most |= warnings
    return most


def _look_at(tree: Path, name: str) -> Warnings:
    source = KMOD / name
    saved = source.with_name(f".{source.stem}.o.cmd")
    if not saved.exists():
        raise LabError(f"{name} is not compiled: run make modules")
    # What the compiler was told for build/modules, as Kbuild has it, with the paths of `tree`.
    compiler = saved.read_text().splitlines()[0].partition(" := ")[2].partition(" ; ")[0]
    words = [word.replace(f"{KMOD}/", f"{tree}/") for word in shlex.split(compiler)]
    first = next(number for number, word in enumerate(words) if word.startswith("-"))
    command = [word for word in words[first:] if not word.startswith("-Wp,")]
    # Newer kernels have it compiled by a relative path, where the sources are.
    relative = not command[-1].startswith("/")
    done = subprocess.run(
        ["sparse", *_FLAGS, *command],
        cwd=tree / modules.SOURCES[0] if relative else debian.kernel().headers,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    error = _ERROR.search(done.stderr)
    if done.returncode or error:
        # It warns of nothing more then.
        raise LabError(f"sparse: {error[0] if error else f'failed on {tree / name}'}")
    return Counter((_place(path, tree), told) for path, told in _WARNING.findall(done.stderr))


def _place(path: str, tree: Path) -> str:
    # An absolute path stays as it is.
    resolved, top = (tree / modules.SOURCES[0] / path).resolve(), tree.resolve()
    if resolved.is_relative_to(top):
        return str(resolved.relative_to(top))
    return _HEADERS.sub("", str(resolved))
