"""Run each bpftrace tool, and perf, over a real VM; check their counts against KVM's own.

    python -m lab.check.tools CHECK       # in the lab machine, as root
    python -m lab.check.tools watch FILE PROGRAM [ARGUMENT ...]

`watch` runs a program and keeps each VM that it creates until it has ended, for what KVM
counted, in debugfs, would be gone with the VM otherwise. It writes that to FILE, and what
the program prints to FILE.said: in the midst of a line of bpftrace's, that would be lost.
Only the standard library is imported, as starting takes long on an emulated CPU.
"""

import ctypes
import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lab.check import inside
from lab.paths import RESTORE, ROOT, SELFTESTS

TOOLS = ROOT / "bpftrace"
BPFTRACE = os.environ.get("BPFTRACE", "bpftrace").split()
"""The program, maybe with what loads it, as that of another release of Debian."""

_DEBUGFS = Path("/sys/kernel/debug/kvm")
_PIDFD_GETFD = 438
_COUNTERS = re.compile(r"pf_\w+|tdp_populated_\w+|mmio_exits")
_FLUSHED = 0.1
"""Seconds; interval probes have run by then."""

_FAULTS = (str(SELFTESTS / "demand_paging_test"), "-b", "4M", "-v", "2")
_SLEEPING = 16
_SLEEPS = (*_FAULTS[:1], "-b", "256K", "-v", str(_SLEEPING), "-u", "MISSING", "-d", "20000")
"""More vCPUs sleep in faults at a time than the kernel has slots for their return."""
_SLOTS = 10
"""That many it has with up to five CPUs."""

_DEVICE = (str(SELFTESTS / "coalesced_io_test"),)
"""Its guest writes to where there is no memory, time after time."""

_AWAITING = (str(SELFTESTS / "x86_64/global_tdp_uffd_test"),)
"""Its VMs have memory that userfaultfd delivers later, or never."""

_SLEEP_MIN_MS = 8
"""The follower's shortest sleep, HZ / 100 ticks, with any HZ."""

_MIB = 4
_PAGES = _MIB << 8
_WRITE_STEP = 8
"""The guest of RESTORE writes to one of so many pages."""

Counters = dict[str, int]


def fault_latency() -> None:
    """Check the faults by result, those of one kind, and the sum of the histogram."""
    told, counted, _ = _trace("fault_latency.bt", _FAULTS)
    by_result: Counters = {}
    for key, stats in told["@faults"].items():
        result = key.rpartition(",")[2].strip()
        by_result[result] = by_result.get(result, 0) + stats["count"]
    seen = sum(number for result, number in by_result.items() if result != "none")
    _same("faults", seen, counted["pf_taken"])
    for result in ("fixed", "spurious", "emulate"):
        _same(f"faults {result}", by_result.get(result, 0), counted[f"pf_{result}"])
    in_histogram = sum(step["count"] for steps in told["@ns"].values() for step in steps)
    _same("faults in the histogram", in_histogram, sum(by_result.values()))
    writes = sum(s["count"] for key, s in told["@faults"].items() if key.startswith("write"))
    _at_least("faults to write, by two vCPUs of 4 MiB", writes, 2 * _PAGES)


def brownout() -> None:
    """Check the faults of all intervals, and their times."""
    told, counted, text = _trace("brownout.bt", _FAULTS)
    rows = [
        [*map(int, line.split())]
        for line in text
        if re.fullmatch(r"\s*(\d+\s+){3}\d+\s*", line)
    ]
    _same("faults", told["@total_faults"], counted["pf_taken"])
    _same("faults of all intervals", sum(row[1] for row in rows), counted["pf_taken"])
    _at_least("intervals", len(rows), 2)
    _same("order of the intervals", rows, sorted(rows))
    slack = len(rows) + counted["pf_taken"]
    gap = abs(told["@total_us"] - sum(row[2] for row in rows))
    _at_least("agreement of the times, less what is rounded off", slack, gap)
    _same("faults not seen to end", told["@total_not_seen_to_end"], 0)


def brownout_device() -> None:
    """Check that a guest that accesses a device isn't said to take a fault each time."""
    told, counted, _ = _trace("brownout.bt", _DEVICE)
    _at_least("accesses to devices", counted["mmio_exits"], 10)
    _same("faults", told["@total_faults"], counted["pf_taken"])


def brownout_sleeps() -> None:
    """Check that faults of which the end isn't seen are told, and that none is lost."""
    told, counted, _ = _trace("brownout.bt", _SLEEPS)
    missed = told["@total_not_seen_to_end"]
    _at_least("faults not seen to end", missed, _SLEEPING - _SLOTS)
    _same("faults, seen to end or not", told["@total_faults"] + missed, counted["pf_taken"])


def mmu_lock() -> None:
    """Check the SPTEs that were zapped for the host, in how many holds of the lock.

    The VM is created without Global TDP: else the host zaps with the lock held for read, for
    as long as there is the VM, which is not shown. Each run of the guest writes to some pages,
    each of which the host copies, and so zaps; then the host zaps all.
    """
    program = (str(RESTORE), "-m", str(_MIB), "-r", "2", _snapshot(), "plain")
    with inside.written(Path("/sys/module/kvm/parameters/global_tdp"), "0"):
        told, _, text = _trace("mmu_lock.bt", program, "1")
    runs = [json.loads(line) for line in text if line.startswith('{"way"')]
    _same("runs of the guest", len(runs), 3)
    copied = sum(run["pages"] // _WRITE_STEP for run in runs)
    zapped = sum(run["zapped"] for run in runs)
    _same("pages that KVM counts as zapped", zapped, 3 * _PAGES)
    name = "kvm_mmu_notifier_invalidate_range_start"
    mine = {key: n for key, n in told["@sptes"].items() if key.startswith(name)}
    _same("SPTEs", sum(mine.values()), zapped + copied)
    holds = sum(n for key, n in told["@holds"].items() if key.startswith(name))
    _at_least("holds", holds, copied + len(runs))
    in_histograms = sum(s["count"] for steps in told["@held_us"].values() for s in steps)
    _same("holds in the histograms", in_histograms, sum(told["@holds"].values()))
    longest = max(told["@held_us_max"].values())
    live = [line.split() for line in text if re.match(r"\d\d:\d\d:\d\d ", line)]
    _same("longest hold that was shown live", max(int(row[3]) for row in live), longest)
    _same("SPTEs of holds shown live", any(int(row[5]) > 0 for row in live), True)


def populate() -> None:
    """Check pages that were mapped ahead, by KVM_POPULATE_MEMORY and by the follower."""
    for way in ("read+populate", "read+follow"):
        program = (str(RESTORE), "-m", str(_MIB), _snapshot(), way)
        told, counted, text = _trace("populate.bt", program)
        installed = sum(told["@pages_installed"].values())
        pages = counted["tdp_populated_4k"] + 512 * counted["tdp_populated_2m"]
        _same(f"pages installed, {way}", installed, pages)
        _at_least(f"pages installed, {way}", installed, _PAGES)
        thread = "kvm-gtdp" if "follow" in way else "restore"
        populating = {key.split(",")[1] for key in told["@pages_installed"]}
        _same("threads that do", populating, {thread})
        if "follow" in way:
            passes = _passes(text)
            _same("passes shown", len(passes), sum(told["@passes"].values()))
            _same("pages of all passes", sum(int(row[4]) for row in passes), pages)


def populate_sleeps() -> None:
    """Check in what unit sleeps are shown: for memory that is still to come, there are some."""
    _, _, text = _trace("populate.bt", _AWAITING)
    sleeps = {int(row[5]) for row in _passes(text)} - {-1}
    _at_least("lengths of sleeps", len(sleeps), 1)
    _at_least("shortest sleep, ms", min(sleeps), _SLEEP_MIN_MS)


def _passes(text: Sequence[str]) -> list[list[str]]:
    return [line.split() for line in text if re.match(r"\d\d:\d\d:\d\d \d", line)]


def populate_on_stock() -> None:
    """Check that the one tool that needs our modules says so, and fails."""
    done = subprocess.run(
        [*BPFTRACE, "-c", "/bin/true", TOOLS / "populate.bt"], capture_output=True, text=True
    )
    _same("bpftrace fails", done.returncode != 0, True)
    message = "tracepoint not found: kvmmmu:kvm_tdp_populate"
    _same("it says why", message in done.stdout + done.stderr, True)


def perf() -> None:
    """Check the recipe: the tracepoint that fires once a stage-2 fault."""
    with tempfile.TemporaryDirectory() as directory:
        result, counts = Path(directory, "perf"), Path(directory, "counted")
        command = ["perf", "stat", "-a", "-x,", "-o", result, "-e", "kvm:kvm_page_fault"]
        subprocess.run([*command, "--", *_watched(counts, _FAULTS)], check=True)
        fields = [line.split(",") for line in result.read_text().splitlines()]
        told = [int(words[0]) for words in fields if words[0].isdigit()]
        _same("faults", sum(told), json.loads(counts.read_text())["pf_taken"])


def _trace(
    tool: str, program: Sequence[str], *args: str
) -> tuple[dict[str, object], Counters, list[str]]:
    """Return the maps of a tool, what KVM counted, and the lines of tool and program."""
    with tempfile.TemporaryDirectory() as directory:
        counts = Path(directory, "counted")
        child = " ".join(_watched(counts, program))
        command = [*BPFTRACE, "-f", "json", "-c", child, TOOLS / tool, *args]
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout, done.stderr, flush=True)
        if done.returncode:
            raise AssertionError(f"{tool} ended with status {done.returncode}")
        said = _said(counts).read_text()
        print(said, flush=True)
        maps: dict[str, object] = {}
        text = ""
        for line in filter(None, done.stdout.splitlines()):
            entry = json.loads(line, object_pairs_hook=_no_key_twice)
            if entry["type"] in ("map", "hist", "stats"):
                maps |= entry["data"]
            elif entry["type"] in ("printf", "time"):
                text += entry["data"]
        counted = json.loads(counts.read_text())
        _same(f"status of {program[0]}", counted.pop("status"), 0)
        return maps, counted, [*text.splitlines(), *said.splitlines()]


def _no_key_twice(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON; AssertionError if the last of two values would count."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise AssertionError(f"a key that is there twice: {pairs}")
    return found


def _said(counts: Path) -> Path:
    return counts.with_suffix(".said")


def _watched(counts: Path, program: Sequence[str]) -> list[str]:
    python = [sys.executable, "-S", "-B", "-m", "lab.check.tools"]
    return ["/usr/bin/env", f"PYTHONPATH={ROOT}", *python, "watch", str(counts), *program]


def _watch(file: Path, program: Sequence[str]) -> int:
    """Run the program; write its status and what KVM counted for all of its VMs, summed up."""
    known, held = _vms(), {}
    with _said(file).open("w") as said:
        running = subprocess.Popen(program, stdout=said)
    while running.poll() is None:
        for name in _vms() - known - held.keys():
            if (kept := _keep(name)) is not None:
                held[name] = kept
        time.sleep(0.001)
    time.sleep(_FLUSHED)
    counters: Counters = {}
    for name in held:
        for path in (_DEBUGFS / name).iterdir():
            if _COUNTERS.fullmatch(path.name):
                counters[path.name] = counters.get(path.name, 0) + int(path.read_text())
    counters["status"] = running.returncode
    file.write_text(json.dumps(counters))
    return running.returncode


def _vms() -> set[str]:
    return {path.name for path in _DEBUGFS.iterdir() if "-" in path.name}


def _keep(name: str) -> int | None:
    """Get hold of another process's VM; debugfs calls it PID-FD, even just before it is."""
    pid, _, fd = name.partition("-")
    process = os.pidfd_open(int(pid))
    libc = ctypes.CDLL(None, use_errno=True)
    got = libc.syscall(_PIDFD_GETFD, process, int(fd), 0)
    os.close(process)
    if got < 0 and ctypes.get_errno() != errno.EBADF:
        raise OSError(ctypes.get_errno(), f"pidfd_getfd of VM {name}")
    return got if got >= 0 else None


def _snapshot() -> str:
    path = Path(tempfile.gettempdir(), "snapshot")
    if not path.exists():
        new = path.with_suffix(".new")
        command = [RESTORE, "-m", str(_MIB), new, "plain"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        new.rename(path)
    return str(path)


def _same(what: str, told: object, expected: object) -> None:
    print(f"{what}: {told}, expected {expected}", flush=True)
    if told != expected:
        raise AssertionError(f"{what}: {told}, expected {expected}")


def _at_least(what: str, told: int, least: int) -> None:
    print(f"{what}: {told}, at least {least}", flush=True)
    if told < least:
        raise AssertionError(f"{what}: {told}, expected {least} at least")


_ANYWHERE = (fault_latency, brownout, brownout_device, brownout_sleeps, mmu_lock, perf)
CHECKS: inside.Checks = {
    True: (*_ANYWHERE, populate_on_stock),
    False: (*_ANYWHERE, populate, populate_sleeps),
}
"""On stock modules, and on ours."""


def main() -> int:
    """Do one check, or watch."""
    if sys.argv[1] == "watch":
        return _watch(Path(sys.argv[2]), sys.argv[3:])
    return inside.run(CHECKS, sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
