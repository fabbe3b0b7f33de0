"""Which kernels the package is for, what it has of the patches, what it does on a host."""

import fcntl
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from unittest import mock

import pytest

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
SERIES, SETTINGS = "package/patches/6.12", "etc/default/kvm-global-tdp"
BOOT, MODULES = f"boot/vmlinuz-{RELEASE}", f"lib/modules/{RELEASE}"
ARCHIVE = "usr/src/linux-source-6.12.tar.xz"
SCRIPTS = ("check-kernel", "check-source", "chosen-patches", "take-sources", "check-load")
UPDATES, DKMS = f"{MODULES}/updates/dkms", "var/lib/dkms/kvm-global-tdp/@VERSION@"
Files = dict[str, str | bytes | None]


def _image(version: str, path: str = BOOT) -> Files:
    """Return the begin of a bzImage: at 0x20e is where, from 0x200 on, its version is."""
    said = f"{RELEASE} (debian-kernel@lists.debian.org) #1 SMP Debian {version} (2026-11-14)"
    head = bytes(0x20E) + (0x400).to_bytes(2, "little") + bytes(0x3F0)
    return {path: head + said.encode() + bytes(9)}


def _headers(version: str) -> Files:
    said = f'#ifndef __ASSEMBLY__\n#define LINUX_PACKAGE_ID " Debian {version}"\n'
    return {f"{MODULES}/build/include/generated/package.h": said}


def _tested(*versions: str) -> Files:
    listed = "".join(f"{version} 2026-11-28 e2efe36\n" for version in versions)
    return {"package/tested": f"# x\n{listed}"}


def _program(name: str, script: str) -> Files:
    return {f"programs/{name}": f"#!/bin/sh\n{script}\n"}


def _sources(state: str, version: str = VERSION) -> Files:
    """As dpkg knows them."""
    return _program("dpkg-query", f"echo {state} {version}")


class Host:
    """A root file system, scripts of the package, and programs that they run."""

    def __init__(self, root: Path) -> None:
        self.root, self.programs = root, root / "programs"
        for name in SCRIPTS:
            text = (PACKAGING / name).read_text().replace("@VERSION@", PACKAGE.version)
            text = text.replace("@PATTERN@", PACKAGE.pattern)
            self.put({f"package/{name}": text.replace("@SUPPORTED@", PACKAGE.supported)})
        self.put(_tested(VERSION, "6.12.117-2", "6.12.117-3"))

    def put(self, *several: Files) -> None:
        """Write files, or have them gone."""
        for files in several:
            for name, content in files.items():
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    path.unlink(missing_ok=True)
                elif isinstance(content, bytes):
                    path.write_bytes(content)
                else:
                    text = content.replace("@UPDATES@", f"@ROOT@/{UPDATES}")
                    text = text.replace("@STATE@", f"@ROOT@/{DKMS}").replace(
                        "@RELEASE@", RELEASE
                    )
                    path.write_text(text.replace("@ROOT@", str(self.root)), newline="")
                    path.chmod(0o755)

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        env = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            ["sh", *command], env=env, cwd=self.root, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *command: str | Path) -> tuple[int, str, str]:
        """Return its status and what it said."""
        running = self.start(*command)
        said, wrong = running.communicate()
        return running.returncode, said, wrong

    def check(
        self, name: str, *args: Path, said: str = "", why: str = "", of: str = RELEASE
    ) -> None:
        """See that a script of the package says that, or refuses in a line."""
        script = self.root / "package" / name
        status, found, wrong = self.run(script, of, *args, self.root)
        assert (status, found, wrong.count("\n")) == ((1, "", 1) if why else (0, said, 0))
        assert why in wrong


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("release", (*GOOD, *BAD))
def test_pattern(release: str) -> None:
    """For Python, bash (dkms) and grep."""
    wanted = release in GOOD
    assert bool(re.search(PACKAGE.pattern, release)) == wanted
    bash = ["bash", "-c", "[[ $0 =~ $1 ]]", release, PACKAGE.pattern]
    assert (subprocess.run(bash).returncode == 0) == wanted
    grep = ["grep", "-Eq", PACKAGE.pattern]
    assert (subprocess.run(grep, input=release.encode()).returncode == 0) == wanted


def test_uploads_newest_first() -> None:
    image = "linux-image-6.12"
    known = {
        f"{image}.99+deb13-amd64": "6.12.99-1",
        f"{image}.107+deb13-amd64": "6.12.107-1",
        f"{image}.107+deb13.1-amd64": "6.12.107-2",
        f"{image}.108+deb12-amd64": "6.12.108-1~deb12u1",
        f"{image}.108+deb13-rt-amd64": "6.12.108-1",
        f"{image}.108+deb13-amd64-unsigned": "6.12.108-1",
        f"{image}-amd64": "6.12.108-1",
    }

    def cache(command: str, *names: str) -> str:
        if command == "pkgnames":
            return "\n".join(known)
        # In each of two suites.
        return "".join(f" {name} | {known[name]} | suite\n" * 2 for name in names)

    apt = mock.Mock(cache=cache)
    found = uploads.offered(apt, "6.12", "deb13")
    assert [upload.version for upload in found] == ["6.12.107-2", "6.12.107-1", "6.12.99-1"]
    assert found[0].release == "6.12.107+deb13.1-amd64"
    assert found[0].source == "linux-source-6.12"
    assert uploads.offered(apt, "7.3", "deb13") == []


@pytest.mark.parametrize(
    ("version", "count"), (("6.12.118-1", 1), ("7.2.6-1~bpo13+1", 4), ("7.3.4-1", 4))
)
def test_an_image_of_several_packages(version: str, count: int) -> None:
    """From 7.2 on."""
    upload = uploads.Upload("R-amd64", version)
    assert len(upload.images) == count
    assert "linux-image-R-amd64" in upload.images
    assert upload.packages[:count] == upload.images
    assert ("linux-modules-R-amd64" in upload.packages) == (count > 1)


def _patch(*names: str, new: bool = False) -> str:
    """Return a patch that adds a line to files, or files of a line."""
    change = "@@ -0,0 +1 @@\n+new\n" if new else "@@ -1 +1,2 @@\n+new\n old\n"
    mode = "new file mode 100644\n" if new else ""
    text = "From: A. Developer\nSubject: [PATCH] KVM: Change\n it\n\nWhy\n\n"
    for name in names:
        before = "/dev/null" if new else f"a/{name}"
        text += f"diff --git a/{name} b/{name}\n{mode}--- {before}\n+++ b/{name}\n{change}"
    return text


CODE = ("arch/x86/kvm/a.c", "virt/kvm/b.c", "include/linux/c.h")


@pytest.mark.parametrize(
    ("names", "taken"),
    (
        (CODE, CODE),
        (("Documentation/a.rst", "tools/testing/b.c", "MAINTAINERS"), ()),
        (("tools/a.c", "arch/x86/kvm/b.c", "Documentation/c.rst"), ("arch/x86/kvm/b.c",)),
    ),
)
def test_the_package_has_what_changes_kvms_modules(names: tuple, taken: tuple) -> None:
    assert deb.of_modules(_patch(*names)) == (_patch(*taken) if taken else "")


@pytest.mark.parametrize(
    ("text", "why"),
    (
        (_patch("arch/x86/kvm/a.c", "mm/memory.c"), "can't change mm/memory.c"),
        ("diff --git a/virt/a.c b/virt/b.c\nrename from virt/a.c\n", "can't rename"),
    ),
)
def test_what_modules_could_not_have(text: str, why: str) -> None:
    with pytest.raises(LabError, match=why):
        deb.of_modules(text)


def test_headers_that_a_patch_adds() -> None:
    """The kernel has none to compare with."""
    of = (
        _patch("include/linux/new.h", new=True),
        _patch("include/linux/new.h", "include/linux/old.h", "virt/kvm/a.h"),
        _patch("include/linux/old.h", "arch/x86/include/asm/a.h"),
    )
    assert deb.changed_headers(of) == ["arch/x86/include/asm/a.h", "include/linux/old.h"]


HERE = _image(VERSION)
# One is made of the other; the others have a change of their own.
SAME = ("6.12.117-1~deb12u1", "6.12.117-1~bpo12+1", VERSION)
OTHER = ("6.12.117-1~deb12u2", "6.12.117-1+deb13u1", "6.12.117-1~rc1")
# None is this one, though some begin or look the same.
UNLIKE = ("6.12.117-11", "6.12.11", "6x12.117-1", "6.12.117-1~deb12u2")
ALLOWED = (
    *(f"{VERSION} # x\n", f"6.12.9-1\r\n{VERSION}\r\n", f"{VERSION}~deb12u1", "any"),
    *("\n# x\n\n any# y\n", "any # \xff\n", "untested=yes\r\n"),
)
SILENT = (
    *("", "\n\n", "untested=no\n", "6.12.117-2\n", "6.12.117-11\n", "many\n"),
    f"# {VERSION}\n#any\n",
)
MALFORMED = (
    *("untested = yes\n", "yes\n", "untested=YES\n", "6.12.117-1x\n", ".*\n", "\xff\0\n"),
    *("untested=$(touch ran)\n", "touch ran\n"),
)


@pytest.mark.parametrize(
    ("files", "version"),
    (
        *((_image(each) | _headers(each), each) for each in (VERSION, "6.12.117-2", SAME[0])),
        *((_tested(one) | _image(each), each) for one in SAME for each in SAME),
        *((HERE | _tested(*of) | {SETTINGS: VERSION}, VERSION) for of in ((), UNLIKE)),
        *((HERE | _tested() | {SETTINGS: text}, VERSION) for text in ALLOWED),
        *((HERE | {SETTINGS: text}, VERSION) for text in MALFORMED),
        # From 7.2 on, what is in /boot is a copy, made as it is configured.
        (_image("6.12.117-2", f"{MODULES}/vmlinuz"), "6.12.117-2"),
        (HERE | _image("6.12.117-2", f"{MODULES}/vmlinuz"), VERSION),
        ({}, ""),
        (HERE, VERSION),
    ),
)
def test_a_kernel_that_was_tested(host: Host, files: Files, version: str) -> None:
    """The upload counts, not what it is called."""
    host.put(files)
    host.check("check-kernel", said=f"{version}\n")
    assert not (host.root / "ran").exists()


@pytest.mark.parametrize(
    ("files", "why"),
    (
        *((_tested(one) | _image(each), "not tested") for one in SAME for each in OTHER),
        (HERE | _tested(), f"not tested on Debian's linux {VERSION}: wait"),
        (HERE | _tested(*UNLIKE), f"not tested on Debian's linux {VERSION}: wait"),
        *(
            (HERE | _tested() | {SETTINGS: text}, f"or run echo {VERSION} >>")
            for text in SILENT
        ),
        *((HERE | _tested() | {SETTINGS: text}, "was not tested") for text in MALFORMED),
        (HERE | {"package/tested": None}, "reinstall kvm-global-tdp-dkms"),
        (HERE | _headers("6.12.117-2"), "its headers are of 6.12.117-2: upgrade both"),
        ({BOOT: bytes(0x1000)} | _headers(VERSION), "not one of Debian's"),
    ),
)
def test_a_kernel_that_was_not(host: Host, files: Files, why: str) -> None:
    """Nothing in the settings is run."""
    host.put(files)
    host.check("check-kernel", why=why)
    assert not (host.root / "ran").exists()


@pytest.mark.parametrize("release", BAD)
def test_a_kernel_of_no_series(host: Host, release: str) -> None:
    host.check("check-kernel", why="6.12 and 7.3", of=release)


def test_settings_that_cannot_be_read(host: Host) -> None:
    """They may ask for less than all patches: this is not guessed."""
    host.put(HERE)
    (host.root / SETTINGS).mkdir(parents=True)
    host.check("check-kernel", why="cannot be read: correct it, then dpkg-reconfigure")


@pytest.mark.parametrize(
    ("text", "chosen"),
    (
        *((f"patches={each}\n", each) for each in ("fixes", "fixes+mmu_lock", "all")),
        *((text, "all") for text in (*SILENT, *ALLOWED, *MALFORMED)),
        ("any\n\t patches=fixes\r\n", "fixes"),
        ("patches=all\npatches=fixes # no more\n#patches=all\n", "fixes"),
    ),
)
def test_chosen_patches(host: Host, text: str, chosen: str) -> None:
    """All, if the settings do not say anything; the last line counts."""
    host.put(HERE | {SETTINGS: text})
    assert host.run("package/chosen-patches", host.root) == (0, f"{chosen}\n", "")
    host.check("check-kernel", said=f"{VERSION}\n")


@pytest.mark.parametrize(
    "text", ("patches=", "patches=mmu_lock", "patches = fixes", "patches=fixe", "patches=$(x)")
)
def test_patches_that_there_are_not(host: Host, text: str) -> None:
    host.put(HERE | {SETTINGS: f"any\n{text}\n"})
    host.check(
        "check-kernel", why="patches=fixes, patches=fixes+mmu_lock or patches=all: correct"
    )


@pytest.mark.parametrize(
    ("files", "why"),
    (
        *((_sources(state), "") for state in ("installed", "unpacked", "triggers-pending")),
        (_sources("not-installed"), "not installed: apt-get install linux-source-6"),
        (_sources("config-files"), "not installed: apt-get install linux-source-6"),
        (_program("dpkg-query", "exit 1"), f"apt-get install linux-source-6.12={VERSION}"),
        (_sources("half-installed"), "not wholly installed"),
        (_sources("installed") | {ARCHIVE: None}, "is gone"),
        (_sources("installed", "6.12.116-9"), "(6.12.116-9) is older than"),
        (_sources("installed", SAME[0]), f"({SAME[0]}) is older than"),
        (_sources("installed", "6.12.118-1"), "(6.12.118-1) is newer than"),
        (_sources("installed", "6.12.117-2"), "(6.12.117-2) is newer than"),
    ),
)
def test_the_sources_must_be_those_of_the_kernel(host: Host, files: Files, why: str) -> None:
    host.put(HERE, _headers(VERSION), {ARCHIVE: ""}, files)
    host.check("check-source", said="" if why else f"{host.root / ARCHIVE}\n", why=why)


def test_sources_of_no_series(host: Host) -> None:
    host.check("check-source", why="6.1.0-40-amd64 keeps its own KVM", of="6.1.0-40-amd64")


X86 = "arch/x86/kvm/x86.c"
HOST_H, ASM_H = "include/linux/kvm_host.h", "arch/x86/include/asm/kvm_host.h"
MAIN, NEW = "virt/kvm/kvm_main.c", "arch/x86/kvm/new.c"
TREE = {
    X86: "old\nstatic int __init kvm_x86_init(void)\n{\n"
    "\tkvm_init_xstate_sizes();\n\n\treturn 0;\n}\n",
    "arch/x86/kvm/Makefile": "include $(srctree)/virt/kvm/Makefile.kvm\n",
    **dict.fromkeys(("arch/x86/kvm/svm/svm.c", "arch/x86/kvm/vmx/vmx.c", MAIN), "old\n"),
    **dict.fromkeys((HOST_H, ASM_H, "mm/memory.c"), "old\n"),
}
LINES = "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
HUNK = "@@ -2,7 +2,8 @@\n 2\n 3\n 4\n+new\n 5\n 6\n 7\n 8\n"
FUZZ = {f"{SERIES}/0004-d.patch": _patch(MAIN).partition("@@")[0] + HUNK}
ADDED = {f"{MODULES}/build/{HOST_H}": "old\nnew\n"}


class Source(Host):
    """A host that has the kernel's sources."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.into, self.kernels = root / "a/into", root / "linux-source-6.12"
        self.put(HERE, _headers(VERSION), _sources("installed"))
        self.put({f"{MODULES}/build/{name}": TREE[name] for name in (HOST_H, ASM_H)})
        self.put({"package/makefile.sed": modules.makefile_sed()})
        self.put({"package/origin.patch": (PACKAGING / "origin.patch").read_bytes()})
        of = {
            "0001-a.patch": _patch(X86, HOST_H),
            "0002-b.patch": _patch("tools/a.c"),
            "0003-c.patch": _patch(NEW, "include/linux/new.h", new=True),
            "0004-d.patch": _patch(ASM_H),
        }
        for name, text in of.items():
            patches.write(root / name, text.replace(" it\n", f" {name}\n", 1))
        # The last patch of a part may change nothing that the package has.
        ends = {
            "1-fixes": "KVM: Change 0002-b.patch",
            "2-mmu_lock": "KVM: Change 0003-c.patch",
            "3-c": "",
        }
        self.put(
            {
                f"covers/{name}": f"Subject: x\nLast: {last}\n\nx\n"
                for name, last in ends.items()
            }
        )
        self.letters = [root / "covers" / name for name in ends]
        self.series = [root / name for name in of]
        deb.write_series(self.series, root / SERIES, self.letters)

    def pack(self, changes: Files) -> None:
        tree = {name: text for name, text in (TREE | changes).items() if text is not None}
        self.put({f"{self.kernels.name}/{name}": text for name, text in tree.items()})
        self.put({ARCHIVE: ""})
        with tarfile.open(self.root / ARCHIVE, "w:xz") as archive:
            archive.add(self.kernels, self.kernels.name)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_sources_are_taken_with_the_series(source: Source) -> None:
    """The Makefile is the same as the lab has."""
    source.pack({})
    source.check("take-sources", source.into)
    kvm = source.into / "arch/x86/kvm"
    text = (kvm / "x86.c").read_text()
    assert text.startswith("new\nold\n")
    assert "with Global TDP" in text
    said = f'MODULE_VERSION("{PACKAGE.version}");\nMODULE_INFO(linux_source, "{VERSION}");\n'
    said += 'MODULE_INFO(patches, "all");\n'
    assert text.endswith(said)
    for name in ("svm/svm.c", "vmx/vmx.c"):
        assert (kvm / name).read_text() == f"old\n{said}"
    found = {str(path.relative_to(source.into)) for path in source.into.rglob("*.[ch]")}
    front = (f"front/{name}" for name in (HOST_H, "include/linux/new.h", ASM_H))
    assert found == {X86, NEW, "arch/x86/kvm/svm/svm.c", "arch/x86/kvm/vmx/vmx.c", MAIN, *front}
    assert {path.name for path in source.into.iterdir()} == {"arch", "front", "virt"}
    wanted = modules._makefile(source.kernels / "arch/x86/kvm", checked=False)
    assert (kvm / "Makefile").read_text() == wanted


@pytest.mark.parametrize(
    ("tree", "files", "why"),
    (
        ({X86: "other\n"}, {}, "0001-a.patch does not apply to Debian's linux 6.12.117-1"),
        ({MAIN: LINES.replace("2", "two")}, FUZZ, "0004-d.patch does not apply"),
        ({MAIN: LINES}, FUZZ, ""),
        ({HOST_H: "old\nnew\n", NEW: "new\n"}, ADDED, "0003-c.patch does not apply"),
        ({}, {f"{MODULES}/build/{HOST_H}": "other\n"}, f"its {HOST_H} is not that of linux-so"),
        ({}, {ARCHIVE: lzma.compress(bytes(9000))[:-40]}, "cannot be unpacked"),
        ({MAIN: None}, {}, "virt/kvm: Not found in archive"),
        ({}, {"a": ""}, "is full or read-only"),
        ({}, _sources("installed", "6.12.118-1"), "is newer than"),
        # What an earlier try has left does not matter.
        ({}, {str(Path("a/into", "work", X86)): "half"}, ""),
    ),
)
def test_sources_or_nothing(source: Source, tree: Files, files: Files, why: str) -> None:
    source.pack(tree)
    source.put(files)
    source.check("take-sources", source.into, why=why)
    assert bool(list(source.into.rglob("*"))) == (not why)


@pytest.mark.parametrize(
    ("chosen", "has"),
    (("fixes", (X86, HOST_H)), ("fixes+mmu_lock", (X86, HOST_H, NEW)), ("all", (NEW, ASM_H))),
)
def test_no_more_patches_than_are_chosen(source: Source, chosen: str, has: tuple) -> None:
    source.pack({})
    source.put({SETTINGS: f"patches={chosen}\n"})
    source.check("take-sources", source.into)
    for name in (X86, HOST_H, NEW, ASM_H):
        path = source.into / ("front" * ("include/" in name)) / name
        changed = path.exists() and path.read_text().startswith("new\n")
        assert changed == (name in has or chosen == "all")
    text = (source.into / X86).read_text()
    named = "with Global TDP" + (f"'s {chosen}" if chosen != "all" else "")
    assert f"{named} %s, from" in text
    assert text.endswith(f'MODULE_INFO(patches, "{chosen}");\n')


def test_parts_that_are_not_in_the_series(source: Source) -> None:
    """The package is not built, or says what is wrong with it."""
    with pytest.raises(LabError, match="no patch is the last one of fixes"):
        deb.write_series(source.series[2:], source.root / "other", source.letters)
    source.pack({})
    source.put({f"{SERIES}/series": "0001-a.patch\n"})
    source.check("take-sources", source.into, why="not whole: reinstall kvm-global-tdp-dkms")


def _mokutil(state: str, enrolled: str) -> Files:
    test = f'echo "$2 is {enrolled} enrolled"; echo "$2" >asked'
    case = f"--sb-state) echo SecureBoot {state} ;;\n--test-key) {test} ;;"
    return _program("mokutil", f"case $1 in\n{case}\nesac")


def _modinfo(signer: str) -> Files:
    case = f'linux_source) echo {VERSION} ;;\nsigner) echo "{signer}" ;;'
    return _program("modinfo", f"case $2 in\n{case}\nesac")


LOCKDOWN, KEY = "sys/kernel/security/lockdown", "mokutil --import /var/lib/dkms/mok.pub"
ENROLLED = _mokutil("enabled", "already")


@pytest.mark.parametrize(
    ("files", "why"),
    (
        (_modinfo("") | {LOCKDOWN: "[none] integrity confidentiality\n"}, ""),
        (_mokutil("enabled", "not"), KEY),
        ({LOCKDOWN: "none [integrity] confidentiality\n"}, KEY),
        ({LOCKDOWN: "none integrity [confidentiality]\n"}, KEY),
        ({"sys/module/module/parameters/sig_enforce": "Y\n"}, KEY),
        (ENROLLED, ""),
        (ENROLLED | _modinfo(""), "install openssl"),
        (_image("6.12.117-2"), "of Debian's linux 6.12.117-2 by now"),
        (ENROLLED | {"etc/dkms/framework.conf": '# x\nmok_certificate="/own.der"\n'}, ""),
    ),
)
def test_what_the_kernel_refuses_to_load(host: Host, files: Files, why: str) -> None:
    """It is not installed; a key may be one's own."""
    built = f"var/lib/dkms/kvm-global-tdp/{PACKAGE.version}/{RELEASE}/x86_64/module/kvm.ko"
    host.put({built: ""}, HERE, _modinfo("DKMS module signing key"))
    host.put(_mokutil("disabled", "not"), files)
    host.check("check-load", why=why)
    if "etc/dkms/framework.conf" in files:
        assert (host.root / "asked").read_text() == f"{host.root}/own.der\n"


_MODINFO = """case $* in
*linux_source*) cat @ROOT@/made_from ;;
*-F*patches*) cat @ROOT@/made_with ;;
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
	cp @ROOT@/patches @ROOT@/made_with
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

TAKE, UPLOAD, FAILS = 'mkdir -p "$2" && touch "$2/taken"', "6.12.117-1", "exit 1"
FAILED, INITRAMFS = f"var/cache/kvm-global-tdp/{RELEASE}.failed", {"args": "--initramfs"}
REFUSED, AT_BOOT = f"var/cache/kvm-global-tdp/{RELEASE}.refused", {"args": "--at-boot"}


def _state(state: str, made_from: str = UPLOAD) -> Files:
    """Return what DKMS has of a kernel."""
    places = (f"{DKMS}/{RELEASE}/x86_64/module", UPDATES)[: 1 + (state == "installed")]
    files = {f"{place}/{name}.ko.xz": f"{name}\n" for place in places for name in modules.NAMES}
    return {"state": state, "made_from": made_from, "made_with": "all"} | (
        files if state else {}
    )


class Hook(Host):
    """One on which a kernel is installed, with a DKMS whose state is a file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for name in ("check-load", "remake-initramfs", "keep-stock", "depmod"):
            self.put(_program(name, f'echo {name} "$@" >>@ROOT@/done'))
        self.put(HERE, _program("take-sources", TAKE), {f"{MODULES}/build/include/a.h": ""})
        self.put(_program("check-kernel", "cat @ROOT@/upload"), {"upload": UPLOAD})
        self.put(_program("chosen-patches", "cat @ROOT@/patches"), {"patches": "all"})
        self.put(_program("modinfo", _MODINFO), _program("dkms", _DKMS))
        self.put({f"{UPDATES}/kvmfr.ko": "somebody else's"})
        text = (PACKAGING / "kernel-hook").read_text()
        for path in ("/usr/src/kvm-global-tdp-@VERSION@", "/usr/lib/kvm-global-tdp"):
            text = text.replace(path, str(self.programs))
        for path in ("/boot", "/lib/modules", "/var/lib/dkms", "/var/cache", "/run"):
            text = text.replace(path, f"{root}{path}")
        self.put({"hook": text})

    def did(self) -> str:
        """Return what was done since it was asked last, all of it in self.done."""
        done = self.root / "done"
        lines = done.read_text().splitlines() if done.exists() else []
        done.unlink(missing_ok=True)
        self.done = [line.removesuffix(f" {RELEASE}") for line in lines]
        known = ("build", "tried", "install", "uninstall", "remake-initramfs")
        return " ".join(line for line in self.done if line in known)

    def does(self, files: Files, wanted: str, words: str | None = None) -> None:
        """See what the hook does and how it ends, and what its last line has, if it may."""
        self.put(files)
        args = self.root / "args"
        option = [args.read_text()] if args.exists() else []
        status, _, said = self.run("hook", RELEASE, *option)
        assert f"{status} {self.did()}".strip() == wanted
        if words is not None:
            assert words in said
            assert said.count("\n") == bool(words) or (status and words)
        if "install" in self.done:
            assert "keep-stock --hold, install" in ", ".join(self.done)
            assert words == AGAIN or not (self.root / FAILED).exists()
        if words == AGAIN:
            assert self.done[-3:] == ["keep-stock", "uninstall", "depmod"]
            assert [path.name for path in (self.root / UPDATES).iterdir()] == ["kvmfr.ko"]
        left = {path.name for path in self.root.glob("var/cache/*/*")}
        assert left <= {Path(FAILED).name, Path(REFUSED).name}
        assert list(self.root.rglob("*.spare")) == []


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path)


AGAIN = "has its own KVM again"
OTHER_ONE, NO_SOURCES = _program("check-kernel", FAILS), _program("take-sources", FAILS)
NO_LOAD, LOADS = _program("check-load", FAILS), _program("check-load", "exit 0")
SIGNED = _program("check-load", "[ -e signed ]\nstatus=$?; touch signed; exit $status")
NONE, BUILT, INSTALLED = _state(""), _state("built"), _state("installed")
EARLIER, EARLIER_BUILT = _state("installed", "6.12.117-0"), _state("built", "6.12.117-0")
ELSEWHERE = _program("modinfo", _MODINFO.replace("@UPDATES@", "@ROOT@/other"))
BOTH, HEADER = "0 uninstall install", f"{MODULES}/build/include"
ONE, TWO = (_program("take-sources", f"echo {n} >&2; exit 1") for n in ("one", "two"))
TAKEN, BROKEN = _program("take-sources", TAKE), {"broken": ""}


def _room(kib: int) -> Files:
    return _program("df", f"echo x; echo / 1 1 {kib} 1 /")


HOOK = {
    "it comes": (({}, "0 build install"), ({}, "0")),
    "its installation fails": ((INITRAMFS | {"cut_off": ""}, "1 build uninstall", AGAIN),),
    "it is not whole, though DKMS has said so": (
        (INITRAMFS | {"part": ""}, "1 build install uninstall", AGAIN),
        ({"part": None, "args": None}, "0 install"),
    ),
    "modprobe would take another": (
        (ELSEWHERE | {"other/kvm.ko.xz": "stock"}, "1 build install uninstall", AGAIN),
    ),
    "its image comes later, in two places, or never": (
        ({BOOT: None}, "0", ""),
        ({f"{MODULES}/vmlinuz": ""}, "0 build install"),
    ),
    "no room to install": (
        (_room(65535), "0 build", "64 MB are needed"),
        (_room(65536), "0 install"),
    ),
    "its headers come later": ((INITRAMFS, "0 build install remake-initramfs"),),
    "it is another one now": (
        (OTHER_ONE | NONE, "0"),
        (BUILT, "0"),
        (INSTALLED, "0 uninstall"),
        (INSTALLED | INITRAMFS, "0 uninstall remake-initramfs"),
    ),
    "what was made of sources that went on stays": (
        (NO_SOURCES | INSTALLED, "0"),
        (BUILT, "0 install"),
    ),
    "it was uploaded again": (
        (EARLIER, "0 uninstall build install"),
        (EARLIER | NO_SOURCES, "0 uninstall"),
        (EARLIER_BUILT, "0"),
    ),
    "other patches are chosen": (
        (INSTALLED | {"patches": "fixes"}, "0 uninstall build install"),
        ({}, "0"),
        ({"broken": "", "patches": "all"}, "1 uninstall tried"),
        ({}, "0", "a build failed"),
        ({"broken": None, "patches": "fixes"} | NONE, "0 build install"),
        (NO_SOURCES | {"patches": "all"}, "0 uninstall"),
    ),
    "a reason is told until there is another, or it was built": (
        (ONE | NONE, "0", "one\n"),
        (NONE, "0", ""),
        (TWO | NONE, "0", "two\n"),
        (TAKEN | NONE, "0 build install", ""),
        (TWO | NONE, "0", "two\n"),
    ),
    "no room": ((EARLIER | {"var/cache": ""}, "0 uninstall"),),
    "it would not load": ((NO_LOAD, "0 build"), (INSTALLED, "0 uninstall")),
    "at boot, it would not load, or does again": (
        (NO_LOAD | INSTALLED | AT_BOOT, "0 uninstall"),
        (LOADS, "0 install"),
        ({}, "0"),
    ),
    "at boot, nothing is built": ((AT_BOOT, "0"), (EARLIER, "0")),
    "it is not whole, and installed again without sources": (
        (NO_SOURCES | INSTALLED | {f"{UPDATES}/kvm-amd.ko.xz": None}, BOTH),
        ({}, "0"),
        (INSTALLED | {f"{UPDATES}/kvm-amd.ko.xz": ""}, BOTH),
        ({}, "0"),
    ),
    "a build that fails is not tried again": (
        (BROKEN, "1 tried", f"/{FAILED}; dpkg-reconfigure"),
        (EARLIER, "0 uninstall", "dpkg-reconfigure kvm-global-tdp-dkms tries again"),
        ({}, "0", ""),
    ),
    "unless that was forgotten, as the postinst does, or of other sources": (
        (BROKEN, "1 tried"),
        ({FAILED: None}, "1 tried"),
        ({"upload": "6.12.117-2"}, "1 tried"),
        ({"upload": "6.12.117-3", "broken": None}, "0 build install"),
    ),
}


@pytest.mark.parametrize("steps", HOOK.values(), ids=HOOK)
def test_hook(hook: Hook, steps: tuple) -> None:
    for step in steps:
        hook.does(*step)


def test_that_it_would_not_load_is_remembered(hook: Hook) -> None:
    """Until it would."""
    hook.does(INSTALLED | NO_LOAD, "0 uninstall")
    assert (hook.root / REFUSED).exists()
    hook.does(LOADS, "0 install")
    assert not (hook.root / REFUSED).exists()


def test_no_headers_yet(hook: Hook) -> None:
    shutil.rmtree(hook.root / f"{MODULES}/build/include")
    hook.does({}, "0")


def test_the_log_of_a_build_that_fails_stays(hook: Hook) -> None:
    """And nothing else of it."""
    hook.does(BROKEN | {f"{DKMS}/build/arch/x86/kvm/x86.o": ""}, "1 tried")
    assert not (hook.root / DKMS / "build").exists()
    assert (hook.root / FAILED).read_text() == "@VERSION@ 6.12.117-1 all\nerror: x\n"


def test_a_build_that_is_ended_has_not_failed(hook: Hook) -> None:
    hook.does(_program("dkms", '[ "$1" != build ] || kill -TERM $PPID'), "1")
    assert not (hook.root / FAILED).exists()


def test_asked_for_what_would_not_load_is_built_again(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DKMS signs what it builds: openssl has come since. What loads is not built again."""
    monkeypatch.setenv("DEBCONF_RECONFIGURE", "1")
    hook.does(BUILT | SIGNED, "0 build install")
    hook.does(INSTALLED | LOADS, "0")


@pytest.mark.parametrize("gone", (False, True))
def test_two_at_once(hook: Hook, gone: bool) -> None:
    """The second waits, and finds that all is done, or that the package is gone."""
    lock = os.open(hook.programs, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    running = hook.start("hook", RELEASE)
    assert running.stderr
    assert "waiting for another" in running.stderr.readline()
    assert running.poll() is None
    assert hook.did() == ""
    hook.put(INSTALLED, {"programs/check-kernel": None} if gone else {})
    os.close(lock)
    assert (running.communicate()[1], running.returncode, hook.did()) == ("", 0, "")


@pytest.mark.parametrize(
    ("action", "again", "goes_on"),
    (("upgrade", "1", False), ("upgrade", "", True), ("remove", "1", True)),
)
def test_only_dpkg_reconfigure_leaves_all(
    host: Host, monkeypatch: pytest.MonkeyPatch, action: str, again: str, goes_on: bool
) -> None:
    """Otherwise the prerm takes away what is there."""
    text = (PACKAGING / "debian/kvm-global-tdp-dkms.prerm").read_text()
    text = f"ischroot() {{ :; }}\n{text.partition('# See kernel-hook')[0]}\necho goes on"
    monkeypatch.setenv("DEBCONF_RECONFIGURE", again)
    assert host.run("-c", text, "prerm", action)[:2] == (0, "goes on\n" * goes_on)


INSTALLS = "mkdir -p @UPDATES@ && touch @UPDATES@/kvm.ko.xz"
DROPS = "rm @UPDATES@/kvm.ko.xz; echo why >&2"
OURS_THERE, OURS_LOADED = {f"{UPDATES}/kvm.ko.xz": ""}, {"sys/module/kvm/version": "1\n"}
CHANGED = "kernel-hook --at-boot, modprobe -qr, modprobe -qab, remake-initramfs"


@pytest.mark.parametrize(
    ("files", "hook", "did", "said"),
    (
        (LOADS | OURS_THERE | OURS_LOADED, "", "", ""),
        (LOADS | OURS_THERE, "", "", ""),  # udev loads it just now, or this host has no KVM
        (NO_LOAD | OURS_THERE, DROPS, CHANGED, "why"),
        (NO_LOAD | OURS_THERE, "", CHANGED.replace(",", ", dkms uninstall,", 1), "its own KVM"),
        (
            NO_LOAD | OURS_THERE | {"full": ""},
            "",
            "kernel-hook --at-boot, dkms uninstall",
            "own",
        ),
        (NO_LOAD | OURS_THERE | OURS_LOADED, "", "", ""),  # a key that mokutil doesn't know
        (NO_LOAD | {REFUSED: ""}, "", "", ""),
        (LOADS | {REFUSED: ""}, INSTALLS, CHANGED, "loads our KVM again"),
        (LOADS | {REFUSED: ""}, "echo full >&2", "kernel-hook --at-boot", "full"),
        (_program("modinfo", "echo /gone"), "", f"depmod, {CHANGED.partition(', ')[2]}", ""),
        (LOADS, "", "", ""),  # somebody else took it away: it stays so
    ),
)
def test_at_boot(host: Host, files: Files, hook: str, did: str, said: str) -> None:
    """Secure Boot was turned on, or off, since; one line says what is done about it."""
    text = (PACKAGING / "at-boot").read_text()
    for path in ("/usr/src/kvm-global-tdp-@VERSION@", "/usr/lib/kvm-global-tdp"):
        text = text.replace(path, str(host.programs))
    for path in ("/lib/modules", "/var/cache", "/sys"):
        text = text.replace(path, f"{host.root}{path}")
    for name in ("modprobe", "remake-initramfs"):
        host.put(_program(name, f'echo {name} "$1" >>@ROOT@/done'))
    host.put(_program("kernel-hook", f'echo kernel-hook "$2" >>@ROOT@/done\n{hook}'))
    host.put(_program("uname", f"echo {RELEASE}"), _program("udevadm", ""))
    host.put(_program("modinfo", ""), files)
    host.put(_program("depmod", "echo depmod >>@ROOT@/done"))
    host.put(_program("dkms", 'echo dkms "$1" >>@ROOT@/done; [ ! -e @ROOT@/full ]'))
    host.put({"at-boot": text})
    status, nothing, wrong = host.run("at-boot")
    done = host.root / "done"
    found = done.read_text().split("\n")[:-1] if done.exists() else []
    assert ", ".join(found).replace(f" {RELEASE}", "") == did
    failed = wrong == "full\n" or "full" in files
    assert (status, nothing, wrong.count("\n")) == (failed, "", bool(said))
    assert said in wrong


class Stock(Host):
    """One whose modules DKMS moves."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.own = root / f"{MODULES}/kernel/arch/x86/kvm"
        self.moved = root / f"var/lib/dkms/kvm-global-tdp/original_module/{RELEASE}/x86_64"
        self.put({f"{self.own}/kvmfr.ko.xz": "another"})
        self.install()

    def install(self, content: str = "") -> None:
        """What is there is dpkg's, which knows it, of two packages from 7.2 on."""
        listed = {"modules": "", "image": ""}
        for name in modules.NAMES:
            path = self.own / f"{name}.ko.xz"
            path.unlink(missing_ok=True)  # dpkg writes another file
            self.put({str(path): content or name})
            package, folder = ("modules", "lib") if "-" in name else ("image", "usr/lib")
            where = f"{folder}/{path.relative_to(self.root / 'lib')}"
            listed[package] += f"{hashlib.md5(path.read_bytes()).hexdigest()}  {where}\n"
        for package, text in listed.items():
            self.put({f"var/lib/dpkg/info/linux-{package}-{RELEASE}.md5sums": text})

    def keep(self, *args: str) -> None:
        text = (PACKAGING / "keep-stock").read_text()
        for path in ("/lib/modules/$", "/var/lib/dkms", "/var/lib/dpkg"):
            text = text.replace(path, f"{self.root}{path}")
        assert self.run("-c", text, "sh", *args, RELEASE)[2] == ""

    def move(self, *names: str) -> None:
        """As DKMS does."""
        for name in names:
            place = self.own / f"{name}.ko.xz"
            self.put({f"{self.moved}/{place.name}": place.read_text()})
            self.put({f"{self.moved}/{place.name}.origin": f"{place}\n"})
            place.unlink()

    def is_back(self) -> None:
        self.keep()
        found = {path.name: path.read_text() for path in self.own.iterdir()}
        wanted = {f"{name}.ko.xz": name for name in modules.NAMES}
        assert found == {**wanted, "kvmfr.ko.xz": "another"}
        assert not any(path.is_file() for path in self.moved.rglob("*"))


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    return Stock(tmp_path)


@pytest.mark.parametrize("moved", ((), ("kvm", "kvm-amd")))
@pytest.mark.parametrize("held", ((), ("--hold",)))
def test_the_distributions_modules_are_back(stock: Stock, moved: tuple, held: tuple) -> None:
    """Whatever became of ours."""
    for option in held:
        stock.keep(option)
    stock.move(*moved)
    stock.is_back()


def test_held_takes_no_room(stock: Stock) -> None:
    """They are the same files, also if DKMS has put back a part."""
    before = (stock.own / "kvm.ko.xz").stat().st_ino
    stock.keep("--hold")
    stock.move(*modules.NAMES)
    stock.put({f"{stock.own}/kvm-amd.ko.xz": "kvm-"})
    stock.is_back()
    assert (stock.own / "kvm.ko.xz").stat().st_ino == before


def test_cut_off(stock: Stock) -> None:
    """The next one finds what was held."""
    stock.keep("--hold")
    stock.move("kvm")
    stock.keep("--hold")
    assert (stock.own / "kvm.ko.xz").read_text() == "kvm"
    stock.is_back()


@pytest.mark.parametrize("again", ("", "--hold", "moved"))
def test_what_was_held_of_an_earlier_upload_stays_gone(stock: Stock, again: str) -> None:
    """Killed after --hold; then the release is uploaded again, with a fix to KVM."""
    stock.install("without the fix")
    stock.keep("--hold")
    stock.install()
    if again == "moved":
        stock.move(*modules.NAMES)
    else:
        stock.keep(*([again] if again else []))
    stock.is_back()


OWN = {"sys/module/kvm/parameters/tdp_mmu": "Y\n"}
OURS = {"sys/module/kvm/version": f"{PACKAGE.version}\n"}
DEBUG = "sys/kernel/debug/kvm"
THERE = {f"{DEBUG}/kvm/x": ""}


def _on(value: str = "always") -> Files:
    return OURS | {"sys/module/kvm/parameters/global_tdp": f"{value}\n"}


def _vms(*vms: tuple[str, int, dict[str, int]]) -> Files:
    """Return what is told here of some that have Global TDP: a name, threads, statistics."""
    files: Files = {}
    known = ("populated_4k", "populated_2m", "populated_1g", "populate_time_ns")
    for each in (*known, "fault_around_time_ns", "populate_nomem", "thread_failed"):
        values = {name: statistics.get(each, 0) for name, _, statistics in vms}
        files |= {f"{DEBUG}/{name}/tdp_{each}": f"{value}\n" for name, value in values.items()}
        files[f"{DEBUG}/tdp_{each}"] = f"{sum(values.values())}\n"
    for name, threads, _ in vms:
        task = f"proc/{name.partition('-')[0]}/task"
        files |= {f"{task}/{n + 2}/comm": "kvm-gtdp\n" for n in range(threads)}
        files[f"{task}/1/comm"] = "qemu-system-x86\n"
    return files


class Status(Host):
    """One that monitoring asks."""

    def ask(self, *options: str) -> tuple[int, str, str]:
        return self.run(PACKAGING / "global-tdp-status", *options, self.root)

    def json(self) -> dict[str, object]:
        return json.loads(self.ask("--json")[1])

    def says(self, files: Files, wanted: int, words: str, *options: str) -> None:
        """See that it ends so and has these words, and that --json has the same."""
        self.put(files)
        status, said, wrong = self.ask(*options)
        assert (status, said.count("\n"), wrong) == (wanted, 1, ""), said
        assert words in said
        if not options:
            told = self.json()
            assert (told["status"], f"global-tdp {told['says']}\n") == (status, said)


@pytest.fixture
def status(tmp_path: Path) -> Status:
    """Ours is not installed: nothing is known of the machine that this runs on."""
    status = Status(tmp_path)
    status.put(_program("modinfo", FAILS))
    return status


def _boots(boot: tuple[str, ...], ours: tuple[str, ...]) -> Files:
    """Have kernels, some with our KVM."""
    patterns = " | ".join(f"*' -k {release} -F version '*" for release in ours)
    case = f'case " $* " in {patterns or "none"}) echo 1 ;; esac'
    programs = _program("uname", f"echo {KERNELS[0]}") | _program("modinfo", case)
    return _on() | THERE | programs | {f"boot/vmlinuz-{release}": "" for release in boot}


KERNELS = ("6.12.9-amd64", "6.12.10-amd64")  # the running, the newest
FIRST, LAST = (f"CRITICAL: {name} has its own KVM, which the next boot" for name in KERNELS)
STOCK, UNREADABLE = "without Global TDP is loaded", "cannot be read: "
REASON = 'echo kvm-global-tdp: x keeps its own KVM: \\"y\\" >&2; exit 1\n'
REASON_SAID = f'{STOCK}; x keeps its own KVM: "y"'
NO_CAT = f'case $1 in @ROOT@/{DEBUG}/*) exit 1 ;; esac\nexec /bin/cat "$@"'
MORE = f"f=@ROOT@/{DEBUG}/tdp_populate_nomem; echo $(($(cat $f) + 2)) >$f"
ROOT, USER = _program("id", "echo 0"), _program("id", "echo 1000")
ONE_VM = _vms(("10-7", 1, {}))
NO_THREAD = (("10-7", 1, {"thread_failed": 3}), ("12-7", 0, {"thread_failed": 3}))
CHOSEN = {"usr/src/kvm-global-tdp-1/chosen-patches": "#!/bin/sh\necho fixes\n"}


def _made_with(patches: str) -> Files:
    return _program("modinfo", f'[ "$2" != patches ] || echo {patches}')


STATUS = {
    "no KVM": (({}, 2, "no KVM is loaded"),),
    "the kernel's own": ((OWN, 2, STOCK), (OWN, 2, STOCK, "--stop")),
    "why": ((OWN | {"usr/src/kvm-global-tdp-1/check-source": REASON}, 2, REASON_SAID),),
    "the fixes alone": (
        (OWN | OURS | CHOSEN, 0, "OK: without Global TDP, as patches=fixes asks; KVM 6.12"),
        (
            _made_with("all"),
            2,
            "patches=all is installed, the settings ask for fixes: run dpkg",
        ),
        (_made_with("fixes") | _on() | THERE, 2, "the settings ask for fixes: load KVM again"),
        ({}, 0, "OK: stopped", "--stop"),
    ),
    "the fixes are loaded, all is to be": ((OWN | OURS, 2, STOCK),),
    "why, by the hook": (
        (OWN | {f"run/kvm-global-tdp/{KERNELS[0]}": "kvm-global-tdp: y\n"}, 2, STOCK),
        (_program("uname", f"echo {KERNELS[0]}"), 2, f"{STOCK}; y"),
    ),
    "off": ((_on("ask"), 1, "WARNING: off for new"), (_on("N"), 1, "WARNING: off for new VMs")),
    "of an earlier version, until the next boot": (
        (
            _on("Y") | {f"{DEBUG}/tdp_threads": "1\n"},
            0,
            "VMs unknown: KVM is of an earlier version",
        ),
    ),
    "no VMs": (
        (_on() | ROOT, 3, f"UNKNOWN: statistics {UNREADABLE}mount debugfs; on for new"),
        (THERE, 0, "0 of 0 VMs have it, threads: 0, mapped ahead: unknown"),
    ),
    "what is off or stopped is no less so": (
        (_on() | USER, 3, f"{UNREADABLE}be root"),
        (ROOT | ONE_VM | _program("cat", NO_CAT), 3, f"{UNREADABLE}this host is locked down"),
        ({}, 0, "OK: stopped, for all VMs; VMs unknown; KVM", "--stop"),
        ({}, 1, "WARNING: stopped, for all VMs; VMs unknown"),
    ),
    "it may have got a thread since": (
        (_on() | _vms(NO_THREAD[0]), 0, "OK"),
        (_vms(*NO_THREAD), 2, "CRITICAL: VMs that cannot create their thread: 1: see pids.max"),
    ),
    "no memory just now, not some time ago": (
        (_on() | _vms(("10-7", 1, {"populate_nomem": 7})) | _program("sleep", ""), 0, "OK"),
        (_program("sleep", MORE), 2, "CRITICAL: no memory for page tables, 2 times in 5 s"),
    ),
    "stopped": (
        (
            _on() | ONE_VM,
            0,
            "stopped, for all VMs; 1 of 1 VMs have it, threads: 1; KVM",
            "--stop",
        ),
        ({}, 1, "WARNING: stopped, for all VMs"),
    ),
    "the next boot": ((_boots((), ()), 0, "OK"),),
    "both boots are ours": ((_boots(KERNELS, KERNELS), 0, "OK"),),
    "the newest is not": ((_boots(KERNELS, KERNELS[:1]), 2, LAST),),
    "the running one is not": ((_boots(KERNELS, KERNELS[1:]), 2, FIRST),),
    "the only one is not": ((_boots(KERNELS[:1], ()), 2, FIRST),),
}


@pytest.mark.parametrize("steps", STATUS.values(), ids=STATUS)
def test_status(status: Status, steps: tuple) -> None:
    for step in steps:
        status.says(*step)
        if "--stop" in step and step[1] == 0:
            value = status.root / "sys/module/kvm/parameters/global_tdp"
            assert value.read_text() == "never\n"


def test_on(status: Status) -> None:
    first = ("10-7", 1, {"populated_4k": 512, "populate_time_ns": 3 * 10**9})
    second = ("12-7", 2, {"populated_2m": 3, "populated_1g": 1, "fault_around_time_ns": 10**9})
    files = _on() | {f"{DEBUG}/11-7/pages_4k": "0\n"} | _vms(first, second, ("12-8", 2, {}))
    counts = "3 of 4 VMs have it, threads: 3, mapped ahead: 1032 MiB, time for that: 4 s"
    status.says(files, 0, f"{counts}; KVM {PACKAGE.version}")
    wanted = {"vms": 4, "vms_with": 3, "threads": 3, "mapped_kib": 1032 << 10, "time_ms": 4000}
    wanted |= {"global_tdp": "always", "version": PACKAGE.version}
    assert wanted.items() <= status.json().items()


def test_what_is_unknown_is_null(status: Status) -> None:
    """And a program can rely on the format."""
    status.put(_on(), ROOT)
    assert status.json()["vms"] is None
    status.put({"sys/module/kvm/version": None})
    told = status.json()
    assert (told["format"], told["version"], told["upload"]) == (1, None, None)
    status.put(_program("modinfo", f'[ "$2" = linux_source ] && echo {VERSION}'))
    assert status.json()["upload"] == VERSION


@pytest.mark.parametrize("options", (("--nonsense",), ("--json", "a"), ("-s",)))
def test_options(status: Status, options: tuple[str, ...]) -> None:
    ends, said, wrong = status.ask(*options)
    assert (ends, said, wrong.count("\n")) == (3, "", 1)
