"""Processes without the native helper: programs run natively, with one warning."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from magpy_like.bytecode import supported_versions
from magpy_like.disk_cache import cache_entries, user_settings
from magpy_like.native.helper_sources import MODULES

ROOT = Path(__file__).parents[2]

PREPARE = """
import copy, inspect, io, pickle, sys, warnings
import torch
from torch import nn
PREPARATION
caught = warnings.catch_warnings(record=True)
heard = caught.__enter__()
warnings.simplefilter("always")
import magpy_like as magpy
assert not heard, [str(w.message) for w in heard]  # the import neither fails nor warns
"""

PROGRAMS = """
def scaled(x, factor=2, *, shift=0):
    "Scales."
    return x * factor + shift

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.note = "original"

    def forward(self, x):
        self.calls += 1
        return self.layer(x)

    def __len__(self):
        return 7

x = torch.arange(4.).reshape(2, 2).requires_grad_()
"""

SAME_AS_THE_ORIGINAL = """
fast = magpy.compile(scaled)
for _ in range(3):
    assert torch.equal(fast(x, 3, shift=1), scaled(x, 3, shift=1))
assert (fast.__name__, fast.__doc__) == ("scaled", "Scales.")
assert inspect.signature(fast) == inspect.signature(scaled)
(gradient,) = torch.autograd.grad(fast(x).sum(), x)
assert torch.equal(gradient, torch.full((2, 2), 2.0))
assert magpy.compile(fast) is fast

model = Net()
compiled = magpy.compile(model, mode="default")
assert isinstance(compiled, nn.Module) and len(compiled) == 7 and compiled.note == "original"
assert torch.equal(compiled(x), model.layer(x)) and model.calls == 1
compiled.note = "new"
assert model.note == "new"
assert compiled.state_dict().keys() == model.state_dict().keys()
assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in model.named_parameters()]
twin = copy.deepcopy(compiled)
assert type(twin) is type(compiled) and torch.equal(twin(x), model.layer(x))
traced = torch.fx.symbolic_trace(nn.Sequential(magpy.compile(nn.ReLU())))
assert [node.op for node in traced.graph.nodes].count("call_module") == 1
again = pickle.loads(pickle.dumps(compiled))
assert torch.equal(again(x), model.layer(x)) and again.calls == 2
bound = magpy.compile(model.layer.forward)
assert torch.equal(bound(x), model.layer(x))

@magpy.compile(backend="eager", fullgraph=True, dynamic=True, options={"record_limit": 3})
def raising(x):
    assert not magpy.is_compiling() and not torch.compiler.is_compiling()
    raise KeyError("mine")
try:
    raising(x)
except KeyError as error:
    assert error.args == ("mine",)
"""

OTHER_FUNCTIONS = """
for call in (
    lambda: magpy.compile(3),
    lambda: magpy.compile(scaled, backend="no such"),
    lambda: magpy.compile(scaled, backend=3),
    lambda: magpy.compile(scaled, options={"record_limit": 0}),
    lambda: magpy.compile(scaled, mode="no such"),
    lambda: magpy.compile(scaled, options={"no such": True}),
):
    try:
        call()
    except (TypeError, ValueError):
        pass
    else:
        raise AssertionError("accepted")
fast = magpy.compile(scaled)
fast(x), fast(x)
assert magpy.cache_info(fast) == (0, 0, 0, 0, 2, 0)
magpy.reset(fast)
assert magpy.cache_info(fast) == (0, 0, 0, 0, 0, 0)
fast(x)
magpy.reset()
assert magpy.cache_info(fast) == (0, 0, 0, 0, 0, 0)
for target in (scaled, fast):
    report = magpy.explain(target, x)
    assert report.graph_count == 0
    (point,) = report.split_points
    assert point.reason is magpy.SplitReason.NO_MONITOR and REASON in str(report)
    assert point.function == "scaled"
assert torch.equal(magpy.disable(scaled)(x), scaled(x))
magpy.mark_dynamic(x, 0)
import _bisect
magpy.annotate(_bisect.bisect_right, pure_closure=True)
try:
    magpy.annotate(_bisect.bisect_right, unknown_property=True)
except magpy.AnnotationError:
    pass
try:
    from magpy_like.native import Monitor
except magpy.NativeHelperError as error:
    assert REASON in str(error)
"""

ONE_WARNING = """
(warning,) = heard
assert warning.category is magpy.MagpyWarning
assert warning.filename == "<string>"  # the line of the user
text = str(warning.message)
assert REASON in text and REMEDY in text, text
assert "run natively" in text and "same results" in text
"""


def script(tmp_path, name, text):
    path = tmp_path / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def run(text, cache, cxx=None, arguments=("-c",)):
    environment = {
        **os.environ,
        "MAGPY_CACHE_DIR": str(cache),
        "PYTHONPATH": str(ROOT),
    }
    if cxx is not None:
        environment["CXX"] = cxx
    done = subprocess.run(
        [sys.executable, *arguments, text], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def check_runs_natively(cache, cxx, reason, remedy, preparation="", later=""):
    text = PREPARE.replace("PREPARATION", preparation) + later + PROGRAMS
    text += SAME_AS_THE_ORIGINAL + OTHER_FUNCTIONS + ONE_WARNING
    run(text.replace("REASON", repr(reason)).replace("REMEDY", repr(remedy)), cache, cxx)


GARBAGE = """
while [ $# -gt 0 ]; do
  [ "$1" = --version ] && exit 0
  [ "$1" = -o ] && echo garbage > "$2"
  shift
done
"""


def test_process_without_a_compiler_runs_programs_natively(tmp_path):
    check_runs_natively(tmp_path / "c", "/nonexistent", "/nonexistent", "Install one")


def test_failing_compiler_leaves_programs_native(tmp_path):
    cxx = script(tmp_path, "cxx", '[ "$1" = --version ] && exit 0\necho refused >&2; exit 1\n')
    check_runs_natively(tmp_path / "c", cxx, "refused", "Use a compiler of C++20")


def test_compiler_that_emits_garbage_leaves_programs_native(tmp_path):
    cxx = script(tmp_path, "cxx", GARBAGE)
    check_runs_natively(tmp_path / "c", cxx, "ImportError", "check that CXX compiles")


@pytest.mark.parametrize(
    "load, reason, remedy",
    [
        ("lambda path, name: 1 / 0", "ZeroDivisionError", "report it"),
        (
            "lambda path, name: type('M', (), {'calibrate': lambda *_: False})",
            "memory layout of tensors",
            "torch",
        ),
        (
            "lambda path, name: type('M', (), {'calibrate': lambda *_: True, "
            "'frame_function': lambda frame: None})",
            "memory layout of frames",
            "Python",
        ),
    ],
    ids=["raises", "unknown tensors", "unknown frames"],
)
def test_helper_that_cannot_be_used_leaves_programs_native(tmp_path, load, reason, remedy):
    cxx = script(tmp_path, "cxx", GARBAGE)
    later = f"import magpy_like.native.helper_loading as l; l.load_extension = {load}\n"
    check_runs_natively(tmp_path / "c", cxx, reason, remedy, later=later)


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 14, 1)])
def test_unsupported_python_runs_programs_natively(tmp_path, version):
    text = ".".join(map(str, version))
    cache = user_settings.cache_root()  # with a helper, which must not be used
    # Other libraries, some imported later, must still see the real version.
    preparation = f"import torch._dynamo; real, sys.version_info = sys.version_info, {version}"
    remedy = "Use CPython 3.11, 3.12 or 3.13"
    check_runs_natively(cache, None, text, remedy, preparation, "sys.version_info = real")


def test_free_threaded_python_is_not_supported(monkeypatch):
    assert supported_versions.obstacle() is None
    monkeypatch.setattr(sys, "abiflags", "t")
    assert "(free-threaded). Use CPython 3.11" in str(supported_versions.obstacle())


def test_command_line_works_without_the_helper(tmp_path):
    for command in ("info", "clear"):
        cache = ("-m", "magpy_like", "cache")
        assert "kernels" in run(command, tmp_path / "c", "/nonexistent", cache)


def test_annotations_are_verified_without_the_helper(tmp_path):
    arguments = ("-m", "magpy_like", "annotations", "check", "--only")
    report = run("builtins.len", tmp_path / "c", "/nonexistent", arguments)
    assert "operations" in report


# --- a compiler is needed once ------------------------------------------------------------------

COMPILED = """
import torch, magpy_like as magpy
fast = magpy.compile(lambda x: x.sin() * 3 + 1, fullgraph=True)
for _ in range(2):
    assert torch.allclose(fast(torch.ones(5)), torch.ones(5).sin() * 3 + 1)
assert magpy.cache_info(fast).hits == 1
"""


def copy_helper(target):
    """Copies the helper of this process into another cache; returns the copies."""
    copies = []
    for module in MODULES:
        for path in user_settings.cache_root().glob(f"magpy-v2/cpp/**/{module.name}-*.so"):
            copies.append(target / path.relative_to(user_settings.cache_root()))
            copies[-1].parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copy(path, copies[-1])
    return copies


def test_warm_cache_needs_no_compiler(tmp_path):
    copy_helper(tmp_path)
    run(COMPILED, tmp_path, None, ("-W", "error::UserWarning", "-c"))
    run(COMPILED, tmp_path, "/nonexistent", ("-W", "error::UserWarning", "-c"))


def test_cached_helper_that_does_not_load_is_compiled_again(tmp_path):
    garbage = b"garbage"
    for path in copy_helper(tmp_path):
        path.write_bytes(garbage + cache_entries.seal(path.name, garbage))
    run(COMPILED, tmp_path)
    run(COMPILED, tmp_path, "/nonexistent")


def test_cache_folder_that_is_a_file_costs_a_warning_only(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    assert "cannot be written" in run(COMPILED, path)


def test_first_use_of_a_name_builds_the_helper(tmp_path):
    """Internal modules may be imported before anything is compiled."""
    copy_helper(tmp_path)
    run("import magpy_like.records.dispatcher as d; from magpy_like.native import NULL", tmp_path)


THREADS = """
import threading
barrier = threading.Barrier(4)
def work():
    barrier.wait()
    assert torch.equal(magpy.compile(scaled)(x), scaled(x))
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(heard) == 1, heard
"""


def test_threads_share_one_warning(tmp_path):
    run(PREPARE.replace("PREPARATION", "") + PROGRAMS + THREADS, tmp_path, "/nonexistent")
