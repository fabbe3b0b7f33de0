"""One case: bring a guest from one QEMU process into another and look at the second.

The guest is booted once, and stored: each case begins with it as it was then.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lab.demo import kvm, stamps
from lab.demo.config import Case
from lab.demo.vm import CPUS, QemuGoneError, Setting, Vm
from lab.demo.watch import Watch

BOOT_SECONDS = 300
MIGRATE_SECONDS = 180
VERIFY_SECONDS = 120

_SOCKETS, _LISTENS = Path("/proc/net/unix"), "00010000"
_BANDWIDTH = 10 << 30
_SNAPSHOT = "demo"
_WAITS = "-incoming=defer"

_CAPABILITIES = {
    "postcopy": ("postcopy-ram",),
    "multifd": ("multifd",),
    "mapped-ram": ("mapped-ram",),
    "cpr": ("x-ignore-shared",),
}
_CPR = {"cpr": "cpr-reboot", "cpr-transfer": "cpr-transfer"}
"""QEMU's names of what is done to a QEMU in place."""


async def store(at: Setting) -> None:
    """Boot the guest and store it; VmError if that fails."""
    if at.job.mode == "savevm":
        command = ("qemu-img", "create", "-q", "-f", "qcow2", at.stored, "64M")
        await (await asyncio.create_subprocess_exec(*command)).wait()
    async with Vm("source", at, *_drive(at)) as source:

        def up(text: str) -> bool:
            return stamps.ready(text, CPUS)

        await source.said("its memory is not stamped", up, BOOT_SECONDS)
        at.progress.now("the guest is up, its memory stamped and checked once")
        await source.do("stop")
        if at.job.mode == "savevm":
            line = f"savevm {_SNAPSHOT}"
            if said := await source.do("human_monitor_command", command_line=line):
                raise source.error(f"{line} fails: {said.strip()}")
        else:
            if at.job.mode == "mapped-ram":
                await _enable(source, at)
            await _send(source, at, _uri(at, "cat >"))
    at.progress.now("stored")


async def run(at: Setting, case: Case) -> None:
    """Fill in `case`; VmError if a guest or a migration fails."""
    how = {
        "savevm": _restore,
        "mapped-ram": _restore,
        "cpr": _hand_over,
        "cpr-transfer": _transfer,
    }
    bring = how.get(at.job.mode, _migrate)
    with kvm.tracing():
        before = kvm.sec_pagetables_kib()
        await bring(at, case)
        case.sec_pagetables_kib -= before


async def _started(at: Setting, source: Vm) -> None:
    await _load(source, _uri(at, "cat"))
    at.progress.now("the stored guest runs")
    await _enable(source, at)


async def _migrate(at: Setting, case: Case) -> None:
    async with Vm("destination", at, _WAITS) as destination:
        async with Vm("source", at, _WAITS) as source:
            await _started(at, source)
            await _enable(destination, at)
            path = f"unix:{at.directory / 'migration'}"
            await destination.do("migrate_incoming", uri=path)
            async with Watch(destination) as watch:
                try:
                    case.migration = await _send(source, at, path, destination)
                except QemuGoneError as gone:
                    # It may be the other one that went first.
                    why = f"{gone}; {destination.last_words()}"
                    raise QemuGoneError(why, gone.console) from gone
                at.progress.now("migrated")
                await _look(case, destination, watch)
        case.sec_pagetables_kib = kvm.sec_pagetables_kib()


async def _hand_over(at: Setting, case: Case) -> None:
    """End one QEMU and have another go on with the file that is the guest's memory."""
    path = f"file:{at.directory / 'migration'}"
    async with Vm("source", at, _WAITS) as source:
        await _started(at, source)
        case.migration = _without_downtime(await _send(source, at, path))
    async with Vm("destination", at, _WAITS) as destination:
        await _enable(destination, at)
        async with _watched(case, destination):
            await destination.do("migrate_incoming", uri=path)


async def _transfer(at: Setting, case: Case) -> None:
    """Have another QEMU go on with the memfd that is the guest's memory."""
    channels = [_channel(kind, at) for kind in ("main", "cpr")]
    incoming = [f"-incoming={json.dumps(channel)}" for channel in channels]
    async with Vm("source", at, _WAITS) as source:
        await _started(at, source)
        try:
            # The other one does not speak before it has been sent the memfd.
            async with asyncio.TaskGroup() as group:
                sent = group.create_task(_send(source, at, channels))
                async with Vm("destination", at, *incoming, "-S") as destination:
                    case.migration = _without_downtime(await sent)
                    await source.end()
                    async with _watched(case, destination):
                        await _go_on(destination)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None


def _without_downtime(sent: dict[str, Any]) -> dict[str, Any]:
    """Return what a source says that is ended before the destination goes on."""
    return {name: value for name, value in sent.items() if name != "downtime"}


async def _listened(source: Vm, channels: list[dict[str, Any]]) -> None:
    """Wait until somebody listens at the last of the channels."""
    path = channels[-1]["addr"]["path"]
    for _ in range(MIGRATE_SECONDS * 20):
        sockets = (line.split() for line in _SOCKETS.read_text().splitlines())
        if any(words[3] == _LISTENS and words[-1] == path for words in sockets):
            return
        await asyncio.sleep(0.05)
    raise source.error(f"the second QEMU does not listen after {MIGRATE_SECONDS} s")


def _channel(kind: str, at: Setting) -> dict[str, Any]:
    path = str(at.directory / kind)
    address = {"transport": "socket", "type": "unix", "path": path}
    return {"channel-type": kind, "addr": address}


async def _restore(at: Setting, case: Case) -> None:
    """Have the destination itself read what was stored."""
    mapped = at.job.mode == "mapped-ram"
    more = [_WAITS] if mapped else [*_drive(at), "-S", f"-loadvm={_SNAPSHOT}"]
    async with Vm("destination", at, *more) as destination, _watched(case, destination):
        if mapped:
            await _enable(destination, at)
            await _load(destination, _uri(at, "cat"))
        else:
            await destination.do("cont")


def _drive(at: Setting) -> list[str]:
    if at.job.mode != "savevm":
        return []
    return [f"-drive=if=none,id=disk,file={at.stored}", "-device=virtio-blk-pci,drive=disk"]


def _uri(at: Setting, program: str) -> str:
    """Return where the guest is stored, or how."""
    return f"file:{at.stored}" if at.job.mode == "mapped-ram" else f"exec:{program} {at.stored}"


async def _enable(vm: Vm, at: Setting) -> None:
    names = _CAPABILITIES.get(at.job.mode, ())
    wanted = [{"capability": name, "state": True} for name in names]
    await vm.do("migrate_set_capabilities", capabilities=wanted)
    if at.job.mode in _CPR:
        await vm.do("migrate_set_parameters", mode=_CPR[at.job.mode])


async def _load(vm: Vm, uri: str) -> None:
    """Have a guest go on that was stored."""
    await vm.do("migrate_incoming", uri=uri)
    await _go_on(vm)


async def _go_on(vm: Vm) -> None:
    """Have a guest go on once all of it is there."""
    for _ in range(MIGRATE_SECONDS * 10):
        status = (await vm.do("query_status"))["status"]
        if status == "paused":
            await vm.do("cont")
            return
        if status != "inmigrate":
            raise vm.error(f"the stored guest is {status} when loaded")
        vm.progress.still("loading the stored guest")
        await asyncio.sleep(0.1)
    raise vm.error(f"the stored guest is not loaded after {MIGRATE_SECONDS} s")


async def _send(
    source: Vm, at: Setting, uri: str | list[dict[str, Any]], destination: Vm | None = None
) -> dict[str, Any]:
    """Migrate to somewhere, by channels perhaps; return what query-migrate says in the end."""
    await source.do("migrate_set_parameters", max_bandwidth=_BANDWIDTH)
    if isinstance(uri, str):
        await source.do("migrate", uri=uri)
    else:
        await _listened(source, uri)
        await source.do("migrate", channels=uri)
    info: dict[str, Any] = {"status": "none"}
    switched = at.job.mode != "postcopy" or not destination
    for _ in range(MIGRATE_SECONDS * 20):
        info = await source.do("query_migrate")
        # QEMU says so a moment before it has added up the times.
        if info["status"] == "completed" and info.get("total-time"):
            if destination and not switched:
                raise source.error("it was over before postcopy began; a larger --mem helps")
            return info
        if info["status"] in ("failed", "cancelled"):
            why = info.get("error-desc", "no reason given")
            raise source.error(f"the migration is {info['status']}: {why}", destination)
        if not switched and info.get("ram", {}).get("transferred", 0) > at.job.mem_mib << 18:
            await source.do("migrate_start_postcopy")
            switched = True
        sent = info.get("ram", {}).get("transferred", 0) >> 20
        source.progress.still(f"migrating, {sent} of about {at.job.mem_mib} MiB")
        await asyncio.sleep(0.05)
    raise source.error(
        f"the migration is not done after {MIGRATE_SECONDS} s but {info['status']}; "
        "a smaller --mem helps a slow machine"
    )


@asynccontextmanager
async def _watched(case: Case, destination: Vm) -> AsyncIterator[None]:
    """Watch the only guest that there is while it is made to go on, and look at it then."""
    async with Watch(destination) as watch:
        yield
        await _look(case, destination, watch)
    case.sec_pagetables_kib = kvm.sec_pagetables_kib()


async def _look(case: Case, destination: Vm, watch: Watch) -> None:
    """Count for the window, then see that the guest goes on and lost nothing."""
    await watch.finish()
    case.at_resume, case.at_end = watch.at_resume(), watch.at_end
    case.curve, case.progress = watch.curve(), watch.progress()

    def all_checked(text: str) -> stamps.Verdict | None:
        return stamps.verdict(text, CPUS)

    what = "not all of its memory is checked after resume"
    found = await destination.said(what, all_checked, VERIFY_SECONDS)
    case.pages, case.mismatches = found.pages, found.mismatches
    if destination.patched:
        case.hints = destination.hints()
    if destination.toggle:
        what = "no memslot comes and goes"
        await destination.said(what, stamps.toggled, VERIFY_SECONDS)
    status = await destination.do("query_status")
    if status["status"] != "running":
        raise destination.error(f"the guest is {status['status']} after the migration")
    case.all_faults = await _count_all(destination)


async def _count_all(vm: Vm) -> int:
    """Stop the guest, count its faults in each way there is; VmError if they differ."""
    await vm.do("stop")
    wanted = [{"provider": "kvm", "names": ["pf_taken"]}]
    cpus = await vm.do("query_cpus_fast")
    told = await vm.do("query_stats", target="vcpu", providers=wanted)
    qmp = sum(stat["value"] for cpu in told for stat in cpu["stats"])
    traced = kvm.traced([cpu["thread-id"] for cpu in cpus])
    shown = kvm.read(kvm.files(vm.pid), kvm.CURVE)
    if reason := kvm.differ(shown, qmp, traced):
        raise vm.error(reason)
    return shown["pf_taken"]
