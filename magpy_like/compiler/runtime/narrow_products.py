"""CPU products of float32 matrices with one narrow side: a small batch times weights.

Such a product can run at the speed of reading the weights. A BLAS first repacks its operands for
products of many rows. *Measured* on an AMD processor with AVX-512, one thread, 4 rows by weights of
1 MiB: MKL's product took 217 µs and oneDNN's with prepacked weights 111 µs; reading them takes 40
to 60 µs, and these products 73 µs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from magpy_like.compiler.compiler_errors import warn_fallback
from magpy_like.disk_cache import cpp_compiler
from magpy_like.graph_operators.operator_registration import define_operator
from magpy_like.torch_compat.tensor_memory import empty_strided_cpu

mkldnn = torch.ops.mkldnn

#: Rows of the narrow side (or columns times rows): more need more registers than there are.
MAX_NARROW_SIDE = 8
#: Elements of the large operand. Below, the BLAS is as fast.
MIN_PRODUCT_ELEMENTS = 1 << 16
#: Elements that exceed a second-level cache. Below, sums of rows wait for their own stores.
MIN_UNCACHED_ELEMENTS = 1 << 18
#: Multiplications from which oneDNN's product is faster than the BLAS's.
MIN_ONEDNN_MULTIPLICATIONS = 1 << 21

_HERE = Path(__file__).parent
_PRELUDE = _HERE.parent / "codegen" / "cpp" / "cpp_prelude.h"
_FLAGS = (
    "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-ffp-contract=fast",
    "-fwrapv", "-fno-strict-aliasing", "-fopenmp",
)  # fmt: skip


def product(a: Tensor, b: Tensor, bias: Tensor | None, onednn: bool) -> Tensor:
    """``a`` (m, k) times ``b`` (k, n), plus ``bias`` (n) if present.

    Returns (m, n), contiguous; all float32 on the CPU. Sizes may vary between calls: other shapes
    and strides are computed by the BLAS, or by oneDNN where the product is large and ``onednn`` is
    set.
    """
    m, k = a.shape
    n = b.shape[1]
    am, ak = a.stride()
    down, across = b.stride()
    kernel = choose_kernel(m, n, k, ak, down, across)
    run = None if kernel is None else _functions().get(kernel)
    if run is None:
        if onednn and m > 1 and n > 1 and m * n * k >= MIN_ONEDNN_MULTIPLICATIONS:
            return mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
        return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    out = empty_strided_cpu((m, n), (n, 1), torch.float32)
    run(
        a.data_ptr(), b.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(),
        m, n, k, am, ak, across if kernel == "by_columns_of" else down,
    )  # fmt: skip
    return out


def choose_kernel(m: Any, n: Any, k: Any, ak: Any, down: Any, across: Any) -> str | None:
    """The C++ function for a product, by its sizes and the operands' strides; None if none fits."""
    if m <= MAX_NARROW_SIDE:
        if down == 1 and ak == 1:
            return "by_columns_of" if n * k >= MIN_PRODUCT_ELEMENTS and n > 1 and m > 0 else None
        fits = across == 1 and n * k >= MIN_UNCACHED_ELEMENTS and n > MAX_NARROW_SIDE and m > 0
        return "by_rows_of" if fits else None
    fits = 0 < k <= MAX_NARROW_SIDE and across == 1 and n > MAX_NARROW_SIDE
    return "outer" if fits and m * n >= MIN_PRODUCT_ELEMENTS else None


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """The C++ functions by name; empty without a compiler.

    Compiled on first use and kept on disk.
    """
    try:
        path = cpp_compiler.compile_cpp(
            (_HERE / "narrow_products.cpp").read_text(), name="magpy_narrow", flags=_FLAGS,
            headers={"cpp_prelude.h": _PRELUDE.read_text()},
        )  # fmt: skip
    except cpp_compiler.CppCompileError as error:
        warn_fallback("a product of a few rows or columns", str(error), strict=False)
        return {}
    except cpp_compiler.NoCompilerError:  # The kernels' own compilation reports it.
        return {}
    return cpp_compiler.load_functions(path, ["by_columns_of", "by_rows_of", "outer"])


def _sizes(a: Tensor, b: Tensor, bias: Tensor | None, onednn: bool) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


PRODUCT = define_operator(
    "product(Tensor a, Tensor b, Tensor? bias, bool onednn) -> Tensor", product, _sizes
)
