"""What overwrites the repository, or build/linux: on a scratch of both."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from lab.error import LabError
from lab.make import deb
from lab.paths import COVERS
from lab.source import copies, debian, patches, refresh, series, tree
from lab.source.debian import Kernel
from lab.source.git import BASE, BRANCH, Git

RELEASE = "6.12.1+deb12-amd64"
OLD, NEW = "arch/x86/old.c", "arch/x86/kvm/mmu/new.c"


class Scratch:
    """A repository without a patch, and a kernel of two files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.linux = root, root / "build/linux"
        self.folder = self.root / "patches/6.12"
        self.folder.mkdir(parents=True)
        names = {"ROOT": self.root, "LINUX": self.linux, "PATCHES": self.folder}
        names |= {"SERIES": self.folder / "series", "BUILD": self.root / "build"}
        names |= {"STATE": self.linux / ".git/lab.json", "COVERS": self.folder / "covers"}
        for module in (patches, tree, refresh, copies, series):
            for name, value in (*names.items(), ("console", mock.Mock())):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(debian, "kernel", lambda *_: Kernel(RELEASE))
        self.write(OLD, "one\ntwo\nthree\n")
        self.write("README", "kernel\n")
        self.git = Git(self.linux)
        self.git("init", "-q", "-b", BRANCH)
        self.git("config", "user.name", "A. Developer")
        self.git("config", "user.email", "a@example.org")
        self.commit(f"Debian linux-source {RELEASE}")
        self.git("tag", BASE)
        tree.compose()

    def write(self, name: str, text: str) -> Path:
        path = self.linux / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self, message: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)

    def two_commits(self) -> None:
        self.write(OLD, "one\n2\nthree\n")
        self.commit("KVM: Change the old\n\nIt was old.")
        self.write(OLD, "one\n2\n3\n")
        self.write(NEW, "new\n").chmod(0o755)
        self.commit("KVM: Add the new")

    def refreshed(self) -> list[Path]:
        """Have two patches."""
        self.two_commits()
        refresh.refresh()
        return self.patches()

    def patches(self) -> list[Path]:
        return sorted(self.folder.glob("*.patch"))

    def without(self) -> None:
        """Have a tree as before the first time."""
        self.git("reset", "-q", "--hard", BASE)
        tree.STATE.unlink()

    def files(self) -> dict[str, bytes]:
        """Return all of the repository but for its build."""
        found = (path for path in self.root.rglob("*") if path.is_file())
        names = ((str(path.relative_to(self.root)), path) for path in found)
        return {name: path.read_bytes() for name, path in names if not name.startswith("build")}

    def refuses(self, what: Callable[[], object], words: str) -> None:
        """See that it is refused, and that nothing has changed for that."""
        before = self.files(), self.git.commit(), self.git("status", "--porcelain")
        with pytest.raises(LabError, match=words):
            what()
        assert before == (self.files(), self.git.commit(), self.git("status", "--porcelain"))

    def cover(self, name: str, text: str) -> None:
        (self.folder / "covers").mkdir(exist_ok=True)
        (self.folder / "covers" / f"{name}.txt").write_text(text)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    return Scratch(tmp_path, monkeypatch)


def test_there_and_back(scratch: Scratch) -> None:
    """A file that stays keeps its time."""
    _, second = scratch.refreshed()
    head, made = scratch.git.commit(), scratch.files()
    time = (scratch.linux / "README").stat().st_mtime_ns
    assert f"--- /dev/null\n+++ b/{NEW}\n" in second.read_text()
    assert "new file mode 100755" in second.read_text()
    assert made[NEW] == b"new\n"
    assert (scratch.root / NEW).stat().st_mode & 0o100
    scratch.without()
    tree.compose()
    assert (scratch.linux / "README").stat().st_mtime_ns == time
    assert scratch.git("diff", head, "HEAD") == ""
    for what in ("%an %ae %ad", "%B"):
        log = ("log", f"--format={what}")
        assert scratch.git(*log, f"{BASE}..{head}") == scratch.git(*log, f"{BASE}..HEAD")
    refresh.refresh()
    assert scratch.files() == made
    copies.check()


def test_git_am_takes_it(scratch: Scratch) -> None:
    """Bytes that are no text are as they were with ours."""
    scratch.two_commits()
    (scratch.linux / NEW).write_bytes(b"newer\r\n\xe9\n")
    scratch.commit("KVM: Change the new")
    refresh.refresh()
    head = scratch.git.commit()
    scratch.git("reset", "-q", "--hard", BASE)
    scratch.git("am", "-q", "--keep-cr", *scratch.patches())
    assert scratch.git("diff", "--stat", head, "HEAD") == ""
    scratch.without()
    tree.compose()
    assert scratch.git("diff", "--stat", head, "HEAD") == ""


def test_what_is_no_longer_there_goes(scratch: Scratch) -> None:
    scratch.refreshed()
    scratch.git("reset", "-q", "--hard", "HEAD~1")
    refresh.refresh()
    assert not (scratch.root / "arch").exists()
    assert len(scratch.patches()) == 1
    assert tree.unsaved() is None


def _has_merge(scratch: Scratch) -> None:
    scratch.git("checkout", "-q", "-b", "other")
    scratch.commit("KVM: Other")
    scratch.git("checkout", "-q", BRANCH)
    scratch.commit("KVM: One")
    scratch.git("merge", "-q", "--no-edit", "other")


def _has_patches_that_changed(scratch: Scratch) -> None:
    first, _ = scratch.refreshed()
    first.write_text(first.read_text().replace("It was old", "It was very old"))
    scratch.write(OLD, "edited there\n")
    scratch.commit("KVM: Another")


@pytest.mark.parametrize(
    ("has", "what", "words"),
    (
        (lambda scratch: scratch.write(OLD, "edited\n"), tree.compose, "uncommitted edits"),
        (Scratch.two_commits, tree.compose, "commits that are not in patches"),
        (
            lambda scratch: scratch.git("checkout", "-q", "--detach"),  # a rebase goes on
            *(tree.compose, "not on branch"),
        ),
        (lambda scratch: scratch.write(OLD, "edited\n"), refresh.refresh, "uncommitted edits"),
        (lambda scratch: scratch.commit("fixup! KVM: Add the new"), refresh.refresh, "fixup!"),
        (_has_merge, refresh.refresh, "the merge"),
        (_has_patches_that_changed, refresh.refresh, "changed since make tree"),
        (lambda _: tree.STATE.unlink(), refresh.refresh, "never composed"),
    ),
)
def test_nothing_is_lost(
    scratch: Scratch, has: Callable, what: Callable[[], object], words: str
) -> None:
    has(scratch)
    scratch.refuses(what, words)


@pytest.mark.parametrize("is_there", (True, False))
def test_a_patch_that_does_not_apply(scratch: Scratch, is_there: bool) -> None:
    _, second = scratch.refreshed()
    scratch.without()
    second.write_text(second.read_text().replace("-three", "-four"))
    if not is_there:
        second.unlink()
    why = f"does not apply at {OLD}" if is_there else "no such patch"
    scratch.refuses(tree.compose, f"{second.name}:? {why}")


@pytest.mark.parametrize("line", ("diff --git a/x b/x", "---", "--- a/x", "Index: x"))
def test_a_changelog_that_git_would_cut(scratch: Scratch, line: str) -> None:
    scratch.commit(f"KVM: Subject\n\nWords\n{line}\nmore words")
    scratch.refuses(refresh.refresh, "git would end there")


def test_commits_on_something_else(scratch: Scratch) -> None:
    scratch.git("checkout", "-q", "--orphan", "else")
    scratch.commit("Something else")
    scratch.git("branch", "-f", BRANCH)
    scratch.git("checkout", "-q", BRANCH)
    with pytest.raises(LabError):
        refresh.refresh()
    scratch.linux.rename(scratch.root / "build/away")
    with pytest.raises(LabError, match="make tree first"):
        refresh.refresh()


@pytest.mark.parametrize(
    ("change", "words"),
    (
        (lambda path: path.write_text("edited here\n"), f"{NEW} .1 in all. is not what"),
        (lambda path: path.chmod(0o644), NEW),
        (Path.unlink, NEW),
    ),
)
def test_copies_that_differ(scratch: Scratch, change: Callable, words: str) -> None:
    """New files are where people read them."""
    scratch.refreshed()
    change(scratch.root / NEW)
    scratch.refuses(copies.check, words)


def test_one_copy_too_many(scratch: Scratch) -> None:
    scratch.refreshed()
    (scratch.root / "virt").mkdir()
    (scratch.root / "virt/more.c").write_text("more\n")
    scratch.refuses(copies.check, "virt/more.c")
    refresh.refresh()
    assert not (scratch.root / "virt").exists()
    copies.check()


def test_copies_of_the_newest_series_that_has_patches(scratch: Scratch) -> None:
    """An older one, which is worked on, leaves them alone."""
    _, only = scratch.refreshed()
    newer = scratch.root / "patches/7.3"
    newer.mkdir()
    (newer / "series").write_text("# none yet\n")
    copies.check()
    (newer / only.name).write_text(only.read_text().replace("+new\n", "+newer\n"))
    (newer / "series").write_text(f"{only.name}\n")
    scratch.refuses(copies.check, NEW)
    refresh.refresh()
    assert (scratch.root / NEW).read_text() == "newer\n"
    copies.check()


@pytest.fixture
def parts(scratch: Scratch) -> Scratch:
    """What is mailed has a cover letter for each part."""
    scratch.two_commits()
    scratch.commit("KVM: A third")
    refresh.refresh()
    scratch.cover("1-old", "Subject: The old\nLast: KVM: Change the old\n\nWhy.\n")
    scratch.cover("2-new", "Subject: The new\n\nWhat.\n")
    return scratch


def test_exported(parts: Scratch) -> None:
    made = [str(path.relative_to(parts.root / "build/series")) for path in series.export()]
    assert made[0] == "1-old/0001-KVM-Change-the-old.patch"
    assert len(made) == 3
    letter = (parts.root / "build/series/2-new/0000-cover-letter.patch").read_text()
    before, after = letter.split("[PATCH 0/2] The new\n\nWhat.\n")
    assert "Add the new" in after
    assert "Change the old" not in before + after


@pytest.mark.parametrize(
    ("name", "text", "words"),
    (
        (
            "1-old",
            "Subject: A\nLast: KVM: Another\n\nB\n",
            "there are 0 patches 'KVM: Another'",
        ),
        ("2-new", "Subject: A\nLast: KVM: Add the new\n\nB\n", "but the last one"),
        ("1-old", "Subject: A\n\nB\n", "but the last one"),
        ("1-old", "Subject: A\nLast: KVM: A third\n\nB\n", "no patch is left"),
        ("2-new", "The new\n", "has no 'Subject: '"),
    ),
)
def test_a_cover_that_does_not_fit(parts: Scratch, name: str, text: str, words: str) -> None:
    parts.cover(name, text)
    parts.refuses(series.export, words)


def test_no_cover(parts: Scratch) -> None:
    for cover in (parts.folder / "covers").glob("*.txt"):
        cover.unlink()
    parts.refuses(series.export, "covers has no letter")


def test_the_digest_sees_names_and_content(scratch: Scratch) -> None:
    """A series has comments."""
    first, second = scratch.refreshed()
    seen = {patches.digest(RELEASE), patches.digest("another")}
    second.write_text(second.read_text() + "\n")
    seen.add(patches.digest(RELEASE))
    (scratch.folder / "series").write_text(f"# of\n\n{second.name} # x\n{first.name}\n")
    assert [path.name for path in patches.series()] == [second.name, first.name]
    seen.add(patches.digest(RELEASE))
    assert len(seen) == 4


def test_the_package_knows_the_parts(tmp_path: Path) -> None:
    """As its settings name them, see packaging/chosen-patches."""
    deb.write_series(patches.series(), tmp_path / "made", sorted(COVERS.glob("*.txt")))
    listed = (tmp_path / "made/series").read_text().splitlines()
    found = [line for line in listed if line.startswith("#")]
    assert found == ["# fixes", "# fixes+mmu_lock", "# all"]
