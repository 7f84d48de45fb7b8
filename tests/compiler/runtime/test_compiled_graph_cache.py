"""The disk cache of compiled graphs: hits, distinct keys, and damaged entries."""

import ast
from pathlib import Path

import pytest
import torch

from magpy_like.compiler.lowering import graph_lowering as lowering
from magpy_like.compiler.runtime import compiled_graph_cache
from magpy_like.disk_cache import cache_entries, cpp_compiler, maintenance
from tests.compiler.programs import compiled, same, same_gradients

X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def lowered(tmp_path, monkeypatch):
    """An empty cache, and the list of graphs that were lowered instead of found in it."""
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))
    seen = []
    run = lowering.Graph.run

    def counted(self):
        seen.append(self)
        return run(self)

    monkeypatch.setattr(lowering.Graph, "run", counted)
    return seen


def entries(root):
    """The entries of graphs: the cache notes the compiler in an entry as well."""
    note = cache_entries._blob(cpp_compiler._LAST_COMPILER)
    return [path for path in root.rglob("*.bin") if path.name != note]


def test_compiled_graph_is_found(lowered):
    for _ in range(2):
        same(lambda x: x.sin().sum(0) * 2 + torch.arange(4, device=x.device) * 3, X)
    assert len(lowered) == 1


def test_forward_and_backward_graphs_are_found(lowered):
    for _ in range(2):
        same_gradients(lambda x: torch.softmax(x, -1) * x, X)
    assert len(lowered) == 2


def test_graph_with_symbolic_sizes_is_found(lowered):
    for _ in range(2):
        same(lambda x: x.exp() * x.shape[0], X, dynamic=True)
    assert len(lowered) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: x * 2.0, lambda x: x * 3.0),
        (lambda x: x + 0.0, lambda x: x + -0.0),
        (lambda x: x * torch.tensor(2.0), lambda x: x * torch.tensor(3.0)),
        pytest.param(
            lambda x: x * torch.tensor([2.0] * 4),
            lambda x: x * torch.tensor([3.0] * 4),
            marks=pytest.mark.cpu,  # Dynamo makes it a tensor on the CPU, whatever the default is
        ),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x.to(torch.int64), lambda x: x.to(torch.int32)),
        (
            lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
            lambda x: x * torch.arange(4.0, device=x.device) * 7,
        ),
    ],
    ids=[
        "number",
        "signed zero",
        "literal number",
        "literal tensor",
        "dimension",
        "dtype",
        "constant",
    ],
)
def test_different_graphs_do_not_share_an_entry(first, second):
    same(first, X - 5)
    same(second, X - 5)


def test_layout_and_size_are_part_of_the_key(lowered):
    for x in (X, X.t().contiguous().t(), X[:, :3], X.double()):
        same(lambda x: x * 2 + 1, x)
    assert len(lowered) == 4


@pytest.mark.cpu  # Dynamo makes literals on the CPU, whatever the default device is
def test_literals_without_elements_are_found(lowered):
    for _ in range(2):
        same(lambda x: (torch.cat([torch.tensor([[]] * 3), x], 1) * 2, torch.tensor([])), X)
    assert len(lowered) == 1


def test_closed_over_tensors_are_read_from_the_program():
    """Two closures over tensors of equal form share an entry, but not the tensors."""
    for values in ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]):
        other = torch.tensor(values)
        same(lambda x, other=other: x * other, X)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[::-1]])
def test_damaged_entry_is_compiled_again(tmp_path, lowered, damage):
    same(lambda x: x * 2 + 1, X)
    (entry,) = entries(tmp_path)
    entry.write_bytes(damage(entry.read_bytes()))
    for _ in range(2):
        same(lambda x: x * 2 + 1, X)
    assert len(lowered) == 2


@pytest.mark.cpu
def test_deleted_kernels_are_compiled_again(tmp_path):
    same(lambda x: x * 2 + 1, X)
    for path in tmp_path.rglob("*.so"):
        path.unlink()
    same(lambda x: x * 2 + 1, X)


def test_cache_info_counts_graphs(tmp_path, device):
    compiled(lambda x: x * 2)(X)
    names_of_compilers = 1 if device.type == "cpu" else 0
    assert maintenance.info().entries["blob"] == 1 + names_of_compilers
    maintenance.clear()
    assert maintenance.info().entries["blob"] == 0


def test_graph_with_a_trace_is_compiled_in_full(tmp_path, lowered, monkeypatch):
    same(lambda x: x * 2, X)
    monkeypatch.setenv("MAGPY_TRACE", str(tmp_path / "trace"))
    same(lambda x: x * 2, X)
    assert len(lowered) == 2


def test_every_module_that_the_compiler_imports_is_part_of_the_key():
    """Only exceptions, signals, logs and the native helper decide nothing about generated code."""
    package = Path(compiled_graph_cache.__file__).parents[2]
    used = set()
    for file in (package / "compiler").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("magpy_like."):
                used.add(node.module.split(".")[1])
    files = [file for file in compiled_graph_cache.source_files() if package in file.parents]
    digested = {file.relative_to(package).parts[0].removesuffix(".py") for file in files}
    assert used - digested == {"errors", "interruption", "logs", "native"}
    assert any(file.name == "operators.yaml" for file in compiled_graph_cache.source_files())


@pytest.mark.parametrize("library", ["matmul", "cudnn.conv"])
def test_precision_of_float32_products_is_part_of_the_key(lowered, library):
    """Also if a program sets it as newer versions of torch propose, where older readers raise."""
    owner = torch.backends.cuda.matmul if library == "matmul" else torch.backends.cudnn.conv
    before = owner.fp32_precision
    try:
        for precision in ("ieee", "tf32", "ieee"):
            owner.fp32_precision = precision
            same(lambda x: x.cos() @ x.t(), X)
    finally:
        owner.fp32_precision = before
    assert len(lowered) == 2
