"""Which kernels the package is for, and what its scripts do on a host."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from lab.make.deb import Package
from lab.paths import PACKAGING
from lab.source.uploads import Upload, upstream

PACKAGE = Package(
    (
        Upload("6.12.117+deb12-amd64", "6.12.117-1~deb12u1"),
        Upload("6.12.117+deb13-amd64", "6.12.117-1"),
    ),
    "6.12.117+20261123.022200.g0123456789ab",
)
GOOD = ("6.12.117+deb12-amd64", "6.12.117+deb13-amd64")
BAD = (
    *("6.12.118+deb13-amd64", "6.12.107+deb13-amd64", "6.1.0-40-amd64", "6.12.117"),
    *("6.12.117+deb13-cloud-amd64", "6.12.117+deb12-rt-amd64", "6.12.117+deb14-amd64"),
    *("6.12.1170+deb13-amd64", "6x12.117+deb13-amd64", "6.12.117+deb13-amd64-mine"),
    "6.12.117+deb13.1-amd64",
)
RELEASE, VERSION = "6.12.117+deb13-amd64", "6.12.117-1"


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _image(version: str) -> bytes:
    """Return the begin of a bzImage: at 0x20e is where, from 0x200 on, its version is."""
    said = f"{RELEASE} (debian-kernel@lists.debian.org) #1 SMP Debian {version} (2026-11-14)"
    return (
        bytes(0x20E) + (0x400).to_bytes(2, "little") + bytes(0x3F0) + said.encode() + bytes(9)
    )


class Pattern(unittest.TestCase):
    """For Python and bash (dkms)."""

    def test_kernels(self) -> None:
        for release in (*GOOD, *BAD):
            with self.subTest(release=release):
                wanted = release in GOOD
                self.assertEqual(bool(re.search(PACKAGE.pattern, release)), wanted)
                bash = ["bash", "-c", "[[ $0 =~ $1 ]]", release, PACKAGE.pattern]
                self.assertEqual(subprocess.run(bash).returncode == 0, wanted)

    def test_version_of_linux(self) -> None:
        for version in ("6.12.117-1", "6.12.117-1~deb12u1", "6.12.117-2"):
            self.assertEqual(upstream(version), "6.12.117")


class _Host(unittest.TestCase):
    """A script of the package, and a root file system to run it on."""

    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.programs = self.root / "programs"

    def run_script(self, name: str) -> tuple[int, str]:
        here = self.root / "package"
        text = (PACKAGING / name).read_text()
        text = text.replace("@SUPPORTED@", "those").replace("@VERSION@", PACKAGE.version)
        _write(here / name, text)
        _write(here / "kernels", PACKAGE.kernels)
        path = f"{self.programs}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", here / name, RELEASE, self.root],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr

    def assert_refused(self, name: str, reason: str) -> None:
        status, said = self.run_script(name)
        self.assertEqual(status, 1)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertIn(reason, said)

    def assert_accepted(self, name: str) -> None:
        self.assertEqual(self.run_script(name), (0, ""))


class CheckKernel(_Host):
    """The upload counts, not what it is called."""

    def image(self, version: str) -> None:
        _write(self.root / f"boot/vmlinuz-{RELEASE}", _image(version))

    def headers(self, version: str, content: str = "old\n") -> None:
        headers = self.root / f"lib/modules/{RELEASE}/build"
        said = f'#ifndef __ASSEMBLY__\n#define LINUX_PACKAGE_ID " Debian {version}"\n'
        _write(headers / "include/generated/package.h", said)
        _write(headers / "include/kvm.h", content)
        total = subprocess.run(
            ["sha256sum"], input=b"old\n", capture_output=True, check=True
        ).stdout[:64]
        _write(self.root / "package/headers.sha256", total + b"  include/kvm.h\n")

    def test_the_one_it_was_made_from(self) -> None:
        self.image(VERSION)
        self.headers(VERSION)
        self.assert_accepted("check-kernel")

    def test_a_second_upload_of_the_same_name(self) -> None:
        self.image("6.12.117-2")
        self.assert_refused("check-kernel", "6.12.117-2")

    def test_headers_of_another_upload(self) -> None:
        self.image(VERSION)
        self.headers("6.12.117-2")
        self.assert_refused("check-kernel", "headers package")

    def test_the_upload_of_another_release(self) -> None:
        """6.12.117-1~deb12u1 is accepted, but not of this one."""
        self.image("6.12.117-1~deb12u1")
        self.assert_refused("check-kernel", "6.12.117-1~deb12u1")

    def test_an_image_that_does_not_say(self) -> None:
        _write(self.root / f"boot/vmlinuz-{RELEASE}", bytes(0x1000))
        self.assert_refused("check-kernel", "unknown")

    def test_headers_that_were_changed(self) -> None:
        self.image(VERSION)
        self.headers(VERSION, "new\n")
        self.assert_refused("check-kernel", "not those of Debian")

    def test_what_is_not_there_yet(self) -> None:
        self.assert_accepted("check-kernel")
        self.image(VERSION)
        self.assert_accepted("check-kernel")


class CheckLoad(_Host):
    """What the kernel refuses to load is not installed."""

    def setUp(self) -> None:
        super().setUp()
        built = f"var/lib/dkms/kvm-global-tdp/{PACKAGE.version}/{RELEASE}/x86_64/module/kvm.ko"
        _write(self.root / built, "")
        self.program("modinfo", "echo DKMS module signing key")
        self.mokutil("disabled", "not")

    def program(self, name: str, script: str) -> None:
        _write(self.programs / name, f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def mokutil(self, state: str, enrolled: str) -> None:
        self.program(
            "mokutil",
            f"""case $1 in
--sb-state) echo SecureBoot {state} ;;
--test-key) echo "$2 is {enrolled} enrolled"; echo "$2" >{self.root}/asked ;;
esac""",
        )

    def lock_down(self, state: str) -> None:
        _write(self.root / "sys/kernel/security/lockdown", state)

    def test_anything_goes(self) -> None:
        self.program("modinfo", "")
        self.lock_down("[none] integrity confidentiality\n")
        self.assert_accepted("check-load")

    def test_secure_boot(self) -> None:
        self.mokutil("enabled", "not")
        self.assert_refused("check-load", "mokutil --import /var/lib/dkms/mok.pub")

    def test_lockdown(self) -> None:
        for state in (
            "none [integrity] confidentiality\n",
            "none integrity [confidentiality]\n",
        ):
            self.lock_down(state)
            self.assert_refused("check-load", "mokutil --import")

    def test_signatures_enforced(self) -> None:
        _write(self.root / "sys/module/module/parameters/sig_enforce", "Y\n")
        self.assert_refused("check-load", "mokutil --import")

    def test_the_key_is_enrolled(self) -> None:
        self.mokutil("enabled", "already")
        self.assert_accepted("check-load")

    def test_not_signed(self) -> None:
        self.mokutil("enabled", "already")
        self.program("modinfo", "")
        self.assert_refused("check-load", "install openssl")

    def test_a_key_of_ones_own(self) -> None:
        self.mokutil("enabled", "already")
        _write(self.root / "etc/dkms/framework.conf", '# x\nmok_certificate="/root/own.der"\n')
        self.assert_accepted("check-load")
        self.assertEqual((self.root / "asked").read_text(), f"{self.root}/root/own.der\n")


_DKMS = """#!/bin/sh
# Of one module and one kernel: what it did last is its state.
state=$(cat @ROOT@/state 2>/dev/null)
case $1 in
status) [ -z "$state" ] || echo "kvm-global-tdp/1, @RELEASE@, x86_64: $state" ;;
build) [ -e @ROOT@/broken ] && exit 10; echo built >@ROOT@/state ;;
install) echo installed >@ROOT@/state ;;
uninstall) echo built >@ROOT@/state ;;
esac
echo "$1" >>@ROOT@/done
"""


class KernelHook(_Host):
    """What comes of a kernel that is installed, in the state that DKMS has it in."""

    def setUp(self) -> None:
        super().setUp()
        (self.root / f"lib/modules/{RELEASE}/build/include").mkdir(parents=True)
        for name in ("check-kernel", "check-load", "remake-initramfs"):
            self.program(name, f'echo {name} "$@" >>{self.root}/done')
        self.program("dkms", _DKMS)

    def program(self, name: str, script: str) -> None:
        script = script.replace("@ROOT@", str(self.root)).replace("@RELEASE@", RELEASE)
        _write(self.root / "programs" / name, f"#!/bin/sh\n{script}\n")
        (self.root / "programs" / name).chmod(0o755)

    def hook(self, *args: str) -> int:
        text = (PACKAGING / "kernel-hook").read_text()
        for path in ("/usr/src/kvm-global-tdp-@VERSION@", "/usr/lib/kvm-global-tdp"):
            text = text.replace(path, str(self.programs))
        text = text.replace("/lib/modules", f"{self.root}/lib/modules")
        _write(self.root / "hook", text)
        (self.root / "done").unlink(missing_ok=True)
        return subprocess.run(
            ["sh", self.root / "hook", RELEASE, *args],
            env={**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"},
            capture_output=True,
        ).returncode

    def did(self) -> list[str]:
        lines = (self.root / "done").read_text().splitlines()
        known = ("build", "install", "uninstall", f"remake-initramfs {RELEASE}")
        return [line for line in lines if line in known]

    def state(self, state: str) -> None:
        _write(self.root / "state", state)

    def test_it_comes(self) -> None:
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["build", "install"])
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), [])

    def test_its_headers_come_later(self) -> None:
        self.assertEqual(self.hook("--initramfs"), 0)
        self.assertEqual(self.did(), ["build", "install", f"remake-initramfs {RELEASE}"])

    def test_no_headers_yet(self) -> None:
        (self.root / f"lib/modules/{RELEASE}/build/include").rmdir()
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), [])

    def test_it_is_another_one_now(self) -> None:
        for state, done in (("", []), ("built", []), ("installed", ["uninstall"])):
            self.state(state)
            self.program("check-kernel", "exit 1")
            self.assertEqual(self.hook(), 0)
            self.assertEqual(self.did(), done)

    def test_another_one_and_the_initramfs(self) -> None:
        self.state("installed")
        self.program("check-kernel", "exit 1")
        self.assertEqual(self.hook("--initramfs"), 0)
        self.assertEqual(self.did(), ["uninstall", f"remake-initramfs {RELEASE}"])

    def test_what_would_not_load(self) -> None:
        self.program("check-load", "exit 1")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["build"])
        self.state("installed")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["uninstall"])

    def test_a_build_that_fails(self) -> None:
        _write(self.root / "broken", "")
        self.assertEqual(self.hook(), 1)
        self.assertEqual(self.did(), [])


class Status(_Host):
    """What monitoring is told."""

    def module(self, name: str, content: str) -> None:
        _write(self.root / "sys/module/kvm" / name, content)

    def assert_status(self, status: int, said: str) -> None:
        script = PACKAGING / "global-tdp-status"
        done = subprocess.run(["sh", script, self.root], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.count("\n")), (status, 1), done)
        self.assertIn(said, done.stdout)

    def ours(self, on: str) -> None:
        self.module("version", PACKAGE.version + "\n")
        self.module("parameters/global_tdp", on + "\n")

    def test_on(self) -> None:
        self.ours("Y")
        debugfs = self.root / "sys/kernel/debug/kvm"
        for vm, threads, populated in (("10-7", 1, 0), ("11-7", 0, 0), ("12-7", 0, 5)):
            _write(debugfs / vm / "tdp_threads", f"{threads}\n")
            _write(debugfs / vm / "tdp_populated_2m", "0\n")
            _write(debugfs / vm / "tdp_populated_4k", f"{populated}\n")
        _write(debugfs / "tdp_populated_4k", "5\n")
        self.assert_status(0, f"2 of 3 VMs have it; KVM {PACKAGE.version}")

    def test_off(self) -> None:
        self.ours("N")
        self.assert_status(1, "WARNING: off for new VMs")

    def test_the_kernels_own(self) -> None:
        self.module("parameters/tdp_mmu", "Y\n")
        self.assert_status(2, "without Global TDP is loaded")

    def test_none(self) -> None:
        self.assert_status(2, "no KVM is loaded")


if __name__ == "__main__":
    unittest.main()
