"""bpftrace of the newest Debian, for the tools to be tried with beside this machine's own.

It is unpacked into build/bpftrace, and run with the C library it came with.
"""

import shutil

from lab import mirror, shell
from lab.paths import BUILD
from lab.shell import console

RELEASE = "trixie"
_INSTALLED = BUILD / "bpftrace"
_LIBRARIES = _INSTALLED / "usr/lib/x86_64-linux-gnu"


def command() -> str:
    """Return the program and what loads it, fetched if it is not there."""
    if not _INSTALLED.exists():
        _install()
    loader = _LIBRARIES / "ld-linux-x86-64.so.2"
    return f"{loader} --library-path {_LIBRARIES} {_INSTALLED / 'usr/bin/bpftrace'}"


def _install() -> None:
    scratch = _INSTALLED.with_suffix(".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    with console.status(f"Unpacking bpftrace of {RELEASE}"):
        shell.output(
            *("mmdebstrap", "--variant=extract", "--include=bpftrace"),
            *("--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Retries 3"),
            *(RELEASE, scratch),
            *mirror.sources(RELEASE),
        )
    scratch.rename(_INSTALLED)
