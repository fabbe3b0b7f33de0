"""Where things are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""Root of this repository; new kernel files live below it at their kernel paths."""

PATCHES = ROOT / "patches" / "6.12"
SERIES = PATCHES / "series"
COVERS = PATCHES / "covers"

PACKAGING = ROOT / "packaging"

BUILD = ROOT / "build"
DEBIAN = BUILD / "debian"
LINUX = BUILD / "linux"
KMOD = BUILD / "kmod"
MODULES = BUILD / "modules"
CHECKED = BUILD / "checked"
"""The modules once more, with assertions: see lab.make.modules."""

SELFTESTS = BUILD / "selftests"
RESTORE = BUILD / "restore" / "restore"
"""The program of integration/restore."""

HOSTCHECK = BUILD / "global-tdp-check" / "global-tdp-check"
"""The program packaging/global-tdp-check.c."""

RUNS = BUILD / "runs"
DEB = BUILD / "deb"
VENV_BIN = BUILD / "venv" / "bin"
