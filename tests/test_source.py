"""What overwrites the repository, or build/linux: on a scratch of both."""

import tempfile
import unittest
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from lab.error import LabError
from lab.source import debian, patches, refresh, tree
from lab.source.debian import Kernel
from lab.source.git import BASE, BRANCH, Git

RELEASE = "6.12.1+deb12-amd64"
OLD, NEW = "arch/x86/old.c", "arch/x86/kvm/mmu/new.c"


class Scratch(unittest.TestCase):
    """A repository without a patch, and a kernel of two files."""

    def setUp(self) -> None:
        stack = ExitStack()
        self.addCleanup(stack.close)
        self.root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.linux = self.root / "build/linux"
        self.patches = self.root / "patches/6.12"
        self.patches.mkdir(parents=True)
        names = {"ROOT": self.root, "LINUX": self.linux, "PATCHES": self.patches}
        names |= {"SERIES": self.patches / "series", "BUILD": self.root / "build"}
        names |= {"STATE": self.linux / ".git/lab.json"}
        for module in (patches, tree, refresh):
            known = {name: path for name, path in names.items() if hasattr(module, name)}
            stack.enter_context(mock.patch.multiple(module, **known))
        kernel = mock.patch.object(debian, "kernel", return_value=Kernel(RELEASE))
        stack.enter_context(kernel)
        for module in (tree, refresh):
            stack.enter_context(mock.patch.object(module, "console"))
        self._make_kernel()
        tree.compose()

    def _make_kernel(self) -> None:
        self.write(OLD, "one\ntwo\nthree\n")
        self.write("README", "kernel\n")
        self.git = Git(self.linux)
        self.git("init", "-q", "-b", BRANCH)
        self.git("config", "user.name", "A. Developer")
        self.git("config", "user.email", "a@example.org")
        self.commit(f"Debian linux-source {RELEASE}")
        self.git("tag", BASE)

    def write(self, name: str, text: str) -> Path:
        path = self.linux / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git.commit()

    def two_commits(self) -> None:
        self.write(OLD, "one\n2\nthree\n")
        self.commit("KVM: Change the old\n\nIt was old.")
        self.write(OLD, "one\n2\n3\n")
        self.write(NEW, "new\n").chmod(0o755)
        self.commit("KVM: Add the new")

    def files(self) -> dict[str, bytes]:
        """Return all of the repository but for its build."""
        found = (path for path in self.root.rglob("*") if path.is_file())
        names = ((str(path.relative_to(self.root)), path) for path in found)
        return {name: path.read_bytes() for name, path in names if not name.startswith("build")}

    def refuses(self, what: Callable[[], object], words: str) -> None:
        """See that it is refused, and that nothing has changed for that."""
        before = self.files(), self.git.commit(), self.git("status", "--porcelain")
        with self.assertRaisesRegex(LabError, words):
            what()
        self.assertEqual(
            before, (self.files(), self.git.commit(), self.git("status", "--porcelain"))
        )


class RoundTrip(Scratch):
    def test_there_and_back(self) -> None:
        self.two_commits()
        refresh.refresh()
        head, made = self.git.commit(), self.files()
        first, second = sorted(name for name in made if name.endswith(".patch"))
        self.assertNotIn(b"New-file", made[first])
        self.assertIn(f"---\nNew-file: {NEW}\n".encode(), made[second])
        self.assertNotIn(b"+new", made[second])
        self.assertEqual(made[NEW], b"new\n")
        self.assertTrue((self.root / NEW).stat().st_mode & 0o100)

        self.git("reset", "-q", "--hard", BASE)
        tree.STATE.unlink()
        tree.compose()
        self.assertEqual(self.git("diff", head, "HEAD"), "")
        for what in ("%an %ae %ad", "%B"):
            told = (
                self.git("log", f"--format={what}", f"{BASE}..{end}") for end in (head, "HEAD")
            )
            self.assertEqual(*told)
        refresh.refresh()
        self.assertEqual(self.files(), made)

    def test_what_is_no_longer_there_goes(self) -> None:
        self.two_commits()
        refresh.refresh()
        self.git("reset", "-q", "--hard", "HEAD~1")
        refresh.refresh()
        self.assertFalse((self.root / "arch").exists())
        self.assertEqual(len(list(self.patches.glob("*.patch"))), 1)
        self.assertIsNone(tree.unsaved())

    def test_bytes_that_are_no_text(self) -> None:
        self.write(OLD, "").write_bytes(b"one\r\n\xe9\nthree\n")
        self.commit("KVM: Say it in Latin")
        refresh.refresh()
        head = self.git.commit()
        self.git("reset", "-q", "--hard", BASE)
        tree.STATE.unlink()
        tree.compose()
        self.assertEqual(self.git("diff", "--stat", head, "HEAD"), "")

    def test_files_that_stay_keep_their_times(self) -> None:
        self.two_commits()
        refresh.refresh()
        before = (self.linux / "README").stat().st_mtime_ns
        self.git("reset", "-q", "--hard", BASE)
        tree.STATE.unlink()
        tree.compose()
        self.assertEqual((self.linux / "README").stat().st_mtime_ns, before)


class Compose(Scratch):
    """Loses no edits, and does nothing by halves."""

    def test_edits(self) -> None:
        self.write(OLD, "edited\n")
        self.refuses(tree.compose, "uncommitted edits")

    def test_commits(self) -> None:
        self.two_commits()
        self.refuses(tree.compose, "commits that are not in patches")

    def test_a_rebase_that_goes_on(self) -> None:
        self.git("checkout", "-q", "--detach")
        self.refuses(tree.compose, "not on branch")

    def saved(self) -> Path:
        """Have two patches in the repository, none in the tree; return the second."""
        self.two_commits()
        refresh.refresh()
        self.git("reset", "-q", "--hard", BASE)
        tree.STATE.unlink()
        return sorted(self.patches.glob("*.patch"))[1]

    def test_a_patch_that_does_not_apply(self) -> None:
        second = self.saved()
        second.write_text(second.read_text().replace("-three", "-four"))
        self.refuses(tree.compose, f"{second.name} does not apply at {OLD}")

    def test_a_patch_that_is_not_there(self) -> None:
        second = self.saved()
        second.unlink()
        self.refuses(tree.compose, f"{second.name}: no such patch")

    def test_a_new_file_that_is_not_there(self) -> None:
        self.saved()
        (self.root / NEW).unlink()
        self.refuses(tree.compose, f"{NEW}: no such file")

    def test_a_new_file_that_the_kernel_has(self) -> None:
        second = self.saved()
        second.write_text(second.read_text().replace(f"New-file: {NEW}", "New-file: README"))
        (self.root / "README").write_text("another\n")
        self.refuses(tree.compose, "README is not new")


class Refresh(Scratch):
    """Takes nothing that could not be given back."""

    def test_edits(self) -> None:
        self.write(OLD, "edited\n")
        self.refuses(refresh.refresh, "uncommitted edits")

    def test_a_fixup(self) -> None:
        self.two_commits()
        self.commit("fixup! KVM: Add the new")
        self.refuses(refresh.refresh, "fixup!")

    def test_a_merge(self) -> None:
        self.git("checkout", "-q", "-b", "other")
        self.commit("KVM: Other")
        self.git("checkout", "-q", BRANCH)
        self.commit("KVM: One")
        self.git("merge", "-q", "--no-edit", "other")
        self.refuses(refresh.refresh, "the merge")

    def test_a_changelog_that_git_would_cut(self) -> None:
        for line in ("diff --git a/x b/x", "---", "--- a/x", "Index: x"):
            self.commit(f"KVM: Subject\n\nWords\n{line}\nmore words")
            self.refuses(refresh.refresh, "git would end there")
            self.git("reset", "-q", "--hard", "HEAD~1")

    def test_a_new_file_that_changes_again(self) -> None:
        self.two_commits()
        self.write(NEW, "newer\n")
        self.commit("KVM: Change the new")
        self.refuses(refresh.refresh, f"{NEW} is new in .*Add the new.* changed again")

    def test_patches_that_changed_meanwhile(self) -> None:
        self.two_commits()
        refresh.refresh()
        (self.root / NEW).write_text("edited here\n")
        self.write(OLD, "edited there\n")
        self.commit("KVM: Another")
        self.refuses(refresh.refresh, "changed since make tree")

    def test_a_tree_that_was_never_composed(self) -> None:
        tree.STATE.unlink()
        self.two_commits()
        self.refuses(refresh.refresh, "never composed")

    def test_commits_on_something_else(self) -> None:
        self.git("checkout", "-q", "--orphan", "else")
        self.commit("Something else")
        self.git("branch", "-f", BRANCH)
        self.git("checkout", "-q", BRANCH)
        with self.assertRaises(LabError):
            refresh.refresh()

    def test_no_tree(self) -> None:
        self.linux.rename(self.root / "build/away")
        with self.assertRaisesRegex(LabError, "make tree first"):
            refresh.refresh()


class NewFiles(Scratch):
    """As a patch names them: after its changelog, before its diff."""

    def names(self, text: str) -> list[str]:
        path = self.patches / "0001-x.patch"
        path.write_text(text)
        return patches.Patch(path).new_files

    def test_where_they_count(self) -> None:
        line = "New-file: a.c\n"
        self.assertEqual(self.names(f"Subject: x\n\nWords\n---\n{line}"), ["a.c"])
        self.assertEqual(self.names(f"Subject: x\n\n{line}---\n\n"), [])
        self.assertEqual(self.names(f"x\n---\ndiff --git a/b b/b\n{line}"), [])

    def test_series_has_comments(self) -> None:
        (self.patches / "0001-x.patch").write_text("Subject: x\n")
        (self.patches / "series").write_text("# of these\n\n0001-x.patch # the first\n")
        (found,) = patches.series()
        self.assertEqual(found.path.name, "0001-x.patch")

    def test_the_digest_sees_modes_and_content(self) -> None:
        self.two_commits()
        refresh.refresh()
        seen = {patches.digest(RELEASE), patches.digest("another")}
        (self.root / NEW).chmod(0o644)
        seen.add(patches.digest(RELEASE))
        (self.root / NEW).write_text("newer\n")
        seen.add(patches.digest(RELEASE))
        self.assertEqual(len(seen), 4)


if __name__ == "__main__":
    unittest.main()
