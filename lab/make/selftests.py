"""KVM's selftests: static programs, so that any guest runs them."""

import os
import re
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.make import root
from lab.paths import BUILD, LINUX, ROOT, SELFTESTS, TESTS_OF, VERSION
from lab.shell import console, locked
from lab.source import tree

SOURCE = "tools/testing/selftests/kvm"
OF_X86 = "x86_64"
"""The directory of those for x86, as 6.12 calls it; where it is called x86, that is a link."""
NEW_NAME = "x86"
HEADERS = BUILD / "headers"
"""Where the kernel's user headers go: outside of the tree, which stays clean."""
PATIENCE = Path(__file__).with_name("patience.h")
"""Has the kernel's own tests wait longer before they say that nothing came."""


_PRINTS_TAP = re.compile(r"\b(ksft_print_header|test_harness_run|gtdp_run_(some_)?tests)\(")
"""Programs without print nothing that could be judged, or only why they are skipped."""


def build() -> None:
    """Bring build/selftests up to date with build/linux; of another series, with its own."""
    if TESTS_OF != VERSION:
        # By a process of its own, as each knows one series.
        make = ("make", "-C", ROOT, "selftests", f"SERIES={TESTS_OF}", "KVER=", "TESTS_OF=")
        shell.build(f"selftests of {TESTS_OF}", *make)
        return
    with locked("selftests"):
        tree.ensure()
        compile_in(LINUX, HEADERS, SELFTESTS)
        scripts = ("--include=*/", "--include=*.sh", "--exclude=*")
        shell.output("rsync", "-rlptK", *scripts, f"{LINUX / SOURCE}/", f"{SELFTESTS}/")
        console.print(f"{SELFTESTS.relative_to(ROOT)}: {len(programs())} programs")


def build_headers() -> Path:
    """Bring the headers alone up to date; return where <linux/kvm.h> is found."""
    with locked("selftests"):
        tree.ensure()
        _make_headers(LINUX, HEADERS)
    return HEADERS / "usr/include"


def compile_in(linux: Path, headers: Path, into: Path, log: str = "selftests") -> None:
    """Build those of a kernel tree; the log is build/LOG.log."""
    into.mkdir(exist_ok=True)
    if (linux / SOURCE / NEW_NAME).exists() and not (into / NEW_NAME).exists():
        (into / OF_X86).mkdir()
        (into / NEW_NAME).symlink_to(OF_X86)
    _make_headers(linux, headers)
    flags = f"USERCFLAGS=-include {PATIENCE}"
    built_with = into / "flags"
    same = built_with.exists() and built_with.read_text() == flags
    make = ("make", "-C", linux / SOURCE, f"OUTPUT={into}", "ARCH=x86", "-j2")
    options = ("LDFLAGS=-static", flags, f"KHDR_INCLUDES=-isystem {headers}/usr/include")
    again = [] if same else ["-B"]  # make does not know what objects were built with
    shell.build(log, *root.command(*make, *options, *again))
    built_with.write_text(flags)


def _make_headers(linux: Path, headers: Path) -> None:
    make = ("make", "-C", linux, f"O={headers}", "ARCH=x86", "-j2")
    shell.build("headers", *root.command(*make, "headers"))


def source_of(program: str) -> Path:
    """Return the source of a selftest, called as programs() does."""
    path = SELFTESTS.with_name(LINUX.name) / SOURCE / f"{program}.c"
    newer = path.parent.with_name(NEW_NAME) / path.name
    return path if path.exists() or path.parent.name != OF_X86 else newer


def prints_tap(program: str) -> bool:
    """Whether a selftest has a plan and results in its output, by its source."""
    source = source_of(program)
    return source.exists() and bool(_PRINTS_TAP.search(source.read_text()))


def programs() -> list[str]:
    """Return what was built of the sources that there are, as paths below build/selftests.

    LabError: a test was not. Another architecture's are not among those for all.
    """
    found = (
        str(path.relative_to(SELFTESTS).with_suffix("")) for path in SELFTESTS.rglob("*.d")
    )
    built = {name for name in found if os.access(SELFTESTS / name, os.X_OK)}
    folder = source_of("x").parent
    tests = {path.stem for path in folder.glob("*_test.c")}
    tests |= {
        f"{OF_X86}/{path.stem}"
        for name in (OF_X86, NEW_NAME)
        for path in folder.glob(f"{name}/*_test.c")
    }
    if missing := sorted(tests - built):
        raise LabError(f"{len(missing)} tests of {folder} are not built: {missing[0]}")
    return sorted(name for name in built if source_of(name).exists())
