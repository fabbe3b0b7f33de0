"""The lab's unit tests: pytest runs them, in a process of its own."""

import subprocess
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from lab.check.outcome import Outcome, State
from lab.error import LabError
from lab.paths import ROOT, VENV_BIN

_PYTEST = (
    *("-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"),
    *("-p", "no:cacheprovider", "-o", "junit_logging=all"),
)
_STATES = {"failure": State.FAILED, "error": State.FAILED, "skipped": State.SKIPPED}


def run(folder: str | Path = ROOT / "tests") -> list[Outcome]:
    """Return what came of each."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        command = (VENV_BIN / "python", *_PYTEST, f"--junit-xml={report}", folder)
        # What they print would be taken for something that happens.
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not report.exists():
            raise LabError(f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}")
        found = [_outcome(case) for case in ET.parse(report).iter("testcase")]
    if done.returncode and all(outcome.state is not State.FAILED for outcome in found):
        said = done.stdout + done.stderr
        found.append(Outcome("what is no test's own", State.FAILED, output=said))
    return sorted(found, key=lambda outcome: outcome.name)


def _outcome(case: ET.Element) -> Outcome:
    """Of one test; what subtests leave is its own."""
    wrong = [child for child in case if child.tag in _STATES]
    states = [_STATES[child.tag] for child in wrong]
    state = next((each for each in State if each in states), State.PASSED)
    name = f"{case.get('classname', '')}.{case.get('name')}".removeprefix("tests.")
    why = "; ".join(child.get("message", "") for child in wrong)
    said = "\n".join(child.text or "" for child in case) if state is State.FAILED else ""
    return Outcome(name, state, float(case.get("time", 0)), why, said)
