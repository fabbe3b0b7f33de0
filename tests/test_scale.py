"""The model of large VMs: its inputs, what it predicts, and whether the page tells that."""

import io
import json
import unittest
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from unittest import mock

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


class Growth(unittest.TestCase):
    """Of what is measured at two sizes."""

    def test_a_line_goes_through_both(self) -> None:
        line = Line.through((1, 3072), (4, 9216))
        self.assertEqual((line.fixed, line.per_gib, line.per_region), (1024, 2048, 4))
        self.assertEqual(line.at(64), 1024 + 64 * 2048)

    def test_inputs_are_the_small_sizes(self) -> None:
        model = Model(records())
        self.assertEqual(model.line("vmm", "4k"), Line(1000, 2048))

    def test_a_figure_that_is_missing_is_named(self) -> None:
        with self.assertRaisesRegex(LabError, "case vmm, backing 4k, gib 1"):
            Model([got for got in records() if got["case"] != "vmm"])


class Checks(unittest.TestCase):
    """Of predictions, beside what was run."""

    def test_all_good_if_it_grows_as_it_does(self) -> None:
        checks = list(Model(records()).checks())
        self.assertEqual([check.text for check in checks if not check.good], [])
        sizes = sum(len(case.checks) * len(case.figures) for case in scale.CASES)
        # Of memory that is absent there are two, by a call and by a pass.
        self.assertEqual(len(checks), sizes + len(scale._expected()) + 1)

    def test_without_the_second_machine(self) -> None:
        one = [got for got in records() if got.get("cpus") != 8]
        self.assertEqual(Model(records()).skipped(), 0)
        self.assertEqual(Model(one).skipped(), len(scale.THREADED))

    def test_one_is_off_if_it_grows_with_the_square(self) -> None:
        checks = list(Model(records(lambda gib: int(1000 + gib * gib))).checks())
        off = [check for check in checks if not check.good]
        self.assertGreater(len(off), 10)
        self.assertTrue(any("1 TiB" in check.text for check in off))

    def test_the_error(self) -> None:
        self.assertAlmostEqual(Check("", 95, 100).error, -5)
        self.assertTrue(Check("", 96, 100).good)
        self.assertFalse(Check("", 94, 100).good)
        self.assertFalse(Check("", 106, 100).good)
        self.assertTrue(Check("", 0, 0).good)
        self.assertFalse(Check("", 1, 0).good)

    def test_retries_of_many_threads_show(self) -> None:
        made = records()
        got = next(got for got in made if got.get("cpus") == 8 and got["threads"] == 8)
        got["locks_populate"] *= 2
        off = [check.text for check in Model(made).checks() if not check.good]
        self.assertEqual(
            off, ["acquisitions, populate, 4k, 4 GiB, threads of the VMM: 8, CPUs: 8"]
        )


class Predictions(unittest.TestCase):
    """Of what can not be run."""

    def setUp(self) -> None:
        # A million instructions a GiB, one a nanosecond; an acquisition a region.
        assumed = replace(Assumptions(), ghz=1, ipc=1, line_ns=((2, 100), (8, 200)))
        self.model = Model(records(lambda gib: int(1_000_000 * gib)), assumed)

    def test_one_thread_waits_for_nobody(self) -> None:
        self.assertEqual(self.model.populate_ns("4k", 64, 1, 2), 64e6)

    def test_threads_wait_for_lines(self) -> None:
        # 512 regions with 5 atomics of 100 ns each.
        self.assertEqual(self.model.populate_ns("4k", 1, 2, 2), (1e6 + 512 * 500) / 2)

    def test_no_faster_than_the_lines_of_the_lock(self) -> None:
        self.assertEqual(self.model.populate_ns("4k", 1, 8, 8), 512 * 2 * 200)

    def test_share_of_the_line(self) -> None:
        share = 8 * 512 / 1e6 * 2 * 100
        self.assertAlmostEqual(self.model.line_share("4k", 8, 2), share, 3)

    def test_faults_come_to_a_limit(self) -> None:
        one = self.model.fault_ns(1, 1, 2) / scale.PAGES
        self.assertAlmostEqual(one, 3448 + 1200 + 3 * 100)
        for vcpus in (64, 256):
            self.assertEqual(self.model.fault_ns(1, vcpus, 2), scale.PAGES * 200)

    def test_vain_passes_of_a_large_vm_take_long(self) -> None:
        self.assertLess(self.model.vain_seconds(8), 1)
        self.assertAlmostEqual(self.model.vain_seconds(4096), 21 * 4.096, 3)

    def test_what_only_one_of_two_has(self) -> None:
        made = records()
        for got in made:
            if got["case"] in ("zap", "sparse") and not got.get("traced"):
                got |= {
                    key: got[key] * 2 for key in ("ns", "zap_ns", "vmalloc_kib") if key in got
                }
        model = Model(made)
        self.assertEqual((model.mark(), model.mark_awaited()), (4, 8))
        self.assertEqual(model.tracker_kib(1), 3048)


class Parsing(unittest.TestCase):
    """Of what the program and the tracer print."""

    def test_objects_among_other_lines(self) -> None:
        text = 'Random seed: 0x6b8b4567\n{"case": "vmm", "gib": 1, "ns": 5}\n# less\n'
        self.assertEqual(list(scale.parse(text)), [{"case": "vmm", "gib": 1, "ns": 5}])

    def test_counts_by_vm_and_phase(self) -> None:
        maps = (
            {"@locks": {"1,populate": 513, "2,idle": 1}},
            {"@calls": {"1,populate": 512}},
            {"@number": 2},
        )
        lines = ["ready"] + [json.dumps({"type": "map", "data": data}) for data in maps]
        text = "\n".join([*lines, '{"type": "printf", "data": "ready"}'])
        counts = {"locks_populate": 513, "calls_populate": 512}
        self.assertEqual(scale.parse_trace(text), {1: counts, 2: {"locks_idle": 1}})

    def test_a_record_is_kept_as_it_is(self) -> None:
        content = {"kernel": "6.12", "records": records()}
        self.assertEqual(json.loads(scale.dump(content)), content)


class Command(unittest.TestCase):
    """What its status tells."""

    def run_with(self, made: list[Record], text: str | None = None) -> tuple[int, str]:
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

    def test_all_is_well(self) -> None:
        status, line = self.run_with(records())
        self.assertEqual(status, 0)
        self.assertRegex(line, rf"^\d+ {State.PASSED}, 0 {State.FAILED}, 0 {State.SKIPPED}$")

    def test_a_page_that_tells_something_else(self) -> None:
        status, line = self.run_with(records(), "nothing")
        self.assertEqual(status, 1)
        self.assertIn(f" 1 {State.FAILED}", line)

    def test_inputs_that_have_moved(self) -> None:
        status, line = self.run_with(records(lambda gib: int(1000 + 4096 * gib)))
        self.assertEqual(status, 1)
        self.assertIn(f" 1 {State.FAILED}", line)


class Document(unittest.TestCase):
    """docs/scale.md."""

    def test_its_tables_are_those_of_its_record(self) -> None:
        model = Model(json.loads(scale.RECORD.read_text())["records"])
        self.assertEqual(list(scale.untrue(scale.DOCUMENT.read_text(), model)), [])
        self.assertEqual([each.text for each in model.checks() if not each.good], [])
