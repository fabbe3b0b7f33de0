"""What is heard of Bochs, which CPUs it can have, and what a search for races there says."""

import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from lab import __main__ as main
from lab.check import broken, report, stress
from lab.error import LabError
from lab.machine import ept, runs, served
from lab.machine.result import Result, Run, Stream
from tests.test_result import TWO


def test_the_log_of_the_kernel_is_none_of_the_output(tmp_path: Path) -> None:
    """However they interleave: each has a port, and commands print to that without console."""
    stream = Stream()
    (tmp_path / "console").write_bytes(b"[ 9.7] lab: run\x1elab: end 0 1\n")
    (tmp_path / "output").write_bytes(TWO)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as machine:
        ept._hear(machine, tmp_path, stream, served.Served(tmp_path, machine.pid), 60)
        machine.kill()
    assert [result.status for result in stream.results] == [0, 254]
    assert stream.done
    assert "com2: enabled=1, mode=file, dev=output" in ept._SETTINGS
    assert "ttyS1" not in ept._KERNEL
    assert 'run.sh" "$lab_run" >/dev/ttyS1' in (runs.GUEST / "init.sh").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    (
        ("--backend ept --cpus 9", "--cpus 9: on EPT there are 1 to 4"),
        ("--backend ept --cpus 2 --quantum 0", "--quantum 0: 1 to 16"),
        ("--backend ept --cpus 2 --quantum 17", "--quantum 17: 1 to 16"),
        ("--backend ept --quantum 3", "--cpus 2 or more"),
        ("--quantum 3", "of EPT"),
    ),
)
def test_cpus_that_can_not_be_are_refused_before_anything_is_built(
    words: str, said: str
) -> None:
    args = main.parser().parse_args(["run", *words.split(), "--", "true"])
    with pytest.raises(LabError, match=said):
        main._run(args)
    for cpus, quantum in ((0, None), (1, None), (2, None), (2, 1), (4, 16)):
        ept.check(cpus, quantum)


@pytest.mark.parametrize(
    ("shows", "wanted"),
    (
        # A race may show if something is broken, on whichever machine, else none may.
        (lambda cpus, kvm=None, **_: bool(kvm) and cpus == 4, {"passed": 2}),
        (lambda **_: True, {"failed": 1, "passed": 1}),
        (lambda **_: False, {"passed": 1, "skipped": 1}),
    ),
)
def test_a_search_for_races(shows: Callable[..., bool], wanted: dict[str, int]) -> None:
    """Of one broken promise; `shows` says of each run whether a race does."""

    def run(*_: object, **options: object) -> Run:
        return Run(Path(), [Result(0, status=int(shows(**options)))])

    entry = broken.Broken(Path("a"), "p", "a is 3", test="churn")
    args = main.parser().parse_args(["test races", "--seeds", "2"])
    made = dict.fromkeys(("modules", "selftests", "console"), mock.DEFAULT)
    with (
        mock.patch.multiple(broken, load=lambda: [entry], build=lambda *_: Path("kvm.ko")),
        mock.patch.multiple(stress, locked=nullcontext, **made),
        mock.patch.object(ept, "run", run),
    ):
        args.run(args)
    assert wanted == report.ENDED
