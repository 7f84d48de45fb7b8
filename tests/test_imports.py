"""Effects of an import on the process: only those documented in ``magpy_like.torch_patches``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_STATE = """
import gc, json, logging, os, random, signal, sys, threading, warnings
import numpy, torch, torch._dynamo, sympy

def state():
    return {
        "torch settings": [
            str(torch.get_default_dtype()), str(torch.get_default_device()),
            torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
            torch.is_autocast_enabled("cpu"), torch.backends.cudnn.benchmark,
            torch.backends.cuda.matmul.allow_tf32, torch.compiler.is_compiling(),
        ],
        "torch modes": [
            torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(),
            str(torch._C._autograd._top_saved_tensors_default_hooks(True)),
        ],
        "backends": sorted(torch._dynamo.list_backends(None)),
        "operators": sorted(n for n in dir(torch.ops) if not n.startswith("__")),
        "pytree": len(torch.utils._pytree.SUPPORTED_NODES),
        "cuda": torch.cuda.is_initialized(),
        "random": [
            torch.get_rng_state().tolist(), str(random.getstate()), str(numpy.random.get_state()),
        ],
        "warnings": list(map(str, warnings.filters)),
        "trace": [str(sys.gettrace()), str(sys.getprofile()), str(threading.gettrace())],
        "gc": [str(gc.callbacks), gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "hooks": [
            str(sys.excepthook), str(threading.excepthook), str(sys.unraisablehook),
            str(sys.displayhook), str(sys.meta_path), str(sys.path_hooks),
        ],
        "python": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.path, os.getcwd()],
        "signals": [str(signal.getsignal(s)) for s in signal.valid_signals()],
        "logging": [logging.root.level, str(logging.root.handlers), str(logging.getLoggerClass())],
        "environment": dict(os.environ),
        "threads": threading.active_count(),
    }

before = json.loads(json.dumps(state()))
IMPORT
after = json.loads(json.dumps(state()))
print(json.dumps({k: [before[k], after[k]] for k in before if before[k] != after[k]}))
"""


def _changes(statement):
    """Parts of the process state that differ after a statement, in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", _STATE.replace("IMPORT", statement)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_import_of_the_package_changes_nothing():
    assert _changes("import magpy_like") == {}


def test_import_of_the_package_loads_no_module_that_only_compiling_needs():
    modules = ("torch._dynamo", "torch._inductor", "sympy", "triton", "magpy_like.compiler")
    script = f"import sys, torch, magpy_like; print([m for m in {modules} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_import_of_the_compiler_registers_its_operators():
    changes = _changes("import magpy_like.compiler")
    assert set(changes) == {"operators"}
    before, after = changes["operators"]
    assert set(after) - set(before) == {"magpy_like"}


@pytest.mark.parametrize("change", ["warnings.simplefilter('error')", "gc.disable()"])
def test_comparison_detects_a_change(change):
    assert len(_changes(change)) == 1
