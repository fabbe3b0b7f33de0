"""Look through the lab with ruff, through the series with checkpatch and sparse."""

import subprocess

from lab import checkpatch, modules, series, sparse
from lab.error import LabError
from lab.paths import ROOT, VENV_BIN


def lint() -> None:
    """Say what is to be mended; LabError if anything is."""
    ruff = VENV_BIN / "ruff"
    looks = ((ruff, "check", "--quiet", "lab"), (ruff, "format", "--quiet", "--check", "lab"))
    if sum(subprocess.run(look, cwd=ROOT).returncode for look in looks):
        raise LabError("ruff objects to lab/: ruff check --fix, ruff format")
    checkpatch.check(series.export())
    modules.build()
    sparse.check()
