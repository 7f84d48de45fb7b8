"""``magpy doctor``: findings, faults with their remedy, and the exit status."""

import importlib.metadata

import pytest
import torch
from click.testing import CliRunner

from magpy_like import doctor
from magpy_like.cli import main
from magpy_like.disk_cache import cpp_compiler


def run(*args):
    found = CliRunner().invoke(main, args)
    return found.exit_code, found.output


def test_a_sound_installation_has_no_fault():
    status, output = run("doctor")
    assert status == 0, output
    assert output.endswith("nothing is wrong\n") and "wrong:" not in output
    assert f"torch {torch.__version__}" in output
    assert "self-test      right results, by compiled code" in output


def test_version_is_that_of_the_installed_package():
    assert run("--version") == (0, f"magpy, version {importlib.metadata.version('magpy-like')}\n")


def absent(*_):
    raise cpp_compiler.NoCompilerError("no C++ compiler: install one")


def wrong_results(model=None, **_):
    return lambda x, scale: x.sum()


FAULTS = {
    "versions": (torch, "__version__", "2.10.1+cu130", "Install torch 2.11 to 2.14"),
    "Python": (doctor.supported_versions, "SUPPORTED", ((3, 9),), "Use CPython 3.9"),
    "C++ compiler": (cpp_compiler, "cxx", absent, "no C++ compiler: install one"),
    "native helper": (doctor.helper_status, "obstacle", lambda: "it is broken", "it is broken"),
    "self-test": ("magpy_like.api", "compile", wrong_results, "not close"),
}


@pytest.mark.parametrize(("subject", "fault"), FAULTS.items(), ids=list(FAULTS))
def test_a_fault_is_told_with_its_remedy_and_the_other_checks_go_on(monkeypatch, subject, fault):
    owner, name, value, remedy = fault
    if isinstance(owner, str):
        monkeypatch.setattr(f"{owner}.{name}", value)
    else:
        monkeypatch.setattr(owner, name, value)
    findings = {finding.subject: finding for finding in doctor.examine()}
    assert list(findings) == list(doctor.CHECKS)
    assert remedy in findings[subject].fault
    status, output = run("doctor")
    assert status == 1 and remedy in output and "to mend" in output


def test_a_refused_cache_folder_is_a_fault(monkeypatch, tmp_path):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))
    text, fault = next((f.text, f.fault) for f in doctor.examine() if f.subject == "cache")
    assert text == "not known" and f"chmod go-w {tmp_path}" in fault


def test_a_program_that_runs_natively_fails_the_self_test(monkeypatch):
    monkeypatch.setattr("magpy_like.api.cache_info", lambda _: type("Info", (), {"hits": 0}))
    assert "ran natively" in doctor.CHECKS["self-test"]()[1]
