"""Which of Debian's kernels is taken, and what is made of it."""

from pathlib import Path
from unittest import mock

import pytest

from lab.error import LabError
from lab.source import debian, mirror
from lab.source.debian import Kernel

LATER = "7.3.4+deb13-amd64"
OLD, NEW, AGAIN = (f"6.12.{n}+deb12{m}-amd64" for n, m in ((9, ""), (117, ""), (117, ".1")))
OFFERED = {OLD: ["6.12.9-1"], AGAIN: ["6.12.117-2~deb12u1"], NEW: ["6.12.117-1"]}
SEVERAL = {NEW: ["6.12.117-1~deb12u1", "6.12.117-1", "6.12.117-1~bpo12+1"]}


@pytest.mark.parametrize(
    ("offered", "wanted", "less", "found"),
    (
        (OFFERED, "", "", (AGAIN, "6.12.117-2~deb12u1")),
        (OFFERED, OLD, "", (OLD, "6.12.9-1")),
        (SEVERAL, "", "", (NEW, "6.12.117-1")),
        (OFFERED, "", f"linux-headers-{AGAIN}", (NEW, "6.12.117-1")),
        ({}, "", "", None),
        (SEVERAL, OLD, "", None),
    ),
)
def test_the_newest_that_is_complete(
    offered: dict[str, list[str]],
    wanted: str,
    less: str,
    found: tuple[str, str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Debian orders them; of what apt offers: releases, and versions of their packages."""

    def output(_: str, what: str, *args: str) -> str:
        if what == "pkgnames":
            others = ("linux-image-6.12.117+deb12-rt-amd64", "linux-image")
            return "\n".join((*(f"linux-image-{r}-unsigned" for r in offered), *others))
        release = args[0].removeprefix("linux-image-").removesuffix("-unsigned")
        told = ((name, each) for name in args for each in offered[release])
        return "".join(f" {name} | {each} | http\n" for name, each in told if name != less)

    monkeypatch.setattr(debian, "ORIGIN", debian.ORIGINS["6.12"])
    monkeypatch.setattr(debian, "_apt", lambda: mirror.Apt("", Path()))
    monkeypatch.setattr(debian.shell, "output", output)
    if found:
        assert debian._resolve(wanted) == found
    else:
        with pytest.raises(LabError, match="apt-get update"):
            debian._resolve(wanted)


def test_of_the_backports(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is split into packages otherwise, of which all must be there."""
    wanted = {
        *(f"linux-{name}-{LATER}" for name in ("binary", "modules", "base", "headers")),
        *("linux-headers-7.3.4+deb13-common", "linux-kbuild-7.3.4+deb13", "linux-source-7.3"),
    }
    names = ("7.3.4+deb13-rt-amd64", "7.3.3+deb13-amd64", LATER)
    less: set[str] = set()

    def cache(what: str, *args: str) -> str:
        if what == "pkgnames":
            return "\n".join(f"linux-binary-{name}" for name in names)
        found = wanted.intersection(args) - less
        return "".join(f" {name} | 7.3.4-1~bpo13+1 | http\n" for name in found)

    monkeypatch.setattr(debian, "ORIGIN", debian.ORIGINS["7.3"])
    monkeypatch.setattr(debian, "SOURCE", "linux-source-7.3")
    monkeypatch.setattr(debian, "_apt", lambda: mock.Mock(cache=cache))
    assert debian._resolve("") == (LATER, "7.3.4-1~bpo13+1")
    for name in wanted:
        less = {name}
        with pytest.raises(LabError, match="backports"):
            debian._resolve("")


def test_a_kernel_that_has_all_below_usr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as others are, then."""
    depmod = mock.Mock()
    monkeypatch.setattr(debian, "DEBIAN", tmp_path)
    monkeypatch.setattr(debian.shell, "output", depmod)
    unpacked, final = Kernel("scratch"), Kernel(LATER)
    modules = unpacked.root / "usr/lib/modules" / LATER
    headers = unpacked.root / "usr/src" / f"linux-headers-{LATER}"
    for directory in (modules, headers):
        directory.mkdir(parents=True)
    (modules / "vmlinuz").write_text("image")
    for name in ("build", "source"):
        (modules / name).symlink_to(f"../../../src/{headers.name}")
    (headers / "Makefile").write_text("include /usr/src/common/Makefile\n")
    debian._relocate(unpacked, final)
    unpacked.root.rename(final.root)
    assert final.image.read_text() == "image"
    assert f"include {final.root}/usr/src/" in (final.headers / "Makefile").read_text()
    assert all((final.modules / name / "Makefile").exists() for name in ("build", "source"))
    depmod.assert_called_once()


@pytest.mark.parametrize(
    ("said", "wanted"), (("#1 SMP Debian 6.12.118-1 (2026)", "6.12.118-1"), ("", ""))
)
def test_an_image_says_what_it_is(
    said: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "DEBIAN", tmp_path)
    kernel = Kernel("R-amd64")
    kernel.image.parent.mkdir(parents=True)
    head = bytes(0x20E) + (0x400).to_bytes(2, "little") + bytes(0x3F0)
    kernel.image.write_bytes(head + said.encode() + bytes(9))
    assert kernel.upload == wanted
