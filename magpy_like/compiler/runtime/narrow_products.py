"""Products of float32 matrices on a CPU of which one side is a few: a small batch by weights.

Such a product takes as long as reading the weights does, if it is made for that. A BLAS first
lays its operands out for products of many rows. *Measured* on an AMD processor with AVX-512, one
thread, 4 rows by weights of 1 MiB: MKL's product took 217 µs and oneDNN's with weights that it had
laid out before 111 µs; reading them takes 40 to 60 µs, and these products 73 µs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.compiler_errors import warn_fallback
from magpy_like.disk_cache import code_cache
from magpy_like.graph_operators.custom_operators import define
from magpy_like.torch_compat.tensor_memory import empty_strided_cpu

mkldnn = torch.ops.mkldnn

MOST = 8  # of rows, or of columns times rows: beyond that the registers are not enough
SMALLEST = 1 << 16  # elements of the large side, below which the BLAS is as fast
FAR = 1 << 18  # elements that no second cache holds: below, sums of rows wait for their own stores
LARGE = 1 << 21  # multiplications from which oneDNN's product is faster than the BLAS's

_HERE = Path(__file__).parent
_PRELUDE = _HERE.parent / "codegen" / "cpp" / "cpp_prelude.h"
_FLAGS = (
    "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-ffp-contract=fast",
    "-fwrapv", "-fno-strict-aliasing", "-fopenmp",
)  # fmt: skip


def product(a: Tensor, b: Tensor, bias: Tensor | None, onednn: bool) -> Tensor:
    """``a`` (m, k) times ``b`` (k, n), plus ``bias`` (n) if given: (m, n), contiguous, float32 on
    the CPU.

    Sizes may vary: what is of another form than this file is about, the BLAS computes, or oneDNN
    where it is large and ``onednn`` says that it may.
    """
    m, k = a.shape
    n = b.shape[1]
    am, ak = a.stride()
    down, across = b.stride()
    way = form(m, n, k, ak, down, across)
    run = None if way is None else _functions().get(way)
    if run is None:
        if onednn and m > 1 and n > 1 and m * n * k >= LARGE:
            return mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
        return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    out = empty_strided_cpu((m, n), (n, 1), torch.float32)
    run(
        a.data_ptr(), b.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(),
        m, n, k, am, ak, across if way == "by_columns_of" else down,
    )  # fmt: skip
    return out


def form(m: Any, n: Any, k: Any, ak: Any, down: Any, across: Any) -> str | None:
    """Which of the functions computes a product, by the strides of its operands; None for none."""
    if m <= MOST:
        if down == 1 and ak == 1:
            return "by_columns_of" if n * k >= SMALLEST and n > 1 and m > 0 else None
        return "by_rows_of" if across == 1 and n * k >= FAR and n > MOST and m > 0 else None
    return "outer" if 0 < k <= MOST and across == 1 and n > MOST and m * n >= SMALLEST else None


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Compiled when the first product is to be made, and then on disk; none without a compiler."""
    try:
        path = code_cache.compile_cpp(
            (_HERE / "narrow_products.cpp").read_text(), name="magpy_narrow", flags=_FLAGS,
            headers={"cpp_prelude.h": _PRELUDE.read_text()},
        )  # fmt: skip
    except code_cache.CppCompileError as error:
        warn_fallback("a product of a few rows or columns", str(error), strict=False)
        return {}
    except code_cache.NoCompilerError:  # whoever compiles the kernels has said so
        return {}
    return code_cache.load_functions(path, ["by_columns_of", "by_rows_of", "outer"])


def _sizes(a: Tensor, b: Tensor, bias: Tensor | None, onednn: bool) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


PRODUCT = define(
    "product(Tensor a, Tensor b, Tensor? bias, bool onednn) -> Tensor", product, _sizes
)
