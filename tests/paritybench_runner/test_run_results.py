"""Results on disk, their summary, report and comparison."""

import json
import re

import pytest

from paritybench_runner import report, run_results
from paritybench_runner.run_results import RunError


def outcome(klass, *, reads=(), **detail):
    eager = {"class": "ok", "deterministic": True, "reads": list(reads)}
    return {"eager": eager, "magpy": {"class": klass, **detail}}


def line(file, *tests):
    return {
        "file": file,
        "tests": [
            {"index": index, "module": f"Net{index}", **test} for index, test in enumerate(tests)
        ],
    }


SPLIT = {
    "detail": "the value of 3 tensors decides </script> control flow",
    "where": "test_d.py:7 in f",
    "reason": "DATA_DEPENDENT_BRANCH",
    "title": "data-dependent branch",
}
FAILS_IN_EAGER = {"eager": {"class": "fails", "error": "URLError: no network"}}
LINES = [
    line(
        "test_a.py", outcome("one_graph", graphs=1, hits=2), outcome("one_graph", graphs=0, hits=0)
    ),
    line(
        "test_b.py", outcome("one_graph"), outcome("wrong", error="call 2: result: 3 instead of 4")
    ),
    line("test_c.py", FAILS_IN_EAGER),
    line("test_d.py", outcome("split", reads=["test_d.py:7 item"], graphs=2, splits=[SPLIT])),
    line(
        "test_e.py", outcome("crashed", error="TypeError: at 0x7fff00 in /a/b/test_e.py, line 12")
    ),
    line("test_f.py", outcome("crashed", error="TypeError: at 0x1234 in /c/test_f.py, line 7")),
]
RUN = {
    "corpus": "/some where",
    "compilers": ["magpy"],
    "backend": "eager",
    "device": "cpu",
    "train": False,
    "filter": None,
    "shard": None,
    "timeout": 90.0,
    "memory": 12.0,
    "files": 6,
    "torch": "2",
    "python": "3",
}


def test_class_of_a_file_is_that_of_its_worst_test():
    verdicts = {v.file: (v.klass, v.dynamic) for v in run_results.classify_files(LINES, "magpy")}
    assert verdicts == {
        "test_a.py": ("one_graph", False),
        "test_b.py": ("wrong", False),
        "test_d.py": ("split", True),
        "test_e.py": ("crashed", False),
        "test_f.py": ("crashed", False),
    }


def test_table_3_counts_failures_among_static_files():
    row = report.compute_coverage(LINES, "magpy")
    assert (row.cases, row.static, row.failed, row.whole) == (5, 4, 3, 1)
    assert row.fail_rate == 0.75


def test_failures_are_grouped_by_reason_worst_first():
    first, second, third = run_results.group_failures(LINES, "magpy")
    assert (first.klass, len(first.tests)) == ("wrong", 1)
    assert (second.klass, len(second.tests)) == ("crashed", 2)
    assert second.example.endswith("test_e.py, line 12")
    assert third.example.endswith("(test_d.py:7 in f)")


def test_summary_has_table_classes_and_reasons():
    text = report.render_summary(RUN, LINES)
    assert "| magpy | 5 | 4 | 3 | 75.0 % | 1 | 20.0 % |" in text
    assert "| crashed | 2 | 2 |" in text
    assert "| not runnable in eager | 0 | 1 |" in text
    assert re.search(r"\| split \| 1 \| 1 \| data-dependent branch .*`test_d.py::Net0`", text)
    assert "in 1 tests no later call was a hit" in text


def test_report_is_one_file_with_all_tests_and_commands():
    page = report.render_html(RUN, LINES)
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    assert page.count("</script>") == 1  # a reason cannot end the script
    data = [json.loads(found) for found in re.findall(r"^setUp\(\"\w+\", (.*)\);$", page, re.M)]
    groups, tests = data
    assert len(tests) == 8
    assert groups[0]["command"] == (
        "python -m paritybench_runner --corpus '/some where' --filter test_b.py::Net1 "
        "--compilers magpy --backend eager --device cpu --timeout 90 --memory 12 "
        "--out repro/test_b-Net1"
    )


def test_killed_run_resumes_without_its_partial_line(tmp_path):
    writer = run_results.ResultsWriter(tmp_path, RUN, resume=False)
    writer.append(LINES[0])
    writer.close()
    with (tmp_path / "results.jsonl").open("a") as stream:
        stream.write('{"file": "test_b.py", "te')
    writer = run_results.ResultsWriter(tmp_path, RUN, resume=True)
    assert [done["file"] for done in writer.done] == ["test_a.py"]
    writer.append(LINES[1])
    writer.close()
    assert [done["file"] for done in run_results.read_run(tmp_path)[1]] == [
        "test_a.py",
        "test_b.py",
    ]


def test_run_resumes_with_different_limits(tmp_path):
    run_results.ResultsWriter(tmp_path, RUN, resume=False).close()
    run_results.ResultsWriter(
        tmp_path, {**RUN, "timeout": 500.0, "memory": 20.0}, resume=True
    ).close()
    assert run_results.read_run(tmp_path)[0]["timeout"] == 500.0


def test_different_runs_are_not_mixed(tmp_path):
    run_results.ResultsWriter(tmp_path, RUN, resume=False).close()
    with pytest.raises(RunError, match="--resume"):
        run_results.ResultsWriter(tmp_path, RUN, resume=False)
    with pytest.raises(RunError, match="another backend"):
        run_results.ResultsWriter(tmp_path, {**RUN, "backend": "magpy"}, resume=True)
    with pytest.raises(RunError, match=r"run\.json"):
        run_results.read_run(tmp_path / "nowhere")


@pytest.mark.parametrize("resume", [False, True])
def test_results_without_run_description_are_not_overwritten(tmp_path, resume):
    (tmp_path / "results.jsonl").write_text(json.dumps(LINES[0]) + "\n")
    with pytest.raises(RunError, match=r"no run\.json"):
        run_results.ResultsWriter(tmp_path, RUN, resume=resume)
    assert json.loads((tmp_path / "results.jsonl").read_text()) == LINES[0]


def test_comparison_lists_regressions_first():
    after = [
        line("test_a.py", outcome("split", splits=[SPLIT]), outcome("one_graph")),
        line("test_b.py", outcome("one_graph"), outcome("one_graph")),
        *LINES[2:5],
    ]
    changes = report.find_changes(LINES, after, ["magpy"])
    reported = [(c.file, c.module, c.before, c.after, c.worse) for c in changes]
    assert reported == [
        ("test_a.py", "Net0", "one_graph", "split", True),
        ("test_b.py", "Net1", "wrong", "one_graph", False),
    ]
    assert "test_a.py::Net0" in report.render_comparison(changes)
    assert report.render_comparison(report.find_changes(LINES, LINES, ["magpy"])) == (
        "No test changed its class."
    )


def test_tests_of_one_run_only_are_counted():
    alone = report.count_unshared_tests(LINES, LINES[:-1], "magpy")
    assert alone == (len(LINES[-1]["tests"]), 0)
    reported = report.render_comparison(report.find_changes(LINES, LINES[:-1], ["magpy"]), alone)
    assert reported == (
        "No test changed its class.\n\n"
        f"{alone[0]} tests are in the first run only, 0 in the second."
    )
