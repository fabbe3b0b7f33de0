"""Take the commits made in build/linux back into patches/, and copy the new files."""

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.error import LabError
from lab.paths import LINUX, PATCHES, SERIES
from lab.shell import console
from lab.source import copies, debian, patches, tree
from lab.source.git import BASE, Git

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
    """Regenerate patches, series and copies from the commits on the branch."""
    git = Git(LINUX)
    commits = _commits(git)
    with tempfile.TemporaryDirectory() as scratch:
        numbers = enumerate(commits, 1)
        _replace_patches([_export(git, each, n, Path(scratch)) for n, each in numbers])
    count = copies.write()
    tree.save_state(patches.digest(debian.kernel().release), git.commit())
    console.print(f"{tree.FOLDER}: {len(commits)} patches, {count} new files")


def _commits(git: Git) -> list[str]:
    """Return the commits to take, oldest first, once nothing stands against it."""
    if not LINUX.exists():
        raise LabError(f"there is no {tree.NAME}: make tree first")
    if reason := tree.unfinished():
        raise LabError(reason)
    if git("merge-base", BASE, "HEAD").strip() != git.commit(BASE):
        raise LabError(f"the commits in {tree.NAME} are not on the tag {BASE}: rebase them")
    if not tree.state():
        raise LabError(f"{tree.NAME} was never composed from {tree.FOLDER}: make tree first")
    if tree.state()["inputs"] != patches.digest(debian.kernel().release):
        raise LabError(
            f"{tree.FOLDER} changed since make tree: keep your commits with "
            f"git -C {tree.NAME} branch mine, go back to what was composed with git -C "
            f"{tree.NAME} reset --hard {tree.state()['head'][:12]}, make tree, cherry-pick"
        )
    for commit in git.lines("rev-list", "--reverse", f"{BASE}..HEAD"):
        subject, _, body = git("log", "-1", "--format=%B", commit).partition("\n")
        if re.match(r"(fixup|squash|amend)! ", subject):
            raise LabError(
                f"{tree.NAME} has '{subject}': git -C {tree.NAME} rebase -i --autosquash base"
            )
        if len(git("log", "-1", "--format=%p", commit).split()) > 1:
            raise LabError(f"{tree.NAME} has the merge '{subject}': rebase it into a line")
        if match := re.search(r"^(diff -|Index: |---( |$)).*", body, flags=re.M):
            raise LabError(
                f"'{subject}' has the line '{match[0]}': git would end there, indent it"
            )
    return git.lines("rev-list", "--reverse", f"{BASE}..HEAD")


def _export(git: Git, commit: str, number: int, into: Path) -> Path:
    """Write one commit as a patch."""
    options = ("-1", "--start-number", str(number), "-o", into)
    path = Path(git("format-patch", *FORMAT, "--always", *options, commit).strip())
    head, *diffs = re.split(r"^(?=diff --git )", patches.read(path), flags=re.MULTILINE)
    # The blob ids change with every other patch.
    ids = r"^index [0-9a-f]+\.\.[0-9a-f]+( \d+)?\n"
    quiet = (re.sub(ids, "", diff, count=1, flags=re.M) for diff in diffs)
    patches.write(path, "".join([head, *quiet]).rstrip("\n") + "\n")
    return path


def _replace_patches(made: Sequence[Path]) -> None:
    PATCHES.mkdir(parents=True, exist_ok=True)
    for old in PATCHES.glob("[0-9]*.patch"):
        old.unlink()
    for path in made:
        shutil.copyfile(path, PATCHES / path.name)
    SERIES.write_text("".join(f"{path.name}\n" for path in made))
