"""The program of lab/check/pinned: a test with the library of KVM's selftests."""

from pathlib import Path

from lab import shell
from lab.make import root
from lab.make.selftests import HEADERS, NEW_NAME, OF_X86, SOURCE
from lab.paths import BUILD, LINUX, SELFTESTS

PROGRAM = BUILD / "pinned" / "pinned"

_SOURCE = Path(__file__).parent.parent / "check" / "pinned" / "pinned.c"
_FLAGS = (
    *("-Wall", "-Werror", "-O2"),
    *("-std=gnu99", "-D_GNU_SOURCE", "-DCONFIG_64BIT", "-march=x86-64-v2", "-static"),
    # Parts of the program run in the guest, at its own addresses, without a C library.
    *("-no-pie", "-fno-PIE", "-fno-stack-protector", "-fno-strict-aliasing", "-pthread"),
)


def build() -> None:
    """Bring the program up to date with build/selftests, which has been built."""
    PROGRAM.parent.mkdir(exist_ok=True)
    # In this order: what the tools have of the kernel's headers hides what users have.
    tools = LINUX / "tools"
    included = [f"-I{tools / path}" for path in ("include", "arch/x86/include")]
    of_tests = ("include", f"include/{OF_X86}", f"include/{NEW_NAME}", "..")
    included += [f"-I{LINUX / SOURCE / path}" for path in of_tests]
    included += ["-isystem", HEADERS / "usr/include"]
    library = sorted((SELFTESTS / "lib").rglob("*.o"))
    command = ("gcc", *_FLAGS, *included, "-o", PROGRAM, _SOURCE, *library)
    shell.build("pinned", *root.command(*command))
