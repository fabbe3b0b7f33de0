"""make test-debug: a debug kernel of build/linux, and tests of the series and KVM's own in it.

The kernel is whole, with KVM built in, from tinyconfig and the fragments beside this
file; it is built in build/debug/NAME and never installed. For comparison there is one
without the series, in NAME-stock, which runs KVM's own tests only.
"""

import argparse
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab import shell
from lab.check import machines, report, tests
from lab.check.outcome import State
from lab.error import LabError
from lab.machine import npt, splat
from lab.make import selftests
from lab.paths import BUILD, LINUX, ROOT, VENV_BIN
from lab.shell import console
from lab.source import tree
from lab.source.git import BASE, Git

KINDS = ("lockdep", "kcsan")

_FRAGMENTS = Path(__file__).parent
_BOOT = ("--disable-kvm", "--verbose", "--force-9p", "--user", "root", "--rwdir", BUILD)
_TIMES = 5
"""How much slower than the stock kernel a test may be."""

_CHURN = "global_tdp_churn_test"
_STRESS = 60
"""Seconds of `make stress`'s test at the end."""
_ROUNDS = 3
"""Of it, on EPT: a round takes eight threads of a debug kernel on Bochs' one CPU minutes."""

_LEAKS = """\
leaks=/sys/kernel/debug/kmemleak; test -e $leaks || exit 4
echo scan >$leaks; sleep 6; echo scan >$leaks; ! grep -B 20 -E 'kvm|gtdp|tdp_mmu' $leaks"""
"""An object counts once it was seen unreferenced, and is old enough, in two scans."""

_KVM_OWN = (
    "access_tracking_perf_test",
    "demand_paging_test",
    "dirty_log_perf_test",
    "guest_memfd_test",
    "kvm_page_table_test",
    "memslot_modification_stress_test",
    "pre_fault_memory_test",
    "set_memory_region_test",
    "x86_64/private_mem_conversions_test",
    "x86_64/private_mem_kvm_exits_test",
    "x86_64/smm_test",
)
"""Of KVM's own tests, those of memory that end within their time in a debug kernel."""

_STOCK_RACES = {
    ("kvm_arch_vcpu_ioctl_run", "kvm_arch_vcpu_should_kick"),
    ("kvm_arch_vcpu_ioctl_run", "kvm_make_vcpu_request"),
    ("kvm_faultin_pfn", "kvm_mmu_invalidate_begin"),
    ("kvm_faultin_pfn", "kvm_mmu_invalidate_end"),
    ("kvm_faultin_pfn", "kvm_mmu_notifier_invalidate_range_start"),
}
"""Data races that KCSAN reports in KVM without the series, too (--stock): of vcpu->mode and
requests, and of mmu_invalidate_seq, which is read early without the lock and again under it."""

_RACE = re.compile(r"KCSAN: data-race in (\w+)(?:\S* / (\w+))?")
_LINE = re.compile(r"^(?:# )?(CONFIG_\w+)(?:=(.*)| is not set)$")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="what to look for")
    parser.add_argument("--tests", default="", help="names, of the series' tests; default all")
    parser.add_argument("--backend", choices=("npt", "ept"), help="default both")
    parser.add_argument("--stock", action="store_true", help="the kernel without the series")
    parser.add_argument("--timeout", type=float, default=5400, help="seconds of each boot")


def run(args: argparse.Namespace) -> int:
    """Build the kernel and the tests, run them on NPT and EPT; 1 if any failed."""
    image = build(args.kind, stock=args.stock)
    selftests.build()
    ours = tests.ours(args.tests.split())
    own = [] if args.tests else tests.stock(_KVM_OWN)
    leaks = tests.Test("no leak", ("sh", "-c", _LEAKS))
    if args.stock:
        return report.end(_run(image, [*own, leaks], f"stock {args.kind}", "", args.timeout))
    if not args.tests:
        own += [_churn(test, "-t", _STRESS) for test in ours if test.name == _CHURN]
    states: Counter[State] = Counter()
    if args.backend != "ept":
        for param in ("kvm.global_tdp=1", "kvm.global_tdp=0"):
            states += _run(image, [*ours, *own, leaks], args.kind, param, args.timeout)
    if args.backend != "npt":
        brief = [_churn(test, "-i", _ROUNDS) if test.name == _CHURN else test for test in ours]
        states += _run_on_ept(image, [*brief, leaks], args.kind, args.timeout)
    return report.end(states)


def _churn(test: tests.Test, option: str, number: int) -> tests.Test:
    """Return the test that is the stress, too, of another length."""
    name = f"{test.name} {option} {number}"
    return replace(test, name=name, argv=(*test.argv, option, str(number)))


def build(kind: str, *, stock: bool) -> Path:
    """Return the image of the debug kernel, brought up to date with build/linux."""
    tree.ensure()
    output = BUILD / "debug" / (f"{kind}-stock" if stock else kind)
    output.mkdir(parents=True, exist_ok=True)
    source = _stock_source() if stock else LINUX
    make = ("make", "-C", source, f"O={output}", "ARCH=x86", "-j2")
    compiler = "gcc-12"
    if shutil.which("ccache"):
        compiler = f"ccache {compiler}"
    fragments = [_FRAGMENTS / f"{name}.config" for name in ("base", kind)]
    console.print(f"Building the {kind} kernel, some 20 minutes of a CPU")
    if _is_older(output / ".config", fragments):
        shell.output(*make, "tinyconfig")
        merge = (source / "scripts/kconfig/merge_config.sh", "-m", "-O", output)
        shell.output(*merge, output / ".config", *fragments, cwd=source)
    shell.output(*make, "olddefconfig")
    _check(output / ".config", fragments)
    shell.build("debug", *make, f"CC={compiler}", "KBUILD_BUILD_TIMESTAMP=@0", "bzImage")
    return output / "arch/x86/boot/bzImage"


def _stock_source() -> Path:
    """Return a tree of the source that the series is for."""
    source = BUILD / "debug" / "stock-source"
    git = Git(LINUX)
    if not (LINUX / ".git" / "worktrees" / source.name).exists():
        shutil.rmtree(source, ignore_errors=True)
        git("worktree", "add", "-q", "--detach", source, BASE)
    return source


def _is_older(config: Path, fragments: list[Path]) -> bool:
    """Whether the configuration is not there, or was made before a fragment was written."""
    if not config.exists():
        return True
    return config.stat().st_mtime < max(fragment.stat().st_mtime for fragment in fragments)


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


def _run(
    image: Path, chosen: list[tests.Test], kind: str, param: str, timeout: float
) -> Counter[State]:
    """Run tests in one boot; a complaint of the kernel is a failure, too."""
    console.print(f"[bold]{kind} kernel {param}[/]")
    directory = npt.new_directory()
    (directory / "command").write_text(_script(directory, chosen))
    command = [
        *(VENV_BIN / "vng", "--run", image, *_BOOT, "--cpus", "2", "--memory", "4G"),
        *(f"--qemu-opts=-cpu max {npt.IN_TURNS}", "--append", f"kvm.tdp_mmu=1 {param}"),
        *("--", f"bash {shlex.quote(str(directory / 'command'))}"),
    ]
    with (directory / "output").open("wb") as output:
        ending = npt.pump(command, directory, [sys.stdout.buffer, output], timeout)
    late = ending != npt.Ending.BY_ITSELF
    return _judge(directory, len(chosen), _symbols(image), late=late)


def _script(directory: Path, chosen: list[tests.Test]) -> str:
    status = shlex.quote(str(directory / "status"))
    # No heartbeat in here, where a CPU may well be busy for long: the tests have limits.
    lines = [f": >{shlex.quote(str(directory / 'begun'))}"]
    lines += [f"cd {shlex.quote(str(ROOT))}", f"echo '{splat.BEGIN}' >/dev/kmsg"]
    lines.append("mount -t debugfs none /sys/kernel/debug 2>/dev/null")
    lines.append("echo 256M >/sys/block/zram0/disksize")
    lines.append("mkswap -q /dev/zram0 && swapon /dev/zram0")
    for test in chosen:
        program = shlex.join(test.argv)
        limit = f"timeout -s KILL {test.timeout * _TIMES:.0f}"
        lines.append(f"echo 'lab: test {test.name}' | tee /dev/kmsg")
        lines.append(f"{limit} {program} 2>&1; echo {test.name} $? | tee -a {status}")
    return "\n".join(lines) + "\n"


def _symbols(image: Path) -> set[str]:
    """Return the names of KVM's functions in a kernel, the static ones too."""
    output = image.parents[3]
    objects = [*output.glob("arch/x86/kvm/**/*.o"), *output.glob("virt/kvm/*.o")]
    listed = shell.output("nm", "-P", *objects).splitlines()
    return {line.split(".")[0].split()[0] for line in listed if re.search(r" [tT] ", line)}


def is_known(report: str, symbols: set[str]) -> bool:
    """Whether KCSAN reports what KVM without the series has, too, or nothing of KVM."""
    race = _RACE.search(report)
    if not race:
        return False
    return race.groups() in _STOCK_RACES or symbols.isdisjoint(race.groups())


def _judge(directory: Path, expected: int, symbols: set[str], *, late: bool) -> Counter[State]:
    states: Counter[State] = Counter()
    text = directory / "status"
    ended = (
        [line.rsplit(" ", 1) for line in text.read_text().splitlines()] if text.exists() else []
    )
    for name, status in ended:
        state = {"0": State.PASSED, "4": State.SKIPPED}.get(status, State.FAILED)
        states[state] += 1
        if state != State.PASSED:
            console.print(f"{state} {name}, status {status}", style="yellow")
    if late or len(ended) != expected:
        console.print(f"the machine did not get to the end; see {directory}", style="red")
        states[State.FAILED] += 1
    log = (directory / "console").read_text(errors="replace")
    complaints = splat.find(log)
    known = [complaint for complaint in complaints if is_known(complaint, symbols)]
    for head, count in Counter(map(machines.signature, known)).items():
        console.print(f"not of the series, {count} times: {head}", markup=False, soft_wrap=True)
    for complaint in complaints:
        if complaint not in known:
            console.print(complaint, style="red", markup=False)
            states[State.FAILED] += 1
    return states


def _run_on_ept(
    image: Path, chosen: Sequence[tests.Test], kind: str, timeout: float
) -> Counter[State]:
    console.print(f"[bold]{kind} kernel, EPT, global_tdp=1[/]")
    slower = [replace(test, timeout=test.timeout * _TIMES) for test in chosen]
    done = machines.on_ept(slower, "kvm.global_tdp=1", timeout, image=image)
    outcomes = [*done.outcomes.values(), *done.splats]
    for outcome in outcomes:
        print(outcome.output)
        if outcome.state != State.PASSED:
            console.print(f"{outcome.state} {outcome.name}: {outcome.reason}", style="red")
    return Counter(outcome.state for outcome in outcomes)
