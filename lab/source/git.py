"""Git, in the repository or in the kernel tree."""

from pathlib import Path

from lab import shell

BASE = "base"
"""Tag of the pristine kernel source in build/linux."""

BRANCH = "global-tdp"
"""Branch with one commit a patch on top of it."""

IDENTITY = {"GIT_COMMITTER_NAME": "lab", "GIT_COMMITTER_EMAIL": "lab@localhost"}


class Git:
    """A working tree."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def __call__(self, *args: str | Path) -> str:
        return shell.output("git", *args, cwd=self.tree, env=IDENTITY)

    def lines(self, *args: str | Path) -> list[str]:
        return self(*args).splitlines()

    def commit(self, revision: str = "HEAD") -> str:
        return self("rev-parse", "--verify", f"{revision}^{{commit}}").strip()

    def changed(self) -> set[str]:
        """Return the files that the tree has changed or added since BASE."""
        return {
            *self.lines("diff", "--name-only", "--diff-filter=d", BASE),
            *self.lines("ls-files", "--others", "--exclude-standard"),
        }
