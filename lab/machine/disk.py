"""What machines boot from, if not from the host's files."""

import shutil
import subprocess
from pathlib import Path

from lab import shell
from lab.error import LabError

_LOADER = """\
default linux
prompt 0
label linux
kernel /vmlinuz
append initrd=/initrd {params}
"""
_LOADER_FILES = (
    "/usr/lib/ISOLINUX/isolinux.bin",
    "/usr/lib/syslinux/modules/bios/ldlinux.c32",
)
_ISO = ("-b", "isolinux.bin", "-c", "boot.cat", "-no-emul-boot", "-boot-load-size", "4")


def make_initramfs(root: Path, target: Path) -> None:
    """Pack a directory, whose `init` is what the kernel runs."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    done = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0", f"--file={target}"],
        cwd=root,
        input="".join(f"{name}\n" for name in names).encode(),
        capture_output=True,
    )
    if done.returncode:
        raise LabError(f"cpio failed: {done.stderr.decode(errors='replace').strip()}")


def make_iso(target: Path, kernel: Path, initramfs: Path, params: str) -> None:
    """Make a CD that boots a kernel with these parameters; the initramfs moves there."""
    disc = target.with_suffix(".files")
    disc.mkdir()
    for file in _LOADER_FILES:
        shutil.copy(file, disc)
    (disc / "isolinux.cfg").write_text(_LOADER.format(params=params))
    shutil.copy(kernel, disc / "vmlinuz")
    initramfs.rename(disc / "initrd")
    shell.output(
        *("xorriso", "-as", "mkisofs", "-quiet", "-o", target, *_ISO, "-boot-info-table"), disc
    )
    shutil.rmtree(disc)
