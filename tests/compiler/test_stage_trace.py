"""The compiler's trace: one readable file per stage, and no cost without a directory."""

import pytest

from magpy_like import logs
from magpy_like.compiler.stage_trace import STAGES, Trace, open_trace


@pytest.fixture(autouse=True)
def _no_trace_variable(monkeypatch):
    monkeypatch.delenv("MAGPY_TRACE", raising=False)


def opened(options):
    trace = open_trace(options)
    assert trace.directory is not None
    return trace, trace.directory


def test_each_stage_is_a_file_in_the_order_of_compilation(tmp_path):
    trace, directory = opened({"trace": str(tmp_path)})
    for stage in reversed(STAGES[:-1]):
        trace.write(stage, "graph.py", f"# {stage}")
    with trace.timing("all"):
        pass
    listed = sorted(path.name for path in directory.iterdir())
    assert [name.split("_", 1)[1].rsplit("_graph", 1)[0] for name in listed[:-1]] == list(
        STAGES[:-1]
    )
    assert listed[-1].endswith("timings.txt")
    assert (directory / "0_fx_graph.py").read_text() == "# fx"


def test_files_of_equal_name_are_both_kept(tmp_path):
    trace, directory = opened({"trace": tmp_path})
    trace.write("kernels", "kernel.cpp", "one")
    trace.write("kernels", "kernel.cpp", "two")
    assert sorted(path.read_text() for path in directory.iterdir()) == ["one", "two"]


def test_every_compilation_has_its_own_directory(tmp_path):
    (_, first), (_, second) = opened({"trace": tmp_path}), opened({"trace": tmp_path})
    assert first != second
    assert first.parent == second.parent == tmp_path


def test_environment_variable_enables_the_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGPY_TRACE", str(tmp_path / "deep"))
    assert opened(None)[1].parent == tmp_path / "deep"
    assert opened({"trace": tmp_path / "option"})[1].parent == tmp_path / "option"


def test_text_is_not_computed_without_a_directory():
    trace = open_trace()

    def text():
        raise AssertionError("the text was computed")

    trace.write("ir", "ir.txt", text)
    assert trace.directory is None


def test_log_channels_receive_stages_without_a_directory(capsys):
    logs.configure("output_code")
    try:
        Trace(None).write("kernels", "k.cpp", lambda: "void kernel()")
        Trace(None).write("schedule", "s.txt", "fused")
    finally:
        logs.configure("")
    err = capsys.readouterr().err
    assert "void kernel()" in err
    assert "fused" not in err


def test_timings_are_nested_and_written_after_a_failure(tmp_path):
    trace, directory = opened({"trace": tmp_path})
    with pytest.raises(ZeroDivisionError):
        with trace.timing("compile"):
            for _ in range(2):
                with trace.timing("lowering"):
                    pass
            1 / 0
    assert trace.seconds["compile"] >= trace.seconds["lowering"] > 0
    lines = (directory / "8_timings.txt").read_text().splitlines()
    assert lines[0].startswith("compile ")
    assert lines[1].startswith("  lowering ")
    assert all(line.endswith(" ms") for line in lines)


def test_timings_are_measured_without_a_directory():
    trace = Trace(None)
    with trace.timing("step"):
        pass
    assert trace.seconds["step"] > 0


def test_unwritable_directory_warns(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="no trace"):
        assert open_trace({"trace": tmp_path / "file"}).directory is None
    trace, directory = opened({"trace": tmp_path / "trace"})
    directory.rmdir()
    with pytest.warns(UserWarning, match="the trace in .* stops"):
        trace.write("ir", "ir.txt", "text")
    trace.write("ir", "ir.txt", "nobody hears")


def test_unknown_stage_raises():
    with pytest.raises(ValueError):
        Trace(None).write("magic", "x", "y")
