"""make test-debug: a debug kernel of build/linux, and the series' tests in it.

The kernel is whole, with KVM built in, from tinyconfig and the fragments beside this
file; it is built in build/debug/NAME and never installed.
"""

import argparse
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab import boot, selftests, shell, splat, tree
from lab.error import LabError
from lab.paths import BUILD, LINUX, ROOT, VENV_BIN
from lab.shell import console
from lab.suite import machine, tests
from lab.suite.outcome import State

KINDS = ("lockdep", "kcsan")

_FRAGMENTS = Path(__file__).parent
_BOOT = ("--disable-kvm", "--verbose", "--force-9p", "--user", "root", "--rwdir", BUILD)
_TIMES = 5
"""How much slower than the stock kernel a test may be."""

_STRESS = 60
"""Seconds of `make stress`'s test at the end."""

_LEAKS = """\
leaks=/sys/kernel/debug/kmemleak; test -e $leaks || exit 4
echo scan >$leaks; sleep 6; echo scan >$leaks; ! grep -B 20 -E 'kvm|gtdp|tdp_mmu' $leaks"""
"""An object counts once it was seen unreferenced, and is old enough, in two scans."""

_LINE = re.compile(r"^(?:# )?(CONFIG_\w+)(?:=(.*)| is not set)$")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="what to look for")
    parser.add_argument("--tests", default="", help="names, of the series' tests; default all")
    parser.add_argument("--backend", choices=("npt", "ept"), help="default both")
    parser.add_argument("--timeout", type=float, default=5400, help="seconds of each boot")


def run(args: argparse.Namespace) -> int:
    """Build the kernel and the tests, run them on NPT and EPT; 1 if any failed."""
    wanted = tests.ours(args.tests.split()) if args.tests else None
    image = build(args.kind)
    selftests.build()
    chosen = [
        *(wanted or [*tests.ours(), _stress()]),
        tests.Test("no leak", ("sh", "-c", _LEAKS)),
    ]
    failed = 0
    if args.backend != "ept":
        for value in (1, 0):
            failed += _run(image, chosen, args.kind, value, args.timeout)
    if args.backend != "npt":
        failed += _run_on_ept(image, chosen, args.kind, args.timeout)
    return 1 if failed else 0


def _stress() -> tests.Test:
    (churn,) = tests.ours(["global_tdp_churn_test"])
    argv = (*churn.argv, "-t", str(_STRESS))
    return replace(churn, name=f"stress, {_STRESS} s", argv=argv)


def build(kind: str) -> Path:
    """Return the image of the debug kernel, brought up to date with build/linux."""
    tree.ensure()
    output = BUILD / "debug" / kind
    output.mkdir(parents=True, exist_ok=True)
    make = ("make", "-C", LINUX, f"O={output}", "ARCH=x86", "-j2")
    compiler = "gcc-12"
    if shutil.which("ccache"):
        compiler = f"ccache {compiler}"
    fragments = [_FRAGMENTS / f"{name}.config" for name in ("base", kind)]
    with console.status(f"Building the {kind} kernel"):
        if not (output / ".config").exists():
            shell.output(*make, "tinyconfig")
            merge = (LINUX / "scripts/kconfig/merge_config.sh", "-m", "-O", output)
            shell.output(*merge, output / ".config", *fragments, cwd=LINUX)
        shell.output(*make, "olddefconfig")
        _check(output / ".config", fragments)
        shell.build("debug", *make, f"CC={compiler}", "KBUILD_BUILD_TIMESTAMP=@0", "bzImage")
    return output / "arch/x86/boot/bzImage"


def _check(config: Path, fragments: list[Path]) -> None:
    """Refuse what Kconfig silently left out: the run would prove nothing."""
    got = _options(config)
    for fragment in fragments:
        for name, value in _options(fragment).items():
            if got.get(name, "n") != value:
                raise LabError(
                    f"{name}={value} of {fragment.name} is {got.get(name, 'n')} in the kernel:"
                    f" mend the fragment and remove {config.parent}"
                )


def _options(path: Path) -> dict[str, str]:
    found = map(_LINE.match, path.read_text().splitlines())
    return {match[1]: match[2] or "n" for match in found if match}


def _run(image: Path, chosen: list[tests.Test], kind: str, value: int, timeout: float) -> int:
    """Run tests in one boot; return the number of failures."""
    console.print(f"[bold]{kind} kernel, global_tdp={value}[/]")
    directory = boot.new_directory()
    (directory / "command").write_text(_script(directory, chosen))
    command = [
        *(VENV_BIN / "vng", "--run", image, *_BOOT, "--cpus", "2", "--memory", "4G"),
        *(f"--qemu-opts=-cpu max {boot.IN_TURNS}", "--append", f"kvm.global_tdp={value}"),
        *("--", f"bash {shlex.quote(str(directory / 'command'))}"),
    ]
    with (directory / "output").open("wb") as output:
        late = boot.pump(command, directory, [sys.stdout.buffer, output], timeout)
    return _judge(directory, len(chosen), late=late)


def _script(directory: Path, chosen: list[tests.Test]) -> str:
    status = shlex.quote(str(directory / "status"))
    lines = [f"cd {shlex.quote(str(ROOT))}", f"echo '{splat.BEGIN}' >/dev/kmsg"]
    lines.append("mount -t debugfs none /sys/kernel/debug 2>/dev/null")
    for test in chosen:
        program = shlex.join(test.argv)
        limit = f"timeout -s KILL {test.timeout * _TIMES:.0f}"
        lines.append(f"echo 'lab: test {test.name}' | tee /dev/kmsg")
        lines.append(f"{limit} {program} 2>&1; echo {test.name} $? | tee -a {status}")
    return "\n".join(lines) + "\n"


def _judge(directory: Path, expected: int, *, late: bool) -> int:
    failed = 0
    text = directory / "status"
    ended = (
        [line.rsplit(" ", 1) for line in text.read_text().splitlines()] if text.exists() else []
    )
    for name, status in ended:
        if status not in ("0", "4"):
            console.print(f"FAILED {name}, status {status}", style="red")
            failed += 1
        elif status == "4":
            console.print(f"skipped {name}", style="yellow")
    if late or len(ended) != expected:
        console.print(f"the machine did not get to the end; see {directory}", style="red")
        failed += 1
    log = (directory / "console").read_text(errors="replace")
    for report in splat.find(log):
        console.print(report, style="red", markup=False)
        failed += 1
    return failed


def _run_on_ept(image: Path, chosen: Sequence[tests.Test], kind: str, timeout: float) -> int:
    console.print(f"[bold]{kind} kernel, EPT, global_tdp=1[/]")
    slower = [replace(test, timeout=test.timeout * _TIMES) for test in chosen]
    done = machine.on_ept(slower, "kvm.global_tdp=1", timeout, image=image)
    outcomes = [*done.outcomes.values(), *done.splats]
    for outcome in outcomes:
        print(outcome.output)
        if outcome.state != State.PASSED:
            console.print(f"{outcome.state} {outcome.name}: {outcome.reason}", style="red")
    return sum(outcome.state == State.FAILED for outcome in outcomes)
