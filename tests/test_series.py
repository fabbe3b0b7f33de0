"""The series that SERIES= chooses."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from lab import __main__ as lab
from lab import paths
from lab.error import LabError
from lab.paths import ROOT

SHOW = "from lab import paths; print(paths.PATCHES, paths.BUILD, paths.VENV_BIN)"


@pytest.mark.parametrize(
    ("name", "told"),
    (
        *((name, ("patches/6.12", "build", "build/venv/bin")) for name in ("", "6.12")),
        ("7.3", ("patches/7.3", "build/7.3", "build/venv/bin")),
        ("6.1", "lab: no series 6.1: SERIES is 6.12 or 7.3\n"),
    ),
)
def test_where_things_are(name: str, told: tuple[str, ...] | str) -> None:
    """With a choice as make hands it over."""
    env = {**os.environ, "SERIES": name}
    command = [sys.executable, "-c", SHOW]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if isinstance(told, str):
        assert (done.returncode, done.stderr) == (1, told)
    else:
        assert done.stdout.split() == [f"{ROOT}/{place}" for place in told]


@pytest.mark.parametrize("version", ("6.12", "7.3"))
@pytest.mark.parametrize("command", (*lab.FOR_ONE, "check"))
def test_what_is_for_one_series_only(
    command: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"\n    {command} " in lab.parser().format_help()
    monkeypatch.setattr(paths, "VERSION", version)
    said = "only, not 7.3 yet" in lab.not_yet(command)
    assert said == (command != "check" and version != "6.12")


def test_a_newer_series_is_removed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the oldest, what is in its directory, unless it has edits."""
    shared = tmp_path / "build"
    newer = shared / "7.3"
    newer.mkdir(parents=True)
    other = mock.Mock()
    monkeypatch.setattr(lab.subprocess, "run", other)
    monkeypatch.setattr(lab.tree, "unsaved", lambda: "has edits")
    monkeypatch.setattr(paths, "SHARED", shared)

    def clean(build: Path) -> None:
        monkeypatch.setattr(paths, "BUILD", build)
        monkeypatch.setattr(paths, "LINUX", build / "linux")
        lab._clean(mock.Mock())

    (shared / "linux").mkdir()
    with pytest.raises(LabError, match="has edits"):
        clean(shared)
    other.assert_not_called()
    (shared / "linux").rmdir()
    other.return_value.returncode = 1
    with pytest.raises(LabError, match=r"build/7.3, which is in it, stays"):
        clean(shared)
    assert other.call_args.kwargs["env"]["SERIES"] == "7.3"
    other.reset_mock()
    clean(newer)
    assert (shared.exists(), newer.exists()) == (True, False)
    clean(shared)
    assert not shared.exists()
    other.assert_not_called()
