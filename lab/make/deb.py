"""The package kvm-global-tdp-dkms: what of the series changes KVM, built by DKMS on the host.

It has no KVM: for each kernel that is installed, packaging/take-sources takes that of Debian's
linux-source of the same version, and applies the series for it. Here its patches are made out
of those in patches/, and tried on the tree that they were composed on.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

from debian.debian_support import Version

from lab import shell
from lab.check import tested
from lab.error import LabError
from lab.make import modules
from lab.paths import BUILD, COVERS, DEB, LINUX, PACKAGING, PATCHES, ROOT
from lab.shell import console, locked, working
from lab.source import debian, patches, tree
from lab.source.git import BASE, Git

NAME = "kvm-global-tdp-dkms"
CHECK = "global-tdp-check"
"""The other package of the same source: for any host, also without ours."""

HEADERS = "headers"
"""Beside the patches: those that they change, and the kernel has."""

HOOK = "dkms-global-tdp"
"""Sorts after dkms, and before what makes an initramfs: dracut, initramfs-tools."""

_IN_SOURCES = (
    *("check-kernel", "check-source", "chosen-patches", "take-sources", "check-load"),
    *("keep-stock", "dkms.conf", "origin.patch"),
)
_PROGRAMS = {
    "usr/lib/kvm-global-tdp": ("kernel-hook", "at-boot", "remake-initramfs"),
    "usr/sbin": ("global-tdp-status",),
}
_HEADERS = ("arch/x86/include/", "include/")
_FILE = re.compile(r"diff --git a/(\S+) b/\1\n")


@dataclass(frozen=True)
class Package:
    """What make deb builds."""

    version: str
    """Of the package, the series and the modules: the kernel's, and when of which commit."""

    series: tuple[str, ...] = field(default_factory=lambda: tuple(folders()))
    """Versions of Linux that there are patches for, as 6.12."""

    @property
    def path(self) -> Path:
        return BUILD / f"{NAME}_{self.version}_all.deb"

    @property
    def check_path(self) -> Path:
        return BUILD / f"{CHECK}_{self.version}_amd64.deb"

    @property
    def pattern(self) -> str:
        """What `uname -r` says on the kernels this is for, for bash and grep -E."""
        return rf"^({'|'.join(map(re.escape, self.series))})\.[0-9]+(\+[a-z0-9.]+)?-amd64$"

    @property
    def supported(self) -> str:
        """Those kernels, for people."""
        return f"Debian's Linux {' and '.join(self.series)} (flavour amd64)"


def build() -> Package:
    """Build build/*.deb from what is committed in patches/."""
    with locked("modules"):
        tree.compose()
        package = Package(_version())
        for name in (NAME, CHECK):
            for old in BUILD.glob(f"{name}_*.deb"):
                old.unlink()
        pack(package)
    console.print(f"{package.path.relative_to(ROOT)}: for {package.supported}")
    console.print(f"{package.check_path.relative_to(ROOT)}: for any host")
    return package


def pack(package: Package) -> None:
    """Build the package as it is described, and the one of CHECK."""
    shutil.rmtree(DEB, ignore_errors=True)
    work = DEB / "package"
    # Times in it are those of the commit: the same sources make the same package.
    epoch = {"SOURCE_DATE_EPOCH": _commit("%ct")}
    with working(f"Building {package.path.name}"):
        _fill(work, package)
        shell.output("dpkg-buildpackage", "-us", "-uc", "-b", cwd=work, env=epoch)
        for path in (package.path, package.check_path):
            shutil.move(DEB / path.name, path)


def why_not(series: Path, tree: Path) -> str:
    """Apply patches that write_series() has written, as hosts do; return what is wrong."""
    options = ("-p1", "--fuzz=0", "--force", "--silent", "--no-backup-if-mismatch")
    for patch in patches.series(series):
        done = subprocess.run(
            ("patch", "-d", tree, *options, "-i", patch.resolve()),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return f"{patch.name} does not apply: {(done.stdout or done.stderr).strip()}"
    return ""


def write_series(of: Sequence[Path], into: Path, letters: Sequence[Path] = ()) -> None:
    """Write what of the patches changes KVM's modules, and which headers of the kernel's.

    The cover letters say where parts end: there, a comment in the series has what the settings
    of a host may say, to get no more than that.
    """
    into.mkdir(parents=True)
    ends, listed = _ends(letters), ""
    chosen = {path.name: of_modules(patches.read(path)) for path in of}
    for path, (name, text) in zip(of, chosen.items(), strict=True):
        if text:
            patches.write(into / name, text)
            listed += f"{name}\n"
        if part := ends.pop(_subject(path), None):
            listed += f"# {part}\n"
    if ends:
        raise LabError(f"no patch is the last one of {' and '.join(ends.values())}")
    (into / "series").write_text(f"{listed}# all\n")
    headers = changed_headers(filter(None, chosen.values()))
    (into / HEADERS).write_text("".join(f"{name}\n" for name in headers))


def _ends(letters: Sequence[Path]) -> dict[str, str]:
    """Return the last patch of each part, but of the last, and a name for all parts so far."""
    names = [letter.stem.partition("-")[2] for letter in letters]
    return {
        HeaderParser().parsestr(letter.read_text())["Last"]: "+".join(names[:count])
        for count, letter in enumerate(letters[:-1], 1)
    }


def _subject(path: Path) -> str:
    head, *_ = patches.read(path).partition("\n\n")
    subject = HeaderParser().parsestr(head)["Subject"] or ""
    return " ".join(subject.split()).removeprefix("[PATCH] ")


def of_modules(patch: str) -> str:
    """Return a patch without files that KVM's modules aren't made of; "" if none is left."""
    head, *_ = patch.partition("diff --git ")
    kept = []
    for name, section in _sections(patch):
        if name.startswith((*(f"{source}/" for source in modules.SOURCES), *_HEADERS)):
            kept.append(section)
        elif not modules.ELSEWHERE.match(name):
            raise LabError(f"a package of modules can't change {name}")
    return head + "".join(kept) if kept else ""


def changed_headers(of: Iterable[str]) -> list[str]:
    """Return the headers outside of KVM's directories that patches change, but don't add."""
    new: dict[str, bool] = {}
    for patch in of:
        for name, section in _sections(patch):
            if name.startswith(_HEADERS):
                new.setdefault(name, "\nnew file mode " in section)
    return sorted(name for name, is_new in new.items() if not is_new)


def folders() -> Mapping[str, Path]:
    """Return where the patches for each version of Linux are."""
    found = (path.parent for path in PATCHES.parent.glob("*/series"))
    return {path.name: path for path in sorted(found, key=lambda path: Version(path.name))}


def _sections(patch: str) -> Iterator[tuple[str, str]]:
    """Yield files and what a patch does to them."""
    for section in re.split(r"^(?=diff --git )", patch, flags=re.M)[1:]:
        match = _FILE.match(section)
        if not match:
            raise LabError(f"a package can't rename files: {section.splitlines()[0]}")
        yield match[1], section


def _version() -> str:
    edited = ".edited" if Git(ROOT)("status", "--porcelain") else ""
    kernel = debian.kernel().release.partition("+")[0]
    return f"{kernel}+{_commit('%cd')}.g{_commit('%h')}{edited}"


def _commit(what: str) -> str:
    """Return what `git log` tells of the last commit, however little is known before it."""
    command = ("git", "log", "-1", "--date=format-local:%Y%m%d.%H%M%S", f"--format={what}")
    try:
        # Of a given length: that of %h depends on how many commits there are.
        env = {"TZ": "UTC", "GIT_CONFIG_PARAMETERS": "'core.abbrev=8'"}
        return shell.output(*command, cwd=ROOT, env=env).strip()
    except LabError as error:
        raise LabError(
            "the package's version comes from git: build it in a clone of this repository"
        ) from error


def _fill(work: Path, package: Package) -> None:
    """Write a Debian source package, all but its name and version from packaging/."""
    shutil.copytree(PACKAGING / "debian", work / "debian")
    sources = work / "sources"
    for name in package.series:
        folder = folders()[name]
        letters = sorted((folder / COVERS.name).glob("*.txt"))
        write_series(patches.series(folder), sources / "patches" / name, letters)
    _try(sources / "patches" / PATCHES.name)
    (sources / "makefile.sed").write_text(modules.makefile_sed())
    words = _words(package)
    for path in (work / "debian").iterdir():
        if path.is_file():
            path.write_text(_replace(path.read_text(), words))
    installed = [f"sources/* usr/src/kvm-global-tdp-{package.version}"]
    for name in _IN_SOURCES:
        _copy(PACKAGING / name, sources / name, words)
    (sources / tested.FILE.name).write_text(tested.text())
    for directory, names in _PROGRAMS.items():
        for name in names:
            _copy(PACKAGING / name, work / name, words)
            installed.append(f"{name} {directory}")
    for when, remake in (("postinst.d", ""), ("header_postinst.d", " --initramfs")):
        (work / when).mkdir()
        _copy(PACKAGING / "hook-stub", work / when / HOOK, {"REMAKE": remake})
        installed.append(f"{when}/{HOOK} etc/kernel/{when}")
    (work / "debian" / f"{NAME}.install").write_text("\n".join(installed) + "\n")
    # Sources may come after the kernel, in the same run of dpkg or years later.
    triggers = (
        f"interest-noawait /usr/src/linux-source-{name}.tar.xz\n" for name in package.series
    )
    (work / "debian" / f"{NAME}.triggers").write_text("".join(triggers))
    for name, page in ((NAME, "global-tdp-status.8"), (CHECK, f"{CHECK}.8")):
        shutil.copy(PACKAGING / page, work)
        (work / "debian" / f"{name}.manpages").write_text(f"{page}\n")
    shutil.copy(PACKAGING / f"{CHECK}.c", work)
    (work / "debian" / f"{CHECK}.install").write_text(f"{CHECK} usr/sbin\n")


def _try(made: Path) -> None:
    """See that the patches of the composed series make of its base what is in build/linux."""
    git = Git(LINUX)
    headers = git.lines("diff", "--name-only", "--no-renames", BASE, "HEAD", "--", *_HEADERS)
    with tempfile.TemporaryDirectory() as scratch:
        tried, wanted = Path(scratch, "tried"), Path(scratch, "wanted")
        for revision, into in ((BASE, tried), ("HEAD", wanted)):
            known = [name for name in headers if git.exists(revision, name)]
            _check_out(revision, [*modules.SOURCES, *known], into)
            if revision == BASE and known != (made / HEADERS).read_text().split():
                raise LabError(f"{made / HEADERS} are not those that the series changes")
        if reason := why_not(made, tried):
            raise LabError(reason)
        differ = subprocess.run(("diff", "-rq", tried, wanted), capture_output=True, text=True)
        if differ.returncode:
            raise LabError(f"the package would have another KVM: {differ.stdout.strip()}")


def _check_out(revision: str, names: Sequence[str], into: Path) -> None:
    into.mkdir()
    command = ("git", "-C", LINUX, "archive", "--format=tar", revision, *names)
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    subprocess.run(("tar", "-xf", "-", "-C", into), input=archive, check=True)


def _words(package: Package) -> dict[str, str]:
    headers = [f"linux-headers-{name}-amd64" for name in package.series]
    return {
        "VERSION": package.version,
        "PATTERN": package.pattern,
        "SUPPORTED": package.supported,
        "SOURCES": " | ".join(f"linux-source-{name}" for name in package.series),
        "HEADERS": " | ".join((*headers, "linux-headers-amd64")),
        "COMMIT": _commit("%H"),
        "MAINTAINER": _commit("%an <%ae>"),
        "DATE": _commit("%cD"),
    }


def _copy(source: Path, target: Path, words: dict[str, str]) -> None:
    shutil.copy(source, target)
    target.write_text(_replace(source.read_text(), words))


def _replace(text: str, words: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], text)
