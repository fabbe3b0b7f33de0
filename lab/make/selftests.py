"""KVM's selftests: static programs, so that any guest runs them."""

from pathlib import Path

from lab import shell
from lab.paths import BUILD, LINUX, SELFTESTS
from lab.shell import console, locked
from lab.source import tree

SOURCE = "tools/testing/selftests/kvm"
HEADERS = BUILD / "headers"
"""Where the kernel's user headers go: outside of the tree, which stays clean."""
PATIENCE = Path(__file__).with_name("patience.h")
"""Has the kernel's own tests wait longer before they say that nothing came."""


def build() -> None:
    """Bring build/selftests up to date with build/linux."""
    with locked("selftests"):
        _build()


def _build() -> None:
    tree.ensure()
    compile_in(LINUX, HEADERS, SELFTESTS)
    scripts = ("--include=*/", "--include=*.sh", "--exclude=*")
    shell.output("rsync", "-rlpt", *scripts, f"{LINUX / SOURCE}/", f"{SELFTESTS}/")
    console.print(f"build/selftests: {len(programs())} programs")


def compile_in(linux: Path, headers: Path, into: Path, log: str = "selftests") -> None:
    """Build those of a kernel tree; the log is build/LOG.log."""
    into.mkdir(exist_ok=True)
    shell.build("headers", "make", "-C", linux, f"O={headers}", "ARCH=x86", "headers", "-j2")
    flags = f"USERCFLAGS=-include {PATIENCE}"
    built_with = into / "flags"
    same = built_with.exists() and built_with.read_text() == flags
    shell.build(
        log,
        *("make", "-C", linux / SOURCE, f"OUTPUT={into}", "ARCH=x86", "LDFLAGS=-static", "-j2"),
        flags,
        f"KHDR_INCLUDES=-isystem {headers}/usr/include",
        *([] if same else ["-B"]),  # make does not know what objects were built with
    )
    built_with.write_text(flags)


def programs() -> list[str]:
    """Return what was built, as paths below build/selftests."""
    found = (path.with_suffix("") for path in SELFTESTS.rglob("*.d"))
    return sorted(str(path.relative_to(SELFTESTS)) for path in found if path.is_file())
