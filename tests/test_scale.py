"""The model of large VMs: its inputs, what it predicts, and whether the page tells that."""

import io
import json
import re
import unittest
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from unittest import mock

import pytest

from lab.check.outcome import State
from lab.error import LabError
from lab.measure import scale
from lab.measure.scale import Assumptions, Check, Line, Model, Record


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
        locks = {
            f"locks_{phase}": int(locks * gib * scale.REGIONS)
            + (case == "vmm") * (gib + scale.NEW_VM)
            + (phase == "call") * scale.ABSENT
            for (case, pages, phase), locks in scale.LOCKS.items()
            if (case, pages) == (name, backing)
        }
        made.append(got | locks | {"traced": True})
    return [*made, {"case": "task", "bytes": 9536}]


# Of what is measured at two sizes.


def test_growth_a_line_goes_through_both() -> None:
    line = Line.through((1, 3072), (4, 9216))
    assert (line.fixed, line.per_gib, line.per_region) == (1024, 2048, 4)
    assert line.at(64) == 1024 + 64 * 2048


def test_growth_inputs_are_the_small_sizes() -> None:
    model = Model(records())
    assert model.line("vmm", "4k") == Line(1000, 2048)


def test_growth_a_figure_that_is_missing_is_named() -> None:
    with pytest.raises(LabError, match="case vmm, backing 4k, gib 1"):
        Model([got for got in records() if got["case"] != "vmm"])


# Of predictions, beside what was run.


def test_checks_all_good_if_it_grows_as_it_does() -> None:
    checks = list(Model(records()).checks())
    assert [check.text for check in checks if not check.good] == []
    sizes = sum(len(case.checks) * len(case.figures) for case in scale.CASES)
    # Of memory that is absent there are two, by a call and by a pass.
    assert len(checks) == sizes + len(scale._expected()) + 1


def test_checks_without_the_second_machine() -> None:
    one = [got for got in records() if got.get("cpus") != 8]
    assert Model(records()).skipped() == 0
    assert Model(one).skipped() == len(scale.THREADED)


def test_checks_one_is_off_if_it_grows_with_the_square() -> None:
    checks = list(Model(records(lambda gib: int(1000 + gib * gib))).checks())
    off = [check for check in checks if not check.good]
    assert len(off) > 10
    assert any("1 TiB" in check.text for check in off)


def test_checks_the_error() -> None:
    assert Check("", 95, 100).error == pytest.approx(-5)
    assert Check("", 96, 100).good
    assert not Check("", 94, 100).good
    assert not Check("", 106, 100).good
    assert Check("", 0, 0).good
    assert not Check("", 1, 0).good


def test_checks_retries_of_many_threads_show() -> None:
    made = records()
    got = next(got for got in made if got.get("cpus") == 8 and got["threads"] == 8)
    got["locks_populate"] *= 2
    off = [check.text for check in Model(made).checks() if not check.good]
    assert off == ["acquisitions, populate, 4k, 4 GiB, threads of the VMM: 8, CPUs: 8"]


class Predictions(unittest.TestCase):
    """Of what can not be run."""

    def setUp(self) -> None:
        # A million instructions a GiB, one a nanosecond; an acquisition a region.
        assumed = replace(Assumptions(), ghz=1, ipc=1, line_ns=((2, 100), (8, 200)))
        self.model = Model(records(lambda gib: int(1_000_000 * gib)), assumed)

    def test_one_thread_waits_for_nobody(self) -> None:
        assert self.model.populate_ns("4k", 64, 1, 2) == 64e6

    def test_threads_wait_for_lines(self) -> None:
        # 512 regions with 5 atomics of 100 ns each.
        assert self.model.populate_ns("4k", 1, 2, 2) == (1e6 + 512 * 500) / 2

    def test_no_faster_than_the_lines_of_the_lock(self) -> None:
        assert self.model.populate_ns("4k", 1, 8, 8) == 512 * 2 * 200

    def test_share_of_the_line(self) -> None:
        share = 8 * 512 / 1e6 * 2 * 100
        assert self.model.line_share("4k", 8, 2) == pytest.approx(share, abs=5e-4)

    def test_faults_come_to_a_limit(self) -> None:
        one = self.model.fault_ns(1, 1, 2) / scale.PAGES
        assert one == pytest.approx(3448 + 1200 + 3 * 100)
        for vcpus in (64, 256):
            assert self.model.fault_ns(1, vcpus, 2) == scale.PAGES * 200

    def test_vain_passes_of_a_large_vm_take_long(self) -> None:
        assert self.model.vain_seconds(8) < 1
        assert self.model.vain_seconds(4096) == pytest.approx(21 * 4.096, abs=5e-4)

    def test_what_only_one_of_two_has(self) -> None:
        made = records()
        for got in made:
            if got["case"] in ("zap", "sparse") and not got.get("traced"):
                got |= {
                    key: got[key] * 2 for key in ("ns", "zap_ns", "vmalloc_kib") if key in got
                }
        model = Model(made)
        assert (model.mark(), model.mark_awaited()) == (4, 8)
        assert model.tracker_kib(1) == 3048


# Of what the program and the tracer print.


def test_parsing_objects_among_other_lines() -> None:
    text = 'Random seed: 0x6b8b4567\n{"case": "vmm", "gib": 1, "ns": 5}\n# less\n'
    assert list(scale.parse(text)) == [{"case": "vmm", "gib": 1, "ns": 5}]


def test_parsing_counts_by_vm_and_phase() -> None:
    maps = (
        {"@locks": {"1,populate": 513, "2,idle": 1}},
        {"@calls": {"1,populate": 512}},
        {"@number": 2},
    )
    lines = ["ready"] + [json.dumps({"type": "map", "data": data}) for data in maps]
    text = "\n".join([*lines, '{"type": "printf", "data": "ready"}'])
    counts = {"locks_populate": 513, "calls_populate": 512}
    assert scale.parse_trace(text) == {1: counts, 2: {"locks_idle": 1}}


def test_parsing_a_record_is_kept_as_it_is() -> None:
    content = {"kernel": "6.12", "records": records()}
    assert json.loads(scale.dump(content)) == content


# What its status tells.


def _run_with(made: list[Record], text: str | None = None) -> tuple[int, str]:
    """Return status and last line, the page being as the record has it by default."""
    known = records()
    told = [line for _, lines in scale.tables(Model(known)) for line in lines]
    out = io.StringIO()
    arguments = Namespace(recorded=False, record=False)
    record, page = mock.Mock(), mock.Mock()
    record.read_text.return_value = json.dumps({"records": known})
    page.read_text.return_value = "\n".join(told) if text is None else text
    for path in (record, page):
        path.relative_to.return_value = "page"
    with (
        mock.patch.object(scale, "measure", return_value=made),
        mock.patch.object(scale, "RECORD", record),
        mock.patch.object(scale, "DOCUMENT", page),
        mock.patch.object(scale.debian, "kernel"),
        redirect_stdout(out),
    ):
        status = scale.run(arguments)
    return status, out.getvalue().splitlines()[-1]


def test_command_all_is_well() -> None:
    status, line = _run_with(records())
    assert status == 0
    assert re.search(rf"^\d+ {State.PASSED}, 0 {State.FAILED}, 0 {State.SKIPPED}$", line)


def test_command_a_page_that_tells_something_else() -> None:
    status, line = _run_with(records(), "nothing")
    assert status == 1
    assert f" 1 {State.FAILED}" in line


def test_command_inputs_that_have_moved() -> None:
    status, line = _run_with(records(lambda gib: int(1000 + 4096 * gib)))
    assert status == 1
    assert f" 1 {State.FAILED}" in line


# docs/scale.md.


def test_document_its_tables_are_those_of_its_record() -> None:
    model = Model(json.loads(scale.RECORD.read_text())["records"])
    assert list(scale.untrue(scale.DOCUMENT.read_text(), model)) == []
    assert [each.text for each in model.checks() if not each.good] == []
