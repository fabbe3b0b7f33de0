"""Guests in a lab machine, and what came of them: shared by assigned and nvdimm."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.check.outcome import Outcome, State
from lab.check.report import Part
from lab.error import LabError
from lab.machine import npt
from lab.paths import VENV_BIN
from lab.shell import console


@dataclass(kw_only=True)
class Told:
    """JSON that the lab machine leaves for the host: all cases, or those before the failure."""

    error: str = ""
    console: str = ""
    """Last lines of the guest, where there is an error."""

    def save(self, path: Path) -> None:
        # Whole or not at all: the machine may die meanwhile.
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(asdict(self), indent=1) + "\n")
        whole.rename(path)


def run(title: str, module: str, arguments: Sequence[str | Path], **options: Any) -> Part:  # noqa: ANN401
    """Run a module of the lab's in a machine; return what the machine itself comes to.

    Options are those of npt.command().
    """
    part = Part(title)
    console.print(f"[bold]{title}[/]")
    began = time.monotonic()
    words = (VENV_BIN / "python", "-B", "-m", module, *arguments)
    try:
        done = npt.command(shlex.join(map(str, words)), **options)
    except LabError as error:
        part.outcomes.append(Outcome("the machine", State.FAILED, reason=str(error)))
    else:
        complaints = [Outcome("the kernel", State.FAILED, output=text) for text in done.splats]
        part.outcomes += complaints
    part.seconds = time.monotonic() - began
    return part
