"""What global-tdp-check says of its options, of hosts without KVM, and in its manual page."""

import json
import os
import re
import subprocess
import tempfile
import unittest
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.make.hostcheck import FLAGS, SOURCE
from lab.paths import PACKAGING

PAGE = PACKAGING / "global-tdp-check.8"
GIB = 1 << 20
"""In KiB, as /proc/meminfo has it."""


class _Program(unittest.TestCase):
    """Compiled once; a host is a directory, its root."""

    @classmethod
    def setUpClass(cls) -> None:
        directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.host = Path(directory, "host")
        (cls.host / "dev").mkdir(parents=True)
        (cls.host / "proc").mkdir()
        Path(directory).chmod(0o755)
        cls.program = cls.host / "global-tdp-check"
        command = ["gcc", *FLAGS, "-o", cls.program, SOURCE]
        subprocess.run(command, check=True)

    def setUp(self) -> None:
        self.available(8 * GIB)
        (self.host / "dev/kvm").unlink(missing_ok=True)

    def available(self, kib: int) -> None:
        text = f"MemTotal: {64 * GIB} kB\nMemAvailable: {kib} kB\n"
        (self.host / "proc/meminfo").write_text(text)

    def run_program(self, *arguments: str, user: str = "") -> subprocess.CompletedProcess[str]:
        if os.geteuid():
            self.skipTest("it takes root to have another root directory")
        chroot = ["chroot", *([f"--userspec={user}", "--groups="] if user else []), self.host]
        return subprocess.run(
            [*chroot, "/global-tdp-check", *arguments], capture_output=True, text=True
        )

    def assert_refused(self, status: int, said: str, *arguments: str, user: str = "") -> None:
        done = self.run_program(*arguments, user=user)
        self.assertEqual((done.returncode, done.stdout), (status, ""), arguments)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(said, done.stderr)


class Options(_Program):
    """Bad ones are told in a line that says what to do, with status 2."""

    def test_numbers(self) -> None:
        for option, values, least, most in (
            (
                "-m",
                ("0", "15", "2049", "-1", "1G", "", " 64", "99999999999999999999"),
                16,
                2048,
            ),
            ("-c", ("0", "65", "two"), 1, 64),
            ("-r", ("0", "100", "1.5"), 1, 99),
            ("-g", ("0", "65537"), 1, 65536),
        ):
            for value in values:
                said = f"{option} {value}: give a number"
                self.assert_refused(2, said, option, value)
                self.assert_refused(2, f"from {least} to {most}\n", option, value)

    def test_unknown_and_no_value(self) -> None:
        for arguments in (("-x",), ("--jsn",), ("file",), ("--help=yes",), ("-m", "64", "x")):
            self.assert_refused(2, "see --help", *arguments)
        for option in ("-m", "-c", "-r", "-g", "--json"):
            self.assert_refused(2, f"{option} lacks its value", option)

    def test_more_cpus_than_there_are(self) -> None:
        if (cpus := len(os.sched_getaffinity(0))) < 64:
            self.assert_refused(2, f"may use {cpus} CPUs", "-c", str(cpus + 1))

    def test_memory(self) -> None:
        """No more than half of what is available; less by default, if there is enough."""
        for kib, status, said, arguments in (
            (GIB, 2, "give no more than 512", ("-m", "528")),
            (GIB, 1, "/dev/kvm", ("-m", "512")),
            (GIB // 8, 1, "/dev/kvm", ("-c", "1")),
            (GIB // 64, 1, "free some", ()),
        ):
            self.available(kib)
            self.assert_refused(status, said, *arguments)

    def test_help_names_all(self) -> None:
        done = self.run_program("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for option in ("-m MIB", "-c VCPUS", "-r REPETITIONS", "-g GIB", "--json FILE"):
            self.assertIn(option, done.stdout)


class Hosts(_Program):
    """Those that can't be measured are told in a line, with status 1."""

    def test_no_kvm(self) -> None:
        """It is not there, not KVM's, or not for this user."""
        none = "/dev/kvm: No such file or directory; load kvm_intel or kvm_amd"
        self.assert_refused(1, none)
        (self.host / "dev/kvm").write_text("")
        self.assert_refused(1, "/dev/kvm is not")
        (self.host / "dev/kvm").chmod(0)
        said = "/dev/kvm: Permission denied; be root"
        self.assert_refused(1, said, user="65534:65534")

    def test_no_file_is_left(self) -> None:
        self.run_program("--json", "/figures")
        self.assertFalse((self.host / "figures").exists())


class Manual(unittest.TestCase):
    """What the program has, its manual page has."""

    def names(self, pattern: str) -> Sequence[str]:
        return re.findall(pattern, SOURCE.read_text(), re.M)

    def test_options(self) -> None:
        page = PAGE.read_text().replace("\\-", "-")
        short = re.search(r'":((?:\w:?)+)"', SOURCE.read_text())[1].replace(":", "")
        for option in short.replace("h", ""):
            self.assertIn(f".BI -{option} ", page)
        for option in self.names(r'^\t\t\{ "(\w+)", \w+_argument'):
            self.assertRegex(page, rf"(?m)^\.B.* ?--{option}\b")

    def test_names_in_the_json(self) -> None:
        page = PAGE.read_text()
        for figures in self.names(r"_figures\[\] = \{([^}]*)\}"):
            for name in re.findall(r'"(\w+)"', figures):
                self.assertIn(name, page)
        ways = self.names(r'^\t\{ "(\w+)", "[^"]+", (?:0|ALWAYS|KVM_\w+), ')
        self.assertEqual((len(ways), len(set(ways))), (10, 10))
        for name in ways:
            self.assertIn(f".B {name}\n", page)
        for name in self.names(r'^\t\{ "(\w+)", "[^"]+", \w*PAGE, '):
            self.assertRegex(page, rf"\.BR? {name}\b")

    def test_shares_are_those_of_the_costs(self) -> None:
        """The estimate where there is nothing to measure is by counted instructions."""
        costs = (PACKAGING.parent / "docs/costs.md").read_text()
        touch = re.search(r"stock: a vCPU's first touch +\| ([\d.]+) \| ([\d.]+)", costs)
        populate = re.search(r"`KVM_POPULATE_MEMORY` +\| ([\d.]+) \| ([\d.]+)", costs)
        shares = re.search(r"counted_share\[\] = \{ (.*?), (.*?) \}", SOURCE.read_text())
        for kind in (1, 2):
            told = [float(number) for number in shares[kind].split(" / ")]
            self.assertEqual(told, [float(populate[kind]), float(touch[kind])])


_FAKE = """
#define main program
#include "@SOURCE@"
#undef main

/* Of each way: what a page takes to prepare, to touch, and at the VM's end; in ns. */
int main(int argc, char **argv)
{
	host.features = argc > 5 ? strtoul(argv[5], NULL, 0) : 0;
	host.always = host.features & 7;
	mib = 512;
	most_vcpus = 1;
	thp_percent = 100;
	show_cost();
	for (size_t i = 0; i < NR_KINDS * NR_TOUCHES; i++) {
		const struct way *way = &touches[i % NR_TOUCHES];
		struct result *result;

		if (!possible(way))
			continue;
		result = new_result(&results[nr_results++], &kinds[i / NR_TOUCHES], way, 1);
		add(&result->figures[PREPARE], way->how == POPULATE ? atof(argv[1]) : 0);
		add(&result->figures[COST], way->how == NOTHING ? atof(argv[2]) : 0);
		add(&result->figures[END], way->idle ? 10 : atof(argv[3 + !!way->features]));
	}
	show();
	fflush(stdout);
	json_name = "/dev/stdout";
	json_fd = 1;
	write_json();
	return 0;
}
"""


class Verdict(unittest.TestCase):
    """What it makes of figures."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.program = Path(cls.enterClassContext(tempfile.TemporaryDirectory()), "fake")
        source = cls.program.with_suffix(".c")
        source.write_text(_FAKE.replace("@SOURCE@", str(SOURCE)))
        subprocess.run(["gcc", *FLAGS, "-o", cls.program, source], check=True)

    def show(self, *figures: float) -> tuple[list[str], Mapping[str, Any]]:
        command = [self.program, *map(str, figures)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        text, brace, data = said.partition('{"program')
        return text.splitlines(), json.loads(brace + data)

    def test_worth_it(self) -> None:
        """(8 + 10) / (890 + 100 - 110 + 10), of all pages; features have names."""
        lines, data = self.show(8, 890, 100, 110, 31)
        self.assertEqual(lines[0].partition(" of")[0], "This takes 3 minutes, 600 MiB")
        wanted = (
            "Worth it for VMs that touch more than 3% of their memory in 4 KiB pages; not "
            "worth it with huge pages: a guest of 64 GiB pays 14.93 s for its faults there."
        )
        self.assertEqual(lines[-1], wanted)
        self.assertEqual(data["worth_above_percent"], 3)
        always = ["follow", "fault-around", "populate"]
        self.assertEqual(data["has"]["always"], always)
        self.assertEqual(data["has"]["global_tdp"], [*always, "page-cache", "harvest"])
        self.assertIn(
            'kvm.global_tdp=1, which is measured as "on", is ' + ", ".join(always), lines
        )
        ends = [(each["end_s"], each["end_on_s"]) for each in data["estimates"]]
        self.assertEqual(ends, [(1.678, 1.845)] * 2)

    def test_not_worth_it(self) -> None:
        """If it takes as long as faults; or the end longer than they."""
        for figures in ((900, 890, 100, 100, 7), (8, 50, 10, 400, 7)):
            lines, data = self.show(*figures)
            self.assertRegex(lines[-1], "^Not worth it with 4 KiB pages, .*; not worth it with")
            self.assertIsNone(data["worth_above_percent"])

    def test_stock(self) -> None:
        """It says what was measured, and guesses no share."""
        lines, data = self.show(0, 890, 100, 0)
        wanted = (
            "A guest of 64 GiB pays 14.93 s for its faults with 4 KiB pages and 14.93 s with "
            "huge ones; which share of them has to be touched for Global TDP to pay, only KVM "
            "with it can measure."
        )
        self.assertEqual(lines[-1], wanted)
        self.assertEqual((data["worth_above_percent"], data["has"]["always"]), (None, []))
        self.assertIsNone(data["estimates"][0]["end_on_s"])


if __name__ == "__main__":
    unittest.main()
