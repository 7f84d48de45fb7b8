"""The helper is compiled in the background, and the first use of it waits with a line of progress.

The compiler of these tests waits for a file, then copies the libraries of this process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magpy_like.native import helper_status

ROOT = Path(__file__).parents[2]

COMPILER = """#!/bin/sh
[ "$1" = --version ] && exit 0
echo $$ >> FOLDER/compilers
while [ $# -gt 0 ]; do [ "$1" = -o ] && target="$2"; shift; done
while [ ! -e FOLDER/go ]; do sleep 0.05; done
name=${target#./}
cp "$(find LIBRARIES -name "${name%%-*}-*.so" | head -1)" "$target"
"""

PROGRAM = """
import os, pathlib, signal, sys, threading, time
import torch
import magpy_like as magpy
from magpy_like.native import helper_status
folder = pathlib.Path(os.environ["MAGPY_CACHE_DIR"]).parent
def go():
    (folder / "go").touch()
def program(x):
    return x.sin() * 3 + 1
assert not helper_status.is_loaded()
fast = magpy.compile(program, backend="eager", fullgraph=True)
x = torch.ones(5)
def works():
    for _ in range(3):
        assert torch.equal(fast(x), program(x))
    return magpy.cache_info(fast).hits == 2
"""


@pytest.fixture
def run(tmp_path):
    compiler = tmp_path / "compiler"
    text = COMPILER.replace("FOLDER", str(tmp_path))
    compiler.write_text(text.replace("LIBRARIES", str(_own_libraries(tmp_path / "own"))))
    compiler.chmod(0o700)

    def run(text):
        environment = {
            **os.environ,
            "MAGPY_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": str(ROOT),
            "CXX": str(compiler),
        }
        command = [sys.executable, "-c", PROGRAM + text]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    return run


def _own_libraries(folder):
    """The libraries of this process; the disk cache also has those of other sources."""
    folder.mkdir()
    for name, module in helper_status._helper.items():
        (folder / f"{name}-own.so").symlink_to(module.__file__)
    return folder


def test_what_is_compiled_waits_for_the_helper_at_its_first_call(run):
    done = run(
        """
assert magpy.cache_info(fast) == (0, 0, 0, 0, 0, 0)
magpy.reset(fast)
assert magpy.compile(fast, backend="eager", fullgraph=True) is fast
assert not helper_status.is_decided()
threading.Timer(2, go).start()
assert works()
"""
    )
    assert done.stderr.count("compiling its native helper") == 1


def test_a_short_wait_has_no_line(run):
    assert run("go(); time.sleep(5)\nassert works()").stderr == ""


def test_wrong_arguments_are_refused_before_the_helper_is_there(run):
    run(
        """
for settings in ({"mode": "fastest"}, {"backend": 3}, {"options": {"record_limit": 0}}):
    try:
        magpy.compile(program, **settings)
    except magpy.ArgumentError:
        continue
    raise AssertionError(settings)
"""
    )


def test_modules_and_classes_wait_too(run):
    run(
        """
model = torch.nn.Linear(5, 2)
compiled = magpy.compile(model, backend="eager")
assert isinstance(compiled, torch.nn.Linear) and not helper_status.is_decided()
go()
for _ in range(3):
    assert torch.equal(compiled(x), model(x))
assert magpy.cache_info(compiled).hits == 2
"""
    )


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError", "OSError"])
@pytest.mark.parametrize("seconds", [0.5, 2])
def test_an_interrupted_wait_goes_on_at_the_next_call(run, error, seconds):
    run(
        f"""
def ring(*_):
    raise {error}("by an alarm")
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, {seconds})
try:
    fast(x)
except {error}:
    go()
else:
    raise AssertionError("not interrupted")
assert works()
"""
    )


def test_threads_wait_for_one_build(run, tmp_path):
    run(
        """
found = []
threads = [threading.Thread(target=lambda: found.append(fast(x))) for _ in range(4)]
[t.start() for t in threads]
go()
[t.join() for t in threads]
assert len(found) == 4 and all(torch.equal(y, program(x)) for y in found)
"""
    )
    compilers = (tmp_path / "compilers").read_text().split()
    assert len(compilers) == 7  # one for each module


def test_a_forked_process_builds_for_itself(run):
    run(
        """
child = os.fork()
if child == 0:
    go()
    os._exit(0 if works() else 1)
_, status = os.waitpid(child, 0)
assert status == 0
assert works()
"""
    )


def test_an_exit_does_not_wait(run, tmp_path):
    run("time.sleep(2)")
    compilers = (tmp_path / "compilers").read_text().split()
    assert compilers and not any(os.path.exists(f"/proc/{number}") for number in compilers)


def test_a_process_without_standard_error_waits(run):
    run("sys.stderr = None; threading.Timer(2, go).start()\nassert works()")
