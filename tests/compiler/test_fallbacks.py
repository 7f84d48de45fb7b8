"""What cannot be compiled runs through ATen: eager's result, one warning that says why."""

import errno
import warnings

import pytest
import torch
from torch import fx

from magpy_like.compiler import compile_fx
from magpy_like.compiler.compiler_errors import CompileError, MagpyWarning, _warned
from magpy_like.disk_cache import cpp_compiler


@pytest.fixture(autouse=True)
def _nothing_said_yet():
    """Each warning comes once in a process."""
    _warned.clear()


@pytest.fixture
def nothing_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path))


def compiled(function, *args, **options):
    return compile_fx(fx.symbolic_trace(function), args, options=options)


def dense(t):
    if t.is_nested:
        return t.to_padded_tensor(0.0)
    if t.is_quantized:
        return t.dequantize()
    return t if t.layout is torch.strided else t.to_dense()


def is_eagers_with_one_warning(match, function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast = compiled(function, *args)
        results = [fast(*args) for _ in range(2)]
    said = [str(w.message) for w in caught if issubclass(w.category, MagpyWarning)]
    assert len(said) == 1 and match in said[0], said
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
def test_a_layout_that_loops_cannot_read(make, function, match):
    is_eagers_with_one_warning(match, function, make())


def test_a_weight_that_loops_cannot_read():
    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(X.to_sparse_csr(), requires_grad=False)

        def forward(self, x):
            return (self.weight @ x).relu()

    is_eagers_with_one_warning("torch.sparse_csr", Product(), X)


@pytest.mark.usefixtures("nothing_compiled")
def test_a_compiler_that_fails(monkeypatch, tmp_path):
    wrapper = tmp_path / "broken"
    wrapper.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "error: broken" >&2; exit 1\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    is_eagers_with_one_warning("error: broken", lambda x: x.exp() * 2.5, X)


@pytest.mark.usefixtures("nothing_compiled")
def test_no_compiler_at_all(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    is_eagers_with_one_warning("no-such-compiler", lambda x: x.exp() * 3.5, X)


@pytest.mark.usefixtures("nothing_compiled")
def test_a_full_disk(monkeypatch):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cpp_compiler, "workspace", full)
    is_eagers_with_one_warning("No space left on device", lambda x: x.exp() * 4.5, X)


def test_a_cache_directory_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be written"):
        fast = compiled(lambda x: x.exp() * 5.5, X, strict=True)
    torch.testing.assert_close(fast(X), X.exp() * 5.5)
