"""Where things are, for the series that SERIES= chooses."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""Root of this repository; new kernel files live below it at their kernel paths."""

VERSIONS = ("6.12", "7.3")
"""Of Linux, those that there is a series for, the oldest first."""

VERSION = os.environ.get("SERIES") or VERSIONS[0]
"""That of the series to work on."""

if VERSION not in VERSIONS:
    sys.exit(f"lab: no series {VERSION}: SERIES is {' or '.join(VERSIONS)}")

DOCUMENTED = VERSIONS[0] == VERSION
"""Whether the figures in docs/ are of it, so far."""

PATCHES = ROOT / "patches" / VERSION
SERIES = PATCHES / "series"
COVERS = PATCHES / "covers"

PACKAGING = ROOT / "packaging"

SHARED = ROOT / "build"
"""What is the same for all series."""

TESTS_OF = os.environ.get("TESTS_OF") or VERSION
"""The version whose selftests are run: those of another one, too, on the kernel of this."""

if TESTS_OF not in VERSIONS:
    sys.exit(f"lab: no series {TESTS_OF}: TESTS_OF is {' or '.join(VERSIONS)}")


def _build_of(version: str) -> Path:
    return SHARED if VERSIONS[0] == version else SHARED / version


BUILD = _build_of(VERSION)
DEBIAN = BUILD / "debian"
LINUX = BUILD / "linux"
KMOD = BUILD / "kmod"
MODULES = BUILD / "modules"
CHECKED = BUILD / "checked"
"""The modules once more, with assertions: see lab.make.modules."""

SELFTESTS = _build_of(TESTS_OF) / "selftests"
RESTORE, LIVES, RECLAIM, WORKING_SET = (
    BUILD / "restore" / name for name in ("restore", "lives", "reclaim", "working_set")
)
"""The programs of integration/restore."""

HOSTCHECK = BUILD / "global-tdp-check" / "global-tdp-check"
"""The program packaging/global-tdp-check.c."""

RUNS = BUILD / "runs"
DEB = BUILD / "deb"
VENV_BIN = SHARED / "venv" / "bin"
