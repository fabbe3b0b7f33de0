"""Take the commits made in build/linux back into patches/6.12 and the new files."""

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.error import LabError
from lab.paths import LINUX, PATCHES, ROOT, SERIES
from lab.shell import console
from lab.source import debian, patches, tree
from lab.source.git import BASE, Git
from lab.source.patches import NEW_FILE

# Independent of the developer's git configuration; without what only makes noise.
FORMAT = (
    *("--zero-commit", "--no-signature", "--no-stat", "-N", "--no-renames", "--no-attach"),
    *("--no-encode-email-headers", "--diff-algorithm=histogram", "-U3"),
    *(
        "--src-prefix=a/",
        "--dst-prefix=b/",
        "--no-signoff",
        "--no-thread",
        "--no-to",
        "--no-cc",
    ),
    "--subject-prefix=PATCH",
)


def refresh() -> None:
    """Regenerate patches, series and new files from the commits on the branch."""
    git = Git(LINUX)
    commits = _commits(git)
    new_files = _new_files(git, commits)
    known = {name for patch in patches.series() for name in patch.new_files}
    with tempfile.TemporaryDirectory() as scratch:
        made = [
            _export(git, commit, number, new_files.get(commit, []), Path(scratch))
            for number, commit in enumerate(commits, 1)
        ]
        _replace_patches(made)
    present = {name for names in new_files.values() for name in names}
    for name in present:
        _write_new_file(git, name)
    for name in known - present:
        _remove(ROOT / name)
    tree.save_state(patches.digest(debian.kernel().release), git.commit())
    console.print(f"patches/6.12: {len(commits)} patches, {len(present)} new files")


def _commits(git: Git) -> list[str]:
    """Return the commits to take, oldest first, once nothing stands against it."""
    if not LINUX.exists():
        raise LabError("there is no build/linux: make tree first")
    if reason := tree.unfinished():
        raise LabError(reason)
    if git("merge-base", BASE, "HEAD").strip() != git.commit(BASE):
        raise LabError(f"the commits in build/linux are not on the tag {BASE}: rebase them")
    if not tree.state():
        raise LabError("build/linux was never composed from patches/6.12: make tree first")
    if tree.state()["inputs"] != patches.digest(debian.kernel().release):
        raise LabError(
            "patches/6.12 or its new files changed since make tree: keep your commits with "
            "git -C build/linux branch mine, go back to what was composed with git -C "
            f"build/linux reset --hard {tree.state()['head'][:12]}, make tree, cherry-pick"
        )
    for commit in git.lines("rev-list", "--reverse", f"{BASE}..HEAD"):
        subject, _, body = git("log", "-1", "--format=%B", commit).partition("\n")
        if re.match(r"(fixup|squash|amend)! ", subject):
            raise LabError(
                f"build/linux has '{subject}': git -C build/linux rebase -i --autosquash base"
            )
        if len(git("log", "-1", "--format=%p", commit).split()) > 1:
            raise LabError(f"build/linux has the merge '{subject}': rebase it into a line")
        if match := re.search(r"^(diff -|Index: |---( |$)).*", body, flags=re.M):
            raise LabError(
                f"'{subject}' has the line '{match[0]}': git would end there, indent it"
            )
    return git.lines("rev-list", "--reverse", f"{BASE}..HEAD")


def _new_files(git: Git, commits: Sequence[str]) -> dict[str, list[str]]:
    """Return the new files by the commit they enter with: the only one to touch them."""
    compare = ("diff", "--name-only", "--no-renames")
    new = set(git.lines(*compare, "--diff-filter=A", BASE, "HEAD"))
    owner: dict[str, str] = {}
    for commit in commits:
        for name in new.intersection(git.lines(*compare, f"{commit}^", commit)):
            if name in owner:
                first, again = (_subject(git, which) for which in (owner[name], commit))
                raise LabError(
                    f"{name} is new in '{first}' and changed again in '{again}': fold that, "
                    "git -C build/linux rebase -i base"
                )
            owner[name] = commit
    return {
        commit: sorted(name for name, by in owner.items() if by == commit) for commit in commits
    }


def _subject(git: Git, commit: str) -> str:
    return git("log", "-1", "--format=%s", commit).strip()


def _export(git: Git, commit: str, number: int, new_files: Sequence[str], into: Path) -> Path:
    """Write one commit as a patch that names its new files in place of their content."""
    options = ("-1", "--start-number", str(number), "-o", into)
    path = Path(git("format-patch", *FORMAT, "--always", *options, commit).strip())
    head, *diffs = re.split(r"^(?=diff --git )", patches.read(path), flags=re.MULTILINE)
    changelog = head.rstrip().removesuffix("\n---")
    listed = "".join(f"{NEW_FILE}{name}\n" for name in new_files)
    kept = [_quiet(diff) for diff in diffs if not _creates(diff, new_files)]
    text = "\n".join([f"{changelog}\n---\n{listed}", "".join(kept)])
    patches.write(path, text.rstrip("\n") + "\n")
    return path


def _creates(diff: str, new_files: Sequence[str]) -> bool:
    header, _, _ = diff.partition("\n")
    return any(header == f"diff --git a/{name} b/{name}" for name in new_files)


def _quiet(diff: str) -> str:
    """Drop the blob ids: they change with every other patch."""
    return re.sub(r"^index [0-9a-f]+\.\.[0-9a-f]+( \d+)?\n", "", diff, count=1, flags=re.M)


def _replace_patches(made: Sequence[Path]) -> None:
    PATCHES.mkdir(parents=True, exist_ok=True)
    for old in PATCHES.glob("[0-9]*.patch"):
        old.unlink()
    for path in made:
        shutil.copyfile(path, PATCHES / path.name)
    SERIES.write_text("".join(f"{path.name}\n" for path in made))


def _write_new_file(git: Git, name: str) -> None:
    source, target = git.tree / name, ROOT / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != source.read_bytes():
        shutil.copyfile(source, target)
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    for parent in path.parents:
        if parent == ROOT or any(parent.iterdir()):
            break
        parent.rmdir()
