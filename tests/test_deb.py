"""Which kernels the package is for, what it has of the patches, what it does on a host."""

import fcntl
import hashlib
import json
import os
import re
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from lab.error import LabError
from lab.make import deb, modules
from lab.make.deb import Package
from lab.paths import PACKAGING
from lab.source import patches, uploads

PACKAGE = Package("6.12.117+20261123.022200.g0123456789ab", ("6.12", "7.3"))
GOOD = (
    *("6.12.117+deb12-amd64", "6.12.117+deb13-amd64", "6.12.117+deb13.1-amd64"),
    *("6.12.118+deb13-amd64", "6.12.9+bpo-amd64", "7.3.4+deb14-amd64", "6.12.38-amd64"),
)
BAD = (
    *("6.1.0-40-amd64", "6.12.117", "7.30.4+deb14-amd64", "16.12.117+deb13-amd64"),
    *("6.12.117+deb13-cloud-amd64", "6.12.117+deb12-rt-amd64", "7.3-amd64"),
    *("6x12.117+deb13-amd64", "6.12.117+deb13-amd64-mine", "6.12.117-mine-amd64"),
)
RELEASE, VERSION = "6.12.117+deb13-amd64", "6.12.117-1"
SERIES = "patches/6.12"


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
                grep = ["grep", "-Eq", PACKAGE.pattern]
                found = subprocess.run(grep, input=release.encode()).returncode == 0
                self.assertEqual(found, wanted)


class Uploads(unittest.TestCase):
    """What an archive has of a version of Linux."""

    def test_newest_first(self) -> None:
        image = "linux-image-6.12"
        known = {
            f"{image}.99+deb13-amd64": ["6.12.99-1"],
            f"{image}.107+deb13-amd64": ["6.12.107-1"],
            f"{image}.107+deb13.1-amd64": ["6.12.107-2"],
            f"{image}.108+deb12-amd64": ["6.12.108-1~deb12u1"],
            f"{image}.108+deb13-rt-amd64": ["6.12.108-1"],
            f"{image}.108+deb13-amd64-unsigned": ["6.12.108-1"],
            f"{image}-amd64": ["6.12.108-1"],
        }

        def cache(command: str, *names: str) -> str:
            if command == "pkgnames":
                return "\n".join(known)
            pairs = ((name, version) for name in names for version in known[name])
            # In each of two suites.
            return "".join(f" {name} | {version} | suite\n" * 2 for name, version in pairs)

        apt = mock.Mock(cache=cache)
        found = uploads.offered(apt, "6.12", "deb13")
        versions = ["6.12.107-2", "6.12.107-1", "6.12.99-1"]
        self.assertEqual([upload.version for upload in found], versions)
        self.assertEqual(found[0].release, "6.12.107+deb13.1-amd64")
        self.assertEqual(found[0].source, "linux-source-6.12")
        self.assertEqual(uploads.offered(apt, "7.3", "deb13"), [])

    def test_an_image_of_several_packages(self) -> None:
        """From 7.2 on."""
        for version, count in (("6.12.118-1", 1), ("7.2.6-1~bpo13+1", 4), ("7.3.4-1", 4)):
            upload = uploads.Upload("R-amd64", version)
            self.assertEqual(len(upload.images), count)
            self.assertIn("linux-image-R-amd64", upload.images)
            self.assertEqual(upload.packages[:count], upload.images)
            modules = "linux-modules-R-amd64" in upload.packages
            self.assertEqual(modules, count > 1)


def _patch(*names: str, new: bool = False) -> str:
    """Return a patch that adds a line to files, or files of a line."""
    change = "@@ -0,0 +1 @@\n+new\n" if new else "@@ -1 +1,2 @@\n+new\n old\n"
    mode = "new file mode 100644\n" if new else ""
    text = "From: A. Developer\n\nWhy\n\n"
    for name in names:
        before = "/dev/null" if new else f"a/{name}"
        text += f"diff --git a/{name} b/{name}\n{mode}--- {before}\n+++ b/{name}\n{change}"
    return text


class Patches(unittest.TestCase):
    """The package has what changes KVM's modules, and nothing else."""

    def test_code(self) -> None:
        text = _patch("arch/x86/kvm/a.c", "virt/kvm/b.c", "include/linux/c.h")
        self.assertEqual(deb.of_modules(text), text)

    def test_what_else_there_is(self) -> None:
        others = ("Documentation/a.rst", "tools/testing/b.c", "MAINTAINERS")
        self.assertEqual(deb.of_modules(_patch(*others)), "")
        mixed = _patch("tools/a.c", "arch/x86/kvm/b.c", "Documentation/c.rst")
        self.assertEqual(deb.of_modules(mixed), _patch("arch/x86/kvm/b.c"))

    def test_what_modules_could_not_have(self) -> None:
        with self.assertRaisesRegex(LabError, "can't change mm/memory.c"):
            deb.of_modules(_patch("arch/x86/kvm/a.c", "mm/memory.c"))

    def test_renamed(self) -> None:
        renamed = "diff --git a/virt/kvm/a.c b/virt/kvm/b.c\nrename from virt/kvm/a.c\n"
        with self.assertRaisesRegex(LabError, "can't rename"):
            deb.of_modules(renamed)

    def test_headers(self) -> None:
        """Of those that a patch adds, the kernel has none to compare with."""
        of = (
            _patch("include/linux/new.h", new=True),
            _patch("include/linux/new.h", "include/linux/old.h", "virt/kvm/a.h"),
            _patch("include/linux/old.h", "arch/x86/include/asm/a.h"),
        )
        wanted = ["arch/x86/include/asm/a.h", "include/linux/old.h"]
        self.assertEqual(deb.changed_headers(of), wanted)


class _Host(unittest.TestCase):
    """A script of the package, and a root file system to run it on."""

    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.programs = self.root / "programs"
        words = {
            "VERSION": PACKAGE.version,
            "PATTERN": PACKAGE.pattern,
            "SUPPORTED": PACKAGE.supported,
        }
        for name in ("check-kernel", "check-source", "take-sources", "check-load"):
            text = (PACKAGING / name).read_text()
            for word, value in words.items():
                text = text.replace(f"@{word}@", value)
            _write(self.root / "package" / name, text)
            (self.root / "package" / name).chmod(0o755)
        self.tested(VERSION, "6.12.117-2", "6.12.117-3")

    def tested(self, *versions: str) -> None:
        listed = "".join(f"{version} 2026-11-28 e2efe36\n" for version in versions)
        _write(self.root / "package" / "tested", f"# x\n{listed}")

    def program(self, name: str, script: str) -> None:
        _write(self.programs / name, f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def image(self, version: str) -> None:
        _write(self.root / f"boot/vmlinuz-{RELEASE}", _image(version))

    def headers(self, version: str) -> None:
        said = f'#ifndef __ASSEMBLY__\n#define LINUX_PACKAGE_ID " Debian {version}"\n'
        where = f"lib/modules/{RELEASE}/build/include/generated/package.h"
        _write(self.root / where, said)

    def run_script(
        self, name: str, *args: str | Path, release: str = RELEASE
    ) -> subprocess.CompletedProcess[str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", self.root / "package" / name, release, *args, self.root],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )

    def assert_refused(
        self, name: str, reason: str, *args: str | Path, release: str = RELEASE
    ) -> None:
        done = self.run_script(name, *args, release=release)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(reason, done.stderr)

    def assert_accepted(self, name: str, said: str = "", *args: str | Path) -> None:
        done = self.run_script(name, *args)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, said, ""))


class CheckKernel(_Host):
    """The upload counts, not what it is called."""

    def test_one_of_debians(self) -> None:
        for version in (VERSION, "6.12.117-2", "6.12.117-1~deb12u1"):
            self.image(version)
            self.headers(version)
            self.assert_accepted("check-kernel", f"{version}\n")

    def settings(self, text: str) -> None:
        _write(self.root / "etc/default/kvm-global-tdp", text)

    def test_one_that_was_not_tested(self) -> None:
        """Also if the list is empty, or has one whose name begins or looks the same."""
        self.image(VERSION)
        for listed in ((), ("6.12.117-11", "6.12.11", "6x12.117-1", "6.12.117-1~deb12u2")):
            self.tested(*listed)
            self.assert_refused("check-kernel", f"not tested on Debian's linux {VERSION}: wait")
            self.settings(f"{VERSION}\n")
            self.assert_accepted("check-kernel", f"{VERSION}\n")
            (self.root / "etc/default/kvm-global-tdp").unlink()

    def test_a_rebuild_is_what_it_was_made_of(self) -> None:
        """The first one: another has a change of its own."""
        same = ("6.12.117-1~deb12u1", "6.12.117-1~bpo12+1", VERSION)
        for listed in same:
            self.tested(listed)
            for version in same:
                self.image(version)
                self.assert_accepted("check-kernel", f"{version}\n")
            for version in ("6.12.117-1~deb12u2", "6.12.117-1+deb13u1", "6.12.117-1~rc1"):
                self.image(version)
                self.assert_refused("check-kernel", "not tested")

    def test_settings(self) -> None:
        """A list of uploads, "any" among them, or the words that there were before."""
        self.image(VERSION)
        self.tested()
        others = ("6.12.117-2\n", "6.12.117-11\n", "many\n", f"# {VERSION}\n#any\n")
        for text in ("", "\n\n", "untested=no\n", *others):
            self.settings(text)
            self.assert_refused("check-kernel", f"or run echo {VERSION} >>/etc/default/")
        same = (f"{VERSION} # x\n", f"6.12.9-1\r\n{VERSION}\r\n", f"{VERSION}~deb12u1")
        for text in (*same, "any", "\n# x\n\n any# y\n", "any # \xff\n", "untested=yes\r\n"):
            self.settings(text)
            self.assert_accepted("check-kernel", f"{VERSION}\n")

    def test_malformed_settings(self) -> None:
        """Nothing of them is run, or matters to what was tested."""
        ran = self.root / "ran"
        bad = ("untested = yes\n", "yes\n", "untested=YES\n", "6.12.117-1x\n", ".*\n")
        for text in (*bad, f"untested=$(touch {ran})\n", f"touch {ran}\n", "\xff\0\n"):
            self.tested()
            self.settings(text)
            self.image(VERSION)
            self.assert_refused("check-kernel", "was not tested")
            self.assertFalse(ran.exists())
            self.tested(VERSION)
            self.assert_accepted("check-kernel", f"{VERSION}\n")

    def test_settings_that_cannot_be_read(self) -> None:
        self.image(VERSION)
        (self.root / "etc/default/kvm-global-tdp").mkdir(parents=True)
        self.assert_accepted("check-kernel", f"{VERSION}\n")
        self.tested()
        self.assert_refused("check-kernel", "cannot be read: correct it, then dpkg-reconfigure")

    def test_the_list_is_gone(self) -> None:
        self.image(VERSION)
        (self.root / "package" / "tested").unlink()
        self.assert_refused("check-kernel", "reinstall kvm-global-tdp-dkms")

    def test_headers_of_another_upload(self) -> None:
        self.image(VERSION)
        self.headers("6.12.117-2")
        self.assert_refused("check-kernel", "its headers are of 6.12.117-2: upgrade both")

    def test_an_image_that_does_not_say(self) -> None:
        _write(self.root / f"boot/vmlinuz-{RELEASE}", bytes(0x1000))
        self.headers(VERSION)
        self.assert_refused("check-kernel", "not one of Debian's")

    def test_of_no_series(self) -> None:
        for release in BAD:
            self.assert_refused("check-kernel", "6.12 and 7.3", release=release)

    def test_an_image_that_is_unpacked_only(self) -> None:
        """From 7.2 on, what is in /boot is a copy, made as it is configured."""
        there = self.root / f"lib/modules/{RELEASE}/vmlinuz"
        _write(there, _image("6.12.117-2"))
        self.assert_accepted("check-kernel", "6.12.117-2\n")
        self.image(VERSION)
        self.assert_accepted("check-kernel", f"{VERSION}\n")

    def test_what_is_not_there_yet(self) -> None:
        self.assert_accepted("check-kernel", "\n")
        self.image(VERSION)
        self.assert_accepted("check-kernel", f"{VERSION}\n")


class CheckSource(_Host):
    """The sources must be those of the kernel."""

    archive = Path("usr/src/linux-source-6.12.tar.xz")

    def setUp(self) -> None:
        super().setUp()
        self.image(VERSION)
        self.headers(VERSION)
        self.sources("installed", VERSION)

    def sources(self, state: str, version: str) -> None:
        """As dpkg knows them."""
        self.program("dpkg-query", f"echo {state} {version}")
        _write(self.root / self.archive, "")

    def test_its_own(self) -> None:
        for state in ("installed", "unpacked", "triggers-pending"):
            self.sources(state, VERSION)
            self.assert_accepted("check-source", f"{self.root / self.archive}\n")

    def test_none(self) -> None:
        for state in ("not-installed", "config-files"):
            self.sources(state, VERSION)
            self.assert_refused("check-source", "not installed: apt-get install linux-source-6")
        self.program("dpkg-query", "echo none >&2; exit 1")
        self.assert_refused("check-source", f"apt-get install linux-source-6.12={VERSION}")

    def test_not_wholly(self) -> None:
        self.sources("half-installed", VERSION)
        self.assert_refused("check-source", "not wholly installed")
        self.sources("installed", VERSION)
        (self.root / self.archive).unlink()
        self.assert_refused("check-source", "is gone")

    def test_older_and_newer(self) -> None:
        for version in ("6.12.116-9", "6.12.117-1~deb12u1"):
            self.sources("installed", version)
            self.assert_refused("check-source", f"({version}) is older than")
        for version in ("6.12.118-1", "6.12.117-2"):
            self.sources("installed", version)
            self.assert_refused("check-source", f"({version}) is newer than")

    def test_of_no_series(self) -> None:
        release = "6.1.0-40-amd64"
        self.assert_refused("check-source", f"{release} keeps its own KVM", release=release)


class TakeSources(CheckSource):
    """KVM's sources with the series, or nothing."""

    def setUp(self) -> None:
        super().setUp()
        self.into = self.root / "into"
        self.tree = {
            "arch/x86/kvm/x86.c": "old\nstatic int __init kvm_x86_init(void)\n{\n"
            "\tkvm_init_xstate_sizes();\n\n\treturn 0;\n}\n",
            "arch/x86/kvm/Makefile": "include $(srctree)/virt/kvm/Makefile.kvm\n",
            "arch/x86/kvm/svm/svm.c": "old\n",
            "arch/x86/kvm/vmx/vmx.c": "old\n",
            "virt/kvm/kvm_main.c": "old\n",
            "include/linux/kvm_host.h": "old\n",
            "arch/x86/include/asm/kvm_host.h": "old\n",
            "mm/memory.c": "old\n",
        }
        for name, text in self.tree.items():
            if "include/" in name:
                _write(self.root / f"lib/modules/{RELEASE}/build" / name, text)
        self.pack()
        package = self.root / "package"
        (package / "origin.patch").write_bytes((PACKAGING / "origin.patch").read_bytes())
        (package / "makefile.sed").write_text(modules.makefile_sed())
        of = {
            "0001-a.patch": _patch("arch/x86/kvm/x86.c", "include/linux/kvm_host.h"),
            "0002-b.patch": _patch("tools/a.c"),
            "0003-c.patch": _patch("arch/x86/kvm/new.c", "include/linux/new.h", new=True),
            "0004-d.patch": _patch("arch/x86/include/asm/kvm_host.h"),
        }
        for name, text in of.items():
            patches.write(self.root / name, text)
        deb.write_series([self.root / name for name in of], package / SERIES)

    def pack(self) -> None:
        where = self.root / "linux-source-6.12"
        for name, text in self.tree.items():
            _write(where / name, text)
        with tarfile.open(self.root / self.archive, "w:xz") as archive:
            archive.add(where, where.name)

    def take(self) -> None:
        self.assert_accepted("take-sources", "", self.into)

    def refuse(self, reason: str) -> None:
        self.assert_refused("take-sources", reason, self.into)
        self.assertEqual(sorted(self.into.rglob("*")), [])

    def test_taken(self) -> None:
        self.take()
        kvm = self.into / "arch/x86/kvm"
        source = (kvm / "x86.c").read_text()
        self.assertTrue(source.startswith("new\nold\n"), source)
        self.assertIn("with Global TDP", source)
        said = (
            f'MODULE_VERSION("{PACKAGE.version}");\nMODULE_INFO(linux_source, "{VERSION}");\n'
        )
        self.assertTrue(source.endswith(said), source)
        for name in ("svm/svm.c", "vmx/vmx.c"):
            self.assertEqual((kvm / name).read_text(), f"old\n{said}")
        found = {str(path.relative_to(self.into)) for path in self.into.rglob("*.[ch]")}
        wanted = {name for name in self.tree if name.startswith(("arch/x86/kvm", "virt"))}
        wanted = wanted - {"arch/x86/kvm/Makefile"} | {"arch/x86/kvm/new.c"}
        headers = ("include/linux/kvm_host.h", "include/linux/new.h")
        wanted |= {f"front/{name}" for name in (*headers, "arch/x86/include/asm/kvm_host.h")}
        self.assertEqual(found, wanted)
        there = sorted(path.name for path in self.into.iterdir())
        self.assertEqual(there, ["arch", "front", "virt"])

    def test_makefile(self) -> None:
        """The same as the lab has."""
        self.take()
        kernels = self.root / "linux-source-6.12/arch/x86/kvm"
        wanted = modules._makefile(kernels, checked=False)
        self.assertEqual((self.into / "arch/x86/kvm/Makefile").read_text(), wanted)

    def test_a_patch_does_not_apply(self) -> None:
        self.tree["arch/x86/kvm/x86.c"] = "other\n"
        self.pack()
        self.refuse("0001-a.patch does not apply to Debian's linux 6.12.117-1")

    def test_a_patch_would_apply_with_fuzz(self) -> None:
        text = "".join(f"{n}\n" for n in "123456789")
        self.tree["virt/kvm/kvm_main.c"] = text.replace("2", "two")
        hunk = "@@ -2,7 +2,8 @@\n 2\n 3\n 4\n+new\n 5\n 6\n 7\n 8\n"
        head = _patch("virt/kvm/kvm_main.c").partition("@@")[0]
        patch = self.root / "package" / SERIES / "0004-d.patch"
        patch.write_text(head + hunk)
        self.pack()
        self.refuse("0004-d.patch does not apply")
        self.tree["virt/kvm/kvm_main.c"] = text
        self.pack()
        self.take()

    def test_it_is_applied_already(self) -> None:
        self.tree["include/linux/kvm_host.h"] = "old\nnew\n"
        _write(
            self.root / f"lib/modules/{RELEASE}/build/include/linux/kvm_host.h", "old\nnew\n"
        )
        self.tree["arch/x86/kvm/new.c"] = "new\n"
        self.pack()
        self.refuse("0003-c.patch does not apply")

    def test_headers_of_another_kernel(self) -> None:
        where = f"lib/modules/{RELEASE}/build/include/linux/kvm_host.h"
        _write(self.root / where, "other\n")
        self.refuse("its include/linux/kvm_host.h is not that of linux-source-6.12")

    def test_a_damaged_archive(self) -> None:
        content = (self.root / self.archive).read_bytes()
        _write(self.root / self.archive, content[: len(content) // 2])
        self.refuse("cannot be unpacked")

    def test_a_file_is_missing(self) -> None:
        (self.root / "linux-source-6.12/virt/kvm/kvm_main.c").unlink()
        (self.root / "linux-source-6.12/virt/kvm").rmdir()
        del self.tree["virt/kvm/kvm_main.c"]
        self.pack()
        self.refuse("virt/kvm: Not found in archive")

    def test_nowhere_to_write(self) -> None:
        _write(self.root / "file", "")
        self.into = self.root / "file/into"
        self.refuse("is full or read-only")

    def test_other_sources(self) -> None:
        self.sources("installed", "6.12.118-1")
        self.refuse("is newer than")

    def test_again(self) -> None:
        """What an earlier try has left does not matter."""
        _write(self.into / "work/arch/x86/kvm/x86.c", "half")
        self.take()


class CheckLoad(_Host):
    """What the kernel refuses to load is not installed."""

    def setUp(self) -> None:
        super().setUp()
        built = f"var/lib/dkms/kvm-global-tdp/{PACKAGE.version}/{RELEASE}/x86_64/module/kvm.ko"
        _write(self.root / built, "")
        self.image(VERSION)
        self.modinfo("DKMS module signing key")
        self.mokutil("disabled", "not")

    def modinfo(self, signer: str) -> None:
        case = f'linux_source) echo {VERSION} ;;\nsigner) echo "{signer}" ;;'
        self.program("modinfo", f"case $2 in\n{case}\nesac")

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
        self.modinfo("")
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
        self.modinfo("")
        self.assert_refused("check-load", "install openssl")

    def test_built_for_another_upload(self) -> None:
        self.image("6.12.117-2")
        self.assert_refused("check-load", "of Debian's linux 6.12.117-2 by now")

    def test_a_key_of_ones_own(self) -> None:
        self.mokutil("enabled", "already")
        _write(self.root / "etc/dkms/framework.conf", '# x\nmok_certificate="/root/own.der"\n')
        self.assert_accepted("check-load")
        self.assertEqual((self.root / "asked").read_text(), f"{self.root}/root/own.der\n")


_MODINFO = """case $* in
*linux_source*) cat @ROOT@/made_from ;;
*-n*) eval "echo @UPDATES@/\\$$#.ko.xz" ;;
esac"""
_DKMS = """#!/bin/sh
# Of one module and one kernel: what it did last is its state.
state=$(cat @ROOT@/state 2>/dev/null)
case $1 in
status) [ -z "$state" ] || echo "kvm-global-tdp/1, @RELEASE@, x86_64: $state" ;;
build)
	[ -e "$KVM_GLOBAL_TDP_SOURCES/taken" ] || exit 11
	[ -e @ROOT@/broken ] && {
		mkdir -p @STATE@/build
		echo 'error: x' >@STATE@/build/make.log
		echo tried >>@ROOT@/done
		exit 10
	}
	cp @ROOT@/upload @ROOT@/made_from
	echo built >@ROOT@/state ;;
install)
	[ ! -e @ROOT@/cut_off ] || {
		mkdir -p @UPDATES@
		touch @UPDATES@/kvm-amd.ko.xz
		exit 6
	}
	made=@STATE@/@RELEASE@/x86_64/module
	mkdir -p $made
	for name in kvm kvm-amd kvm-intel; do echo $name >$made/$name.ko.xz; done
	mkdir -p @UPDATES@
	cp $made/* @UPDATES@
	[ ! -e @ROOT@/part ] || : >@UPDATES@/kvm-amd.ko.xz
	echo installed >@ROOT@/state ;;
uninstall) echo built >@ROOT@/state ;;
esac
echo "$1" >>@ROOT@/done
"""


class KernelHook(_Host):
    """What comes of a kernel that is installed, in the state that DKMS has it in."""

    def setUp(self) -> None:
        super().setUp()
        (self.root / f"lib/modules/{RELEASE}/build/include").mkdir(parents=True)
        self.updates = self.root / f"lib/modules/{RELEASE}/updates/dkms"
        self.failed = self.root / f"var/cache/kvm-global-tdp/{RELEASE}.failed"
        self.image(VERSION)
        for name in ("check-load", "remake-initramfs", "keep-stock", "depmod"):
            self.program(name, f'echo {name} "$@" >>{self.root}/done')
        self.program("check-kernel", f"cat {self.root}/upload")
        self.program("take-sources", 'mkdir -p "$2" 2>/dev/null && touch "$2/taken"')
        self.program("modinfo", _MODINFO)
        self.program("dkms", _DKMS)
        _write(self.root / "upload", "6.12.117-1")

    def program(self, name: str, script: str) -> None:
        words = {
            "@STATE@": f"{self.root}/var/lib/dkms/kvm-global-tdp/@VERSION@",
            "@UPDATES@": str(self.updates),
            "@ROOT@": str(self.root),
            "@RELEASE@": RELEASE,
        }
        for word, value in words.items():
            script = script.replace(word, value)
        super().program(name, script)

    def start(self, *args: str) -> subprocess.Popen[str]:
        text = (PACKAGING / "kernel-hook").read_text()
        for path in ("/usr/src/kvm-global-tdp-@VERSION@", "/usr/lib/kvm-global-tdp"):
            text = text.replace(path, str(self.programs))
        for path in ("/boot", "/lib/modules", "/var/lib/dkms", "/var/cache", "/run"):
            text = text.replace(path, f"{self.root}{path}")
        _write(self.root / "hook", text)
        (self.root / "done").unlink(missing_ok=True)
        return subprocess.Popen(
            ["sh", self.root / "hook", RELEASE, *args],
            env={**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def hook(self, *args: str) -> int:
        running = self.start(*args)
        self.said = running.communicate()[1].splitlines()
        left = [path.name for path in self.root.glob("var/cache/*/*")]
        self.assertLessEqual(set(left), {self.failed.name})
        self.assertEqual(list(self.root.rglob("*.spare")), [])
        return running.returncode

    def did(self) -> list[str]:
        done = self.root / "done"
        lines = done.read_text().splitlines() if done.exists() else []
        known = ("build", "tried", "install", "uninstall", f"remake-initramfs {RELEASE}")
        return [line for line in lines if line in known]

    def state(self, state: str, made_from: str = "6.12.117-1") -> None:
        _write(self.root / "state", state)
        _write(self.root / "made_from", made_from)
        built = self.root / f"var/lib/dkms/kvm-global-tdp/@VERSION@/{RELEASE}/x86_64/module"
        for name in modules.NAMES if state else ():
            for place in (built, self.updates)[: 1 + (state == "installed")]:
                _write(place / f"{name}.ko.xz", f"{name}\n")

    def test_it_comes(self) -> None:
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["build", "install"])
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), [])

    def test_an_installation_that_fails_leaves_nothing(self) -> None:
        (self.root / "cut_off").touch()
        other = self.root / f"lib/modules/{RELEASE}/updates/dkms/kvmfr.ko"
        _write(other, "somebody else's")
        self.assertEqual(self.hook("--initramfs"), 1)
        self.assertEqual(list(other.parent.iterdir()), [other])
        self.assert_cleared_away()

    def assert_cleared_away(self) -> None:
        done = (self.root / "done").read_text().splitlines()
        wanted = [f"keep-stock {RELEASE}", "uninstall", f"depmod {RELEASE}"]
        self.assertEqual(done[-3:], wanted)
        self.assertIn("has its own KVM again", self.said[-1])

    def test_an_installation_that_is_not_whole(self) -> None:
        """DKMS has said that it is."""
        (self.root / "part").touch()
        self.assertEqual(self.hook("--initramfs"), 1)
        self.assertEqual(list(self.updates.iterdir()), [])
        self.assert_cleared_away()
        (self.root / "part").unlink()
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["install"])

    def test_modprobe_would_take_another(self) -> None:
        other = self.root / "other/kvm.ko.xz"
        _write(other, "the distribution's")
        self.program("modinfo", _MODINFO.replace("@UPDATES@", str(other.parent)))
        self.assertEqual(self.hook(), 1)
        self.assert_cleared_away()

    def test_the_distributions_are_held_before(self) -> None:
        self.assertEqual(self.hook(), 0)
        done = (self.root / "done").read_text().splitlines()
        self.assertEqual(done[-2:], [f"keep-stock --hold {RELEASE}", "install"])

    def test_two_at_once(self) -> None:
        """The second waits, and finds that all is done, or that the package is gone."""
        for gone in (False, True):
            lock = os.open(self.programs, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            running = self.start()
            assert running.stderr
            self.assertIn("waiting for another", running.stderr.readline())
            self.assertIsNone(running.poll())
            self.assertEqual(self.did(), [])
            self.state("installed")
            if gone:
                (self.programs / "check-kernel").unlink()
            os.close(lock)
            self.assertEqual(running.communicate()[1], "")
            self.assertEqual(running.returncode, 0)
            self.assertEqual(self.did(), [])

    def test_headers_only(self) -> None:
        """Its image comes later, from 7.2 on in two places, or never."""
        image = self.root / f"boot/vmlinuz-{RELEASE}"
        image.unlink()
        self.assertEqual(self.hook(), 0)
        self.assertEqual((self.did(), self.said), ([], []))
        _write(self.root / f"lib/modules/{RELEASE}/vmlinuz", "")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["build", "install"])

    def test_no_room_to_install(self) -> None:
        self.program("df", "echo x; echo / 1 1 65535 1 /")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["build"])
        self.assertIn("64 MB are needed", self.said[-1])
        self.program("df", "echo x; echo / 1 1 65536 1 /")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["install"])

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

    def test_sources_go_on(self) -> None:
        """What was made from the kernel's own stays."""
        self.program("take-sources", "exit 1")
        for state, done in (("installed", []), ("built", ["install"])):
            self.state(state)
            self.assertEqual(self.hook(), 0)
            self.assertEqual(self.did(), done)

    def test_uploaded_again(self) -> None:
        self.state("installed", made_from="6.12.117-0")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["uninstall", "build", "install"])
        for state, done in (("installed", ["uninstall"]), ("built", [])):
            self.state(state, made_from="6.12.117-0")
            self.program("take-sources", "exit 1")
            self.assertEqual(self.hook(), 0)
            self.assertEqual(self.did(), done)

    def test_told_once(self) -> None:
        """Until there is something else to say, or it was built."""
        for reason, said in (("one", 1), ("one", 0), ("two", 1), ("", 0), ("two", 1)):
            if reason:
                self.program("take-sources", f"echo {reason} >&2; exit 1")
            else:
                self.program("take-sources", 'mkdir -p "$2" && touch "$2/taken"')
            self.state("")
            self.assertEqual(self.hook(), 0)
            self.assertEqual(self.said, [reason] * said)

    def test_no_room(self) -> None:
        _write(self.root / "var/cache", "")
        self.state("installed", made_from="6.12.117-0")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["uninstall"])

    def test_what_would_not_load(self) -> None:
        self.program("check-load", "exit 1")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["build"])
        self.state("installed")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["uninstall"])

    def test_what_is_not_whole_is_installed_again(self) -> None:
        """Without its sources: what was built is there."""
        self.program("take-sources", "exit 1")
        for damage in (Path.unlink, lambda path: path.write_text("")):
            self.state("installed")
            damage(self.updates / "kvm-amd.ko.xz")
            self.assertEqual(self.hook(), 0)
            self.assertEqual(self.did(), ["uninstall", "install"])
            self.assertEqual(self.hook(), 0)
            self.assertEqual(self.did(), [])

    def test_asked_for_what_would_not_load_is_built_again(self) -> None:
        """DKMS signs what it builds: openssl has come since. What loads is not built again."""
        reconfigure = mock.patch.dict(os.environ, {"DEBCONF_RECONFIGURE": "1"})
        for passes, done in ((f"[ -e {self.root}/signed ]", ["build", "install"]), ("", [])):
            self.state("built" if done else "installed")
            self.program(
                "check-load", f"{passes}\nstatus=$?; touch {self.root}/signed; exit $status"
            )
            with reconfigure:
                self.assertEqual(self.hook(), 0)
            self.assertEqual(self.did(), done)

    def test_a_build_that_fails(self) -> None:
        """Its log stays, and nothing else; it is not tried again."""
        build = self.root / "var/lib/dkms/kvm-global-tdp/@VERSION@/build"
        _write(build / "arch/x86/kvm/x86.o", "")
        _write(self.root / "broken", "")
        self.assertEqual(self.hook(), 1)
        self.assertEqual(self.did(), ["tried"])
        self.assertFalse(build.exists())
        self.assertEqual(self.failed.read_text(), "@VERSION@ 6.12.117-1\nerror: x\n")
        self.assertIn(f"see {self.failed}; dpkg-reconfigure", self.said[-1])

    def fail(self) -> None:
        _write(self.root / "broken", "")
        self.assertEqual(self.hook(), 1)
        self.assertEqual(self.did(), ["tried"])

    def test_a_build_that_failed_is_not_tried_again(self) -> None:
        """A line says so, once; what was installed for another upload goes."""
        self.fail()
        self.state("installed", made_from="6.12.117-0")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["uninstall"])
        self.assertEqual(len(self.said), 1)
        self.assertIn("dpkg-reconfigure kvm-global-tdp-dkms tries again", self.said[0])
        self.assertEqual(self.hook(), 0)
        self.assertEqual((self.did(), self.said), ([], []))

    def test_a_build_that_failed_is_tried_again(self) -> None:
        """When the failure was forgotten, as the postinst does, or of other sources."""
        self.fail()
        self.failed.unlink()
        self.fail()
        _write(self.root / "upload", "6.12.117-2")
        self.fail()
        (self.root / "broken").unlink()
        _write(self.root / "upload", "6.12.117-3")
        self.assertEqual(self.hook(), 0)
        self.assertEqual(self.did(), ["build", "install"])
        self.assertFalse(self.failed.exists())

    def test_a_build_that_is_ended_has_not_failed(self) -> None:
        self.program("dkms", '[ "$1" != build ] || kill -TERM $PPID')
        self.assertEqual(self.hook(), 1)
        self.assertFalse(self.failed.exists())


class Prerm(unittest.TestCase):
    """What is there before this package is replaced or removed."""

    def test_only_dpkg_reconfigure_leaves_all(self) -> None:
        text = (PACKAGING / "debian/kvm-global-tdp-dkms.prerm").read_text()
        text = text.partition("# See kernel-hook")[0]
        for action, again, goes_on in (
            ("upgrade", "1", False),
            ("upgrade", "", True),
            ("remove", "1", True),
        ):
            stubs = "ischroot() { :; }\n"
            done = subprocess.run(
                ["sh", "-c", f"{stubs}{text}\necho goes on", "prerm", action],
                env={**os.environ, "DEBCONF_RECONFIGURE": again},
                capture_output=True,
                text=True,
            )
            self.assertEqual((done.returncode, done.stdout), (0, "goes on\n" * goes_on))


class KeepStock(_Host):
    """The distribution's modules are back whatever became of ours."""

    def setUp(self) -> None:
        super().setUp()
        self.own = self.root / f"lib/modules/{RELEASE}/kernel/arch/x86/kvm"
        for name in modules.NAMES:
            _write(self.own / f"{name}.ko.xz", name)
        _write(self.own / "kvmfr.ko.xz", "another")
        self.moved = self.root / f"var/lib/dkms/kvm-global-tdp/original_module/{RELEASE}/x86_64"
        self.installed()

    def installed(self) -> None:
        """What is there is dpkg's, which knows it, of two packages from 7.2 on."""
        for folder, package in (("lib", "modules"), ("usr/lib", "image")):
            sums = "".join(
                f"{hashlib.md5(path.read_bytes()).hexdigest()}  "
                f"{folder}/modules/{RELEASE}/kernel/arch/x86/kvm/{path.name}\n"
                for path in self.own.glob("kvm*.ko.xz")
                if ("-" in path.name) == (package == "modules")
            )
            name = f"linux-{package}-{RELEASE}.md5sums"
            _write(self.root / "var/lib/dpkg/info" / name, sums)

    def keep(self, *args: str) -> None:
        text = (PACKAGING / "keep-stock").read_text()
        for path in ("/lib/modules/$", "/var/lib/dkms", "/var/lib/dpkg"):
            text = text.replace(path, f"{self.root}{path}")
        done = subprocess.run(["sh", "-c", text, "sh", *args, RELEASE], capture_output=True)
        self.assertEqual(done.stderr, b"")

    def assert_back(self) -> None:
        found = {path.name: path.read_text() for path in self.own.iterdir()}
        wanted = {f"{name}.ko.xz": name for name in modules.NAMES}
        self.assertEqual(found, {**wanted, "kvmfr.ko.xz": "another"})
        self.assertEqual([path for path in self.moved.rglob("*") if path.is_file()], [])

    def move(self, name: str) -> None:
        """As DKMS does."""
        place = self.own / f"{name}.ko.xz"
        _write(self.moved / place.name, place.read_text())
        _write(self.moved / f"{place.name}.origin", f"{place}\n")
        place.unlink()

    def test_moved_away(self) -> None:
        self.move("kvm")
        self.move("kvm-amd")
        self.keep()
        self.assert_back()

    def test_held(self) -> None:
        """It takes no room: they are the same files, also if DKMS has put back a part."""
        before = (self.own / "kvm.ko.xz").stat().st_ino
        self.keep("--hold")
        for name in modules.NAMES:
            self.move(name)
        _write(self.own / "kvm-amd.ko.xz", "kvm-")
        self.keep()
        self.assert_back()
        self.assertEqual((self.own / "kvm.ko.xz").stat().st_ino, before)

    def test_cut_off(self) -> None:
        """The next one finds what was held."""
        self.keep("--hold")
        self.move("kvm")
        self.keep("--hold")
        self.assertEqual((self.own / "kvm.ko.xz").read_text(), "kvm")
        self.keep()
        self.assert_back()

    def test_nothing_was_moved(self) -> None:
        self.keep("--hold")
        self.keep()
        self.assert_back()

    def test_what_was_held_of_an_earlier_upload_stays_gone(self) -> None:
        """Killed after --hold; then the release is uploaded again, with a fix to KVM."""
        for again in ([], ["--hold"], ["moved"]):
            with self.subTest(again):
                for name in modules.NAMES:
                    _write(self.own / f"{name}.ko.xz", "without the fix")
                self.installed()
                self.keep("--hold")
                for name in modules.NAMES:
                    (self.own / f"{name}.ko.xz").unlink()  # dpkg writes another file
                    _write(self.own / f"{name}.ko.xz", name)
                self.installed()
                if again == ["moved"]:
                    for name in modules.NAMES:
                        self.move(name)
                else:
                    self.keep(*again)
                self.keep()
                self.assert_back()


class Status(_Host):
    """What monitoring is told."""

    def module(self, name: str, content: str) -> None:
        _write(self.root / "sys/module/kvm" / name, content)

    def setUp(self) -> None:
        super().setUp()
        self.debugfs = self.root / "sys/kernel/debug/kvm"
        # Ours is not installed: nothing is known of the machine that this runs on.
        self.program("modinfo", "exit 1")

    def status(self, *options: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        command = ["sh", PACKAGING / "global-tdp-status", *options, self.root]
        env = {**os.environ, "PATH": path}
        return subprocess.run(command, capture_output=True, text=True, env=env)

    def assert_status(self, status: int, said: str, *options: str) -> None:
        done = self.status(*options)
        found = (done.returncode, done.stdout.count("\n"), done.stderr)
        self.assertEqual(found, (status, 1, ""), done)
        self.assertIn(said, done.stdout)
        told = json.loads(self.status("--json").stdout)
        if not options:
            self.assertEqual(
                (told["status"], f"global-tdp {told['says']}\n"), (status, done.stdout)
            )

    def vm(self, name: str, threads: int, **statistics: int) -> None:
        """One that has Global TDP, and the sums, of what is told here."""
        known = ("populated_4k", "populated_2m", "populated_1g", "populate_time_ns")
        for each in (*known, "populate_nomem", "thread_failed"):
            value, total = statistics.get(each, 0), self.debugfs / f"tdp_{each}"
            _write(self.debugfs / name / f"tdp_{each}", f"{value}\n")
            before = int(total.read_text()) if total.exists() else 0
            _write(total, f"{before + value}\n")
        task = self.root / "proc" / name.partition("-")[0] / "task"
        _write(task / "1/comm", "qemu-system-x86\n")
        for number in range(threads):
            _write(task / f"{number + 2}/comm", "kvm-gtdp\n")

    def ours(self, on: str) -> None:
        self.module("version", PACKAGE.version + "\n")
        self.module("parameters/global_tdp", on + "\n")

    def test_on(self) -> None:
        self.ours("always")
        _write(self.debugfs / "11-7/pages_4k", "0\n")
        self.vm("10-7", 1, populated_4k=512, populate_time_ns=4 * 10**9)
        self.vm("12-7", 2, populated_2m=3, populated_1g=1)
        self.vm("12-8", 2)
        counts = "3 of 4 VMs have it, threads: 3, mapped ahead: 1032 MiB, time for that: 4 s"
        self.assert_status(0, f"{counts}; KVM {PACKAGE.version}")
        told = json.loads(self.status("--json").stdout)
        self.assertEqual((told["vms"], told["vms_with"], told["threads"]), (4, 3, 3))
        self.assertEqual((told["mapped_kib"], told["time_ms"]), (1032 << 10, 4000))
        self.assertEqual((told["global_tdp"], told["version"]), ("always", PACKAGE.version))

    def test_no_vms(self) -> None:
        self.ours("always")
        self.program("id", "echo 0")
        self.assert_status(3, "UNKNOWN: statistics cannot be read: mount debugfs; on for new")
        self.assertIsNone(json.loads(self.status("--json").stdout)["vms"])
        self.debugfs.mkdir(parents=True)
        self.assert_status(0, "0 of 0 VMs have it, threads: 0, mapped ahead: unknown")

    def test_statistics_that_cannot_be_read(self) -> None:
        """What is off or stopped is no less so."""
        self.ours("always")
        self.program("id", "echo 1000")
        self.assert_status(3, "cannot be read: be root")
        self.program("id", "echo 0")
        self.vm("10-7", 1)
        self.program("cat", f'case $1 in {self.debugfs}/*) exit 1 ;; esac\nexec /bin/cat "$@"')
        self.assert_status(3, "cannot be read: this host is locked down")
        self.assert_status(0, "OK: stopped, for all VMs; VMs unknown; KVM", "--stop")
        self.assert_status(1, "WARNING: stopped, for all VMs; VMs unknown")

    def test_what_the_next_boot_loads(self) -> None:
        """Of the running kernel, and the newest."""
        self.ours("always")
        self.debugfs.mkdir(parents=True)
        self.program("uname", "echo 6.12.9-amd64")
        kernels = ("6.12.9-amd64", "6.12.10-amd64")
        for boot, ours, wrong in (
            ((), (), ""),
            (kernels, kernels, ""),
            (kernels, kernels[:1], kernels[1]),
            (kernels, kernels[1:], kernels[0]),
            (kernels[:1], (), kernels[0]),
        ):
            for release in boot:
                _write(self.root / f"boot/vmlinuz-{release}", "")
            patterns = " | ".join(f"*' -k {release} -F version '*" for release in ours)
            case = f'case " $* " in {patterns or "none"}) echo 1 ;; esac'
            self.program("modinfo", case)
            if wrong:
                self.assert_status(2, f"CRITICAL: {wrong} has its own KVM, which the next boot")
            else:
                self.assert_status(0, "OK")
            for release in boot:
                (self.root / f"boot/vmlinuz-{release}").unlink()

    def test_json(self) -> None:
        """A program can rely on the format; what is unknown is null."""
        self.ours("always")
        (self.root / "sys/module/kvm/version").unlink()
        told = json.loads(self.status("--json").stdout)
        found = [told[name] for name in ("format", "version", "upload")]
        self.assertEqual(found, [1, None, None])
        self.program("modinfo", f'[ "$2" = linux_source ] && echo {VERSION}')
        self.assertEqual(json.loads(self.status("--json").stdout)["upload"], VERSION)

    def test_no_thread(self) -> None:
        """Of a VM that could not have it and has none; it may have got one since."""
        self.ours("always")
        self.vm("10-7", 1, thread_failed=3)
        self.assert_status(0, "OK")
        self.vm("12-7", 0, thread_failed=3)
        self.assert_status(2, "CRITICAL: VMs that cannot create their thread: 1: see pids.max")

    def test_no_memory(self) -> None:
        """Just now, not some time ago."""
        self.ours("always")
        self.vm("10-7", 1, populate_nomem=7)
        self.program("sleep", "exit 0")
        self.assert_status(0, "OK")
        self.program("sleep", f"echo 9 >{self.debugfs}/tdp_populate_nomem")
        done = self.status()
        self.assertEqual(done.returncode, 2)
        self.assertIn("CRITICAL: no memory for page tables, 2 times in 5 s", done.stdout)

    def test_an_earlier_version_is_loaded(self) -> None:
        """Which has the files for all VMs, until the next boot."""
        self.ours("Y")
        _write(self.debugfs / "tdp_threads", "1\n")
        self.assert_status(0, "VMs unknown: KVM is of an earlier version")

    def test_options(self) -> None:
        for options in (["--nonsense"], ["--json", "a"], ["-s"]):
            done = self.status(*options)
            self.assertEqual(
                (done.returncode, done.stdout, done.stderr.count("\n")), (3, "", 1)
            )

    def test_why_not(self) -> None:
        self.module("parameters/tdp_mmu", "Y\n")
        check = self.root / "usr/src/kvm-global-tdp-1/check-source"
        _write(
            check, '#!/bin/sh\necho kvm-global-tdp: x keeps its own KVM: \\"y\\" >&2; exit 1\n'
        )
        check.chmod(0o755)
        self.assert_status(2, 'without Global TDP is loaded; x keeps its own KVM: "y"')

    def test_off(self) -> None:
        for value in ("ask", "N"):
            self.ours(value)
            self.assert_status(1, "WARNING: off for new VMs")

    def test_stopped(self) -> None:
        self.ours("always")
        self.vm("10-7", 1)
        said = "OK: stopped, for all VMs; 1 of 1 VMs have it, threads: 1; KVM"
        self.assert_status(0, said, "--stop")
        self.assertEqual(
            (self.root / "sys/module/kvm/parameters/global_tdp").read_text(), "never\n"
        )
        self.assert_status(1, "WARNING: stopped, for all VMs")

    def test_nothing_to_stop(self) -> None:
        self.module("parameters/tdp_mmu", "Y\n")
        self.assert_status(2, "without Global TDP is loaded", "--stop")

    def test_the_kernels_own(self) -> None:
        self.module("parameters/tdp_mmu", "Y\n")
        self.assert_status(2, "without Global TDP is loaded")

    def test_none(self) -> None:
        self.assert_status(2, "no KVM is loaded")


if __name__ == "__main__":
    unittest.main()
