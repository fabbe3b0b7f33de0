"""make test WHAT=bisect: `git am` takes the series; each patch builds, loads and runs VMs.

Patches are applied one by one in a work tree of its own, to the kernel they are for. After
each the modules are built with every warning an error, the selftests if the patch changes
them, and a machine loads kvm.ko and kvm-amd.ko and runs some of KVM's own tests, with the
parameters of the series off and on as far as there are any yet.
"""

import argparse
import shutil
import subprocess
import time
from pathlib import Path

from lab.check import report
from lab.check.outcome import Outcome, State, judged
from lab.error import LabError
from lab.machine import npt
from lab.machine.result import Command
from lab.make import modules, selftests
from lab.paths import BUILD, LINUX, SELFTESTS
from lab.shell import console, locked
from lab.source import patches, tree
from lab.source.git import BASE, Git

DIRECTORY = BUILD / "bisect"
SWITCHES = ("shared_mmu_lock", "global_tdp")
"""Parameters of kvm.ko that turn on, for new VMs, what parts of the series do."""

_TESTS = (
    "demand_paging_test -b 16M -v 2",
    "dirty_log_perf_test -b 16M -v 2 -i 2",
    "memslot_modification_stress_test -b 16M -v 2 -i 5",
)
_SECONDS = 300

_RUN = f"""
run() {{
    echo "== $1"
    for test in {" ".join(f"'{test}'" for test in _TESTS)}; do
        {SELFTESTS}/$test || exit 1
    done
}}
run "as it is"
cd /sys/module/kvm/parameters
for switch in {" ".join(SWITCHES)}; do
    [ -e $switch ] || continue
    echo 1 >$switch
    run "$switch on"
done
"""


def configure(command: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.add_argument("--first", type=int, default=1, help="number of a patch to begin with")


def run(args: argparse.Namespace) -> int:
    """Apply, build and boot one by one; 1 if any of it fails."""
    tree.compose()
    selftests.build()
    series = patches.series()
    if not 1 <= args.first <= len(series):
        raise LabError(f"--first {args.first}: patches are 1 to {len(series)}")
    with locked("bisect"), report.doing("patches") as part:
        git = _worktree()
        for number, patch in enumerate(series, 1):
            try:
                git("am", "-q", patch)
            except LabError as error:
                part.outcomes.append(Outcome(patch.stem, State.FAILED, 0, str(error)))
                break
            if number < args.first:
                continue
            outcome = _try(git, patch)
            console.print(
                f"{number}/{len(series)} {outcome.state} {patch.stem} {outcome.reason}"
            )
            part.outcomes.append(outcome)
        else:
            part.outcomes.append(_compare(git))
    return report.show([part])


def _worktree() -> Git:
    """Return the kernel without the series."""
    linux = DIRECTORY / "linux"
    DIRECTORY.mkdir(exist_ok=True)
    git = Git(LINUX)
    if not linux.exists():
        git("worktree", "prune")
        git("worktree", "add", "-q", "--detach", linux, BASE)
    git = Git(linux)
    subprocess.run(["git", "am", "--abort"], cwd=linux, capture_output=True)
    git("checkout", "-q", "--force", "--detach", BASE)
    return git


def _try(git: Git, patch: Path) -> Outcome:
    """Return whether what the patch makes of KVM builds, loads and passes."""
    began = time.monotonic()

    def outcome(state: State, reason: str = "", output: str = "") -> Outcome:
        return Outcome(patch.stem, state, time.monotonic() - began, reason, output)

    try:
        kvm = _build(git, patch)
        command = Command(_RUN, "bisect", limit=_SECONDS)
        done = npt.run([command], kvm=kvm, timeout=_SECONDS + npt.BOOT_SECONDS)
    except LabError as error:
        return outcome(State.FAILED, str(error))
    if done.splats:
        return outcome(State.FAILED, "the kernel complained", done.splats[0])
    if done.died or done.status:
        return outcome(State.FAILED, done.died or f"status {done.status}", done.output)
    return outcome(State.PASSED)


def _build(git: Git, patch: Path) -> Path:
    """Build what there is, and return kvm.ko."""
    kmod = DIRECTORY / "kmod"
    modules.mirror(kmod, linux=git.tree)
    modules.compile_in(kmod, "bisect")
    kvm, *_ = (modules.install(kmod, DIRECTORY, name) for name in modules.NAMES)
    if f" b/{selftests.SOURCE}/" in patches.read(patch):
        into = DIRECTORY / "selftests"
        shutil.rmtree(into, ignore_errors=True)
        selftests.compile_in(git.tree, DIRECTORY / "headers", into, "bisect-selftests")
    return kvm


def _compare(git: Git) -> Outcome:
    """Return whether that made the tree which is built and tested otherwise."""
    differ = git("diff", "--stat", "HEAD", Git(LINUX).commit())
    return judged("the result is build/linux", not differ, differ)
