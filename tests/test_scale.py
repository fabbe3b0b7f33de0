"""The model of large VMs: its inputs, what it predicts, and whether the page tells that."""

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.error import LabError
from lab.measure import scale
from lab.measure.scale import Check, Line, Model, Record


def grows(gib: float) -> int:
    """Return a figure, of whatever, of a machine that is as the model has it."""
    return int(1000 + 2048 * gib)


def records(figure: Callable[[float], int] = grows) -> list[Record]:
    """Return all that is measured: an acquisition a region."""
    made: list[Record] = []
    for case in scale.CASES:
        for gib in (*case.inputs, *case.checks):
            got: Record = {"case": case.name, "backing": case.backing, "gib": gib, "threads": 1}
            made.append(got | dict.fromkeys(case.figures, figure(gib)) | {"traced": False})
    for cpus, name, backing, gib, threads in scale._expected():
        got = {"case": name, "backing": backing, "gib": gib, "threads": threads, "cpus": cpus}
        for (case, pages, phase), locks in scale.LOCKS.items():
            if (case, pages) == (name, backing):
                more = (case == "vmm") * (gib + scale.NEW_VM) + (phase == "call") * scale.ABSENT
                got[f"locks_{phase}"] = int(locks * gib * scale.REGIONS) + more
        made.append(got | {"traced": True})
    return made


def off(made: list[Record]) -> list[str]:
    """Return which predictions are off."""
    return [check.text for check in Model(made).checks() if not check.good]


def test_a_line_goes_through_both_sizes() -> None:
    """Of inputs, which are the small ones; one that is missing is named."""
    line = Line.through((1, 3072), (4, 9216))
    assert (line.fixed, line.per_gib, line.per_region) == (1024, 2048, 4)
    assert line.at(64) == 1024 + 64 * 2048
    assert Model(records()).line("vmm", "4k") == Line(1000, 2048)
    with pytest.raises(LabError, match="case vmm, backing 4k, gib 1"):
        Model([got for got in records() if got["case"] != "vmm"])


def test_predictions_beside_what_was_run() -> None:
    made = records()
    assert off(made) == []
    sizes = sum(len(case.checks) * len(case.figures) for case in scale.CASES)
    # Of memory that is absent there are two, by a call and by a pass.
    assert len(list(Model(made).checks())) == sizes + len(scale._expected()) + 1
    squares = off(records(lambda gib: int(1000 + gib * gib)))
    assert len(squares) > 10 and "1 TiB" in " ".join(squares)
    # Retries of many threads show.
    got = next(got for got in made if got.get("cpus") == 8 and got["threads"] == 8)
    got["locks_populate"] *= 2
    assert off(made) == ["acquisitions, populate, 4k, 4 GiB, threads of the VMM: 8, CPUs: 8"]


def test_the_error() -> None:
    assert Check("", 95, 100).error == pytest.approx(-5)
    for predicted, found, good in (
        *((96, 100, True), (94, 100, False), (106, 100, False)),
        *((0, 0, True), (1, 0, False)),
    ):
        assert Check("", predicted, found).good is good, predicted


def test_what_the_program_and_the_tracer_print() -> None:
    """Objects among other lines, counts by VM and phase; a record is kept as it is."""
    text = 'Random seed: 0x6b8b4567\n{"case": "vmm", "gib": 1, "ns": 5}\n# less\n'
    assert list(scale.counted.objects(text)) == [{"case": "vmm", "gib": 1, "ns": 5}]
    locks, calls = {"1,populate": 513, "2,idle": 1}, {"1,populate": 512}
    maps = ({"@locks": locks}, {"@calls": calls}, {"@number": 2})
    lines = ["ready"] + [json.dumps({"type": "map", "data": data}) for data in maps]
    found = scale.parse_trace("\n".join([*lines, '{"type": "printf", "data": "ready"}']))
    assert found == {1: {"locks_populate": 513, "calls_populate": 512}, 2: {"locks_idle": 1}}
    content = {"kernel": "6.12", "records": records()}
    assert json.loads(scale.dump(content)) == content


def test_status_and_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All is well; a page tells something else; inputs have moved."""
    told = scale.page(Model(records()))
    record, page = tmp_path / "record", tmp_path / "page"
    record.write_text(json.dumps({"records": records()}))
    monkeypatch.setattr(scale, "RECORD", record)
    monkeypatch.setattr(scale, "DOCUMENT", page)
    tables = "\n".join(told)
    moved = records(lambda gib: int(1000 + 4096 * gib))
    for made, text, failed in (
        (records(), tables, 0),
        (records(), "nothing", 1),
        (moved, tables, 1),
    ):
        page.write_text(text)
        monkeypatch.setattr(scale, "measure", lambda made=made: made)
        assert scale.run(Namespace(recorded=False, record=False)) == failed
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.partition(" passed, ")[2] == f"{failed} failed, 0 skipped"
        assert int(last.split()[0]) > 0


def test_tables_of_the_document_are_those_of_its_record() -> None:
    made = json.loads(scale.RECORD.read_text())["records"]
    told = scale.DOCUMENT.read_text().splitlines()
    assert [line for line in scale.page(Model(made)) if line not in told] == []
    assert off(made) == []
