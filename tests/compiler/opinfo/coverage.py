"""The list of operators of the OpInfo database that are lowered, decomposed or fall back to ATen.

The list is committed as ``coverage.json``. The status of each operator is one of:

- ``lowered``: it has a lowering and needs nothing else;
- ``decomposed``: it is decomposed into operators that are lowered (or library calls, see below);
- ``fallback``: at least one call runs through ATen; these calls are listed;
- ``library``: the operator itself belongs to a category that may call ATen (``CATEGORIES``);
- ``no graph``: nothing to compile: it returns no tensor, or its sizes or control flow depend on
  values, so that AOTAutograd cannot trace it (such samples of other operators are skipped).

A call to a library operator inside another operator (``cdist`` multiplies matrices) is no fallback.
The status is determined on samples in float32, or in the operator's first dtype if it does not
support float32; forward only, and forward with backward, in two columns.
"""

from __future__ import annotations

import collections
import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from magpy_like.compiler.autograd.aot import aot_compile
from magpy_like.compiler.compile_fx import interpret
from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.lowering.graph_lowering import Graph
from tests.compiler.opinfo import harness

LIST = Path(__file__).with_name("coverage.json")
SAMPLES = 4  # of each operator

# Operators that may call ATen, by OpInfo name. The prefixes linalg. and sparse. include simple
# operators as well (cross, diagonal, vecdot, vector_norm, vander, matrix norms), which are not
# listed here and do not count.
CATEGORIES = {
    "matrix products": r"mm|bmm|mv|addmm|addmm\.decomposed|addmv|addbmm|baddbmm|matmul|__rmatmul__"
    r"|dot|vdot|inner|einsum|tensordot|addr|outer|nn\.functional\.(bi)?linear|linalg\.multi_dot"
    r"|linalg\.matrix_power|sparse\..*|torch\._scaled_mm.*"
    r"|nn\.functional\.linear_cross_entropy.*",
    "convolution": r"nn\.functional\.conv.*",
    "attention": r".*attention.*",
    "sorting": r"sort|argsort|msort|topk|kthvalue|median|nanmedian|masked\.median|quantile"
    r"|nanquantile|mode|unique|unique_consecutive",
    "FFT": r"fft\.(?!fftshift|ifftshift).*|stft|istft",
    "linear algebra": r"cholesky.*|lu|lu_.*|qr|geqrf|ormqr|svd.*|pca_lowrank|pinverse|logdet"
    r"|triangular_solve|matrix_exp|norm\.nuc"
    r"|linalg\.(det|slogdet|cholesky.*|cond|eig.*|householder_product|ldl_.*|lstsq.*|qr|lu.*|inv"
    r"|inv_ex|solve.*|matrix_rank.*|pinv.*|svd.*|tensorinv|tensorsolve|matrix_norm|norm.*)",
}
# The same for ATen operators within a graph.
_LIBRARY = re.compile(
    r"aten\.(mm|bmm|mv|addmm|addmv|baddbmm|dot|vdot|convolution(_backward)?|_?scaled_dot_product\w*"
    r"|_?(flash|efficient)_attention\w*|sort|topk|kthvalue|(nan)?median|mode|_fft_\w+|_?linalg_\w+"
    r"|_cdist_\w+|cholesky\w*|lu_\w+|geqrf|ormqr|triangular_solve|_unique2|unique_\w+)\."
)


def category(name: str) -> str | None:
    """The category that lets the operator call ATen; None for most."""
    return next((c for c, p in CATEGORIES.items() if re.fullmatch(p, name)), None)


def classify(op: Any, *, gradient: bool) -> dict[str, Any] | None:
    """The status of ``op`` on its samples; None if there is nothing to compile."""
    if not op.dtypes:
        return None  # for other devices than the CPU
    dtype = torch.float32
    if dtype not in op.dtypes:
        dtype = sorted(op.dtypes, key=str)[0]
    lowered: collections.Counter[str] = collections.Counter()
    fallbacks: collections.Counter[str] = collections.Counter()
    captured = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in harness.cases(op, dtype, requires_grad=gradient, limit=SAMPLES):
            graph = harness.captured([case]) if harness.runs_eagerly(case, gradient) else None
            if graph is not None:
                captured += _lower(graph, case.inputs, gradient, lowered, fallbacks)
    if not captured:
        return None
    fallen = {name: n for name, n in sorted(fallbacks.items()) if not _LIBRARY.match(name)}
    if fallen:
        return {"status": "fallback", "through ATen": sorted(fallen)}
    packets = {name.rsplit(".", 1)[0].removeprefix("aten.") for name in lowered}
    return {"status": "lowered" if packets <= {op.aten_name, op.name} else "decomposed"}


def _lower(
    graph: torch.fx.GraphModule,
    inputs: tuple[torch.Tensor, ...],
    gradient: bool,
    lowered: collections.Counter[str],
    fallbacks: collections.Counter[str],
) -> bool:
    """Counts lowerings and fallbacks of ``graph``; False if sizes or flow depend on values."""

    def stage(gm: torch.fx.GraphModule, _: Any) -> Any:
        try:
            made = Graph(gm).run()
            lowered.update(made.lowered)
            fallbacks.update(made.fallbacks)
        except Unsupported as reason:
            fallbacks[f"the graph ({reason})"] += 1
        call = interpret(gm)
        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    fresh = harness.fresh(inputs)
    try:
        with torch.set_grad_enabled(gradient):
            call = aot_compile(
                graph, fresh, forward=stage, backward=stage, inference=stage, program=graph
            )
            outputs = call(*fresh)
            if gradient:  # the backward pass is compiled lazily
                torch.autograd.backward([out.sum() for out in outputs if out.requires_grad])
    except (DataDependentOutputException, DynamicOutputShapeException):
        return False
    except Exception as error:
        fallbacks[f"the graph ({type(error).__name__})"] += 1
    return True


def survey(names: list[str]) -> dict[str, dict[str, Any]]:
    """The rows of the list for ``names``."""
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        op = harness.operators()[name]
        row: dict[str, Any] = {"category": category(name)} if category(name) else {}
        row["forward"] = classify(op, gradient=False) or {"status": "no graph"}
        if op.supports_autograd and torch.float32 in op.dtypes:
            row["gradient"] = classify(op, gradient=True) or {"status": "no graph"}
        rows[name] = row
    return rows


def figures(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts by status, and the share of operators outside the categories without fallback."""
    counts: dict[str, Any] = {}
    for column in ("forward", "gradient"):
        count: collections.Counter[str] = collections.Counter()
        for row in rows.values():
            if column in row:
                count["library" if "category" in row else row[column]["status"]] += 1
        clean = count["lowered"] + count["decomposed"]
        share = clean / max(1, clean + count["fallback"])
        counts[column] = {**dict(sorted(count.items())), "without fallback": round(share, 4)}
    return counts


def write(names: list[str]) -> str:
    """Classifies operators (all if none is named), writes the list, returns its figures as text."""
    kept = committed() if names else {}
    rows = dict(sorted((kept | survey(names or sorted(harness.operators()))).items()))
    LIST.write_text(json.dumps({"figures": figures(rows), "operators": rows}, indent=1) + "\n")
    return json.dumps(figures(rows), indent=1)


def committed() -> dict[str, dict[str, Any]]:
    """The rows of the committed list."""
    rows: dict[str, dict[str, Any]] = json.loads(LIST.read_text())["operators"]
    return rows
