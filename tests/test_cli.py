"""The command ``magpy``."""

import os
import runpy
import sys

import pytest
from click.testing import CliRunner

from magpy_like.cli import main
from magpy_like.disk_cache import cache_entries, eviction


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("MAGPY_CACHE_SIZE", raising=False)
    return tmp_path


def run(*arguments, status=0):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == status, result.output
    return result.output


def entry(cache, key):
    return cache / "magpy-v2" / "blob" / cache_entries._blob(key)


def test_info_shows_folder_and_counts(cache):
    cache_entries.put("graph", b"x" * 2**20)
    output = run("cache", "info")
    assert str(cache) in output
    assert "kernels  0, 0.00 MiB" in output
    assert "graphs   1, 1.00 MiB" in output


def test_info_of_an_empty_cache_makes_no_folder(cache, monkeypatch):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(cache / "none"))
    assert "graphs   0" in run("cache", "info")
    assert not (cache / "none").exists()


def test_info_shows_the_bound(monkeypatch):
    assert "limit    9.31 GiB" in run("cache", "info")
    monkeypatch.setenv("MAGPY_CACHE_SIZE", "3MiB")
    assert "limit    3.00 MiB" in run("cache", "info")
    monkeypatch.setenv("MAGPY_CACHE_SIZE", "unlimited")
    assert "limit    unlimited" in run("cache", "info")


def test_prune_deletes_down_to_a_size(cache, monkeypatch):
    monkeypatch.setattr(eviction, "_IN_USE", 0.0)
    for number in range(4):
        cache_entries.put(str(number), bytes(2**20))
        os.utime(entry(cache, str(number)), (1e9 + number, 1e9 + number))
    assert "deleted  0, 0.00 MiB" in run("cache", "prune")
    output = run("cache", "prune", "--max-size", "3MiB")
    assert "deleted  2, 2.01 MiB" in output and "graphs   2" in output
    assert [number for number in range(4) if entry(cache, str(number)).exists()] == [2, 3]
    monkeypatch.setenv("MAGPY_CACHE_SIZE", "0")
    assert "deleted  2" in run("cache", "prune")


def test_prune_says_how_sizes_are_written():
    assert "write 500MB or 2GiB" in run("cache", "prune", "--max-size", "much", status=2)


def test_prune_and_clear_keep_files_of_others(cache):
    cache_entries.put("graph", b"x")
    others = ["tmp/thesis", "magpy-v2/thesis", "magpy-v2/blob/thesis", "magpy-v2/tmp/thesis"]
    for name in others:
        (cache / name).parent.mkdir(exist_ok=True)
        (cache / name).touch()
        os.utime(cache / name, (0, 0))
    run("cache", "prune", "--max-size", "0")
    run("cache", "clear")
    assert all((cache / name).exists() for name in others)


def test_clear_does_not_follow_links(cache, tmp_path_factory):
    cache_entries.put("graph", b"x")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a").touch()
    entry(cache, "link").symlink_to(elsewhere / "a")
    (cache / "magpy-v2" / "cpp").symlink_to(elsewhere)
    (elsewhere / f"{'0' * 64}.so").touch()
    run("cache", "clear", status=1)
    (cache / "magpy-v2" / "cpp").unlink()
    run("cache", "clear")
    assert len(list(elsewhere.iterdir())) == 2
    assert list((cache / "magpy-v2" / "blob").iterdir()) == []


def test_verify_reports_bad_entries_and_deletes_them_on_request(cache):
    for key in ("good", "damaged", "open", "linked", "pipe"):
        cache_entries.put(key, b"payload")
    assert "faulty" not in run("cache", "verify")
    entry(cache, "damaged").write_bytes(b"payload")
    entry(cache, "open").chmod(0o666)
    for key, make in (("linked", lambda path: path.symlink_to("/dev/zero")), ("pipe", os.mkfifo)):
        entry(cache, key).unlink()
        make(entry(cache, key))
    output = run("cache", "verify", status=1)
    assert output.count("faulty") == 4
    for key, reason in (("damaged", "does not match its seal"), ("open", "others can write"),
                        ("pipe", "not a regular file"), ("linked", "")):  # fmt: skip
        assert f"{entry(cache, key)} " in output and reason in output
    assert run("cache", "verify", "--delete").count("deleted") == 4
    assert "faulty" not in run("cache", "verify")
    assert cache_entries.get("good") == b"payload"


@pytest.mark.parametrize(
    "command", [("info",), ("prune",), ("clear",), ("verify",), ("verify", "--delete")]
)
def test_folder_that_others_can_write_is_refused_with_the_remedy(cache, command):
    cache_entries.put("graph", b"x")
    cache.chmod(0o777)
    output = run("cache", *command, status=1)
    assert "the cache is not used" in output and f"chmod go-w {cache}" in output
    cache.chmod(0o700)
    assert cache_entries.get("graph") == b"x"


@pytest.mark.parametrize("command", [("prune",), ("clear",), ("verify", "--delete")])
def test_nothing_is_deleted_from_a_read_only_cache(monkeypatch, command):
    cache_entries.put("graph", b"x")
    monkeypatch.setenv("MAGPY_CACHE_READONLY", "1")
    assert "MAGPY_CACHE_READONLY" in run("cache", *command, status=1)
    assert "MAGPY_CACHE_READONLY" in run("cache", "info")
    run("cache", "verify")
    assert cache_entries.get("graph") == b"x"


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["annotation"],
            "there are 'annotations', 'cache', 'doctor' (did you mean 'annotations'?)",
        ),
        (["cache", "chek"], "No such command 'chek'; there are 'clear', 'info', 'prune', 'verify'"),
        (["cache", "inf"], "(did you mean 'info'?)"),
        (
            ["annotations", "chek"],
            "No such command 'chek'; there are 'check' (did you mean 'check'?)",
        ),
        (["annotations", "check", "nofile.yaml"], "'nofile.yaml' does not exist"),
        (["annotations", "check", "."], "'.' is a directory"),
    ],
)
def test_a_wrong_command_names_those_that_exist(arguments, message):
    assert message in run(*arguments, status=2)
