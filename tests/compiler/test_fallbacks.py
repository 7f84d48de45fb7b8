"""Graphs that cannot be compiled run through ATen: eager result, one warning with the reason."""

import errno
import warnings

import pytest
import torch
from torch import fx

import magpy_like as magpy
from magpy_like.compiler import compile_fx
from magpy_like.compiler.compiler_errors import CompileError, MagpyWarning, Unsupported, _warned
from magpy_like.disk_cache import cache_location, claims


@pytest.fixture(autouse=True)
def _no_earlier_warnings():
    """Each warning appears once per process."""
    _warned.clear()


@pytest.fixture(autouse=True)
def _private_folder_of_the_test(monkeypatch):
    """What one test has to write to a private folder, later tests would find there."""
    monkeypatch.setattr(cache_location, "_private", None)


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))


def compiled(function, *args, **options):
    return compile_fx(fx.symbolic_trace(function), args, options=options)


def dense(t):
    if t.is_nested:
        return t.to_padded_tensor(0.0)
    if t.is_quantized:
        return t.dequantize()
    return t if t.layout is torch.strided else t.to_dense()


def assert_equals_eager_with_one_warning(match, function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast = compiled(function, *args)
        results = [fast(*args) for _ in range(2)]
    messages = [str(w.message) for w in caught if issubclass(w.category, MagpyWarning)]
    assert len(messages) == 1 and match in messages[0], messages
    expected = function(*args)
    for result in results:
        assert result.layout == expected.layout
        torch.testing.assert_close(dense(result), dense(expected))
    with pytest.raises(CompileError, match="runs through ATen"):
        compiled(function, *args, strict=True)(*args)


X = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.5, 0.0, 1.0]])


def quantised():
    return torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)


def nested(layout):
    return torch.nested.nested_tensor([X[:2], X], layout=layout)


@pytest.mark.filterwarnings("ignore::UserWarning:__main__", "ignore:.*(beta|prototype|deprecated)")
@pytest.mark.parametrize(
    ("make", "function", "match"),
    [
        (X.to_sparse, lambda s: torch.sparse.mm(s, X) * 2, "torch.sparse_coo"),
        (X.to_sparse_csr, lambda s: (s @ X).relu(), "torch.sparse_csr"),
        (X.to_mkldnn, lambda m: m.to_dense() * 2, "torch._mkldnn"),
        (quantised, lambda q: q.dequantize() * 2, "quantised"),
        (lambda: nested(torch.strided), lambda n: n * 2, "nested"),
        (lambda: nested(torch.jagged), lambda n: n * 2, "nested"),
        (lambda: X, lambda x: (x * 2).to_sparse(), "a sparse result"),
    ],
    ids=["sparse", "csr", "mkldnn", "quantised", "nested", "jagged", "sparse result"],
)
def test_unsupported_layouts_fall_back_to_aten(make, function, match):
    assert_equals_eager_with_one_warning(match, function, make())


def test_unsupported_weight_layout_falls_back_to_aten():
    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(X.to_sparse_csr(), requires_grad=False)

        def forward(self, x):
            return (self.weight @ x).relu()

    assert_equals_eager_with_one_warning("torch.sparse_csr", Product(), X)


def test_reason_that_is_met_while_tracing_is_one_line():
    def layer(x):
        if type(x) is not torch.Tensor:
            raise Unsupported("a layer", "it is refused")
        return x * 2

    graph = fx.Graph()
    graph.output(graph.call_function(layer, (graph.placeholder("x"),)))
    with pytest.warns(MagpyWarning, match="runs through ATen: a layer: it is refused") as caught:
        fast = compile_fx(fx.GraphModule({}, graph), [X])
    assert "\n" not in str(caught[0].message)
    assert torch.equal(fast(X), X * 2)


@pytest.mark.usefixtures("empty_cache")
def test_failing_compiler_falls_back_to_aten(monkeypatch, tmp_path):
    wrapper = tmp_path / "broken"
    wrapper.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "error: broken" >&2; exit 1\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    assert_equals_eager_with_one_warning("error: broken", lambda x: x.exp() * 2.5, X)


@pytest.mark.usefixtures("empty_cache")
def test_missing_compiler_falls_back_to_aten(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert_equals_eager_with_one_warning("no-such-compiler", lambda x: x.exp() * 3.5, X)


@pytest.mark.usefixtures("empty_cache")
def test_full_disk_falls_back_to_aten(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(claims, "workspace_folder", full)
    assert_equals_eager_with_one_warning("No space left on device", lambda x: x.exp() * 4.5, X)


def test_unwritable_cache_directory_warns_and_compiles(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be written"):
        fast = compiled(lambda x: x.exp() * 5.5, X, strict=True)
    torch.testing.assert_close(fast(X), X.exp() * 5.5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).index_put((torch.tensor([0]),), torch.tensor(5.0)).view(torch.int32) + 1,
        lambda x: (x * 2).view(torch.int32).index_fill(0, torch.tensor([0]), 7).view(torch.float32),
        lambda x: x.view(torch.int32).cumsum(0).view(torch.int16).sum(0),
        lambda x: torch.view_as_real(torch.complex(x, x).index_fill(0, torch.tensor([1]), 3)) + 1,
        lambda x: (
            (x * 2).index_add(0, torch.tensor([1]), torch.ones(1, 4)).view(torch.int32).sum(0)
        ),
    ],
)
def test_aten_calls_receive_arguments_in_eager_layout(function):
    """Loops store scattered elements row by row, and eager mode in the layout of the argument."""
    x = torch.arange(16.0).view(4, 4).t()
    fast = magpy.compile(function)
    for _ in range(3):
        found, expected = fast(x), function(x)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
