"""Which of Debian's kernels is taken, and what is made of it."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

from lab.error import LabError
from lab.source import debian
from lab.source.debian import Kernel

LATER = "7.3.4+deb13-amd64"
OLD, NEW, AGAIN = (f"6.12.{n}+deb12{m}-amd64" for n, m in ((9, ""), (117, ""), (117, ".1")))


class Resolve(unittest.TestCase):
    """Of what apt offers: releases, and versions of each of their packages."""

    def resolve(self, offered: dict[str, list[str]], wanted: str = "", less: str = "") -> str:
        def output(_: str, what: str, *args: str) -> str:
            if what == "pkgnames":
                others = ("linux-image-6.12.117+deb12-rt-amd64", "linux-image")
                return "\n".join((*(f"linux-image-{r}-unsigned" for r in offered), *others))
            release = args[0].removeprefix("linux-image-").removesuffix("-unsigned")
            told = ((name, each) for name in args for each in offered[release])
            return "".join(f" {name} | {each} | http\n" for name, each in told if name != less)

        of_612 = mock.patch.object(debian, "ORIGIN", debian.ORIGINS["6.12"])
        with of_612, mock.patch.object(debian.shell, "output", output):
            release, version = debian._resolve(wanted)
        return f"{release} {version}"

    def test_newest(self) -> None:
        """As Debian orders them, of those that are complete."""
        offered = {OLD: ["6.12.9-1"], AGAIN: ["6.12.117-2~deb12u1"], NEW: ["6.12.117-1"]}
        several = {NEW: ["6.12.117-1~deb12u1", "6.12.117-1", "6.12.117-1~bpo12+1"]}
        two = {OLD: ["6.12.9-1"], NEW: ["6.12.117-1"]}
        for known, found in (
            ((offered,), f"{AGAIN} 6.12.117-2~deb12u1"),
            ((offered, OLD), f"{OLD} 6.12.9-1"),
            ((several,), f"{NEW} 6.12.117-1"),
            ((two, "", f"linux-headers-{NEW}"), f"{OLD} 6.12.9-1"),
        ):
            self.assertEqual(self.resolve(*known), found)

    def test_none(self) -> None:
        for offered, wanted in (({}, ""), ({NEW: ["6.12.117-1"]}, OLD)):
            with self.assertRaisesRegex(LabError, "apt-get update"):
                self.resolve(offered, wanted)

    def test_of_the_backports(self) -> None:
        """It is split into packages otherwise, of which all must be there."""
        wanted = {
            *(f"linux-{name}-{LATER}" for name in ("binary", "modules", "base", "headers")),
            *("linux-headers-7.3.4+deb13-common", "linux-kbuild-7.3.4+deb13"),
            "linux-source-7.3",
        }
        names = ("7.3.4+deb13-rt-amd64", "7.3.3+deb13-amd64", LATER)
        less: set[str] = set()

        def cache(what: str, *args: str) -> str:
            if what == "pkgnames":
                return "\n".join(f"linux-binary-{name}" for name in names)
            found = wanted.intersection(args) - less
            return "".join(f" {name} | 7.3.4-1~bpo13+1 | http\n" for name in found)

        of_73 = {"ORIGIN": debian.ORIGINS["7.3"], "SOURCE": "linux-source-7.3"}
        apt = mock.Mock(cache=cache)
        self.enterContext(mock.patch.multiple(debian, **of_73, _apt=lambda: apt))
        self.assertEqual(debian._resolve(""), (LATER, "7.3.4-1~bpo13+1"))
        for name in wanted:
            less = {name}
            with self.assertRaisesRegex(LabError, "backports"):
                debian._resolve("")


class Relocate(unittest.TestCase):
    """A kernel that has all below /usr is as others are, then."""

    def test_all_below_usr(self) -> None:
        scratch = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(mock.patch.object(debian, "DEBIAN", Path(scratch)))
        depmod = self.enterContext(mock.patch.object(debian.shell, "output"))
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
        self.assertEqual(final.image.read_text(), "image")
        makefile = (final.headers / "Makefile").read_text()
        self.assertIn(f"include {final.root}/usr/src/", makefile)
        for name in ("build", "source"):
            self.assertTrue((final.modules / name / "Makefile").exists(), name)
        depmod.assert_called_once()
