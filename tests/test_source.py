"""What overwrites the repository, or build/linux: on a scratch of both."""

import tempfile
import unittest
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from lab.error import LabError
from lab.source import copies, debian, patches, refresh, series, tree
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
        names |= {"STATE": self.linux / ".git/lab.json", "COVERS": self.patches / "covers"}
        for module in (patches, tree, refresh, copies, series):
            known = {name: path for name, path in names.items() if hasattr(module, name)}
            stack.enter_context(mock.patch.multiple(module, **known))
        kernel = mock.patch.object(debian, "kernel", return_value=Kernel(RELEASE))
        stack.enter_context(kernel)
        for module in (tree, refresh, series):
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
        _, second = sorted(name for name in made if name.endswith(".patch"))
        self.assertIn(f"--- /dev/null\n+++ b/{NEW}\n".encode(), made[second])
        self.assertIn(b"new file mode 100755", made[second])
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
        copies.check()

    def test_git_am_takes_it(self) -> None:
        self.two_commits()
        self.write(NEW, "newer\n")
        self.commit("KVM: Change the new")
        refresh.refresh()
        head = self.git.commit()
        self.git("reset", "-q", "--hard", BASE)
        self.git("am", "-q", *sorted(self.patches.glob("*.patch")))
        self.assertEqual(self.git("diff", head, "HEAD"), "")

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

    def test_patches_that_changed_meanwhile(self) -> None:
        self.two_commits()
        refresh.refresh()
        first = min(self.patches.glob("*.patch"))
        first.write_text(first.read_text().replace("It was old", "It was very old"))
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


class Copies(Scratch):
    """The new files, where people read them."""

    def setUp(self) -> None:
        super().setUp()
        self.two_commits()
        refresh.refresh()

    def test_edited(self) -> None:
        (self.root / NEW).write_text("edited here\n")
        self.refuses(copies.check, f"{NEW} .1 in all. is not what")

    def test_another_mode(self) -> None:
        (self.root / NEW).chmod(0o644)
        self.refuses(copies.check, NEW)

    def test_gone(self) -> None:
        (self.root / NEW).unlink()
        self.refuses(copies.check, NEW)

    def test_one_too_many(self) -> None:
        (self.root / "virt").mkdir()
        (self.root / "virt/more.c").write_text("more\n")
        self.refuses(copies.check, "virt/more.c")
        refresh.refresh()
        self.assertFalse((self.root / "virt").exists())
        copies.check()

    def test_of_the_newest_series_that_has_patches(self) -> None:
        """An older one, which is worked on, leaves them alone."""
        newer = self.root / "patches/7.3"
        newer.mkdir()
        (newer / "series").write_text("# none yet\n")
        copies.check()
        only = max(self.patches.glob("*.patch"))
        text = only.read_text().replace("+new\n", "+newer\n")
        (newer / only.name).write_text(text)
        (newer / "series").write_text(f"{only.name}\n")
        self.refuses(copies.check, NEW)
        refresh.refresh()
        self.assertEqual((self.root / NEW).read_text(), "newer\n")
        copies.check()


class Parts(Scratch):
    """What is mailed, each with a cover letter."""

    def setUp(self) -> None:
        super().setUp()
        self.two_commits()
        self.commit("KVM: A third")
        refresh.refresh()
        self.cover("1-old", "Subject: The old\nLast: KVM: Change the old\n\nWhy.\n")
        self.cover("2-new", "Subject: The new\n\nWhat.\n")

    def cover(self, name: str, text: str) -> None:
        path = self.patches / "covers" / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def test_exported(self) -> None:
        made = [str(path.relative_to(self.root / "build/series")) for path in series.export()]
        self.assertEqual(made[0], "1-old/0001-KVM-Change-the-old.patch")
        self.assertEqual(len(made), 3)
        letter = (self.root / "build/series/2-new/0000-cover-letter.patch").read_text()
        self.assertRegex(letter, r"(?s)\[PATCH 0/2\] The new\n\nWhat\.\n.*Add the new")
        self.assertNotIn("Change the old", letter)

    def test_no_cover(self) -> None:
        for cover in (self.patches / "covers").glob("*.txt"):
            cover.unlink()
        self.refuses(series.export, "covers has no letter")

    def test_no_such_patch(self) -> None:
        self.cover("1-old", "Subject: The old\nLast: KVM: Another\n\nWhy.\n")
        self.refuses(series.export, "there are 0 patches 'KVM: Another'")

    def test_an_end_too_many_or_too_few(self) -> None:
        self.cover("2-new", "Subject: The new\nLast: KVM: Add the new\n\nWhat.\n")
        self.refuses(series.export, "but the last one")
        self.cover("1-old", "Subject: The old\n\nWhy.\n")
        self.refuses(series.export, "but the last one")

    def test_nothing_left(self) -> None:
        self.cover("1-old", "Subject: The old\nLast: KVM: A third\n\nWhy.\n")
        self.refuses(series.export, "no patch is left")

    def test_no_subject(self) -> None:
        self.cover("2-new", "The new\n")
        self.refuses(series.export, "has no 'Subject: '")


class Series(Scratch):
    """The patch folder."""

    def test_series_has_comments(self) -> None:
        (self.patches / "0001-x.patch").write_text("Subject: x\n")
        (self.patches / "series").write_text("# of these\n\n0001-x.patch # the first\n")
        (found,) = patches.series()
        self.assertEqual(found.name, "0001-x.patch")

    def test_the_digest_sees_names_and_content(self) -> None:
        self.two_commits()
        refresh.refresh()
        seen = {patches.digest(RELEASE), patches.digest("another")}
        first, second = sorted(self.patches.glob("*.patch"))
        second.write_text(second.read_text() + "\n")
        seen.add(patches.digest(RELEASE))
        series = self.patches / "series"
        series.write_text(f"{second.name}\n{first.name}\n")
        seen.add(patches.digest(RELEASE))
        self.assertEqual(len(seen), 4)


if __name__ == "__main__":
    unittest.main()
