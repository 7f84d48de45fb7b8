"""Versions of torch that nobody has tested: programs are compiled as far as that works."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import warnings
import torch
import magpy_like as magpy
from magpy_like.native import helper_status
assert helper_status.obstacle() is None
torch.__version__ = "VERSION"
if not PRESENT:
    del torch._C._autograd._unsafe_set_version_counter
def program(x):
    return x * 2 + 1
x = torch.arange(4.)
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    fast = [magpy.compile(program, backend="eager") for _ in range(2)]
    for f in fast:
        for _ in range(3):
            assert torch.equal(f(x), program(x))
for warning in heard:
    assert warning.category is magpy.MagpyWarning and warning.filename == "<string>"
    print(warning.message)
print([magpy.cache_info(f).hits for f in fast])
"""


def run(version, present=True):
    text = PROGRAM.replace("VERSION", version).replace("PRESENT", str(present))
    command = [sys.executable, "-c", text]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["2.11.0", "2.13.3+cu132"])
def test_tested_torch_is_used_without_a_word(version):
    assert run(version).stdout == "[2, 2]\n"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.10.1", "is older than the versions"),
        ("2.16.0a0+git1234567", "Install torch 2.11 to 2.14, or a newer magpy_like"),
    ],
)
def test_another_torch_is_used_with_one_warning(version, words):
    warning, hits = run(version).stdout.splitlines()
    assert warning.startswith("magpy_like compiles programs as far as that works: torch " + version)
    assert words in warning and hits == "[2, 2]"


def test_programs_run_natively_where_another_torch_lacks_a_name():
    warning, hits = run("2.16.0", present=False).stdout.splitlines()
    assert "all programs run natively" in warning and hits == "[0, 0]"
    assert "torch 2.16.0 is newer" in warning and "_unsafe_set_version_counter" in warning


def test_a_name_that_a_tested_torch_lacks_is_an_error():
    done = run("2.13.0", present=False)
    assert done.returncode == 1 and "_unsafe_set_version_counter" in done.stderr
