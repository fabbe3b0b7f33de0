"""The kernel tree build/linux: pristine source, and one commit a patch on top.

Composing works on an index and on commit objects only. The working tree is moved to the
result at the end, in one step: a patch that does not apply leaves nothing half done, and
files that stay the same keep their times, so that builds stay incremental.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from lab import shell
from lab.error import LabError
from lab.paths import BUILD, LINUX, PATCHES, ROOT
from lab.shell import console, locked, working
from lab.source import debian, patches
from lab.source.git import BASE, BRANCH, IDENTITY, Git

NAME = LINUX.relative_to(ROOT)
FOLDER = PATCHES.relative_to(ROOT)

STATE = LINUX / ".git" / "lab.json"
"""What was composed: `inputs` (hash over the patch folder) and `head` (the result)."""


def compose() -> None:
    """Bring build/linux to what the repository says; refuse to lose edits made in it."""
    with locked("tree"):
        _compose(debian.kernel())


def _compose(kernel: debian.Kernel) -> None:
    if LINUX.exists():
        if reason := unsaved():
            raise LabError(reason)
        if kernel.release not in Git(LINUX)("log", "-1", "--format=%s", BASE):
            shutil.rmtree(LINUX)
    if not LINUX.exists():
        _create(kernel)
    inputs = patches.digest(kernel.release)
    if state().get("inputs") == inputs:
        return
    git = Git(LINUX)
    head = git.commit(BASE)
    for patch in patches.series():
        head = _commit(git, head, patch)
    git("checkout", "-q", "-B", BRANCH, head)
    save_state(inputs, head)
    count = len(patches.series())
    console.print(f"{NAME}: {kernel.release}, {count} patches on branch {BRANCH}")


def ensure() -> None:
    """Have a tree to build: composed, or with the edits a developer has in it."""
    if LINUX.exists() and unsaved():
        console.print(f"{NAME} has edits of yours: building those", style="yellow")
    else:
        compose()


def unsaved() -> str | None:
    """Return what the tree holds that the repository does not, None if nothing."""
    if reason := unfinished():
        return reason
    git = Git(LINUX)
    head = state().get("head") or git.commit(BASE)
    if git.commit() == head:
        return None
    return (
        f"{NAME} has commits that are not in {FOLDER}: make refresh takes them, "
        f"git -C {NAME} reset --hard {head[:12]} drops them"
    )


def unfinished() -> str | None:
    """Return what in the tree is not a commit on its branch, None if nothing."""
    git = Git(LINUX)
    branch = git("rev-parse", "--abbrev-ref", "HEAD").strip()
    if branch != BRANCH:
        return f"{NAME} is not on branch {BRANCH} (a rebase going on?): finish that first"
    if dirty := git.lines("status", "--porcelain"):
        return (
            f"{NAME} has uncommitted edits ({dirty[0].split()[-1]}, {len(dirty)} in all): "
            "git commit --fixup or --amend them, then make refresh"
        )
    return None


def state() -> Mapping[str, str]:
    """Return what was composed or taken back last."""
    return json.loads(STATE.read_text()) if STATE.exists() else {}


def save_state(inputs: str, head: str) -> None:
    """Record that tree and repository agree."""
    STATE.write_text(json.dumps({"inputs": inputs, "head": head}) + "\n")


def _create(kernel: debian.Kernel) -> None:
    scratch = BUILD / "linux.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with working(f"Unpacking the source of {kernel.release} to {NAME}"):
        shell.output("tar", "-xf", kernel.source, "-C", scratch, "--strip-components=1")
    with working("Making it a git repository"):
        # Drop Debian's own rule, which hides every file of the kernel from git.
        ignore = scratch / ".gitignore"
        rules, found, _ = ignore.read_text().partition("#\n# Debian packaging:")
        if found:
            ignore.write_text(rules.rstrip() + "\n")
        git = Git(scratch)
        git("init", "-q", "-b", BRANCH)
        git("config", "core.looseCompression", "0")
        git("config", "gc.auto", "0")
        git("add", "-A", "-f")
        author = "lab <lab@localhost>"
        message = f"Debian linux-source {kernel.release}"
        git("commit", "-q", "--author", author, "--date", "2024-11-17T00:00:00Z", "-m", message)
        git("tag", BASE)
    scratch.rename(LINUX)


def _commit(git: Git, parent: str, patch: Path) -> str:
    """Return a commit of `patch` on `parent`, in terms of git's plumbing."""
    scratch = LINUX / ".git" / "lab-compose"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    env = {**os.environ, **IDENTITY, "GIT_INDEX_FILE": str(scratch / "index")}

    def plumb(*args: str | Path, stdin: bytes = b"") -> str:
        command = ["git", *map(str, args)]
        done = subprocess.run(command, cwd=git.tree, env=env, input=stdin, capture_output=True)
        if done.returncode:
            raise LabError(_does_not_apply(patch, done.stderr.decode(errors="replace")))
        return done.stdout.decode().strip()

    header = plumb("mailinfo", scratch / "body", scratch / "diff", stdin=patch.read_bytes())
    field = dict(line.split(": ", 1) for line in header.splitlines() if ": " in line)
    plumb("read-tree", parent)
    if "\ndiff --git " in "\n" + patches.read(scratch / "diff"):
        plumb("apply", "--cached", "--whitespace=nowarn", scratch / "diff")
    env |= {
        "GIT_AUTHOR_NAME": field["Author"],
        "GIT_AUTHOR_EMAIL": field["Email"],
        "GIT_AUTHOR_DATE": field["Date"],
        "GIT_COMMITTER_DATE": field["Date"],
    }
    message = field["Subject"] + "\n\n" + (scratch / "body").read_text()
    made = plumb(
        "commit-tree",
        plumb("write-tree"),
        "-p",
        parent,
        stdin=message.rstrip().encode() + b"\n",
    )
    shutil.rmtree(scratch)
    return made


def _does_not_apply(patch: Path, message: str) -> str:
    place = re.search(r"error: patch failed: (\S+)|error: (\S+):", message)
    where = next((group for group in place.groups() if group), "") if place else ""
    return (
        f"{patch.name} does not apply{' at ' + where if where else ''}; {NAME} is as "
        f"it was. Mend the hunk in {patch.relative_to(ROOT)}, then make tree again"
    )
