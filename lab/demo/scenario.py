"""One case: bring a guest from one QEMU process into another and look at the second."""

import asyncio
from pathlib import Path
from typing import Any

from lab.demo import kvm, stamps
from lab.demo.config import Case, Job
from lab.demo.vm import CPUS, Progress, QemuGoneError, Vm
from lab.demo.watch import Watch

BOOT_SECONDS = 180
MIGRATE_SECONDS = 180
VERIFY_SECONDS = 120

_BANDWIDTH = 10 << 30
_SNAPSHOT = "demo"


async def run(job: Job, case: Case, directory: Path) -> None:
    """Fill in `case`; VmError if a guest or a migration fails."""
    progress = Progress()
    with kvm.tracing():
        before = kvm.sec_pagetables_kib()
        if job.mode == "savevm":
            await _restore(job, case, directory, progress)
        else:
            await _migrate(job, case, directory, progress)
        case.sec_pagetables_kib -= before


async def _migrate(job: Job, case: Case, directory: Path, progress: Progress) -> None:
    incoming = Vm(job, "destination", case, directory, progress, "-incoming=defer")
    async with incoming as destination:
        async with Vm(job, "source", case, directory, progress) as source:
            await _up(source)
            async with Watch(destination) as watch:
                path = directory / "migration"
                try:
                    case.migration = await _move(job, source, destination, path)
                except QemuGoneError as gone:
                    # It may be the other one that went first.
                    why = f"{gone}; {destination.last_words()}"
                    raise QemuGoneError(why, gone.console) from gone
                await _look(case, destination, watch)
        case.sec_pagetables_kib = kvm.sec_pagetables_kib()


async def _restore(job: Job, case: Case, directory: Path, progress: Progress) -> None:
    disk = directory / "disk.qcow2"
    await _create(disk)
    drive = [f"-drive=if=none,id=disk,file={disk}", "-device=virtio-blk-pci,drive=disk"]
    async with Vm(job, "source", case, directory, progress, *drive) as source:
        await _up(source)
        if said := await source.do("human_monitor_command", command_line=f"savevm {_SNAPSHOT}"):
            raise source.error(f"savevm fails: {said.strip()}")
        progress.now("saved")
    drive += ["-S", f"-loadvm={_SNAPSHOT}"]
    async with Vm(job, "destination", case, directory, progress, *drive) as destination:
        async with Watch(destination) as watch:
            await destination.do("cont")
            await _look(case, destination, watch)
        case.sec_pagetables_kib = kvm.sec_pagetables_kib()


async def _create(disk: Path) -> None:
    command = ("qemu-img", "create", "-q", "-f", "qcow2", str(disk), "64M")
    process = await asyncio.create_subprocess_exec(*command)
    await process.wait()


async def _up(source: Vm) -> None:
    """Wait until the guest has stamped and checked everything once."""

    def up(text: str) -> bool:
        return stamps.ready(text, CPUS)

    await source.said("its memory is not stamped", up, BOOT_SECONDS)
    source.progress.now("the guest is up, its memory stamped and checked once")


async def _move(job: Job, source: Vm, destination: Vm, path: Path) -> dict[str, Any]:
    """Migrate; return what the source's query-migrate says in the end."""
    capability = {"postcopy": "postcopy-ram", "multifd": "multifd"}.get(job.mode)
    if capability:
        wanted = [{"capability": capability, "state": True}]
        for vm in (source, destination):
            await vm.do("migrate_set_capabilities", capabilities=wanted)
    await source.do("migrate_set_parameters", max_bandwidth=_BANDWIDTH)
    await destination.do("migrate_incoming", uri=f"unix:{path}")
    await source.do("migrate", uri=f"unix:{path}")
    info: dict[str, Any] = {"status": "none"}
    switched = job.mode != "postcopy"
    for _ in range(MIGRATE_SECONDS * 20):
        info = await source.do("query_migrate")
        # QEMU says so a moment before it has added up the times.
        if info["status"] == "completed" and info["total-time"]:
            source.progress.now("migrated")
            return info
        if info["status"] in ("failed", "cancelled"):
            why = info.get("error-desc", "no reason given")
            raise source.error(f"the migration is {info['status']}: {why}", destination)
        if not switched and info.get("ram", {}).get("transferred", 0) > job.mem_mib << 18:
            await source.do("migrate_start_postcopy")
            switched = True
        sent = info.get("ram", {}).get("transferred", 0) >> 20
        source.progress.still(f"migrating, {sent} of about {job.mem_mib} MiB")
        await asyncio.sleep(0.05)
    raise source.error(
        f"the migration is not done after {MIGRATE_SECONDS} s but {info['status']}; "
        "a smaller --mem helps a slow machine"
    )


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
