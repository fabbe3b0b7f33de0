"""Builds of the modules do not disturb one another."""

import subprocess
import sys
from pathlib import Path

from lab.make import modules
from lab.paths import LINUX, ROOT
from lab.source import tree

TRY = """
import fcntl
from lab.paths import BUILD
with (BUILD / ".unit-test.lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in another process, as another build would."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_one_build_at_a_time() -> None:
    """Of any number of processes."""
    with modules.locked("unit-test"):
        assert "BlockingIOError" in python(TRY).stderr
    assert python(TRY).returncode == 0


def test_no_header_that_the_series_changes_is_left(tmp_path: Path) -> None:
    linux, front = tmp_path / "linux", tmp_path / "kmod/front"
    name, stale = "include/linux/kvm_host.h", tmp_path / "kmod/virt/kvm/a.o"
    for path in (linux / name, stale):
        path.parent.mkdir(parents=True)
    (linux / name).touch()
    for names in ([name], []):
        stale.touch()
        modules._mirror_headers(front, linux, names)
        assert ((front / name).exists(), stale.exists()) == (bool(names), False)
        assert all((front / directory).is_dir() for directory in modules.FRONT)


def test_the_cache_sees_a_header_that_comes_in_front(tmp_path: Path) -> None:
    for name in ("front", "stock", "cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "a.c").write_text("#include <value.h>\nint value = VALUE;\n")
    compiler = ("ccache", "gcc", "-Ifront", "-Istock", "-c", "a.c", "-o")
    variables = ("env", modules.CCACHE, f"CCACHE_DIR={tmp_path / 'cache'}")
    for directory, value in (("stock", 1), ("front", 2)):
        (tmp_path / directory / "value.h").write_text(f"#define VALUE {value}\n")
        subprocess.run((*variables, *compiler, f"{value}.o"), cwd=tmp_path, check=True)
    stock, ours = ((tmp_path / f"{value}.o").read_bytes() for value in (1, 2))
    assert stock != ours, "the object is the one from before"


def test_only_the_modules_with_assertions_have_their_flags(tmp_path: Path) -> None:
    """To define an option that Kconfig no longer has would change nothing."""
    tree.ensure()
    for checked in (False, True):
        modules.mirror(tmp_path, checked=checked)
        makefile = (tmp_path / "arch/x86/kvm/Makefile").read_text()
        assert {flag in makefile for flag in modules.CHECKS} == {checked}
    known = (LINUX / "arch/x86/kvm/Kconfig").read_text()
    defined = [flag for flag in modules.CHECKS if flag.startswith("-D")]
    assert defined
    for flag in defined:
        assert f"\nconfig {flag.removeprefix('-DCONFIG_').removesuffix('=1')}\n" in known
