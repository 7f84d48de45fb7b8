"""Changes to torch and Python at run time: in one module only, and undone."""

import ast
import contextlib
import gc
import linecache
import logging
import threading
import traceback
from pathlib import Path

import pytest
import torch

import magpy_like
from magpy_like.torch_compat.aot_autograd import MemoryFormatMeta, ViewAndMutationMeta
from magpy_like.torch_patches import (
    Compiling,
    compile_source,
    dropout_of_all_draws_nothing,
    gradients_own_elements,
    graphs_count_writes,
    no_garbage_collection,
    rewriting_ptx,
    silent_fake_tensor_errors,
    transient_graph_sources,
)

LOG = logging.getLogger("torch._subclasses.fake_tensor")


def test_concurrent_silencing_restores_torchs_logger():
    heard = []
    handler = logging.Handler()
    handler.emit = heard.append
    LOG.addHandler(handler)
    try:
        with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
            one.enter_context(silent_fake_tensor_errors())
            other.enter_context(silent_fake_tensor_errors())
            LOG.error("unheard")
            one.close()
        LOG.error("heard")
    finally:
        LOG.removeHandler(handler)
    assert [record.getMessage() for record in heard] == ["heard"]
    assert not LOG.disabled


def test_is_compiling_stays_set_until_the_last_region_is_left():
    one, other = Compiling(), Compiling()
    with one:
        with other:
            assert torch.compiler.is_compiling()
        assert torch.compiler.is_compiling()
        one.leave()
        one.leave()
        assert not torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()


def test_is_compiling_is_hidden_from_programs_that_must_not_observe_it():
    with Compiling(reports=False):
        assert not torch.compiler.is_compiling()


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_enabled_again_only_if_it_was(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        with no_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_wrappers_count_writes_again_afterwards_and_in_other_threads():
    derived, checked = [], []

    class Metadata(ViewAndMutationMeta):
        def __init__(self):
            self.mutated_graph_handled_indices_seen_by_autograd = [0]

    original = ViewAndMutationMeta.__post_init__

    def derive(metadata):
        metadata.mutated_graph_handled_indices_seen_by_autograd = [0]

    def note():
        metadata = Metadata()
        ViewAndMutationMeta.__post_init__(metadata)
        derived.append(metadata.mutated_graph_handled_indices_seen_by_autograd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ViewAndMutationMeta, "__post_init__", derive)
        with graphs_count_writes(checked.append):
            note()
            other = threading.Thread(target=note)
            other.start()
            other.join()
        note()
    assert derived == [[], [0], [0]]
    assert [type(metadata) for metadata in checked] == [Metadata]
    assert ViewAndMutationMeta.__post_init__ is original


def test_gradients_have_the_strides_of_results_again_afterwards_and_in_other_threads():
    chosen, original = [], MemoryFormatMeta.from_tensor

    def note():
        chosen.append(MemoryFormatMeta.from_tensor(torch.ones(3, 2).t()).memory_format)

    note()

    with gradients_own_elements(lambda t: True):
        note()
        other = threading.Thread(target=note)
        other.start()
        other.join()
    note()
    before, *chosen = chosen
    assert chosen == [torch.contiguous_format, before, before]
    assert MemoryFormatMeta.from_tensor is original


def test_torch_traces_dropout_of_all_as_before_afterwards():
    kernels = {**torch.ops.aten.dropout.default.py_kernels}
    with dropout_of_all_draws_nothing():
        assert torch.ops.aten.dropout.default.py_kernels != kernels
    assert torch.ops.aten.dropout.default.py_kernels == kernels


TEXT = """def one():
    def inner():
        raise KeyError
    return inner
def two(): return 1
"""


def source_lines(code):
    linecache.checkcache()
    return linecache.getlines(code.co_filename)


def test_source_of_generated_code_is_found_as_long_as_one_of_its_functions_exists():
    names = {}
    exec(compile_source("test", TEXT), names)
    one, two = names["one"], names["two"]
    names.clear()
    file = one.__code__.co_filename
    assert source_lines(one.__code__) == TEXT.splitlines(True)
    inner = one()
    del one, two
    assert "raise KeyError" in linecache.getline(file, 3)
    try:
        inner()
    except KeyError as error:
        trace = error.__traceback__
    del inner
    assert "raise KeyError" in "".join(traceback.format_tb(trace))
    del trace
    assert file not in linecache.cache


def test_sources_of_equal_names_are_distinct():
    first, second = ({}, {})
    exec(compile_source("test", "def f(): return 1"), first)
    exec(compile_source("test", "def f(): return 2"), second)
    del first
    assert source_lines(second["f"].__code__) == ["def f(): return 2"]


def test_source_of_a_transient_graph_goes_with_its_code():
    with transient_graph_sources(), transient_graph_sources():
        graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    kept = torch.fx.symbolic_trace(torch.nn.ReLU())
    file, other = (g.forward.__code__.co_filename for g in (graph, kept))
    assert linecache.getlines(file) and linecache.getlines(other)
    del graph
    gc.collect()
    assert file not in linecache.cache
    del kept
    gc.collect()
    assert other in linecache.cache  # torch's own behaviour is restored


def test_ptx_is_rewritten_after_the_hook_of_the_program(monkeypatch):
    knobs = pytest.importorskip("triton").knobs
    passed = []

    def hook(backend=None, stages=None, *rest):
        passed.append((backend, stages))
        return "key", "hash"

    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", hook)
    with rewriting_ptx(str.upper, " ours"), rewriting_ptx(str.upper, " ours"):
        wrapped = knobs.runtime.add_stages_inspection_hook
        assert wrapped() == ("key ours", "hash ours")
        stages = {"ptx": lambda source, metadata: source + metadata}
        wrapped("backend", stages)
        assert stages["ptx"]("a", "b") == "AB"
    assert knobs.runtime.add_stages_inspection_hook is hook
    assert passed == [(None, None), ("backend", stages)]


# --- nothing else changes torch or Python's state ----------------------------------------------

ROOT = Path(magpy_like.__file__).parent
CHANGES = {
    "atexit.register", "gc.callbacks.append", "gc.callbacks.insert", "gc.callbacks.remove",
    "gc.disable", "gc.enable", "gc.freeze", "gc.set_threshold", "logging.basicConfig",
    "os.environ.setdefault", "signal.signal", "sys.path.append", "sys.path.insert",
    "sys.setprofile", "sys.setrecursionlimit", "sys.settrace", "threading.setprofile",
    "threading.settrace", "torch.library.Library", "torch.manual_seed",
    "torch.set_default_device", "torch.set_default_dtype", "torch.set_num_threads",
    "torch.use_deterministic_algorithms", "warnings.filterwarnings", "warnings.simplefilter",
}  # fmt: skip
"""Calls that change the state of the process."""


def root_name(node):
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def changes(source):
    """Assignments to attributes and items of imported modules, and calls among ``CHANGES``."""
    tree = ast.parse(source)
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in ("torch", "triton"):
                modules |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript):
            if not isinstance(node.ctx, ast.Load) and root_name(node) in modules:
                yield ast.unparse(node), node.lineno
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            sets = name in ("setattr", "delattr") and root_name(node.args[0]) in modules
            if name in CHANGES or sets:
                yield name, node.lineno


def test_only_torch_patches_changes_torch_and_python():
    found = []
    for path in ROOT.rglob("*.py"):
        file = path.relative_to(ROOT).as_posix()
        # `magpy annotations verify` runs in separate processes.
        if file != "torch_patches.py" and not file.startswith("annotation/verify/"):
            found += [
                f"{file}:{line} {change}: make it a function of magpy_like/torch_patches.py"
                for change, line in changes(path.read_text())
            ]
    assert found == []


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import torch\ntorch.compiler.flag = 1", ["torch.compiler.flag"]),
        ("import linecache\nlinecache.cache['a'] = 1", ["linecache.cache['a']"]),
        ("import os\ndel os.environ['A']", ["os.environ['A']"]),
        ("def f():\n    from triton import knobs\n    knobs.a.b = 1", ["knobs.a.b"]),
        ("import gc\ngc.disable()", ["gc.disable"]),
        ("import torch\nsetattr(torch, 'a', 1)", ["setattr"]),
        ("import torch\nx = torch.ones(3)\nx.grad = x\nx[0] = 1", []),
    ],
)
def test_changes_of_every_form_are_found(source, expected):
    assert [change for change, _ in changes(source)] == expected
