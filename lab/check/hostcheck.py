"""Run packaging/global-tdp-check where there is a KVM, and look at what it says.

    python -m lab.check.hostcheck CHECK       # in the lab machine, as root

Only the standard library is imported, as starting takes long on an emulated CPU. How long
anything took is not looked at.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.check import inside
from lab.paths import HOSTCHECK

_MIB = 16
_PAGES = _MIB << 8
_REPETITIONS = 2
_SMALL = ("-m", str(_MIB), "-r", str(_REPETITIONS))
_STOCK = ("touch", "prefault")
_OURS = (*_STOCK, "around", "populate", "idle", "follow")
_MAPPED = ("prefault", "populate", "follow")
_ALWAYS = ["follow", "fault-around", "populate"]
"""Ways after which a vCPU has nothing to fault on."""

_LATENCIES = {True: ("rest", "off"), False: ("rest", "off", "locking", "on")}
_MISSING = "KVM_CAP_GLOBAL_TDP and KVM_POPULATE_MEMORY are missing"
_PRIVATE = ("hostname", "node", "user", "path", "uuid", "serial", "mac", "address")

_PARAMETER = Path("/sys/module/kvm/parameters/global_tdp")
_PAGE_CACHE = Path("/sys/module/kvm/parameters/global_tdp_page_cache")
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_VMS = Path("/sys/kernel/debug/kvm")

Json = Mapping[str, Any]


def stock() -> None:
    """Measure stock KVM, and say what it lacks."""
    text, data = _measure(*_SMALL)
    _expect(_MISSING in text, "it says what is missing")
    _expect("not measured, and rather" in text, "it says that it has not measured ours")
    _touches(data, _STOCK)
    _latencies(data, stock=True)
    _expect("only KVM with it can measure" in text, "no verdict on what was not measured")
    _expect(data["worth_above_percent"] is None, "nor in the JSON")
    _expect(data["has"]["global_tdp"] == [], "no Global TDP in the JSON")
    _expect(not any(each["tables_measured"] for each in data["estimates"]), "an estimate")


def ours() -> None:
    """Measure ours, off beside on; nothing is left to fault on after populating."""
    text, data = _measure(*_SMALL)
    _expect("missing" not in text, "nothing is missing")
    _expect("measured here" in text, "it has measured ours")
    _expect("Worth it for VMs that touch more than" in text, "so it says if it is worth it")
    _expect("not worth it with huge pages" in text.lower(), "of huge pages, too")
    _expect(0 < data["worth_above_percent"] < 100, "which is in the JSON, too")
    _expect("with Global TDP off. For stock's" in text, "and what the VM's end takes")
    has = data["has"]["global_tdp"]
    _expect(has == [*_ALWAYS, "page-cache", "harvest"], f"all features by name: {has}")
    _expect(data["has"]["always"] == _ALWAYS, "and those of kvm.global_tdp=1")
    on = {tuple(each["features"]) for each in data["touches"] if each["way"] == "follow"}
    _expect(on == {tuple(_ALWAYS)}, f"which are on in a VM that is on: {on}")
    _touches(data, _OURS)
    _latencies(data, stock=False)
    _expect(all(each["tables_measured"] for each in data["estimates"]), "a measurement")


def on_by_parameter() -> None:
    """Tell that VMs with Global TDP off are not like those of a stock KVM then."""
    with inside.written(_PARAMETER, "1"), inside.written(_PAGE_CACHE, "1"):
        text, data = _measure(*_SMALL, "-c", "1")
    _expect("kvm.global_tdp is on" in text, "it says that the parameter is on")
    _expect(data["options"]["vcpus"] == 1, "one vCPU")
    off = [each["features"] for each in data["touches"] if each["way"] in _STOCK]
    _expect(not any(off), "VMs with it off have it off")
    _expect(data["has"]["always"] == [*_ALWAYS, "page-cache"], "the page cache is on as well")


def no_huge_pages() -> None:
    """Say that they are unavailable."""
    with inside.written(_THP, "never"):
        text, data = _measure(*_SMALL, "-c", "1", "-r", "1")
    _expect("Huge pages are unavailable" in text, "it says so")
    _expect(data["machine"]["page_sizes"] == [4096], "the JSON does")
    _expect({each["pages"] for each in data["touches"]} == {"4k"}, "small ones are measured")


def one_cpu() -> None:
    """Leave out what takes two."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    text, data = _measure(*_SMALL, "-r", "1")
    os.sched_setaffinity(0, before)
    _expect("Latencies are left out" in text, "it says so")
    _expect(data["latencies"] == [] and data["machine"]["cpus"] == 1, "the JSON does")


def interrupted() -> None:
    """Leave no VM and no file behind, but what was there before."""
    # A shell has had its background jobs ignore it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as directory:
        new, old = Path(directory, "new"), Path(directory, "old")
        old.write_text("kept")
        for file in (new, old):
            command = (HOSTCHECK, *_SMALL, "-r", "99", "--json", file)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
                while not _vms_of(running.pid) or not file.exists():
                    _expect(running.poll() is None, "it runs")
                    time.sleep(0.01)
                running.send_signal(signal.SIGINT)
            _expect(running.returncode == -signal.SIGINT, "it ends of the signal")
            _expect(not _vms_of(running.pid), "its VMs are gone")
        _expect(not new.exists(), "no file is left")
        _expect(old.read_text() == "kept", "one that was there is as it was")


def _measure(*arguments: str) -> tuple[str, Json]:
    """Return what it prints, with no lines, and what it writes."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "figures")
        command = [HOSTCHECK, *arguments, "--json", file]
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout, done.stderr, flush=True)
        _expect(done.returncode == 0, f"status 0: {done.returncode}")
        _expect(not done.stderr, "no progress but on a terminal")
        written = file.read_text()
    data = json.loads(written)
    said = done.stdout.splitlines()
    _expect(
        said[0].startswith("This takes 1 minute, 42 MiB of memory"), "it says what it takes"
    )
    _expect(" 4 KiB pages" in said[-1], "the last line is the verdict")
    _expect("4 KiB pages, 16 MiB" in done.stdout, "the table is there")
    _expect("A guest of 64 GiB pays" in done.stdout, "the last paragraph is there")
    _expect(data["program"] == "global-tdp-check" and data["format"] == 2, "JSON of ours")
    machine = data["machine"]
    _expect(machine["stage2"] == "NPT" and machine["tsc_khz"] > 0, "the machine is in it")
    name = Path("/proc/sys/kernel/hostname").read_text().strip()
    _expect(f'"{name}"' not in written, "no host name is in it")
    _expect(not set(machine) & set(_PRIVATE), "nothing private is")
    return " ".join(done.stdout.split()), data


def _touches(data: Json, ways: Sequence[str]) -> None:
    sizes = {4096: "4k", 2 << 20: "thp"}
    kinds = [sizes[size] for size in data["machine"]["page_sizes"]]
    found = [(each["pages"], each["vcpus"], each["way"]) for each in data["touches"]]
    wanted = [(kind, vcpus, way) for kind in kinds for vcpus in (1, 2) for way in ways]
    _expect(found == wanted, f"all that was to be measured: {found}")
    for each in data["touches"]:
        faults, name = each["faults"], " ".join(map(str, each.values()))
        _expect(each["end_ns"]["least"] > 0, f"what the VM's end takes: {name}")
        if each["way"] == "idle":
            _expect(each["prepare_ns"]["least"] > 0, f"what populating costs: {name}")
            _expect(faults is each["first_ns"] is None, f"nothing is touched: {name}")
        elif each["way"] in _MAPPED:
            _expect(faults["most"] == 0, f"no faults: {name}")
            _expect(each["prepare_ns"]["least"] > 0, f"what that costs: {name}")
        else:
            _expect(faults["least"] > 0, f"faults: {name}")
            _expect(each["prepare_ns"] is None, f"nothing before: {name}")
        if each["way"] == "touch" and each["pages"] == "4k":
            # Of two vCPUs, one may have to try again.
            _expect(faults["least"] >= _PAGES, f"one a page: {name}")
        for figure in filter(lambda value: isinstance(value, dict), each.values()):
            _expect(figure["least"] <= figure["median"] <= figure["most"], f"order: {name}")


def _latencies(data: Json, *, stock: bool) -> None:
    ways = [each["way"] for each in data["latencies"] if each["pages"] == "4k"]
    _expect(tuple(ways) == _LATENCIES[stock], f"latencies: {ways}")
    for each in data["latencies"]:
        low, middle, high = (each[name] for name in ("p50_ns", "p99_ns", "max_ns"))
        _expect(low["median"] <= middle["median"] <= high["median"], "their order")
        zaps = each["zaps"]["least"]
        _expect((zaps > 0) == (each["way"] != "rest"), "zaps are where they are to be")
        if each["way"] in ("off", "locking") and each["pages"] == "4k":
            _expect(each["faults"]["least"] >= _PAGES // 2, "each touch is a fault")


def _vms_of(pid: int) -> list[Path]:
    return list(_VMS.glob(f"{pid}-*"))


def _expect(good: bool, what: str) -> None:
    if not good:
        raise AssertionError(what)


CHECKS: inside.Checks = {
    True: (stock, no_huge_pages, one_cpu, interrupted),
    False: (ours, on_by_parameter, interrupted),
}
"""On stock modules, and on ours, with kvm.global_tdp off."""

if __name__ == "__main__":
    sys.exit(inside.run(CHECKS, sys.argv[1]))
