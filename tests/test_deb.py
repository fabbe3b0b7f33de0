"""Which kernels the package is for."""

import re
import subprocess
import unittest

from lab.make.deb import Package

PACKAGE = Package("6.12.117", "6.12.117+1.gabc")
GOOD = ("6.12.117+deb12-amd64", "6.12.117+deb13-amd64", "6.12.117+deb13.1-amd64")
BAD = (
    *("6.12.118+deb13-amd64", "6.12.107+deb13-amd64", "6.1.0-40-amd64", "6.12.117"),
    *("6.12.117+deb13-cloud-amd64", "6.12.117+deb12-rt-amd64", "6.12.117+deb14-amd64"),
    *("6.12.1170+deb13-amd64", "6x12.117+deb13-amd64", "6.12.117+deb13-amd64-mine"),
)


class Pattern(unittest.TestCase):
    """Python, bash (dkms) and grep -E (preinst) read it alike."""

    def test_kernels(self) -> None:
        for release in (*GOOD, *BAD):
            with self.subTest(release=release):
                wanted = release in GOOD
                self.assertEqual(bool(re.search(PACKAGE.pattern, release)), wanted)
                bash = ["bash", "-c", "[[ $0 =~ $1 ]]", release, PACKAGE.pattern]
                self.assertEqual(subprocess.run(bash).returncode == 0, wanted)
                grep = subprocess.run(
                    ["grep", "-Eq", PACKAGE.pattern], input=release.encode(), check=False
                )
                self.assertEqual(grep.returncode == 0, wanted)


if __name__ == "__main__":
    unittest.main()
