"""Module parameters: `global_tdp=1 kvm_amd.vgif=0`; without a prefix they are kvm's."""

import shlex
import subprocess
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.paths import CHECKED, MODULES
from lab.source.debian import Kernel

OWNERS = ("kvm", "kvm_amd", "kvm_intel")


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
    for param in shlex.split(params):
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


def _known(path: Path) -> set[str]:
    try:
        listed = shell.output("/sbin/modinfo", "-F", "parm", path)
    except subprocess.SubprocessError as error:
        raise LabError(f"modinfo {path}: {error}") from error
    return {line.partition(":")[0] for line in listed.splitlines()}
