"""Install, turn on and remove the package on the systems it is for, as their users would.

Root file systems come from mmdebstrap and stay in build/package. The package is installed
in a copy of each, where DKMS builds it; the result becomes a disk, and QEMU boots that
system's own kernel from it, with systemd, once for each phase of lab/guest/package.sh.
What needs no kernel is looked at in the copy: kernels and their sources that come, go and
are not the right ones, an upgrade of the kernel and of the package, what is in an initramfs,
purge. The kernel is upgraded to the newest that the series applies to from the one before;
where backports have one upload only, from that of the release itself.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab import shell
from lab.check import report
from lab.check.outcome import Outcome, State
from lab.check.report import Part
from lab.error import LabError
from lab.machine import npt, tsc
from lab.machine.result import Stream
from lab.machine.runs import GUEST
from lab.make import deb, modules, selftests
from lab.make.deb import Package
from lab.paths import BUILD, DEB, ROOT, SELFTESTS, SHARED, VERSION, VERSIONS
from lab.shell import console, working
from lab.source import mirror, uploads
from lab.source.uploads import HOSTS, Upload

WORK = BUILD / "package"
PHASES = {"off": "", "locked": "lockdown=integrity", "on": "", "stock": ""}
"""Of lab/guest/package.sh, each with what the kernel is told."""

TURNED_ON = "options kvm global_tdp=1\n"
LOCAL = "etc/modprobe.d/local-global-tdp.conf"
FORMER = {
    "etc/modprobe.d/kvm-global-tdp.conf": f"#{TURNED_ON}",
    "etc/kernel/postinst.d/kvm-global-tdp": "#!/bin/sh\n",
    "etc/kernel/header_postinst.d/kvm-global-tdp": "#!/bin/sh\n",
}
"""Conffiles that the package had before; the first one was to be edited."""

PROGRAM = "x86_64/global_tdp_populate_test"
TOOLS = "dkms,patch,systemd-sysv,udev,kmod,initramfs-tools,openssl,mokutil,ccache"
OLDER = 2
"""How many uploads may have come since the newest that the series applies to."""

SETTINGS = "etc/default/kvm-global-tdp"
"""Lets the package build for the kernels here, which this is a test of."""

EARLY = "etc/initramfs-tools/modules"
"""Names what an initramfs loads: on hosts that assign devices, KVM with VFIO."""

DISK = "virtio_pci\nvirtio_blk\next4\n"
LIST = "etc/initramfs-tools/conf.d/package-test"
"""An initramfs is made ten times: it has no more modules than this disk needs."""

FULL = (0, 256, 512, 1024, 2048, 4096, 8192)
"""KiB that are left where modules are installed: none, for some of them, for all."""

CCACHE = WORK / "ccache"
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBIAN_KERNEL_USE_CCACHE": "1",
    "CCACHE_DIR": "/ccache",
}
"""In the system. Nobody builds the same so often as this test."""

DKMS_SKIPPED = 77
LEFT = (
    *("usr/src/kvm-global-tdp*", "usr/lib/kvm-global-tdp", "etc/kernel/*/*global-tdp*"),
    *("var/lib/dkms/kvm-global-tdp", "usr/sbin/global-tdp-status", *FORMER),
    *("var/cache/kvm-global-tdp", "run/kvm-global-tdp"),
)
"""Of the package; nothing of it is there after it was purged."""
BOOT_SECONDS = 900


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the test."""
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help=", ".join(HOSTS))


def run(args: argparse.Namespace) -> int:
    """Test the package on the releases; 0 if all checks pass."""
    releases = args.releases or list(HOSTS)
    if unknown := sorted(set(releases) - set(HOSTS)):
        raise LabError(f"no release {unknown[0]}: there is {', '.join(HOSTS)}")
    if VERSIONS[0] != VERSION:
        raise LabError(
            "one package is for all series: run make test WHAT=package without SERIES="
        )
    if os.geteuid():
        raise LabError("the test makes root file systems: run make test WHAT=package as root")
    package = deb.build()
    selftests.build()
    for other in sorted({HOSTS[release].series for release in releases} - {VERSION}):
        shell.output("make", "selftests", f"SERIES={other}", cwd=ROOT)
    parts = [Part("package", [_lint(package)])]
    for release in releases:
        parts.append(part := Part(release))
        try:
            system = _System(release, package)
            part.outcomes = system.outcomes
            system.test()
        except LabError as error:
            print(f"lab: {error}", file=sys.stderr)
            part.outcomes.append(Outcome("done", State.FAILED, reason=str(error)))
    return report.show(parts)


def _lint(package: Package) -> Outcome:
    if not shutil.which("lintian"):
        console.print("apt-get install: lintian")
        shell.output("apt-get", "install", "-q", "-y", "--no-install-recommends", "lintian")
    done = subprocess.run(
        ["lintian", "--allow-root", package.path, package.check_path],
        capture_output=True,
        text=True,
    )
    said = " ".join((done.stdout + done.stderr).split())
    return Outcome("lintian", State.FAILED if said else State.PASSED, reason=said)


def _builds(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what DKMS says as it begins to compile."""
    return _lines(done, "Building module")


def _lines(done: subprocess.CompletedProcess[str], start: str) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith(start)]


class _System:
    """One Debian release, or its backports, with the package."""

    def __init__(self, release: str, package: Package) -> None:
        self.release = release
        self.host = HOSTS[release]
        self.package = package
        # As it was before the one to be tested: an upgrade is from this one to that.
        linux = package.version.partition("+")[0]
        self.earlier = replace(package, version=f"{linux}+1.earlier")
        self.debs = WORK / f"{release}.debs"
        self.apt = mirror.Apt(
            self.host.release, WORK / f"{release}.apt", backports=self.host.backports
        )
        self.first, self.upload = self._choose()
        self.same_sources = self.first.source == self.upload.source
        self.first_fits = not self._why_not(self.first)
        self.kernel = self.upload.release
        self.other = self.kernel.replace("-amd64", "-cloud-amd64")
        self.root = WORK / f"{release}.root"
        self.disk = WORK / f"{release}.disk"
        self.outcomes: list[Outcome] = []

    def test(self) -> list[Outcome]:
        try:
            self._unpack()
            self._without_kernel()
            self._without_sources()
            self._sources_come()
            self._kernel_upgrade()
            self._other_kernel()
            self._upgrade()
            self._another_upload()
            self._not_tested()
            self._chosen_patches()
            self._does_not_apply()
            self._does_not_compile()
            self._reinstalled()
            self._full()
            self._make_disk()
            self._purge()
            for phase, append in PHASES.items():
                self._boot(phase, append)
        finally:
            shutil.rmtree(self.root, ignore_errors=True)
            self.disk.unlink(missing_ok=True)
        return self.outcomes

    def _choose(self) -> tuple[Upload, Upload]:
        """Return two uploads, one after the other, the newer of which the series is for."""
        found = uploads.offered(self.apt, self.host.series, self.host.mark)
        if self.host.series != VERSION:
            found += uploads.offered(self.apt, VERSION, self.host.mark)
        for index, upload in enumerate(found[: OLDER + 1]):
            reason = self._why_not(upload)
            console.print(f"{self.release}: linux {upload.version}: {reason or 'applies'}")
            if not reason and index + 1 < len(found):
                return found[index + 1], upload
        raise LabError(
            f"the series applies to none of {self.release}'s newest {OLDER + 1} kernels that "
            "have one before: rebase it in build/linux, then make refresh"
        )

    def _why_not(self, upload: Upload) -> str:
        """Return what of the series does not apply to an upload."""
        with working(f"{self.release}: applying the series to linux {upload.version}"):
            made = DEB / "package/sources/patches" / upload.series
            scratch = WORK / "sources.tmp"
            shutil.rmtree(scratch, ignore_errors=True)
            names = [*modules.SOURCES, *(made / deb.HEADERS).read_text().split()]
            uploads.sources(self._deb(upload.source, upload), names, scratch)
            reason = deb.why_not(made, scratch)
            shutil.rmtree(scratch)
        return reason

    def _deb(self, name: str, upload: Upload) -> Path:
        """Return a package of an upload, fetched if it was not."""
        self.debs.mkdir(parents=True, exist_ok=True)
        kept = self.debs / f"{name}_{upload.version}.deb"
        if not kept.exists():
            with working(f"{self.release}: fetching {kept.name}"):
                self.apt.download(f"{name}={upload.version}").rename(kept)
        return kept

    def _note(self, phase: str, what: str, details: str, passed: bool) -> None:
        state = State.PASSED if passed else State.FAILED
        self.outcomes.append(Outcome(f"{phase}: {what}", state, reason=details))
        console.print(
            f"{self.release}: {phase}: {what}: {state}: {details}",
            markup=False,
            style=None if passed else "red",
            soft_wrap=True,
        )

    def _unpack(self) -> None:
        WORK.mkdir(exist_ok=True)
        names = [*self.first.packages, f"linux-headers-{self.other}", TOOLS]
        if self.host.backports:
            names.append(f"linux-base/{self.host.release}-backports")
        wanted = ",".join(names)
        base = WORK / f"{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.tar"
        if not base.exists():
            with working(f"{self.release}: mmdebstrap"):
                self._bootstrap(wanted, base)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        shell.output("tar", "-xpf", base, "-C", self.root, "--numeric-owner")
        with (self.root / EARLY).open("a") as early:
            early.write(f"{DISK}kvm\n")
        (self.root / SETTINGS).parent.mkdir(exist_ok=True)
        (self.root / SETTINGS).write_text("any\n")
        shutil.copy(self.package.path, self.root / "package.deb")
        self._pack_earlier()

    def _pack_earlier(self) -> None:
        deb.pack(self.earlier)
        content = WORK / "earlier"
        shutil.rmtree(content, ignore_errors=True)
        shell.output("dpkg-deb", "--raw-extract", self.earlier.path, content)
        for path in (self.earlier.path, self.earlier.check_path):
            path.unlink()
        for name, text in FORMER.items():
            path = content / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        with (content / "DEBIAN/conffiles").open("a") as listed:
            listed.writelines(f"/{name}\n" for name in FORMER)
        shell.output(
            *("dpkg-deb", "--root-owner-group", "--build", content),
            self.root / "earlier.deb",
        )
        shutil.rmtree(content)

    def _bootstrap(self, wanted: str, base: Path) -> None:
        scratch = base.with_suffix(".tmp")
        conf = f'mkdir -p "$(dirname "$1/{LIST}")" && echo MODULES=list >"$1/{LIST}"'
        shell.output(
            *("mmdebstrap", "--variant=apt", "--format=tar", f"--essential-hook={conf}"),
            *("--aptopt=APT::Install-Recommends false", f"--include={wanted}"),
            *(self.host.release, scratch),
            *mirror.sources(self.host.release, backports=self.host.backports),
        )
        scratch.rename(base)

    def _inside(self, *command: str, first: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in the system, which does not run; its output in one string."""
        CCACHE.mkdir(exist_ok=True)
        script = (
            f"cd {shlex.quote(str(self.root))} && mount -t proc proc proc && "
            "mount --rbind /dev dev && mount -t sysfs -o ro sys sys && "
            f"mkdir -p ccache && mount --bind {shlex.quote(str(CCACHE))} ccache && "
            # Not exec: apt changes its user and back, and then outlives who had it killed.
            f"{first}chroot . {shlex.join(command)}; exit $?"
        )
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def _apt(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self._inside("apt-get", "-q", "-y", *args)

    def _install(self, *packages: Path) -> subprocess.CompletedProcess[str]:
        """Have apt install files, in one run."""
        where = self.root / "debs"
        where.mkdir()
        for package in packages:
            os.link(package, where / package.name)
        names = (f"/debs/{package.name}" for package in packages)
        done = self._apt("install", "--allow-downgrades", *names)
        shutil.rmtree(where)
        return done

    def _modules(self, release: str = "") -> list[Path]:
        """Return what is installed of ours, for a kernel."""
        updates = self.root / "usr/lib/modules" / (release or self.kernel) / "updates"
        return list(updates.rglob("kvm*.ko*"))

    def _note_built(
        self, phase: str, what: str, done: subprocess.CompletedProcess[str], *releases: str
    ) -> None:
        """It ended well, with all modules for these kernels."""
        counts = [len(self._modules(release)) for release in releases]
        right = done.returncode == 0 and set(counts) == {len(modules.NAMES)}
        found = ", ".join(f"{n} modules for {r}" for n, r in zip(counts, releases, strict=True))
        self._note(phase, what, f"status {done.returncode}, {found}", right)
        if not right:
            (WORK / f"{self.release}.log").write_text(done.stdout)
            for made in self.root.glob("var/lib/dkms/kvm-global-tdp/*/build/make.log"):
                shutil.copy(made, WORK / f"{self.release}-make.log")
            raise LabError(f"nothing is built on {self.release}: see {WORK}")

    def _note_kept(
        self,
        phase: str,
        what: str,
        done: subprocess.CompletedProcess[str],
        word: str,
        release: str = "",
    ) -> None:
        """It ended well, the kernel has its own KVM, and one line says why, once."""
        lines = _lines(done, "kvm-global-tdp: ")
        kernel = release or self.kernel
        said = [line for line in lines if kernel in line and "keeps its own KVM" in line]
        count = len(self._modules(kernel))
        found = f"status {done.returncode}, {count} modules, {' '.join(said)}"
        right = done.returncode == 0 and not count and len(said) == 1 and word in str(said)
        self._note(phase, what, found, right)

    def _without_kernel(self) -> None:
        """No kernel that it is for, which may be still to come: it says so."""
        there = self.root / "usr/lib/modules" / self.first.release
        aside = self.root / "aside"
        there.rename(aside)
        done = self._apt("install", "/earlier.deb")
        said = [line for line in _lines(done, "kvm-global-tdp") if "no kernel here" in line]
        found = f"status {done.returncode}, {' '.join(said)}"
        right = done.returncode == 0 and len(said) == 1
        self._note("install", "no supported kernel: told", found, right)
        aside.rename(there)

    def _without_sources(self) -> None:
        """The kernel is there, its sources aren't, or are those of another one."""
        first = self.first.release
        done = self._kernel_installed(first)
        self._note_kept("sources", "none: told", done, "is not installed", first)
        if self.same_sources:
            done = self._install(self._deb(self.upload.source, self.upload))
            self._note_kept("sources", "newer ones: told", done, "is newer than", first)

    def _sources_come(self) -> None:
        """By themselves, after the kernel: what waits for them is built then."""
        first = self.first.release
        with working(f"{self.release}: DKMS builds the modules"):
            began = time.monotonic()
            done = self._install(self._deb(self.first.source, self.first))
        seconds = time.monotonic() - began
        if self.first_fits:
            self._note_built("sources", f"they come: built in {seconds:.0f} s", done, first)
            self._note_early("sources", "the initramfs has ours", "updates/dkms", first)
        else:
            self._note_kept("sources", "a patch does not apply", done, "does not apply", first)

    def _kernel_upgrade(self) -> None:
        """Image, headers and sources in one run of apt: ours is there for both kernels.

        Of another series, the sources come later: the package has patches for both.
        """
        names = [*self.upload.packages, self.upload.source]
        if not self.same_sources:
            *packages, source = names
            names = [source]
            done = self._install(*(self._deb(name, self.upload) for name in packages))
            said = f"apt-get install {self.upload.source}={self.upload.version}"
            self._note_kept("kernel", "without its sources: told", done, said, self.kernel)
            self._note_early("kernel", "its initramfs has its own", "kernel/arch")
        with working(f"{self.release}: upgrading the kernel, DKMS builds the modules"):
            done = self._install(*(self._deb(name, self.upload) for name in names))
        (WORK / f"{self.release}-kernel.log").write_text(done.stdout)
        ours = (self.first.release, self.kernel) if self.first_fits else (self.kernel,)
        what = f"from {self.first.version} to {self.upload.version}"
        self._note_built("kernel", what, done, *ours)
        self._note_early("kernel", "its initramfs has ours", "updates/dkms")

    def _note_early(self, phase: str, what: str, where: str, release: str = "") -> None:
        """Look for KVM in the initramfs."""
        image = f"/boot/initrd.img-{release or self.kernel}"
        listed = self._inside("lsinitramfs", image).stdout
        found = [line for line in listed.splitlines() if "/kvm.ko" in line]
        self._note(phase, what, " ".join(found), len(found) == 1 and where in found[0])

    def _upgrade(self) -> None:
        """By apt, to the package; an administrator has deleted one of its hooks.

        And has turned it on where that was done before: that is kept.
        """
        hook = self.root / "etc/kernel/postinst.d" / deb.HOOK
        hook.unlink()
        (self.root / next(iter(FORMER))).write_text(TURNED_ON)
        image = self.root / f"boot/initrd.img-{self.kernel}"
        before = image.stat().st_mtime_ns
        with working(f"{self.release}: upgrading the package, DKMS builds it"):
            done = self._apt("install", "/package.deb")
        (WORK / f"{self.release}-upgrade.log").write_text(done.stdout)
        first = self.first.release
        if self.same_sources:
            self._note_built("upgrade", "by apt", done, self.kernel)
            kept = "is newer than"
            self._note_kept("upgrade", "old sources are gone: told", done, kept, first)
        else:
            self._note_built("upgrade", "by apt", done, first, self.kernel)
        gone = [line for line in done.stdout.splitlines() if "what was built for" in line]
        lost = [first] if self.same_sources and self.first_fits else []
        right = len(gone) == len(lost) and all(map(str.__contains__, gone, lost))
        self._note("upgrade", f"told what is lost: {len(lost)}", " ".join(gone), right)
        self._note("upgrade", "deleted hook stays deleted", str(hook.name), not hook.exists())
        self._note_early("upgrade", "the initramfs has ours", "updates/dkms")
        changed = image.stat().st_mtime_ns != before
        self._note("upgrade", "the initramfs was made again", str(changed), changed)
        gone = (f"usr/src/kvm-global-tdp-{self.earlier.version}", *FORMER)
        left = " ".join(name for name in gone if (self.root / name).exists())
        self._note("upgrade", "nothing is left of the earlier one", left, not left)
        local = self.root / LOCAL
        kept = local.read_text() if local.exists() else ""
        self._note("upgrade", "it stays on", f"{LOCAL}: {kept.strip()}", kept == TURNED_ON)
        local.unlink(missing_ok=True)

    def _another_upload(self) -> None:
        """The same release, uploaded again: it gets its own KVM back, and the fix in it."""
        image = self.root / f"boot/vmlinuz-{self.kernel}"
        content = image.read_bytes()
        said = f"Debian {self.upload.version} ".encode()
        image.write_bytes(content.replace(said, said.replace(b"-1", b"-9")))
        done = self._inside("dpkg-reconfigure", f"linux-headers-{self.kernel}")
        self._note_kept("refuse", "another upload of the kernel", done, "upgrade both")
        self._note_early("refuse", "the initramfs has the kernel's own", "kernel/arch")
        image.write_bytes(content)
        own = self.root / "usr/lib/modules" / self.kernel / "kernel/arch/x86/kvm"
        for module in (*own.glob("kvm.ko*"), *own.glob("kvm-*.ko*")):
            module.with_name(f"{module.name}.held").write_text("as an installation left it")
        done = self._kernel_installed(self.kernel)
        self._note_built("refuse", "the upload that there was: ours is back", done, self.kernel)
        verified = self._inside("dpkg", "--verify", *self.upload.images).stdout.splitlines()
        wrong = [line for line in verified if "/kvm/" in line] + [*map(str, own.glob("*.held"))]
        what = "what was held of another upload is dropped"
        self._note("refuse", what, " ".join(wrong), not wrong)

    def _not_tested(self) -> None:
        """An upload in neither list nor settings keeps its own KVM; one in either has ours."""
        listed = self.root / f"usr/src/kvm-global-tdp-{self.package.version}/tested"
        settings, before = self.root / SETTINGS, listed.read_text()
        for text, word in (
            ("", f"was not tested on Debian's linux {self.upload.version}"),
            ("untested=no\n", f"run echo {self.upload.version} >>/{SETTINGS}"),
        ):
            listed.write_text("# none\n")
            settings.write_text(text)
            done = self._inside("dpkg-reconfigure", deb.NAME)
            self._note_kept("refuse", f"an upload not in the list, {text!r}", done, word)
        self._note_early("refuse", "the initramfs has the kernel's own", "kernel/arch")
        line = f"{self.upload.version} 2026-11-28 0123456789ab\n"
        for what, listing, allowing in (
            ("allowed by the settings", "# none\n", f"{self.upload.version}\n"),
            ("in the list", line, ""),
        ):
            listed.write_text(listing)
            settings.write_text(allowing)
            done = self._inside("dpkg-reconfigure", deb.NAME)
            self._note_built("refuse", f"{what}: ours is there", done, self.kernel)
        self._reconfigured()
        listed.write_text(before)
        settings.write_text("any\n")

    def _reconfigured(self) -> None:
        """Without sources: ours stays, and what is not whole is mended."""
        archive = self.root / f"usr/src/{self.upload.source}.tar.xz"
        archive.rename(aside := self.root / "aside")
        for what, lost in (("ours stays", 0), ("a lost module is back", 1)):
            for module in self._modules()[:lost]:
                module.unlink()
            done = self._inside("dpkg-reconfigure", deb.NAME)
            self._note_built("reconfigure", f"no sources: {what}", done, self.kernel)
        aside.rename(archive)

    def _chosen_patches(self) -> None:
        """Without Global TDP, if the settings say so; what is built is kept for the machine."""
        settings = self.root / SETTINGS
        settings.write_text("any\npatches=fixed\n")
        done = self._inside("dpkg-reconfigure", deb.NAME)
        self._note_kept("patches", "a wrong word: told", done, "patches=fixes+mmu_lock or")
        settings.write_text("any\npatches=fixes\n")
        with working(f"{self.release}: DKMS builds the fixes alone"):
            done = self._inside("dpkg-reconfigure", deb.NAME)
        self._note_built("patches", "the fixes alone", done, self.kernel)
        fixes = self.root / "package-test/fixes"
        fixes.mkdir(parents=True)
        for module in self._modules():
            shutil.copy(module, fixes)
        told = ("modinfo", "-k", self.kernel, "-F")
        said = self._inside(*told, "patches", "kvm").stdout.strip()
        self._note("patches", "modinfo -F patches", said, said == "fixes")
        said = self._inside(*told, "parm", "kvm").stdout
        right = "tdp_mmu" in said and "global_tdp" not in said
        self._note("patches", "the parameters lack global_tdp", f"{len(said)} bytes", right)
        settings.write_text("any\n")

    def _does_not_apply(self) -> None:
        """A patch fails, or there is no room: the kernel has its own KVM."""
        self._inside("/etc/kernel/prerm.d/dkms", self.kernel)
        headers = f"linux-headers-{self.kernel}"
        folder = f"usr/src/kvm-global-tdp-{self.package.version}/patches/{self.upload.series}"
        patch = sorted((self.root / folder).glob("*.patch"))[-1]
        content = patch.read_bytes()
        patch.write_bytes(content.replace(b"\n \t", b"\n \t/* other */ "))
        done = self._inside("dpkg-reconfigure", headers)
        self._note_kept(
            "refuse", "a patch does not apply", done, f"{patch.name} does not apply"
        )
        patch.write_bytes(content)
        cache = "var/cache/kvm-global-tdp"
        full = f"mkdir -p {cache} && mount -t tmpfs -o size=64k tmpfs {cache} && "
        done = self._inside("dpkg-reconfigure", headers, first=full)
        self._note_kept("refuse", "there is no room", done, "No space left")

    def _does_not_compile(self) -> None:
        """That is not tried again, until it is asked for; then it is."""
        hook = f"/etc/kernel/header_postinst.d/{deb.HOOK}"
        folder = self.root / f"usr/src/kvm-global-tdp-{self.package.version}"
        patch = folder / "origin.patch"
        content = patch.read_bytes()
        patch.write_bytes(content.replace(b"+\tpr_info(", b"+\tpr_broken("))
        for what, word, tries in (
            ("does not compile", "not built for", 1),
            ("failed before", "a build failed", 0),
        ):
            with working(f"{self.release}: DKMS builds what {what}"):
                done = self._inside(hook, self.kernel)
            self._note_kept("refuse", what, done, word)
            count = len(_builds(done))
            self._note("refuse", f"{what}: builds", f"{count}", count == tries)
        patch.write_bytes(content)
        with working(f"{self.release}: DKMS builds what did not compile"):
            done = self._inside("dpkg-reconfigure", deb.NAME)
        self._note_built("refuse", "asked for: it is tried again", done, self.kernel)
        self._inside("/etc/kernel/prerm.d/dkms", self.kernel)

    def _other_kernel(self) -> None:
        """Another flavour is there: DKMS builds nothing for it and says in one line why."""
        other = self.other
        version = self.earlier.version
        done = self._inside("dkms", "build", "-m", "kvm-global-tdp", "-v", version, "-k", other)
        said = _lines(done, "kvm-global-tdp: ")
        right = len(said) == 1 and other in said[0] and self.package.supported in said[0]
        self._note("refuse", f"dkms build -k {other}", " ".join(said) or done.stdout, right)
        status = done.returncode
        self._note("refuse", "that ends with", f"status {status}", status == DKMS_SKIPPED)
        done = self._kernel_installed(other)
        self._note_kept("refuse", "its upgrade goes on", done, self.package.supported, other)

    def _purge(self) -> None:
        done = self._apt("purge", deb.NAME)
        left = [str(path) for name in LEFT for path in self.root.glob(name)]
        found = f"status {done.returncode}, {' '.join(left)}"
        self._note("purge", "nothing is left", found, done.returncode == 0 and not left)
        self._note_early("purge", "the initramfs has the kernel's own", "kernel/arch")

    def _kernel_installed(self, release: str) -> subprocess.CompletedProcess[str]:
        """What a kernel's package, and that of its headers, runs in the end."""
        log = WORK / f"{self.release}-{release}.log"
        said = ""
        for when in ("postinst.d", "header_postinst.d"):
            names = f"dkms|{deb.HOOK}|initramfs-tools"
            chosen = (f"--regex=^({names})$", f"--arg={release}")
            done = self._inside("run-parts", "--exit-on-error", *chosen, f"/etc/kernel/{when}")
            said += done.stdout
            if done.returncode:
                break
        log.write_text(said)
        done.stdout = said
        return done

    def _reinstalled(self) -> None:
        """The kernel's headers are installed again, after DKMS has taken its modules away.

        And somebody runs the hook at the same time: one of both waits.
        """
        before = len(self._modules())
        hook = f"/etc/kernel/header_postinst.d/{deb.HOOK}"
        both = '"$0" "$1" & "$0" "$1"; status=$?; wait $! && exit $status'
        with working(f"{self.release}: DKMS builds the modules, asked twice at once"):
            done = self._inside("sh", "-c", both, hook, self.kernel)
        self._note_built("install", f"two at once: {before} modules, then", done, self.kernel)
        waited = done.stdout.count("waiting for another")
        found = f"{len(_builds(done))} builds, {waited} waited"
        self._note("install", "one builds, one waits", found, found == "1 builds, 1 waited")

    def _full(self) -> None:
        """Others fill the file system of the modules while ours are installed."""
        shutil.copy(GUEST / "full.sh", self.root / "full")
        with working(f"{self.release}: installing to a full file system"):
            done = self._inside(
                "sh", "/full", self.kernel, self.package.version, *map(str, FULL)
            )
        (WORK / f"{self.release}-full.log").write_text(done.stdout)
        found = dict(line.split(": ", 1)[1].split(" KiB: ") for line in _lines(done, "full: "))
        for left in FULL:
            said = found.get(str(left), "it was not tried")
            right = said.startswith(("ours", "the kernel's own"))
            self._note("full", f"{left} KiB are left: a KVM that loads", said, right)
        kinds = {said.partition(",")[0] for said in found.values()}
        both = {"ours", "the kernel's own"}
        self._note("full", "too little and enough were tried", str(len(kinds)), kinds == both)

    def _make_disk(self) -> None:
        own = self.root / "package-test"
        (own / "phase").write_text(f"{next(iter(PHASES))}\n")
        images = shlex.quote(" ".join(self.upload.images))
        (own / "job").write_text(
            f"kernel={self.kernel}\nversion={self.package.version}\nimages={images}\n"
        )
        shutil.copy(GUEST / "package.sh", own / "run")
        shutil.copy(GUEST / "marks.sh", own)
        shutil.copy(self._program(), own)
        (self.root / "etc/fstab").write_text("/dev/vda / ext4 errors=remount-ro 0 1\n")
        unit = "etc/systemd/system/package-test.service"
        shutil.copy(GUEST / "package.service", self.root / unit)
        wants = self.root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(parents=True, exist_ok=True)
        (wants / "package-test.service").symlink_to(f"/{unit}")
        # What is tested there is what udev loads, with the options that modprobe.d has then.
        early = self.root / EARLY
        early.write_text(early.read_text().replace("kvm\n", ""))
        self._inside("update-initramfs", "-u", "-k", self.kernel)
        for name in ("vmlinuz", "initrd.img"):
            shutil.copy(
                self.root / f"boot/{name}-{self.kernel}", WORK / f"{self.release}.{name}"
            )
        self.disk.unlink(missing_ok=True)
        with self.disk.open("w") as disk:
            disk.truncate(6 << 30)
        with working(f"{self.release}: making a disk of it"):
            shell.output("mkfs.ext4", "-q", "-d", self.root, self.disk)
        early.write_text(early.read_text() + "kvm\n")
        self._inside("update-initramfs", "-u", "-k", self.kernel)

    def _program(self) -> Path:
        """A selftest of the kernel's series, whose numbers differ."""
        series = self.upload.series
        tests = SELFTESTS if series == VERSION else SHARED / series / SELFTESTS.name
        return tests / PROGRAM

    def _boot(self, phase: str, append: str) -> None:
        log = WORK / f"{self.release}-{phase}.console"
        log.write_text("")
        with working(f"{self.release}: booting {self.kernel}, phase {phase}"):
            shell_command = self._qemu(log, append)
            try:
                subprocess.run(shell_command, stdin=subprocess.DEVNULL, timeout=BOOT_SECONDS)
            except subprocess.TimeoutExpired:
                self._note(phase, "ends in time", f"still running, see {log}", False)
        stream = Stream()
        stream.feed(log.read_bytes())
        for result in stream.results:
            self._note(phase, result.name, result.output.strip(), result.status == 0)
        if not stream.done:
            self._note(phase, "all checks were made", f"see {log}", False)

    def _qemu(self, log: Path, more: str) -> Sequence[str | Path]:
        # On a loaded machine, emulated timers come too late for the kernel's check of them.
        timers = f"no_timer_check tsc=reliable tsc_early_khz={tsc.khz()}"
        # A login prompt would hang up the line that the checks are printed to.
        quiet = "quiet systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service"
        append = f"root=/dev/vda rw console=ttyS0 {quiet} panic=-1 {timers} {more}"
        return (
            *(npt.QEMU.program(), "-cpu", npt.Machine.cpu, "-smp", "2", "-m", "2G"),
            *npt.TURNS.split(),
            *("-kernel", WORK / f"{self.release}.vmlinuz", "-append", append),
            *("-initrd", WORK / f"{self.release}.initrd.img", "-no-reboot", "-nodefaults"),
            *("-drive", f"file={self.disk},format=raw,if=virtio,cache=unsafe"),
            *("-display", "none", "-serial", f"file:{log}"),
        )
