"""What is heard of a machine, however it comes, and however it ends."""

import io
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from lab.check.outcome import State, judge
from lab.machine import runs, served
from lab.machine.result import COMPLAINED, KILLED, TIMED_OUT, Command, Result, Run, Stream
from lab.paths import ROOT

TWO = (
    b"SeaBIOS\n\x1elab: run 0 first test\nhello\nno newline\x1elab: end 0 0\n"
    b"\x1elab: run 1 second\r\nbad\r\n\x1elab: end 1 254\r\n\x1elab: done\n"
)
SHELLS = (["dash"], ["bash"], ["busybox", "sh"])


class Heard(unittest.TestCase):
    def test_two_commands(self) -> None:
        stream = Stream()
        stream.feed(TWO)
        first, second = stream.results
        self.assertEqual((first.number, first.name, first.status), (0, "first test", 0))
        self.assertEqual(first.output, "hello\nno newline")
        self.assertEqual((second.status, second.output), (254, "bad\n"))
        self.assertTrue(stream.done)

    def test_in_any_pieces(self) -> None:
        for size in range(1, len(TWO)):
            live, ended = io.BytesIO(), []
            stream = Stream(live, ended.append)
            for start in range(0, len(TWO), size):
                stream.feed(TWO[start : start + size])
            self.assertEqual([result.status for result in ended], [0, 254])
            self.assertEqual(live.getvalue(), b"hello\nno newlinebad\r\n")

    def test_the_kernel_speaks_as_a_mark_ends(self) -> None:
        """Where both have the same line."""
        text = b"\x1elab: run 0 a\r[ 14.187783] Adding swap\r\n\nhello\r\n\x1elab: end 0 0\r\n"
        for size in range(1, len(text)):
            stream = Stream()
            for start in range(0, len(text), size):
                stream.feed(text[start : start + size])
            (result,) = stream.results
            self.assertEqual((result.name, result.status), ("a", 0))
            self.assertEqual(result.output, "[ 14.187783] Adding swap\n\nhello\n")

    def test_a_mark_into_which_another_writes(self) -> None:
        """Its status is not known; others are."""
        stream = Stream()
        stream.feed(b"\x1elab: run 0 a\n\x1elab: end 0 0[    9.7] lab: run\n" + TWO)
        statuses = [result.status for result in stream.results]
        self.assertEqual(statuses, [None, 0, 254])
        self.assertIs(judge("a", stream.results[0]).state, State.FAILED)

    def test_a_machine_that_dies_midway(self) -> None:
        stream = Stream()
        stream.feed(TWO[: TWO.index(b"bad") + 3])
        stream.close()
        self.assertEqual([result.status for result in stream.results], [0, None])
        self.assertEqual(stream.results[1].output, "bad")
        self.assertFalse(stream.done)

    def test_the_character_alone_is_no_mark(self) -> None:
        stream = Stream()
        stream.feed(b"\x1elab: run 0 \n\x1e\n\x1elab?\n\x1elab: end 0 0\n")
        self.assertEqual(stream.results[0].output, "\x1e\n\x1elab?\n")

    def test_failure(self) -> None:
        stream = Stream()
        stream.feed(b"\x1elab: failure kvm.ko does not load: no\n")
        self.assertEqual(stream.failure, "kvm.ko does not load: no")


class Marks(unittest.TestCase):
    """Of lab/guest/marks.sh, in each shell that a machine has."""

    def test_all_shells_say_the_same(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            marks = Path(scratch, "marks.sh")
            text = (runs.GUEST / "marks.sh").read_text()
            marks.write_text(text.replace("/dev/kmsg", f"{scratch}/kmsg"))
            script = f". {marks}; begin 3 'a  name'; echo x; end 3 4; mark done"
            for shell in SHELLS:
                stream = Stream()
                stream.feed(subprocess.check_output([*shell, "-c", script]))
                (result,) = stream.results
                self.assertEqual((result.number, result.name), (3, "a  name"), shell)
                self.assertEqual((result.status, result.output), (4, "x\n"), shell)
                self.assertTrue(stream.done)


class Runner(unittest.TestCase):
    """lab/guest/run.sh, but for what changes the machine, in each shell that a machine has."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        self.run_directory = self.scratch / "run"
        self.run_directory.mkdir()
        files = {
            "/dev/kmsg": "kmsg",
            "/proc/sys/vm/nr_hugepages": "pages",
            "/proc/sys/kernel/tainted": "tainted",
        }
        self.tainted = self.scratch / "tainted"
        self.tainted.write_text("512\n")
        for name in ("run.sh", "marks.sh", "limit.sh"):
            text = (runs.GUEST / name).read_text()
            for file, other in files.items():
                text = text.replace(file, f"{scratch.name}/{other}")
            text = re.sub(r"^(mount_missing [a-z]|.*mount -t).*$", "", text, flags=re.M)
            (self.scratch / name).write_text(text)
        self.load("true")
        self.clock = ""

    def load(self, how: str) -> None:
        (self.scratch / "modules.sh").write_text(f"load() {{ {how}; }}\n")

    def heard(self, shell: list[str], *commands: Command) -> Stream:
        settings = {"beats": "", "clock": self.clock, "cpus": "", "prepare": "", "swap": ""}
        runs.write_job(self.run_directory, commands, "", settings)
        stream, told = Stream(), self.scratch / "told"
        with told.open("wb") as sink:  # a pipe would wait for what is left behind
            subprocess.run([*shell, self.scratch / "run.sh", self.run_directory], stdout=sink)
        stream.feed(told.read_bytes())
        return stream

    def test_each_has_its_status_output_and_limit(self) -> None:
        late = "echo begun; exec sleep 99"
        leaves = f"sleep 15 & echo $! >{self.scratch}/left"
        for shell in SHELLS:
            with self.subTest(shell):
                stream = self.heard(
                    shell,
                    Command("pwd; echo oops >&2; exit 7", "fails"),
                    Command(late, "is late", limit=1),
                    Command(leaves, "leaves a process"),
                    Command(f"cat {self.scratch}/pages", "huge pages", huge_pages=72),
                    Command("cat", "reads nothing"),
                )
                self.assertTrue(stream.done)
                statuses = [result.status for result in stream.results]
                self.assertEqual(statuses, [7, KILLED, 0, 0, 0])
                outputs = [result.output for result in stream.results]
                begun, told = outputs.pop(1).splitlines()
                self.assertEqual(begun, "begun")
                self.assertRegex(told, r"^lab: after 1 s: 1 sleep in state S")
                self.assertEqual(outputs, [f"{ROOT}\noops\n", "", "72\n", ""])
                self.assertEqual((self.scratch / "pages").read_text(), "0\n")
                self.assertTrue(self._is_over((self.scratch / "left").read_text().strip()))

    def test_what_taints_the_kernel_is_a_complaint(self) -> None:
        """Not modules of others (O, E), nor what did so before."""
        for shell in SHELLS:
            with self.subTest(shell):
                self.tainted.write_text("512\n")
                stream = self.heard(
                    shell,
                    Command(f"echo 12800 >{self.tainted}", "loads modules"),
                    Command(f"echo 12928 >{self.tainted}", "dies"),
                    Command("true", "goes on"),
                )
                self.assertEqual([result.status for result in stream.results], [0, 0, 0])
                (told,) = stream.tainted
                self.assertIn("since dies: 640, it was 512", told)

    def test_a_limit_goes_by_the_clock_of_the_machine(self) -> None:
        self.clock = served.FILE
        clock = self.run_directory / served.FILE
        clock.write_text("40\n")
        # Three seconds that nobody serves, then all at once.
        slow = (
            f"sleep 3; echo goes on; echo 60 >{clock}; sleep 5; echo 80 >{clock}; exec sleep 99"
        )
        for shell in SHELLS:
            with self.subTest(shell):
                stream = self.heard(shell, Command(slow, "slow", limit=1))
                self.assertEqual(stream.results[0].status, KILLED)
                self.assertIn("goes on\nlab: after 1 s: ", stream.results[0].output)
                clock.write_text("40\n")

    @staticmethod
    def _is_over(pid: str) -> bool:
        """It is gone, or nobody has asked yet how it ended."""
        status = Path("/proc", pid, "status")
        return not status.exists() or "State:\tZ" in status.read_text()

    def test_a_module_that_does_not_load(self) -> None:
        self.load("echo kvm.ko does not load: no; return 1")
        for shell in SHELLS:
            with self.subTest(shell):
                stream = self.heard(shell, Command("true"))
                self.assertEqual(stream.failure, "kvm.ko does not load: no")
                self.assertEqual(stream.results, [])


class Status(unittest.TestCase):
    """Of a whole run."""

    def status(self, *statuses: int | None, **known: object) -> int:
        results = [Result(number, status=status) for number, status in enumerate(statuses)]
        return Run(Path(), results, **known).status

    def test_of_what_comes_first(self) -> None:
        """A command that failed, a kernel that complained, a machine that died."""
        splats, died = {"splats": ["WARNING"]}, {"died": "it did"}
        for statuses, known, status in (
            ((0, 0), {}, 0),
            ((0, 3, 4), {}, 3),
            ((0,), splats, COMPLAINED),
            ((3,), splats, 3),
            ((0, None), died, TIMED_OUT),
        ):
            self.assertEqual(self.status(*statuses, **known), status)


if __name__ == "__main__":
    unittest.main()
