"""What global-tdp-check says of its options, of hosts without KVM, and in its manual page."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.make.programs import CHECK as SOURCE
from lab.make.programs import CHECK_FLAGS as FLAGS
from lab.paths import PACKAGING

PAGE = PACKAGING / "global-tdp-check.8"
GIB = 1 << 20
"""In KiB, as /proc/meminfo has it."""


def compiled(program: Path, source: Path) -> Path:
    """Return a program of that source."""
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", *FLAGS, "-o", program, source], check=True)
    return program


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Return a host without KVM, which is a directory, its root."""
    host = tmp_path / "host"
    compiled(host / "global-tdp-check", SOURCE)
    for path in (host / "dev", host / "proc"):
        path.mkdir()
    for path in list(host.parents)[:3]:
        path.chmod(0o755)
    available(host, 8 * GIB)
    return host


def available(host: Path, kib: int) -> None:
    """Have so much memory."""
    text = f"MemTotal: {64 * GIB} kB\nMemAvailable: {kib} kB\n"
    (host / "proc/meminfo").write_text(text)


def run(host: Path, *arguments: str, user: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program there."""
    if os.geteuid():
        pytest.skip("it takes root to have another root directory")
    chroot = ["chroot", *([f"--userspec={user}", "--groups="] if user else []), host]
    command = [*chroot, "/global-tdp-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def refused(host: Path, status: int, said: str, *arguments: str, user: str = "") -> None:
    """Have it say so in a line."""
    done = run(host, *arguments, user=user)
    assert (done.returncode, done.stdout) == (status, ""), arguments
    assert done.stderr.count("\n") == 1 and said in done.stderr, done.stderr


def test_options(host: Path) -> None:
    """Of bad ones, the line says what to do."""
    for option, values, least, most in (
        ("-m", ("0", "15", "2049", "-1", "1G", "", " 64", "9" * 20), 16, 2048),
        ("-c", ("0", "65", "two"), 1, 64),
        ("-r", ("0", "100", "1.5"), 1, 99),
        ("-g", ("0", "65537"), 1, 65536),
    ):
        for value in values:
            refused(host, 2, f"{option} {value}: give a number", option, value)
            refused(host, 2, f"from {least} to {most}\n", option, value)
    for words in ("-x", "--jsn", "file", "--help=yes", "-m 64 x"):
        refused(host, 2, "see --help", *words.split())
    for option in ("-m", "-c", "-r", "-g", "--json"):
        refused(host, 2, f"{option} lacks its value", option)
    if (cpus := len(os.sched_getaffinity(0))) < 64:
        refused(host, 2, f"may use {cpus} CPUs", "-c", str(cpus + 1))
    done = run(host, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for option in ("-m MIB", "-c VCPUS", "-r REPETITIONS", "-g GIB", "--json FILE"):
        assert option in done.stdout


def test_hosts(host: Path) -> None:
    """KVM is not there, not KVM's, or not for this user; no file is left."""
    refused(host, 1, "/dev/kvm: No such file or directory; load kvm_intel or kvm_amd")
    run(host, "--json", "/figures")
    assert not (host / "figures").exists()
    # No more than half of the memory that is available; less by default, if there is enough.
    for kib, status, said, *arguments in (
        (GIB, 2, "give no more than 512", "-m", "528"),
        (GIB, 1, "/dev/kvm", "-m", "512"),
        (GIB // 8, 1, "/dev/kvm", "-c", "1"),
        (GIB // 64, 1, "free some"),
    ):
        available(host, kib)
        refused(host, status, said, *arguments)
    available(host, 8 * GIB)
    (host / "dev/kvm").write_text("")
    refused(host, 1, "/dev/kvm is not")
    (host / "dev/kvm").chmod(0)
    refused(host, 1, "/dev/kvm: Permission denied; be root", user="65534:65534")


def of_source(pattern: str) -> list[str]:
    """Return what the program has."""
    return re.findall(pattern, SOURCE.read_text(), re.M)


def test_the_manual_page_has_what_the_program_has() -> None:
    page = PAGE.read_text()
    (short,) = of_source(r'":((?:\w:?)+)"')
    for option in short.replace(":", "").replace("h", ""):
        assert f".BI \\-{option} " in page
    for option in of_source(r'^\t\t\{ "(\w+)", \w+_argument'):
        assert re.search(rf"(?m)^\.B.* ?\\-\\-{option}\b", page), option
    for figures in of_source(r"_figures\[\] = \{([^}]*)\}"):
        assert all(name in page for name in re.findall(r'"(\w+)"', figures)), figures
    ways = of_source(r'^\t\{ "(\w+)", "[^"]+", (?:0|ALWAYS|KVM_\w+), ')
    assert (len(ways), len(set(ways))) == (10, 10)
    assert [name for name in ways if f".B {name}\n" not in page] == []
    for name in of_source(r'^\t\{ "(\w+)", "[^"]+", \w*PAGE, '):
        assert re.search(rf"\.BR? {name}\b", page), name


def test_shares_are_those_of_the_costs() -> None:
    """The estimate where there is nothing to measure is by counted instructions."""
    costs = (PACKAGING.parent / "docs/costs.md").read_text()
    touch = re.search(r"stock: a vCPU's first touch +\| ([\d.]+) \| ([\d.]+)", costs)
    populate = re.search(r"`KVM_POPULATE_MEMORY` +\| ([\d.]+) \| ([\d.]+)", costs)
    ((*shares,),) = of_source(r"counted_share\[\] = \{ (.*?), (.*?) \}")
    told = [[float(number) for number in share.split(" / ")] for share in shares]
    assert told == [[float(populate[kind]), float(touch[kind])] for kind in (1, 2)]


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


def test_what_it_makes_of_figures(tmp_path: Path) -> None:
    source = tmp_path / "fake.c"
    source.write_text(_FAKE.replace("@SOURCE@", str(SOURCE)))
    program = compiled(tmp_path / "fake", source)

    def show(*figures: float) -> tuple[list[str], Mapping[str, Any]]:
        command = [program, *map(str, figures)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        text, brace, data = said.partition('{"program')
        return text.splitlines(), json.loads(brace + data)

    # (8 + 10) / (890 + 100 - 110 + 10), of all pages; features have names.
    lines, data = show(8, 890, 100, 110, 31)
    assert lines[0].startswith("This takes 3 minutes, 600 MiB of")
    assert lines[-1] == (
        "Worth it for VMs that touch more than 3% of their memory in 4 KiB pages; not "
        "worth it with huge pages: a guest of 64 GiB pays 14.93 s for its faults there."
    )
    always = ["follow", "fault-around", "populate"]
    has = {"always": always, "global_tdp": [*always, "page-cache", "harvest"]}
    assert (data["worth_above_percent"], data["has"]) == (3, data["has"] | has)
    assert f'kvm.global_tdp=1, which is measured as "on", is {", ".join(always)}' in lines
    ends = [(each["end_s"], each["end_on_s"]) for each in data["estimates"]]
    assert ends == [(1.678, 1.845)] * 2
    # It takes as long as faults; or the end longer than they.
    for figures in ((900, 890, 100, 100, 7), (8, 50, 10, 400, 7)):
        lines, data = show(*figures)
        assert re.match("Not worth it with 4 KiB pages, .*; not worth it with", lines[-1])
        assert data["worth_above_percent"] is None
    # Of stock, it says what was measured, and guesses no share.
    lines, data = show(0, 890, 100, 0)
    assert lines[-1] == (
        "A guest of 64 GiB pays 14.93 s for its faults with 4 KiB pages and 14.93 s with "
        "huge ones; which share of them has to be touched for Global TDP to pay, only KVM "
        "with it can measure."
    )
    assert (data["worth_above_percent"], data["has"]["always"]) == (None, [])
    assert data["estimates"][0]["end_on_s"] is None
