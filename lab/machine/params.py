"""KVM's modules for a machine, and their parameters: `global_tdp=1 kvm_amd.vgif=0`.

A parameter without a prefix is kvm's. What is to be loaded is written down as a list, a line
a module: its file and its parameters. lab/guest/modules.sh reads that.
"""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.paths import CHECKED, MODULES
from lab.source import debian
from lab.source.debian import Kernel

OWNERS = ("kvm", "kvm_amd", "kvm_intel")


def to_load(
    vendor: str,
    params: str = "",
    *,
    stock: bool = False,
    checked: bool = False,
    kvm: Path | None = None,
    swap: bool = False,
) -> str:
    """Return the list for KVM, with kvm_amd or kvm_intel as `vendor`.

    `stock` takes the distribution's modules, `checked` ours with assertions; `kvm` is to be
    loaded as kvm.ko in any case, and the vendor's module if it is beside it. With `swap`, what
    swap space takes comes first.
    """
    kernel = debian.kernel()
    chosen = split(params, kernel, stock=stock, checked=checked)
    lines = [*(needed(kernel, "zram") if swap else ()), *needed(kernel, vendor)]
    for owner in ("kvm", vendor):
        file = module(kernel, owner, stock=stock, checked=checked)
        if kvm and (owner == "kvm" or kvm.with_name(file.name).exists()):
            file = kvm.with_name(file.name)
        lines.append(f"{file} {chosen[owner]}".strip())
    return "".join(f"{line}\n" for line in lines)


def needed(kernel: Kernel, name: str) -> Iterator[str]:
    """Return the files of the distribution's that go with one of its modules; not KVM's."""
    where = ("-d", kernel.root, "-S", kernel.release)
    listed = shell.output("/sbin/modprobe", *where, "--show-depends", name)
    for line in listed.splitlines():
        file = Path(line.split()[1])
        if not file.name.startswith("kvm"):
            yield str(file)


def all_needed(names: Iterable[str]) -> list[Path]:
    """Return the modules that a guest is to load for these, each once, in that order."""
    kernel = debian.kernel()
    found = (file for name in names for file in needed(kernel, name))
    return [Path(file) for file in dict.fromkeys(found)]


def module(kernel: Kernel, owner: str, *, stock: bool, checked: bool = False) -> Path:
    """Return the file of a KVM module, ours, with assertions or without, or Debian's."""
    name = owner.replace("_", "-") + ".ko"
    if not stock:
        path = (CHECKED if checked else MODULES) / name
        if not path.exists():
            raise LabError(f"{path.name} is not built: run make modules")
        return path
    for path in (kernel.modules / "kernel/arch/x86/kvm").glob(f"{name}*"):
        return path
    raise LabError(f"Debian's {name} of {kernel.release} is not there: make clean, then retry")


def split(params: str, kernel: Kernel, *, stock: bool, checked: bool = False) -> dict[str, str]:
    """Return each module's parameters; the kernel would ignore unknown ones silently."""
    chosen: dict[str, list[str]] = {owner: [] for owner in OWNERS}
    for param in _words(params):
        owner, dot, rest = param.partition(".")
        if not dot or owner not in OWNERS:
            owner, rest = "kvm", param
        path = module(kernel, owner, stock=stock, checked=checked)
        name = rest.partition("=")[0]
        if name not in _known(path):
            whose = f"Debian's {owner}" if stock else owner
            raise LabError(f"{whose} has no parameter {name}; modinfo -p {path} lists them")
        chosen[owner].append(rest)
    return {owner: " ".join(given) for owner, given in chosen.items()}


def _words(params: str) -> list[str]:
    try:
        return shlex.split(params)
    except ValueError as error:
        raise LabError(f"parameters {params}: {error}") from error


def _known(path: Path) -> set[str]:
    listed = shell.output("/sbin/modinfo", "-F", "parm", path)
    return {line.partition(":")[0] for line in listed.splitlines()}
