"""What the benchmark of recorded working sets makes of its output."""

import unittest

from lab.error import LabError
from lab.measure import working_set
from lab.measure.restore import Run


def runs() -> list[Run]:
    """Return what is measured where all is well."""
    found: list[Run] = []
    for flags in working_set.CASES.values():
        clones = working_set.CLONES if flags.startswith("-n") else 1
        found.append(
            {"way": "record", "pages": 100, "ns": 30 * (working_set.MIB << 8), "faults": 2}
        )
        for number, way in enumerate(working_set.WAYS):
            cost = 1000 - 100 * number
            counts = {"clones": clones, "ns": cost, "prepare_ns": 1, "again_ns": 10}
            sizes = {"faults": clones, "tables_kib": 9 - number, "stage2_kib": 9 - number}
            found.append({"way": way, **counts, **sizes})
    slower = [{**run, "ns": int(run["ns"]) + 500} for run in found]
    return [*slower, *found]


class Cases(unittest.TestCase):
    """What was measured, by case."""

    def test_each_has_its_record_and_ways(self) -> None:
        found = working_set.cases(runs())
        self.assertEqual(list(found), list(working_set.CASES))
        for case in found.values():
            self.assertEqual([run["way"] for run in case], ["record", *working_set.WAYS])

    def test_one_that_is_missing_is_an_error(self) -> None:
        with self.assertRaises(LabError):
            working_set.cases(runs()[:-1])


class Judge(unittest.TestCase):
    """What is promised."""

    def verdicts(self, changed: dict[str, object], way: str) -> list[bool]:
        """Return them with one way changed in all cases."""
        found = working_set.cases(
            [{**run, **changed} if run["way"] == way else run for run in runs()]  # type: ignore[misc]
        )
        return [good for _, good in working_set.judge(found)]

    def test_all_is_well(self) -> None:
        self.assertTrue(all(self.verdicts({}, "record")))

    def test_a_dear_record(self) -> None:
        dear = 31 * (working_set.MIB << 8)
        self.assertEqual(self.verdicts({"ns": dear}, "record").count(False), 1)

    def test_faults_are_left(self) -> None:
        many = {"faults": working_set.CLONES + 1}
        self.assertEqual(self.verdicts(many, "recorded").count(False), len(working_set.CASES))

    def test_as_many_tables_as_for_all(self) -> None:
        tables = {"stage2_kib": 7}
        self.assertEqual(self.verdicts(tables, "recorded").count(False), len(working_set.CASES))

    def test_no_less_than_for_all(self) -> None:
        self.assertEqual(self.verdicts({"ns": 900}, "recorded").count(False), 2)
