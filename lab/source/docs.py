"""make docs: the kernel's own HTML of Documentation/virt/kvm, and no warning of ours.

Sphinx goes into a virtual environment of its own. The tree that the series is based on
is built once, too: what it complains about is not the series' to mend.
"""

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from lab import shell
from lab.check import report
from lab.check.outcome import State
from lab.error import LabError
from lab.paths import BUILD, LINUX, ROOT, SHARED
from lab.shell import console, working
from lab.source import tree
from lab.source.git import BASE, Git

PACKAGES = ("sphinx==8.1.3", "pyyaml==6.0.3")
DIRECTORIES = "virt/kvm"
HTML = BUILD / "docs"
ENVIRONMENT = SHARED / "docs-venv"
PYTHON = Path("/usr/bin/python3")
"""Debian's, of which setup has seen to it that it makes environments."""

_MESSAGE = re.compile(r"^(\S+?):(?:\d+:)* (?:WARNING|ERROR|SEVERE|CRITICAL): (.*)$")
_KERNEL_DOC = re.compile(r"^(\S+?):\d+: warning: (.*)$")

Warning_ = tuple[str, str]
"""The file, as a path in the tree, and the words."""


def build() -> int:
    """Leave the HTML in build/docs; 1 if the series adds a warning."""
    tree.ensure()
    _install()
    with working("Building the documentation of the base"):
        known = _of_base()
    shutil.rmtree(HTML, ignore_errors=True)
    with working("Building the documentation"):
        log = _make(LINUX, HTML)
    new = sorted(warnings(log, LINUX) - known)
    for path, text in new:
        print(f"{path}: {text}")
    page = HTML / DIRECTORIES / "global_tdp.html"
    if not page.exists():
        raise LabError(f"{page.relative_to(ROOT)} was not made; see build/docs.log")
    count = f"{len(known)} of the base's own" if known else "none"
    print(f"{page.relative_to(ROOT)}: {len(new)} warnings of the series ({count})")
    return report.end(Counter({State.PASSED: int(not new), State.FAILED: len(new)}))


def warnings(log: str, source: Path) -> set[Warning_]:
    """Return what a build complained about, without line numbers, which move."""
    found = set()
    for line in log.splitlines():
        got = _MESSAGE.match(line) or _KERNEL_DOC.match(line)
        if got:
            path = got[1].removeprefix(f"{source}/").removeprefix("./")
            found.add((path, got[2].strip()))
    return found


def _install() -> None:
    sphinx = ENVIRONMENT / "bin" / "sphinx-build"
    if sphinx.exists():
        return
    console.print(
        f"Installing {', '.join(PACKAGES)} from PyPI into {ENVIRONMENT.relative_to(ROOT)}"
    )
    try:
        shell.output(PYTHON, "-m", "venv", "--clear", ENVIRONMENT)
        shell.output(ENVIRONMENT / "bin" / "pip", "install", "-q", *PACKAGES)
    except LabError as error:
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        raise LabError(f"{error} (is the network up?)") from error


def _of_base() -> set[Warning_]:
    """Return the base's warnings; they are kept for as long as base and Sphinx stay."""
    commit = Git(LINUX).commit(BASE)
    kept = BUILD / f"docs-base-{commit[:12]}-{PACKAGES[0].partition('==')[2]}.log"
    source = BUILD / "docs-base"
    if not kept.exists():
        git = Git(LINUX)
        git("worktree", "prune")
        if source.exists():
            shutil.rmtree(source)
            git("worktree", "prune")
        git("worktree", "add", "-q", "--detach", str(source), BASE)
        try:
            log = _make(source, BUILD / "docs-base-html")
            kept.write_text(log)
        finally:
            git("worktree", "remove", "--force", str(source))
            shutil.rmtree(BUILD / "docs-base-html", ignore_errors=True)
    return warnings(kept.read_text(), source)


def _make(source: Path, html: Path) -> str:
    """Return the output of the kernel's `make htmldocs`."""
    done = subprocess.run(
        ["make", "-C", source, "htmldocs", f"SPHINXDIRS={DIRECTORIES}", f"BUILDDIR={html}"],
        env={**os.environ, "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    (BUILD / "docs.log").write_text(done.stdout)
    if done.returncode:
        raise LabError("make htmldocs failed; the whole log is build/docs.log")
    return done.stdout
