"""Which of Debian's kernels is taken."""

import unittest
from unittest import mock

from lab.error import LabError
from lab.source import debian

OLD, NEW, AGAIN = (f"6.12.{n}+deb12{m}-amd64" for n, m in ((9, ""), (117, ""), (117, ".1")))


class Resolve(unittest.TestCase):
    """Of what apt offers: releases, and versions of each of their packages."""

    def resolve(self, offered: dict[str, list[str]], wanted: str = "", less: str = "") -> str:
        def output(_: str, what: str, *args: str) -> str:
            if what == "pkgnames":
                images = [f"linux-image-{release}-unsigned" for release in offered]
                return "\n".join(
                    [*images, "linux-image-6.12.117+deb12-rt-amd64", "linux-image"]
                )
            release = args[0].removeprefix("linux-image-").removesuffix("-unsigned")
            told = ((name, each) for name in args for each in offered[release])
            return "".join(f" {name} | {each} | http\n" for name, each in told if name != less)

        with mock.patch.object(debian.shell, "output", output):
            release, version = debian._resolve(wanted)
        return f"{release} {version}"

    def test_newest(self) -> None:
        offered = {OLD: ["6.12.9-1"], AGAIN: ["6.12.117-2~deb12u1"], NEW: ["6.12.117-1"]}
        self.assertEqual(self.resolve(offered), f"{AGAIN} 6.12.117-2~deb12u1")
        self.assertEqual(self.resolve(offered, OLD), f"{OLD} 6.12.9-1")

    def test_newest_version_as_debian_orders_them(self) -> None:
        versions = ["6.12.117-1~deb12u1", "6.12.117-1", "6.12.117-1~bpo12+1"]
        self.assertEqual(self.resolve({NEW: versions}), f"{NEW} 6.12.117-1")

    def test_one_that_is_not_complete(self) -> None:
        offered = {OLD: ["6.12.9-1"], NEW: ["6.12.117-1"]}
        less = f"linux-headers-{NEW}"
        self.assertEqual(self.resolve(offered, less=less), f"{OLD} 6.12.9-1")

    def test_none(self) -> None:
        for offered, wanted in (({}, ""), ({NEW: ["6.12.117-1"]}, OLD)):
            with self.assertRaisesRegex(LabError, "apt-get update"):
                self.resolve(offered, wanted)


if __name__ == "__main__":
    unittest.main()
