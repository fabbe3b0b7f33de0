"""Where this machine gets Debian from, for other releases of it."""

import shutil
from pathlib import Path

from lab import shell
from lab.error import LabError

_OWN = "bookworm"
_SUITES = ("", "-security")


def sources(release: str, kind: str = "deb", *, backports: bool = False) -> list[str]:
    """Return the lines of a sources.list of a Debian release, of its main component."""
    wanted = ("--format", "$(CODENAME) $(REPO_URI)", "Origin: Debian", "Component: main")
    known = dict(
        line.split() for line in shell.output("apt-get", "indextargets", *wanted).splitlines()
    )
    if _OWN not in known:
        raise LabError(
            f"apt knows no mirror of Debian: add {_OWN} to its sources, apt-get update"
        )
    lines = [
        f"{kind} {known[_OWN + suite]} {release}{suite} main"
        for suite in _SUITES
        if _OWN + suite in known
    ]
    if backports:
        lines.append(f"{kind} {known[_OWN]} {release}-backports main")
    return lines


class Apt:
    """apt for a Debian release, which keeps what it knows in a directory of the lab.

    Without a release, it is this machine's own.
    """

    def __init__(
        self, release: str, directory: Path, kind: str = "deb", *, backports: bool = False
    ) -> None:
        self.directory = directory
        self._options: tuple[str, ...] = ()
        if not release:
            return
        for name in ("lists/partial", "archives/partial"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        chosen = directory / "sources.list"
        lines = sources(release, kind, backports=backports)
        chosen.write_text("\n".join(lines) + "\n")
        options = (
            f"Dir::Etc::SourceList={chosen}",
            "Dir::Etc::SourceParts=/dev/null",
            f"Dir::State::Lists={directory}/lists",
            "Dir::State::status=/dev/null",
            f"Dir::Cache={directory}",
            "APT::Sandbox::User=root",
        )
        self._options = tuple(word for option in options for word in ("-o", option))
        self.update()

    def update(self) -> None:
        """Fetch the lists anew."""
        self.get("-o", "APT::Update::Error-Mode=any", "update")

    def get(self, *args: str | Path, cwd: Path | None = None) -> str:
        """Run apt-get."""
        return shell.output("apt-get", "-q", *self._options, *args, cwd=cwd)

    def cache(self, *args: str) -> str:
        """Run apt-cache."""
        return shell.output("apt-cache", *self._options, *args)

    def download(self, package: str) -> Path:
        """Fetch a package, as NAME=VERSION, and return it."""
        scratch = self.directory / "download"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        self.get("download", package, cwd=scratch)
        return next(scratch.glob(f"{package.partition('=')[0]}_*.deb"))
