"""Look through the lab with ruff, through the series with sparse and checkpatch."""

import subprocess

from lab.check import comments, ledger, noticed, prose, sparse
from lab.error import LabError
from lab.make import modules
from lab.paths import ROOT, VENV_BIN
from lab.source import checkpatch, copies, series


def lint() -> None:
    """Say what is to be mended; LabError if anything is."""
    ruff = VENV_BIN / "ruff"
    looks = ((ruff, "check", "--quiet", "lab"), (ruff, "format", "--quiet", "--check", "lab"))
    if sum(subprocess.run(look, cwd=ROOT).returncode for look in looks):
        raise LabError("ruff objects to lab/: ruff check --fix, ruff format")
    copies.check()
    comments.check()
    prose.check()
    noticed.SHOWN.check()
    ledger.check()
    modules.build()
    sparse.check()
    checkpatch.check(series.export())
