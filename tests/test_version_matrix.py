"""The matrix of versions: environments, counts and table."""

import subprocess

from click.testing import CliRunner

from tests.version_matrix import cells
from tests.version_matrix.__main__ import PYTHONS, TORCHES, main

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_two"><failure>no</failure></testcase>
<testcase classname="tests.b" name="test_three"><error>no</error></testcase>
<testcase classname="tests.b" name="test_four"><skipped>no</skipped></testcase>
</testsuite></testsuites>"""
PAIR = cells.Pair("3.12", "2.14")


def test_counts_are_those_of_the_report(tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    row = cells.read_report(tmp_path / "report.xml", PAIR, 90.0)
    failing = ("tests.a::test_two", "tests.b::test_three")
    assert row == cells.Row("3.12", "2.14", 1, 1, failing, 90.0)


def test_table_has_a_row_for_each_pair_and_names_what_fails():
    rows = [
        cells.Row("3.11", "2.13", 5, 1, (), 61.0),
        cells.Row("3.12", "2.14", 4, 0, ("tests.a::test_two",), 30.0),
        cells.Row("3.13", "2.14", obstacle="there is no python3.13 on PATH"),
    ]
    assert cells.table(rows).splitlines() == [
        "| Python | torch | passed | failed | skipped | minutes |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 3.11 | 2.13 | 5 | 0 | 1 | 1 |",
        "| 3.12 | 2.14 | 4 | 1 | 0 | 0 |",
        "| 3.13 | 2.14 | – | – | – | – |",
        "",
        "Python 3.12, torch 2.14: tests.a::test_two",
        "Python 3.13, torch 2.14: there is no python3.13 on PATH",
    ]


def fake_runs(monkeypatch, failing=None):
    """Records the commands; a run of pytest writes the report, unless a command fails."""
    commands = []
    real = subprocess.run

    def run(command, **options):
        words = [str(word) for word in command]
        if words[0] == "git":
            return real(command, **options)
        commands.append(words)
        for word in words:
            if word.startswith("--junitxml="):
                with open(word.partition("=")[2], "w") as report:
                    report.write(REPORT)
        status = int(failing in words)
        return subprocess.CompletedProcess(command, status, stdout="first\nno such version\n")

    monkeypatch.setattr(cells.subprocess, "run", run)
    monkeypatch.setattr(cells.shutil, "which", lambda name: f"/bin/{name}")
    return commands


def test_a_pair_is_installed_afresh_and_tested(monkeypatch, tmp_path):
    commands = fake_runs(monkeypatch)
    row = cells.run(PAIR, tmp_path, 3, ["tests/records"])
    assert row.passed == 1
    create, install, test = commands
    assert create == ["/bin/python3.12", "-m", "venv", str(tmp_path / "3.12-2.14")]
    assert "torch==2.14.*" in install
    pinned = {line.split("=")[0] for line in (tmp_path / "constraints.txt").open()}
    assert "numpy" in pinned and not pinned & {"torch", "triton"}
    assert test[0] == str(tmp_path / "3.12-2.14/bin/python") and test[-1] == "tests/records"


def test_a_result_of_this_commit_is_not_computed_again(monkeypatch, tmp_path):
    commands = fake_runs(monkeypatch)
    first = cells.run(PAIR, tmp_path, 2, ["tests/records"])
    assert cells.run(PAIR, tmp_path, 2, ["tests/records"]) == first
    assert len(commands) == 3
    cells.run(PAIR, tmp_path, 2, ["tests/monitor"])
    assert len(commands) == 6


def test_a_failed_installation_is_told_and_other_pairs_go_on(monkeypatch, tmp_path):
    fake_runs(monkeypatch, failing="torch==2.14.*")
    options = ["--python", "3.12", "--torch", "2.14", "--torch", "2.15", "--folder", tmp_path]
    done = CliRunner().invoke(main, [str(option) for option in options])
    assert done.exit_code == 1
    last = done.stdout.splitlines()
    assert any(line.startswith("| 3.12 | 2.15 | 1 |") for line in last)
    assert any("failed: no such version" in line for line in last)


def test_the_default_pairs_are_all_that_are_supported():
    assert set(PYTHONS) >= {"3.11", "3.12"} and TORCHES[0] == "2.11" and TORCHES[-1] == "2.14"
