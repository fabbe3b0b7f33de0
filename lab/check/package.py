"""Install, turn on and remove the package on the systems it is for, as their users would.

Root file systems come from mmdebstrap and stay in build/package. The package is installed
in a copy of each, where DKMS builds it; the result becomes a disk, and QEMU boots that
system's own kernel from it, with systemd, once for each phase of lab/guest/package.sh.
What needs no kernel is looked at in the copy: kernels that come, go and are not the right
ones, an upgrade of the package, what is in an initramfs, purge.
"""

import argparse
import hashlib
import os
import re
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
from lab.paths import BUILD, SELFTESTS
from lab.shell import console, working
from lab.source import mirror, uploads

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

PROGRAM = SELFTESTS / "x86_64/global_tdp_populate_test"
TOOLS = "dkms,systemd-sysv,udev,kmod,initramfs-tools,openssl,mokutil"
HEADERS = re.compile(r"linux-headers-(6\.\d+\.\d+\+?[\w.-]*?-amd64)$")
FLAVOURS = ("cloud", "rt")
EARLY = "etc/initramfs-tools/modules"
"""Names what an initramfs loads: on hosts that assign devices, KVM with VFIO."""

DISK = "virtio_pci\nvirtio_blk\next4\n"
LIST = "etc/initramfs-tools/conf.d/package-test"
"""An initramfs is made ten times: it has no more modules than this disk needs."""

DKMS_SKIPPED = 77
LEFT = (
    *("usr/src/kvm-global-tdp*", "usr/lib/kvm-global-tdp", "etc/kernel/*/*global-tdp*"),
    *("var/lib/dkms/kvm-global-tdp", "usr/sbin/global-tdp-status", *FORMER),
)
"""Of the package; nothing of it is there after it was purged."""
BOOT_SECONDS = 900


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the test."""
    parser.add_argument(
        "releases", nargs="*", metavar="RELEASE", help=", ".join(uploads.RELEASES)
    )


def run(args: argparse.Namespace) -> int:
    """Test the package on the releases; 0 if all checks pass."""
    releases = args.releases or list(uploads.RELEASES)
    if unknown := sorted(set(releases) - set(uploads.RELEASES)):
        raise LabError(f"no release {unknown[0]}: there is {', '.join(uploads.RELEASES)}")
    if os.geteuid():
        raise LabError("the test makes root file systems: run make test-package as root")
    package = deb.build()
    selftests.build()
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


def _lines(done: subprocess.CompletedProcess[str], start: str) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith(start)]


class _System:
    """One Debian release with the package."""

    def __init__(self, release: str, package: Package) -> None:
        self.release = release
        self.package = package
        # As it was before the one to be tested: an upgrade is from this one to that.
        self.earlier = replace(package, version=f"{package.kernel}+1.earlier")
        mark = uploads.RELEASES[release]
        known = [upload for upload in package.uploads if mark in upload.release]
        if not known:
            raise LabError(f"the package is for no kernel of {release}: make deb says why")
        self.upload = known[-1]
        self.kernel = self.upload.release
        self.root = WORK / f"{release}.root"
        self.disk = WORK / f"{release}.disk"
        self.outcomes: list[Outcome] = []

    def test(self) -> list[Outcome]:
        try:
            self._unpack()
            self._without_kernel()
            self._kernel_comes()
            self._other_kernels()
            self._upgrade()
            self._another_upload()
            self._reinstalled()
            self._make_disk()
            self._purge()
            for phase, append in PHASES.items():
                self._boot(phase, append)
        finally:
            shutil.rmtree(self.root, ignore_errors=True)
            self.disk.unlink(missing_ok=True)
        return self.outcomes

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
        wanted = self._packages()
        base = WORK / f"{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.tar"
        if not base.exists():
            with working(f"{self.release}: mmdebstrap"):
                self._bootstrap(wanted, base)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        shell.output("tar", "-xpf", base, "-C", self.root, "--numeric-owner")
        with (self.root / EARLY).open("a") as early:
            early.write(DISK)
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

    def _packages(self) -> str:
        """What is in the system: also headers of the newest kernel that it must refuse."""
        apt = mirror.Apt(self.release, WORK / f"{self.release}.apt")
        known = {upload.release for upload in self.package.uploads}
        others = [
            match[1]
            for name in apt.cache("pkgnames", "linux-headers-6").split()
            if (match := HEADERS.match(name))
            and match[1] not in known
            and not any(flavour in match[1] for flavour in FLAVOURS)
            and apt.cache("madison", name).strip()
        ]
        other = max(others, key=lambda found: [int(word) for word in re.findall(r"\d+", found)])
        names = (f"linux-image-{self.kernel}", f"linux-headers-{self.kernel}")
        return ",".join((*names, f"linux-headers-{other}", TOOLS))

    def _bootstrap(self, wanted: str, base: Path) -> None:
        scratch = base.with_suffix(".tmp")
        conf = f'mkdir -p "$(dirname "$1/{LIST}")" && echo MODULES=list >"$1/{LIST}"'
        shell.output(
            *("mmdebstrap", "--variant=apt", "--format=tar", f"--essential-hook={conf}"),
            *("--aptopt=APT::Install-Recommends false", f"--include={wanted}"),
            *(self.release, scratch),
            *mirror.sources(self.release),
        )
        scratch.rename(base)

    def _inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the system, which does not run; its output in one string."""
        script = (
            f"cd {shlex.quote(str(self.root))} && mount -t proc proc proc && "
            "mount --rbind /dev dev && mount -t sysfs -o ro sys sys && "
            f"exec chroot . {shlex.join(command)}"
        )
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def _apt(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self._inside("apt-get", "-q", "-y", *args)

    @property
    def _updates(self) -> Path:
        return self.root / "usr/lib/modules" / self.kernel / "updates"

    def _built(self) -> int:
        return len(list(self._updates.rglob("kvm*.ko*")))

    def _said(
        self, phase: str, what: str, done: subprocess.CompletedProcess[str], word: str
    ) -> None:
        """It ended well, and said so in one line."""
        said = {line for line in _lines(done, "kvm-global-tdp") if word in line}
        found = f"status {done.returncode}, {' '.join(said)}"
        self._note(phase, what, found, done.returncode == 0 and len(said) == 1)

    def _without_kernel(self) -> None:
        """No kernel that it is for, which may be still to come: it says so."""
        there = self.root / "usr/lib/modules" / self.kernel
        aside = self.root / "aside"
        there.rename(aside)
        done = self._apt("install", "/earlier.deb")
        self._said("install", "no supported kernel: told", done, "no kernel here")
        aside.rename(there)

    def _kernel_comes(self) -> None:
        """What its package runs builds the modules, and then makes the initramfs."""
        with (self.root / EARLY).open("a") as early:
            early.write("kvm\n")
        with working(f"{self.release}: DKMS builds the modules"):
            began = time.monotonic()
            done = self._kernel_installed(self.kernel)
        seconds = time.monotonic() - began
        found = f"status {done.returncode}, {self._built()} modules, {seconds:.0f} s"
        right = done.returncode == 0 and self._built() == len(modules.NAMES)
        self._note("install", "a supported kernel comes", found, right)
        if not right:
            for made in self.root.glob("var/lib/dkms/kvm-global-tdp/*/build/make.log"):
                shutil.copy(made, WORK / f"{self.release}-make.log")
            raise LabError(f"nothing is built on {self.release}: see {WORK}")
        self._note_early("install", "its initramfs has ours", "updates/dkms")

    def _note_early(self, phase: str, what: str, where: str) -> None:
        """Look for KVM in the initramfs."""
        listed = self._inside("lsinitramfs", f"/boot/initrd.img-{self.kernel}").stdout
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
        found = f"status {done.returncode}, {self._built()} modules"
        right = done.returncode == 0 and self._built() == len(modules.NAMES)
        self._note("upgrade", "by apt", found, right)
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
        self._said("refuse", "another upload of the kernel", done, "keeps its own KVM")
        self._note("refuse", "ours is gone", f"{self._built()} modules", not self._built())
        self._note_early("refuse", "the initramfs has the kernel's own", "kernel/arch")
        image.write_bytes(content)

    def _other_kernels(self) -> None:
        """Other kernels are there: DKMS builds nothing for them."""
        own = {upload.release for upload in self.package.uploads}
        others = [
            path.name
            for path in (self.root / "usr/lib/modules").iterdir()
            if path.name not in own
        ]
        for other in others:
            self._skips(other)
        if not others:
            self._note("refuse", "another kernel", "none there to try", False)

    def _purge(self) -> None:
        done = self._apt("purge", deb.NAME)
        left = [str(path) for name in LEFT for path in self.root.glob(name)]
        found = f"status {done.returncode}, {' '.join(left)}"
        self._note("purge", "nothing is left", found, done.returncode == 0 and not left)
        self._note_early("purge", "the initramfs has the kernel's own", "kernel/arch")

    def _skips(self, other: str) -> None:
        """Another kernel is there: DKMS builds nothing for it and says in one line why."""
        version = self.earlier.version
        done = self._inside("dkms", "build", "-m", "kvm-global-tdp", "-v", version, "-k", other)
        said = _lines(done, "kvm-global-tdp: ")
        right = len(said) == 1 and other in said[0] and self.package.kernel in said[0]
        self._note("refuse", f"dkms build -k {other}", " ".join(said) or done.stdout, right)
        status = done.returncode
        self._note("refuse", "that ends with", f"status {status}", status == DKMS_SKIPPED)
        built = list((self.root / "usr/lib/modules" / other / "updates").rglob("*.ko*"))
        self._note("refuse", "nothing is built", f"{len(built)} files", not built)
        done = self._kernel_installed(other)
        said = set(_lines(done, "kvm-global-tdp: "))
        right = done.returncode == 0 and len(said) == 1 and self.package.kernel in str(said)
        found = f"status {done.returncode}, {' '.join(said)}"
        self._note("refuse", "its upgrade goes on", found, right)

    def _kernel_installed(self, release: str) -> subprocess.CompletedProcess[str]:
        """What a kernel's package, and that of its headers, runs in the end."""
        log = WORK / f"{self.release}-{release}.log"
        log.write_text("")
        for when in ("postinst.d", "header_postinst.d"):
            names = f"dkms|{deb.HOOK}|initramfs-tools"
            chosen = (f"--regex=^({names})$", f"--arg={release}")
            done = self._inside("run-parts", "--exit-on-error", *chosen, f"/etc/kernel/{when}")
            with log.open("a") as kept:
                kept.write(done.stdout)
            if done.returncode:
                break
        return done

    def _reinstalled(self) -> None:
        """The kernel's package is installed again, which takes DKMS's modules away."""
        self._inside("/etc/kernel/prerm.d/dkms", self.kernel)
        counts = [self._built()]
        status = self._kernel_installed(self.kernel).returncode
        counts.append(self._built())
        right = counts == [0, len(modules.NAMES)] and status == 0
        found = f"status {status}, {' then '.join(map(str, counts))} modules"
        self._note("install", "comes back with a kernel installed again", found, right)

    def _make_disk(self) -> None:
        own = self.root / "package-test"
        own.mkdir()
        (own / "phase").write_text(f"{next(iter(PHASES))}\n")
        (own / "job").write_text(f"kernel={self.kernel}\nversion={self.package.version}\n")
        shutil.copy(GUEST / "package.sh", own / "run")
        shutil.copy(GUEST / "marks.sh", own)
        shutil.copy(PROGRAM, own)
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
            disk.truncate(4 << 30)
        with working(f"{self.release}: making a disk of it"):
            shell.output("mkfs.ext4", "-q", "-d", self.root, self.disk)
        early.write_text(early.read_text() + "kvm\n")
        self._inside("update-initramfs", "-u", "-k", self.kernel)

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
