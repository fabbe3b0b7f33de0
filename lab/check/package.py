"""Install, turn on and remove the package on the systems it is for, as their users would.

Root file systems come from mmdebstrap and stay in build/package. The package is installed
in a copy of each, where DKMS builds it; the result becomes a disk, and QEMU boots that
system's own kernel from it, with systemd, once for each phase of lab/guest/package.sh.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from lab import shell
from lab.check import report
from lab.check.outcome import Outcome, State
from lab.check.report import Part
from lab.error import LabError
from lab.machine import npt
from lab.machine.result import Stream
from lab.machine.runs import GUEST
from lab.make import deb, selftests
from lab.make.deb import Package
from lab.paths import BUILD, SELFTESTS
from lab.shell import console, working
from lab.source import mirror

WORK = BUILD / "package"
PHASES = ("off", "on", "stock")
PROGRAM = SELFTESTS / "x86_64/global_tdp_populate_test"
TOOLS = "dkms,systemd-sysv,udev,kmod,initramfs-tools"
OTHER = {"bookworm": "linux-headers-amd64", "trixie": "linux-headers-6.12.107+deb13-amd64"}
"""Headers of a kernel of each release that the package must refuse."""

DKMS_SKIPPED = 77
LEFT = ("usr/src/kvm-global-tdp*", "etc/modprobe.d/kvm-global-tdp*", "etc/kernel/*/kvm-global*")
BOOT_SECONDS = 900


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the test."""
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help=", ".join(deb.RELEASES))


def run(args: argparse.Namespace) -> int:
    """Test the package on the releases; 0 if all checks pass."""
    releases = args.releases or list(deb.RELEASES)
    if unknown := sorted(set(releases) - set(deb.RELEASES)):
        raise LabError(f"no release {unknown[0]}: there is {', '.join(deb.RELEASES)}")
    if os.geteuid():
        raise LabError("the test makes root file systems: run make test-package as root")
    package = deb.build()
    selftests.build()
    parts = [Part(release, _System(release, package).test()) for release in releases]
    return report.show(parts)


def _lines(done: subprocess.CompletedProcess[str], start: str) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith(start)]


class _System:
    """One Debian release with the package."""

    def __init__(self, release: str, package: Package) -> None:
        self.release = release
        self.package = package
        self.kernel = f"{package.kernel}+{deb.RELEASES[release]}-amd64"
        self.base = WORK / f"{self.kernel}.tar"
        self.root = WORK / f"{release}.root"
        self.disk = WORK / f"{release}.disk"
        self.outcomes: list[Outcome] = []

    def test(self) -> list[Outcome]:
        try:
            self._unpack()
            self._refuse()
            self._install()
            self._make_disk()
            for phase in PHASES:
                self._boot(phase)
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
        if not self.base.exists():
            with working(f"{self.release}: mmdebstrap"):
                self._bootstrap()
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        shell.output("tar", "-xpf", self.base, "-C", self.root, "--numeric-owner")
        shutil.copy(self.package.path, self.root / "package.deb")

    def _bootstrap(self) -> None:
        scratch = self.base.with_suffix(".tmp")
        kernel = f"linux-image-{self.kernel},linux-headers-{self.kernel}"
        shell.output(
            *("mmdebstrap", "--variant=apt", "--format=tar"),
            *("--aptopt=APT::Install-Recommends false",),
            f"--include={kernel},{OTHER[self.release]},{TOOLS}",
            *(self.release, scratch),
            *mirror.sources(self.release),
        )
        scratch.rename(self.base)

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

    def _refuse(self) -> None:
        """No kernel that it is for: dpkg refuses, in one line, and nothing is installed."""
        modules = self.root / "usr/lib/modules" / self.kernel
        aside = self.root / "aside"
        modules.rename(aside)
        done = self._inside("dpkg", "--install", "/package.deb")
        said = _lines(done, f"{deb.NAME}: ")
        right = done.returncode != 0 and len(said) == 1 and self.package.kernel in said[0]
        self._note("refuse", "no supported kernel: not installed", " ".join(said), right)
        left = [path for name in LEFT for path in self.root.glob(name)]
        self._note("refuse", "nothing half-installed", f"{len(left)} files", not left)
        aside.rename(modules)

    def _install(self) -> None:
        with working(f"{self.release}: installing the package, DKMS builds it"):
            began = time.monotonic()
            done = self._inside("dpkg", "--install", "/package.deb")
        seconds = f"dpkg, status {done.returncode}, {time.monotonic() - began:.0f} s"
        self._note("install", "package installs", seconds, done.returncode == 0)
        log = WORK / f"{self.release}-install.log"
        log.write_text(done.stdout)
        if done.returncode:
            for made in self.root.glob("var/lib/dkms/kvm-global-tdp/*/build/make.log"):
                shutil.copy(made, WORK / f"{self.release}-make.log")
            raise LabError(f"the package does not install on {self.release}: see {log}")
        others = [
            path.name
            for path in (self.root / "usr/lib/modules").iterdir()
            if path.name != self.kernel
        ]
        for other in others:
            self._skips(other)
        self._reinstalled()
        if not others:
            self._note("refuse", "another kernel", "none there to try", False)

    def _skips(self, other: str) -> None:
        """Another kernel is there: DKMS builds nothing for it and says in one line why."""
        version = self.package.version
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
        for when in ("postinst.d", "header_postinst.d"):
            chosen = ("--regex=^(dkms|kvm-global-tdp)$", f"--arg={release}")
            done = self._inside("run-parts", "--exit-on-error", *chosen, f"/etc/kernel/{when}")
            if done.returncode:
                break
        (WORK / f"{self.release}-kernel.log").write_text(done.stdout)
        return done

    def _reinstalled(self) -> None:
        """The kernel's package is installed again, which takes DKMS's modules away."""
        updates = self.root / "usr/lib/modules" / self.kernel / "updates"
        counts = [len(list(updates.rglob("kvm*.ko*")))]
        self._inside("/etc/kernel/prerm.d/dkms", self.kernel)
        counts.append(len(list(updates.rglob("kvm*.ko*"))))
        status = self._kernel_installed(self.kernel).returncode
        counts.append(len(list(updates.rglob("kvm*.ko*"))))
        right = counts == [3, 0, 3] and status == 0
        found = f"status {status}, {' then '.join(map(str, counts))} modules"
        self._note("install", "comes back with a kernel installed again", found, right)

    def _make_disk(self) -> None:
        own = self.root / "package-test"
        own.mkdir()
        (own / "phase").write_text(f"{PHASES[0]}\n")
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
        for name in ("vmlinuz", "initrd.img"):
            shutil.copy(
                self.root / f"boot/{name}-{self.kernel}", WORK / f"{self.release}.{name}"
            )
        self.disk.unlink(missing_ok=True)
        with self.disk.open("w") as disk:
            disk.truncate(4 << 30)
        with working(f"{self.release}: making a disk of it"):
            shell.output("mkfs.ext4", "-q", "-d", self.root, self.disk)

    def _boot(self, phase: str) -> None:
        log = WORK / f"{self.release}-{phase}.console"
        with working(f"{self.release}: booting {self.kernel}, phase {phase}"):
            shell_command = self._qemu(log)
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

    def _qemu(self, log: Path) -> Sequence[str | Path]:
        # On a loaded machine, emulated timers come too late for the kernel's check of them.
        timers = "no_timer_check tsc=reliable"
        # A login prompt would hang up the line that the checks are printed to.
        quiet = "quiet systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service"
        append = f"root=/dev/vda rw console=ttyS0 {quiet} panic=-1 {timers}"
        return (
            *("qemu-system-x86_64", "-cpu", "max", "-smp", "2", "-m", "2G"),
            *npt.IN_TURNS.split(),
            *("-kernel", WORK / f"{self.release}.vmlinuz", "-append", append),
            *("-initrd", WORK / f"{self.release}.initrd.img", "-no-reboot", "-nodefaults"),
            *("-drive", f"file={self.disk},format=raw,if=virtio,cache=unsafe"),
            *("-display", "none", "-serial", f"file:{log}"),
        )
