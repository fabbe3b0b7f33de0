"""make test WHAT=model: have spin prove the protocol, and find what is broken in it on purpose.

models/models.toml lists the models and the mutations. A model holds only if the checker
went through all of it, and through every statement; what a mutation breaks must be the
property that the list names.
"""

import argparse
import os
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from lab.check import report
from lab.check.outcome import Outcome, State
from lab.check.report import Part
from lab.error import LabError
from lab.machine import runs
from lab.paths import BUILD, ROOT
from lab.shell import Arg, console

MODELS = ROOT / "models"
LIST = MODELS / "models.toml"
DIRECTORY = BUILD / "models"

NOT_REACHED = "must not be reached"
"""A statement with these words in its line is there to be never executed."""

_JOBS = 2
_MEMORY = 3500
"""MiB for each of them; what needs more fails."""
_DEPTH = 2_000_000
"""Steps of the longest way through a model; what has a longer one fails."""
_TIMEOUT = 3600
_HASH = "-w24"

_CHECKS = (
    "Full statespace search",
    "assertion violations\t+",
    "invalid end states\t+",
    "states, stored",
    "unreached in proctype",
)
_STORED = re.compile(r"^ *([\d.e+]+) states, stored", re.M)
_USED = re.compile(r"^ *([\d.]+)\ttotal actual memory usage", re.M)
_ERRORS = re.compile(r"depth reached (\d+), errors: (\d+)")
_FOUND = re.compile(r"^pan:1: (.*?) \(at depth (\d+)\)$", re.M)
_COMPLAINT = re.compile(
    r"^.*(?:\berror[:,]|warning:|not completed|reached -D|out of memory).*$", re.M | re.I
)
_UNREACHED = re.compile(r'^\t(\S+?):(\d+), state \d+, "(.*)"$', re.M)
_NOISE = re.compile(r"\[(?:else|\(1\)|\.\(goto\)|goto .*)\]$")


@dataclass(frozen=True)
class Model:
    """One of the models, as it is or with a mutation."""

    name: str
    file: str
    define: tuple[str, ...]
    says: str
    violates: str = ""
    """What the checker is to print; nothing if the model is to hold."""

    @property
    def directory(self) -> Path:
        """Where the checker is made."""
        return DIRECTORY / self.name.replace("/", "-").lower()

    @property
    def options(self) -> list[str]:
        """What selects it, for spin."""
        return [f"-D{define}" for define in self.define]


def configure(command: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.add_argument("--only", default="", help="models or mutations that contain this")
    text = "the shortest way in which a mutation goes wrong"
    command.add_argument("--show", metavar="MUTATION", default="", help=text)


def load() -> list[Model]:
    """Return the models, and then the mutations of each."""
    entries = tomllib.loads(LIST.read_text())
    models = {
        entry["name"]: Model(
            entry["name"],
            entry["file"],
            (entry["define"],) if "define" in entry else (),
            entry["says"],
        )
        for entry in entries["model"]
    }
    mutations = [
        Model(
            f"{name}/{entry['define']}",
            models[name].file,
            (*models[name].define, entry["define"]),
            entry["says"],
            entries["properties"][entry["breaks"]],
        )
        for entry in entries["mutation"]
        for name in entry["models"]
    ]
    return [*models.values(), *mutations]


def run(args: argparse.Namespace) -> int:
    """Check all; 1 if a model does not hold, or a mutation is not found."""
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            raise LabError(f"there is no {tool}: apt-get install {tool}")
    wanted = args.show or args.only
    chosen = [model for model in load() if wanted in model.name]
    if not chosen:
        raise LabError(f"{wanted}: no such model or mutation in {LIST.relative_to(ROOT)}")
    if args.show:
        return _show(next((model for model in chosen if model.violates), chosen[0]))
    parts = [Part("models, that must hold"), Part("mutations, that must be found")]
    began = time.monotonic()
    with ThreadPoolExecutor(min(_JOBS, os.cpu_count() or 1)) as pool:
        jobs = {pool.submit(_try, model): model for model in chosen}
        for number, job in enumerate(as_completed(jobs), 1):
            model, outcome = jobs[job], job.result()
            parts[bool(model.violates)].outcomes.append(outcome)
            text = f"{number}/{len(chosen)} {model.name}: {outcome.state}, {outcome.reason}"
            console.print(text, markup=False, soft_wrap=True)
    names = [model.name for model in chosen]
    for part in parts:
        part.outcomes.sort(key=lambda outcome: names.index(outcome.name))
        part.seconds = time.monotonic() - began
    return report.show([part for part in parts if part.outcomes])


def judge(model: Model, status: int, text: str, seconds: float = 0) -> Outcome:
    """Return what came of it, from the checker's words."""
    reason = _judge_mutation(model, text) if model.violates else _judge(model, text)
    if status:
        reason = f"the checker ended with status {status}"
    state = State.FAILED if reason else State.PASSED
    return Outcome(model.name, state, seconds, reason or _summary(text), text)


def _judge(model: Model, text: str) -> str:
    """Return why it is not proven that the model holds, or ""."""
    if found := _FOUND.search(text):
        return (
            f"{found[1]} at depth {found[2]}: make test WHAT=model ARGS='--show {model.name}'"
        )
    if complaint := _COMPLAINT.search(text):
        return complaint[0].strip()
    errors = _ERRORS.search(text)
    if not errors or errors[2] != "0" or not all(check in text for check in _CHECKS):
        return "the checker did not finish, or not check everything"
    unreached = [found for found in _UNREACHED.finditer(text) if not _is_meant(found)]
    where = ", ".join(f"{found[1]}:{found[2]} {found[3]}" for found in unreached)
    return f"never executed: {where}" if unreached else ""


def _judge_mutation(model: Model, text: str) -> str:
    """Return why the mutation does not count as found, or ""."""
    found = _FOUND.search(text)
    if not found:
        return "not found"
    if _squeeze(found[1]) != _squeeze(model.violates):
        return f"found {found[1]}, not {model.violates}"
    return ""


def _is_meant(unreached: re.Match[str]) -> bool:
    """Whether a statement is one that is not to be executed."""
    if unreached[3] == "-end-":
        return True
    lines = (MODELS / Path(unreached[1]).name).read_text().splitlines()
    return NOT_REACHED in lines[int(unreached[2]) - 1]


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _summary(text: str) -> str:
    found = _FOUND.search(text)
    stored, used = _STORED.search(text), _USED.search(text)
    words = [f"{_squeeze(found[1])} at depth {found[2]}"] if found else []
    words += [f"{float(stored[1]):,.0f} states"] if stored else []
    words += [f"{float(used[1]):.0f} MiB"] if used and not found else []
    return ", ".join(words)


def _try(model: Model) -> Outcome:
    began = time.monotonic()
    try:
        checker = make(model)
        status, text = check(checker)
    except LabError as error:
        return Outcome(model.name, State.FAILED, time.monotonic() - began, str(error))
    outcome = judge(model, status, text, time.monotonic() - began)
    if outcome.state is State.PASSED:
        shutil.rmtree(model.directory)
    return outcome


def make(model: Model, *flags: str) -> Path:
    """Return the checker of a model, made with more options of the compiler.

    What is broken is found within seconds, and so not worth to be optimised for.
    """
    directory = model.directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for source in MODELS.glob("*.pml"):
        shutil.copy(source, directory)
    _do(directory, "spin", "-a", *model.options, model.file)
    flags = ("-O0" if model.violates else "-O2", "-DSAFETY", f"-DMEMLIM={_MEMORY}", *flags)
    _do(directory, "gcc", "-w", *flags, "-o", "pan", "pan.c")
    return directory / "pan"


def check(checker: Path, depth: int = _DEPTH) -> tuple[int, str]:
    """Run a checker; return its status and its words."""
    done = _run([checker, f"-m{depth}", _HASH], checker.parent)
    return done.returncode, done.stdout


def _show(model: Model) -> int:
    """Print the shortest way to what goes wrong, a line a step."""
    _, text = check(make(model, "-O2", "-DBFS"))
    if not _FOUND.search(text):
        raise LabError(f"{model.name}: nothing goes wrong")
    steps = _do(model.directory, "spin", "-t", "-p", *model.options, model.file)
    print(f"{model.name}: {model.says}")
    for line in steps.splitlines():
        if not _NOISE.search(line):
            print(line)
    return 0


def _do(directory: Path, *args: Arg) -> str:
    done = _run(args, directory)
    # Spin ends well whatever it thinks of a model.
    wrong = [line for line in done.stdout.splitlines() if "error:" in line.lower()]
    replayed = args[1] == "-t"
    if done.returncode or (wrong and not replayed):
        last = done.stdout.strip().splitlines() or ["no message"]
        raise LabError(f"{args[0]} failed: {(wrong or last[-1:])[0].strip()}")
    return done.stdout


def _run(args: Sequence[Arg], directory: Path) -> subprocess.CompletedProcess[str]:
    if runs.STOPPING.is_set():
        raise LabError("interrupted")
    try:
        return subprocess.run(
            [str(arg) for arg in args],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{args[0]} did not end within {_TIMEOUT} s") from None
