"""make test-debug: a debug kernel of build/linux, and the series' tests in it.

The kernel is whole, with KVM built in, from tinyconfig and the fragments beside this
file; it is built in build/debug/NAME and never installed.
"""

import argparse
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from lab import boot, selftests, shell, splat, tree
from lab.error import LabError
from lab.paths import BUILD, LINUX, ROOT, VENV_BIN
from lab.shell import console
from lab.suite import tests

KINDS = ("lockdep", "kcsan")

_FRAGMENTS = Path(__file__).parent
_BOOT = ("--disable-kvm", "--verbose", "--force-9p", "--user", "root", "--rwdir", BUILD)
_TIMES = 5
"""How much slower than the stock kernel a test may be."""

_STRESS = 60
"""Seconds of `make stress`'s test at the end."""

_LINE = re.compile(r"^(?:# )?(CONFIG_\w+)(?:=(.*)| is not set)$")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="what to look for")
    parser.add_argument("--tests", default="", help="names, of the series' tests; default all")
    parser.add_argument("--timeout", type=float, default=5400, help="seconds of each boot")


def run(args: argparse.Namespace) -> int:
    """Build the kernel and the tests, run them with Global TDP on and off; 1 if any failed."""
    wanted = tests.ours(args.tests.split()) if args.tests else None
    image = build(args.kind)
    selftests.build()
    chosen = wanted or [*tests.ours(), _stress()]
    failed = 0
    for value in (1, 0):
        failed += _run(image, chosen, args.kind, value, args.timeout)
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
    """Run tests in one boot, then look for leaks; return the number of failures."""
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
    leaks = "/sys/kernel/debug/kmemleak"
    file = shlex.quote(str(directory / "leaks"))
    # An object counts once it was seen unreferenced, and is old enough, in two scans.
    scan = f"echo scan >{leaks}; sleep 6; echo scan >{leaks}; cat {leaks} >{file}"
    lines.append(f"if test -e {leaks}; then {scan}; fi; echo end 0 >>{status}")
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
    if late or len(ended) != expected + 1:
        console.print(f"the machine did not get to the end; see {directory}", style="red")
        failed += 1
    log = (directory / "console").read_text(errors="replace")
    for report in splat.find(log):
        console.print(report, style="red", markup=False)
        failed += 1
    leaks = directory / "leaks"
    found = leaks.read_text().split("unreferenced object") if leaks.exists() else []
    for leak in found[1:]:
        if re.search(r"kvm|gtdp|tdp_mmu", leak):
            console.print(f"leak: unreferenced object{leak}", style="red", markup=False)
            failed += 1
    return failed
