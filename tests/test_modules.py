"""Builds of the modules do not disturb one another."""

import fcntl
import subprocess
import sys
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.make import modules
from lab.paths import BUILD, LINUX, ROOT
from lab.source import tree

TRY = """
import fcntl
from lab.paths import BUILD
with (BUILD / ".unit-test.lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
HOLD_AND_DIE = """
import os
from lab.make import modules
with modules.locked("unit-test"):
    os.kill(os.getpid(), 9)
"""


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in another process, as another build would."""
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
    )


# One build at a time, of any number of processes.


def test_lock_another_process_is_kept_out_and_let_in() -> None:
    with modules.locked("unit-test"):
        kept_out = python(TRY)
    assert "BlockingIOError" in kept_out.stderr
    let_in = python(TRY)
    assert let_in.returncode == 0, let_in.stderr


def test_lock_a_build_that_was_killed_leaves_no_lock() -> None:
    assert python(HOLD_AND_DIE).returncode == -9
    with (BUILD / ".unit-test.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Headers that the series changes.


def test_front_none_is_left() -> None:
    scratch = Path(self.enterContext(TemporaryDirectory()))
    linux, front = scratch / "linux", scratch / "kmod/front"
    name, stale = "include/linux/kvm_host.h", scratch / "kmod/virt/kvm/a.o"
    for path in (linux / name, stale):
        path.parent.mkdir(parents=True)
        path.write_text("")
    for names in ([name], []):
        modules._mirror_headers(front, linux, names)
        assert (front / name).exists() == bool(names)
        assert not stale.exists()
        for directory in modules.FRONT:
            assert (front / directory).is_dir(), directory
        stale.write_text("")


# Of compiled files.


def test_cache_a_header_that_comes_in_front_is_seen() -> None:
    scratch = Path(self.enterContext(TemporaryDirectory()))
    for name in ("front", "stock", "cache"):
        (scratch / name).mkdir()
    (scratch / "a.c").write_text("#include <value.h>\nint value = VALUE;\n")
    compiler = ("ccache", "gcc", "-Ifront", "-Istock", "-c", "a.c", "-o")
    variables = ("env", modules.CCACHE, f"CCACHE_DIR={scratch / 'cache'}")
    for directory, value in (("stock", 1), ("front", 2)):
        (scratch / directory / "value.h").write_text(f"#define VALUE {value}\n")
        subprocess.run((*variables, *compiler, f"{value}.o"), cwd=scratch, check=True)
    stock, ours = ((scratch / f"{value}.o").read_bytes() for value in (1, 2))
    assert not (stock == ours), "the object is the one from before"


# Of the modules with assertions, and of no other.


def test_flags_only_the_checked_ones_are_told() -> None:
    tree.ensure()
    with TemporaryDirectory() as scratch:
        for checked in (False, True):
            modules.mirror(Path(scratch), checked=checked)
            makefile = (Path(scratch) / "arch/x86/kvm/Makefile").read_text()
            for flag in modules.CHECKS:
                assert (flag in makefile) == checked, flag


def test_flags_kvm_knows_the_options() -> None:
    """One that Kconfig no longer has would be defined in vain."""
    known = (LINUX / "arch/x86/kvm/Kconfig").read_text()
    defined = [flag for flag in modules.CHECKS if flag.startswith("-D")]
    assert defined
    for flag in defined:
        name = flag.removeprefix("-DCONFIG_").removesuffix("=1")
        assert f"\nconfig {name}\n" in known


if __name__ == "__main__":
    unittest.main()
