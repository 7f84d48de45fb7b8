"""The command ``magpy``."""

import runpy
import sys

import pytest
from click.testing import CliRunner

from magpy_like.cli import main
from magpy_like.disk_cache import cache_entries


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))
    return tmp_path


def run(*arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_info_shows_folder_and_counts(cache):
    cache_entries.put("graph", b"x" * 2**20)
    output = run("cache", "info")
    assert str(cache) in output
    assert "kernels  0, 0.00 MiB" in output
    assert "graphs   1, 1.00 MiB" in output


def test_clear_reports_and_removes_all_entries():
    cache_entries.put("graph", b"x")
    assert "graphs   1" in run("cache", "clear")
    assert "graphs   0" in run("cache", "info")
    assert cache_entries.get("graph") is None


def test_package_runs_as_a_module(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["magpy", "cache", "info"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("magpy_like", run_name="__main__")
    assert end.value.code == 0
    assert "kernels " in capsys.readouterr().out


def test_unknown_command_is_rejected():
    result = CliRunner().invoke(main, ["bake"])
    assert result.exit_code == 2
    assert "No such command 'bake'" in result.output
