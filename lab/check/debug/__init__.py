"""make test WHAT=debug: the series' tests, and KVM's own, in a debug kernel.

The kernel is whole, with KVM built in, from tinyconfig and the fragments beside this
file, one of which is of the chosen series; it is built in build/debug/NAME, by what builds the
modules, and never installed. For comparison there is one without the series, in NAME-stock,
which runs KVM's own tests only.
"""

import argparse
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lab import shell
from lab.check import machines, report, tests
from lab.check.machines import Report
from lab.check.report import Part
from lab.error import LabError
from lab.make import root, selftests
from lab.paths import BUILD, LINUX, VERSION
from lab.shell import console
from lab.source import tree
from lab.source.git import BASE, Git

LEAKS = "lockdep"
"""The one that has kmemleak."""

KINDS = (LEAKS, "kcsan")
BACKENDS = ("npt", "ept")

_FRAGMENTS = Path(__file__).parent
_BOOT = 5400
"""Seconds of each boot."""

_TIMES = 5
"""How much slower than the stock kernel a test may be."""

_SERIES = "global_tdp_"
_CHURN = "global_tdp_churn_test"
_STRESS = 60
"""Seconds of `make test WHAT=stress`'s test at the end."""
_ROUNDS = 3
"""Of it, on EPT: a round takes eight threads of a debug kernel on Bochs' one CPU minutes."""

_KMEMLEAK = "/sys/kernel/debug/kmemleak"
_LEAKS = """\
leaks=$1
scan() {
	echo scan >"$leaks" && return
	echo "kmemleak is off: it is not there, or could not note an object itself"
	dmesg | grep kmemleak
	exit 1
}
test -e "$leaks" || { echo "no $leaks"; exit 1; }
scan; sleep "$2"; scan
found=$(cat "$leaks") || exit 1
scan
case $found in
	*kvm* | *gtdp* | *tdp_mmu*) echo "$found"; exit 1 ;;
esac"""
"""An object counts once it was seen unreferenced, and is old enough, in two scans. A detector
that has turned itself off, before or meanwhile, refuses to scan."""

_OLD_ENOUGH = 6
"""Seconds."""

KVM_OWN = (
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
    parser.add_argument("--backend", choices=BACKENDS, help="default both")
    parser.add_argument("--stock", action="store_true", help="the kernel without the series")


def run(args: argparse.Namespace) -> int:
    """Build the kernel and the tests, run them on NPT and EPT; 1 if any failed."""
    tree.ensure()
    selftests.build()
    # Names are looked up before a kernel is built for them.
    tests.ours(args.tests.split())
    image = build(args.kind, stock=args.stock)
    return report.show(list(_parts(args, image)))


def _parts(args: argparse.Namespace, image: Path) -> Iterator[Part]:
    ours = tests.anywhere(args.tests.split())
    own = [] if args.tests else tests.stock(KVM_OWN)
    manners = [] if args.tests else tests.ours([tests.MANNERS])
    leaks = [tests.Test("no leak", leaks_command())] if args.kind == LEAKS else []

    def npt(chosen: Sequence[tests.Test], params: str, machine: str = "default") -> Part:
        title = f"{args.kind} kernel{' of stock' * args.stock}, NPT, {params}"
        title += f", machine {machine}" * (machine != "default")
        given = f"kvm.tdp_mmu=1 {params}"
        slower = _slower([*chosen, *leaks])
        options = {"boots": 1, "timeout": _BOOT, "image": image, "machine": machine}
        done = machines.on_npt(title, slower, given, **options)
        kind = args.kind if machine == "default" else machine
        return _part(title, expected(done, kind), image)

    if args.stock:
        yield npt(own, "")
        return
    if not args.tests:
        own += [_churn(test, "-t", _STRESS) for test in ours if test.name == _CHURN]
    if args.backend != "ept":
        for params in ("kvm.global_tdp=1", "kvm.global_tdp=0"):
            yield npt([*ours, *manners, *own], params)
        if dax := tests.dax(args.tests.split()):
            yield npt(dax, "kvm.global_tdp=1", "pmem")
    if args.backend != "npt":
        brief = [_churn(test, "-i", _ROUNDS) if test.name == _CHURN else test for test in ours]
        params = "kvm.global_tdp=1"
        title = f"{args.kind} kernel, EPT, {params}"
        done = machines.on_ept(title, _slower([*brief, *leaks]), params, _BOOT, image)
        yield _part(title, expected(done, f"{args.kind}, ept"), image)


def leaks_command(path: str = _KMEMLEAK, seconds: int = _OLD_ENOUGH) -> tuple[str, ...]:
    """Return what fails if something of KVM has leaked, or if nobody looks for it."""
    return ("sh", "-c", _LEAKS, "sh", path, str(seconds))


def expected(done: Report, kind: str) -> Report:
    """Have tests of the series fail that skip, wholly or in parts, what this kernel has."""
    for name, outcome in done.outcomes.items():
        if name.startswith(_SERIES):
            done.outcomes[name] = tests.expect(outcome, kind)
    return done


def _slower(chosen: Sequence[tests.Test]) -> list[tests.Test]:
    return [replace(test, timeout=test.timeout * _TIMES) for test in chosen]


def _churn(test: tests.Test, option: str, number: int) -> tests.Test:
    """Return the test that is the stress, too, of another length."""
    name = f"{test.name} {option} {number}"
    return replace(test, name=name, argv=(*test.argv, option, str(number)))


def build(kind: str, *, stock: bool, flags: Sequence[str] = ()) -> Path:
    """Return the image of the debug kernel, brought up to date with build/linux.

    `flags` are variables for make.
    """
    tree.ensure()
    output = BUILD / "debug" / (f"{kind}-stock" if stock else kind)
    output.mkdir(parents=True, exist_ok=True)
    source = _stock_source() if stock else LINUX
    make = root.command("make", "-C", source, f"O={output}", "ARCH=x86", "-j2")
    fragments = [_FRAGMENTS / f"{name}.config" for name in ("base", VERSION, kind)]
    console.print(f"Building the {kind} kernel, some 20 minutes of a CPU")
    # What comes out as it was is not built again.
    shell.output(*make, "tinyconfig")
    merge = (source / "scripts/kconfig/merge_config.sh", "-m", "-O", output)
    shell.output(*merge, output / ".config", *fragments, cwd=source)
    shell.output(*make, "olddefconfig")
    _check(output / ".config", fragments)
    options = (f"CC=ccache {root.COMPILER}", "KBUILD_BUILD_TIMESTAMP=@0", *flags)
    shell.build("debug", *make, *options, "bzImage")
    return output / "arch/x86/boot/bzImage"


def _stock_source() -> Path:
    """Return a tree of the source that the series is for."""
    source = BUILD / "debug" / "stock-source"
    git = Git(LINUX)
    if not (LINUX / ".git" / "worktrees" / source.name).exists():
        shutil.rmtree(source, ignore_errors=True)
        git("worktree", "add", "-q", "--detach", source, BASE)
    return source


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


def _part(title: str, done: Report, image: Path) -> Part:
    """Return all that counts; what KCSAN reports of other than the series is only told."""
    symbols = _symbols(image)
    known = [splat for splat in done.splats if is_known(splat.output, symbols)]
    for splat in known:
        words = f"not of the series: {splat.name}: {splat.reason}"
        console.print(words, markup=False, soft_wrap=True)
    done.splats = [splat for splat in done.splats if splat not in known]
    return Part(title, done.all)


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
