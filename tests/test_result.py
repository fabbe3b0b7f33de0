"""What is heard of a machine, however it comes, and however it ends."""

import io
import re
import subprocess
from pathlib import Path

import pytest

from lab.check.outcome import State, judge
from lab.machine import runs, served
from lab.machine.result import COMPLAINED, KILLED, TIMED_OUT, Command, Result, Run, Stream
from lab.paths import ROOT

TWO = (
    b"SeaBIOS\n\x1elab: run 0 first test\nhello\nno newline\x1elab: end 0 0\n"
    b"\x1elab: run 1 second\r\nbad\r\n\x1elab: end 1 254\r\n\x1elab: done\n"
)
SHELLS = (["dash"], ["bash"], ["busybox", "sh"])


KERNEL = b"\x1elab: run 0 a\r[ 14.187783] Adding swap\r\n\nhello\r\n\x1elab: end 0 0\r\n"
MIXED = b"\x1elab: run 0 a\n\x1elab: end 0 0[    9.7] lab: run\n"
ALONE = b"\x1elab: run 0 \n\x1e\n\x1elab?\n\x1elab: end 0 0\n"
FIRST, SECOND = (0, "first test", 0, "hello\nno newline"), (1, "second", 254, "bad\n")


def _told(stream: Stream) -> list[tuple[int, str, int | None, str]]:
    return [(each.number, each.name, each.status, each.output) for each in stream.results]


@pytest.mark.parametrize(
    ("text", "told"),
    (
        (TWO, [FIRST, SECOND]),
        # The kernel speaks as a mark ends, where both have the same line.
        (KERNEL, [(0, "a", 0, "[ 14.187783] Adding swap\n\nhello\n")]),
        # The character alone is no mark.
        (ALONE, [(0, "", 0, "\x1e\n\x1elab?\n")]),
        # A machine dies midway.
        (TWO[: TWO.index(b"bad") + 3], [FIRST, (1, "second", None, "bad")]),
    ),
)
def test_in_any_pieces(text: bytes, told: list[tuple[int, str, int | None, str]]) -> None:
    for size in range(1, len(text) + 1):
        live, ended = io.BytesIO(), []
        stream = Stream(live, ended.append)
        for start in range(0, len(text), size):
            stream.feed(text[start : start + size])
        seen = [result.status for result in ended]
        stream.close()
        assert _told(stream) == told
        assert stream.done == (text == TWO)
        assert seen == [status for _, _, status, _ in told if status is not None]
        assert text != TWO or live.getvalue() == b"hello\nno newlinebad\r\n"


def test_a_mark_into_which_another_writes() -> None:
    """Its status is not known; others are."""
    stream = Stream()
    stream.feed(MIXED + TWO)
    assert [result.status for result in stream.results] == [None, 0, 254]
    assert judge("a", stream.results[0]).state is State.FAILED


@pytest.mark.parametrize("shell", SHELLS)
class TestRunner:
    """lab/guest/run.sh, but for what changes the machine, in each shell that a machine has."""

    @pytest.fixture(autouse=True)
    def _machine(self, tmp_path: Path) -> None:
        self.scratch, self.run_directory, self.clock = tmp_path, tmp_path / "run", ""
        self.run_directory.mkdir()
        self.tainted = tmp_path / "tainted"
        self.tainted.write_text("512\n")
        files = {"dev/kmsg": "kmsg", "proc/sys/vm/nr_hugepages": "pages"}
        for name in ("run.sh", "marks.sh", "limit.sh"):
            text = (runs.GUEST / name).read_text()
            for file, other in (*files.items(), ("proc/sys/kernel/tainted", "tainted")):
                text = text.replace(f"/{file}", f"{tmp_path}/{other}")
            text = re.sub(r"^(mount_missing [a-z]|.*mount -t).*$", "", text, flags=re.M)
            (tmp_path / name).write_text(text)
        self.load("true")

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

    def test_each_has_its_status_output_and_limit(self, shell: list[str]) -> None:
        stream = self.heard(
            shell,
            Command("pwd; echo oops >&2; exit 7", "fails"),
            Command("echo begun; exec sleep 99", "is late", limit=1),
            Command(f"sleep 15 & echo $! >{self.scratch}/left", "leaves a process"),
            Command(f"cat {self.scratch}/pages", "huge pages", huge_pages=72),
            Command("cat", "reads nothing"),
        )
        assert stream.done
        assert [result.status for result in stream.results] == [7, KILLED, 0, 0, 0]
        outputs = [result.output for result in stream.results]
        assert re.match(r"begun\nlab: after 1 s: 1 sleep in state S.*\n\Z", outputs.pop(1))
        assert outputs == [f"{ROOT}\noops\n", "", "72\n", ""]
        assert (self.scratch / "pages").read_text() == "0\n"
        # It is gone, or still a zombie.
        status = Path("/proc", (self.scratch / "left").read_text().strip(), "status")
        assert not status.exists() or "State:\tZ" in status.read_text()

    def test_what_taints_the_kernel_is_a_complaint(self, shell: list[str]) -> None:
        """Not modules of others (O, E), nor what did so before."""
        stream = self.heard(
            shell,
            Command(f"echo 12800 >{self.tainted}", "loads modules"),
            Command(f"echo 12928 >{self.tainted}", "dies"),
            Command("true", "goes on"),
        )
        assert [result.status for result in stream.results] == [0, 0, 0]
        (told,) = stream.tainted
        assert "since dies: 640, it was 512" in told

    def test_a_limit_goes_by_the_clock_of_the_machine(self, shell: list[str]) -> None:
        self.clock = served.FILE
        clock = self.run_directory / served.FILE
        clock.write_text("40\n")
        # Three seconds that nobody serves, then all at once.
        then = f"echo 60 >{clock}; sleep 5; echo 80 >{clock}; exec sleep 99"
        stream = self.heard(shell, Command(f"sleep 3; echo goes on; {then}", "slow", limit=1))
        assert stream.results[0].status == KILLED
        assert "goes on\nlab: after 1 s: " in stream.results[0].output

    def test_a_module_that_does_not_load(self, shell: list[str]) -> None:
        self.load("echo kvm.ko does not load: no; return 1")
        stream = self.heard(shell, Command("true"))
        assert (stream.failure, stream.results) == ("kvm.ko does not load: no", [])


@pytest.mark.parametrize(
    ("statuses", "known", "status"),
    (
        ((0, 0), {}, 0),
        ((0, 3, 4), {}, 3),
        ((0,), {"splats": ["WARNING"]}, COMPLAINED),
        ((3,), {"splats": ["WARNING"]}, 3),
        ((0, None), {"died": "it did"}, TIMED_OUT),
    ),
)
def test_the_status_of_a_run_is_of_what_comes_first(
    statuses: tuple[int | None, ...], known: dict, status: int
) -> None:
    """A command that failed, a kernel that complained, a machine that died."""
    results = [Result(number, status=each) for number, each in enumerate(statuses)]
    assert Run(Path(), results, **known).status == status
