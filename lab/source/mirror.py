"""Where this machine gets Debian from, for other releases of it."""

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
