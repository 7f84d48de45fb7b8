"""Comparison of compiled operators of torch's OpInfo database with eager.

The samples of one operator, of all dtypes, are captured and compiled together, as the nodes of one
graph: one run of each stage, including the C++ compiler, serves a few dozen samples. If such a
graph differs from eager, its samples are compiled one by one, so that each report is of one sample.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import SEED
from torch.utils import _pytree as pytree

from magpy_like.compiler import compiler_errors
from tests.seeding import seed

Compiler = Callable[[torch.fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Sequence[Any]]]

FORWARD_DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
BATCH = 32  # samples in one graph

# Operators with undefined values; only dtype, size and stride are compared.
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"} | {
    "new_empty_strided"
}

# Torch's gradient formulas of these take other steps when AOTAutograd traces them, which yields
# other strides: its uncompiled graphs have them as well.
STRIDES_DIFFER_WHEN_TRACED = {"ormqr"}
if torch.__version__ < "2.13":  # which traces backward passes for contiguous incoming gradients
    STRIDES_DIFFER_WHEN_TRACED |= {"rot90"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One sample: ``call`` maps a list of input tensors to the operator's result tensors."""

    call: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
    inputs: tuple[torch.Tensor, ...]
    dtype: torch.dtype
    text: str


@dataclasses.dataclass(frozen=True)
class Problem:
    """A sample whose compiled run differs from eager, and the difference."""

    op: str
    dtype: torch.dtype
    gradient: bool
    sample: str
    message: str

    def __str__(self) -> str:
        kind = "gradient" if self.gradient else "forward"
        return f"{self.op} {str(self.dtype)[6:]} {kind}: {self.message}\n    sample: {self.sample}"


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@functools.cache
def operators() -> dict[str, Any]:
    """The database by name, without CUDA-only operators (the jiterator)."""
    return {full_name(op): op for op in op_db if "jiterator" not in op.name}


def cases(
    op: Any, dtype: torch.dtype, *, requires_grad: bool, limit: int | None = None
) -> Iterator[Case]:
    """The samples of ``op`` (the first ``limit``), as functions of their tensors alone."""
    samples = _samples(op, dtype, requires_grad, limit)
    for number, sample in enumerate(samples):
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        inputs = tuple(leaves[i] for i in positions)
        call = _caller(op, leaves, spec, positions)
        yield Case(call, inputs, dtype, f"{number}: {_describe(sample)}")


def _samples(op: Any, dtype: torch.dtype, requires_grad: bool, limit: int | None) -> list[Any]:
    """Equal to ``op.sample_inputs``, which searches the whole stack for a calling test of torch. A
    list: a generator that is finalized during a capture would run inside of the capture."""
    device, found = torch.get_default_device().type, []
    seed(0)
    samples = iter(op.sample_inputs_func(op, device, dtype, requires_grad))
    while limit is None or len(found) < limit:
        seed(SEED)
        random.seed(SEED)
        numpy.random.seed(SEED)
        try:
            found.append(next(samples))
        except StopIteration:
            break
    return found


def _caller(op: Any, leaves: list[Any], spec: Any, positions: list[int]) -> Any:
    constant = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        filled = list(constant)
        for position, tensor in zip(positions, tensors, strict=True):
            filled[position] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        result = pytree.tree_leaves(op(first, *args, **kwargs))
        return [leaf for leaf in result if isinstance(leaf, torch.Tensor)]

    return call


def _describe(sample: Any) -> str:
    def short(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            stride = "" if leaf.layout is not torch.strided or leaf.is_contiguous() else "'"
            return f"{str(leaf.dtype)[6:]}{list(leaf.shape)}{stride}"
        return leaf

    parts = pytree.tree_map(short, (sample.input, sample.args, sample.kwargs))
    return str(parts)[:300]


def sweep(
    op: Any,
    dtypes: Sequence[torch.dtype],
    compiler: Compiler,
    *,
    gradient: bool = False,
    limit: int | None = None,
) -> tuple[int, list[Problem]]:
    """Compares the samples of ``op`` (the first ``limit`` of each supported dtype) with eager.

    Samples that raise in eager, return no tensor, or have output sizes that depend on values
    (which make_fx cannot capture) do not count.

    Returns:
        The number of samples that ran, and the problems.
    """
    selected = [
        case
        for dtype in dtypes
        if dtype in op.dtypes and (op.supports_autograd or not gradient)
        for case in cases(op, dtype, requires_grad=gradient, limit=limit)
        if runs_eagerly(case, gradient)
    ]
    count = 0
    problems: list[Problem] = []
    for batch, graph in _batches(selected):
        count += len(batch)
        batch_message = _difference(op, batch, graph, compiler, gradient)
        if batch_message is None:
            continue
        found: list[Problem] = []
        for case in batch if len(batch) > 1 else ():
            message = _difference(op, [case], captured([case]), compiler, gradient)
            if message is not None:
                found.append(Problem(full_name(op), case.dtype, gradient, case.text, message))
        text = "\n      and ".join(case.text for case in batch)
        problems += found or [Problem(full_name(op), batch[0].dtype, gradient, text, batch_message)]
    return count, problems


def _batches(selected: Sequence[Case]) -> Iterator[tuple[list[Case], torch.fx.GraphModule]]:
    """Groups the cases that can be captured into graphs of up to ``BATCH``; random ones
    separately, since their values are not comparable with eager's."""
    random: list[Case] = []
    for start in range(0, len(selected), BATCH):
        halves = [list(selected[start : start + BATCH])]
        while halves:
            batch = halves.pop()
            graph = captured(batch)
            if graph is not None and not _is_random(graph):
                yield batch, graph
            elif len(batch) > 1:
                middle = len(batch) // 2
                halves += [batch[middle:], batch[:middle]]
            elif graph is not None:
                random += batch
    for start in range(0, len(random), BATCH):
        batch = random[start : start + BATCH]
        graph = captured(batch)
        assert graph is not None
        yield batch, graph


def _is_random(graph: torch.fx.GraphModule) -> bool:
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return any(torch.Tag.nondeterministic_seeded in getattr(t, "tags", ()) for t in targets)


def runs_eagerly(case: Case, gradient: bool) -> bool:
    """True if the sample runs in eager, with its backward pass if ``gradient``."""
    try:
        outputs = case.call(fresh(case.inputs))
        roots = [out for out in outputs if out.requires_grad]
        if gradient and roots:  # some gradients raise: eigenvectors have no fixed phase
            torch.autograd.backward(roots, [_cotangent(out) for out in roots])
    except Exception:
        return False
    return bool(outputs) and (not gradient or bool(roots))


def fresh(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same strides, as autograd leaves if the originals require gradients."""
    copies = []
    for tensor in inputs:
        copy = tensor.detach().clone()
        if tensor.layout is torch.strided and copy.stride() != tensor.stride():
            copy = _like_strided(tensor.detach())
        copies.append(copy.requires_grad_(tensor.requires_grad))
    return copies


def _like_strided(tensor: torch.Tensor) -> torch.Tensor:
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    storage = tensor.as_strided((extent,), (1,)).clone()
    return storage.as_strided(tensor.shape, tensor.stride(), 0)


def captured(batch: Sequence[Case]) -> torch.fx.GraphModule | None:
    """One FX graph of ATen operators for all cases, before autograd; None if capture fails."""
    counts = [len(case.inputs) for case in batch]

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, rest = [], iter(tensors)
        for case, count in zip(batch, counts, strict=True):
            outputs += case.call(list(itertools.islice(rest, count)))
        return tuple(outputs)

    inputs = [t for case in batch for t in fresh(case.inputs)]
    try:
        return make_fx(function, pre_dispatch=True)(*inputs)
    except Exception:
        return None


def _difference(
    op: Any,
    batch: Sequence[Case],
    graph: torch.fx.GraphModule | None,
    compiler: Compiler,
    gradient: bool,
) -> str | None:
    """Describes the difference between the compiled ``graph`` of ``batch`` and eager's run; None
    if there is none."""
    assert graph is not None
    inputs = [t for case in batch for t in case.inputs]
    compiler_errors._warned.clear()  # warnings appear once per process; here each counts
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled = compiler(graph, fresh(inputs))
            actual = _run(lambda *args: compiled(*args), fresh(inputs), gradient)
            if _is_random(graph):
                repeated = _run(lambda *args: compiled(*args), fresh(inputs), gradient)
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error).strip()[:400]}"

    for warning in caught:
        # The fallback's correct result would hide an internal error of the compiler.
        if re.search(r"graph runs through ATen: \w+Error", str(warning.message)):
            return f"warns: {warning.message}"

    def eager(*tensors: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(tensors)
        return [
            out
            for case in batch
            for out in case.call(list(itertools.islice(rest, len(case.inputs))))
        ]

    expected = _run(eager, fresh(inputs), gradient)
    if _is_random(graph):
        return _compare(actual, expected, values=False) or _compare(actual, repeated, values=True)
    exact = functools.cache(lambda: _run_in_double_precision(batch, gradient))
    strides = not (gradient and op.name in STRIDES_DIFFER_WHEN_TRACED)
    values = op.name not in UNDEFINED
    return _compare(actual, expected, values=values, strides=strides, exact=exact)


def _run_in_double_precision(batch: Sequence[Case], gradient: bool) -> list[Any] | None:
    """Eager's results in double precision where the operator supports it; None if the gradients
    raise."""
    inputs = [t for case in batch for t in case.inputs]
    wider = {torch.complex64: torch.complex128}
    doubles = [
        (t.detach().to(wider.get(t.dtype, torch.float64)) if _is_inexact(t) else t.detach().clone())
        for t in inputs
    ]
    for double, t in zip(doubles, inputs, strict=True):
        double.requires_grad_(t.requires_grad)

    def eager(*tensors: torch.Tensor) -> list[torch.Tensor]:
        outputs, rest = [], iter(tensors)
        for case in batch:
            arguments = list(itertools.islice(rest, len(case.inputs)))
            try:
                outputs += case.call(arguments)
            except Exception:
                narrow = [g.to(t.dtype) for g, t in zip(arguments, case.inputs, strict=True)]
                outputs += case.call(narrow)
        return outputs

    try:
        return _run(eager, doubles, gradient)
    except Exception:
        return None


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _run(function: Any, inputs: list[torch.Tensor], gradient: bool) -> list[torch.Tensor | None]:
    """Returns the outputs, then the inputs after the call, then their gradients."""
    seed(0)
    with torch.set_grad_enabled(gradient):
        outputs = list(function(*inputs))
        results: list[torch.Tensor | None] = [*outputs, *inputs]
        if gradient:
            differentiable = [t for t in inputs if t.requires_grad]
            roots = [out for out in outputs if out.requires_grad]
            results += torch.autograd.grad(
                roots, differentiable, [_cotangent(out) for out in roots], allow_unused=True
            )
    return [None if t is None else t.detach() for t in results]


def _cotangent(output: torch.Tensor) -> torch.Tensor:
    """Not all ones, so that a wrong reduction does not cancel; with the strides of the output."""
    values = torch.linspace(0.5, 1.5, output.numel(), dtype=torch.float32)
    return torch.empty_like(output).copy_(values.reshape(output.shape))


def _compare(
    actual: Sequence[torch.Tensor | None],
    expected: Sequence[torch.Tensor | None],
    *,
    values: bool,
    strides: bool = True,
    exact: Callable[[], list[Any] | None] = lambda: None,
) -> str | None:
    if len(actual) != len(expected):
        return f"{len(actual)} results, expected {len(expected)}"
    for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a is None or e is None:
            # An absent gradient differs from a gradient of zeros, as in eager.
            if a is not e:
                return f"result {number}: {'none' if a is None else 'some'}, expected otherwise"
            continue
        for name in ("shape", "dtype", "layout", "device"):
            if getattr(a, name) != getattr(e, name):
                return f"result {number}: {name} {getattr(a, name)}, expected {getattr(e, name)}"
        if strides and e.layout is torch.strided and _strides(a) != _strides(e):
            shape = tuple(e.shape)
            return f"result {number}: stride {a.stride()}, expected {e.stride()}, shape {shape}"
        if values:
            try:
                torch.testing.assert_close(a, e, equal_nan=True)
            except AssertionError as error:
                if not _is_as_accurate(a, e, (exact() or [None] * len(actual))[number]):
                    return f"result {number}: {' '.join(str(error).split())[:300]}"
    return None


def _is_as_accurate(actual: torch.Tensor, expected: torch.Tensor, exact: Any) -> bool:
    """True if ``actual`` is as close to the result in double precision as eager's result.

    If rounding is amplified (a difference of nearly equal numbers, low precision between two
    operators), the error of eager itself exceeds the tolerance.
    """
    if exact is None or exact.shape != actual.shape or not _is_inexact(actual):
        return False
    a, e, x = (t.to(exact.dtype) for t in (actual, expected, exact))
    known = torch.isfinite(e)
    if not torch.equal(known, torch.isfinite(a)):
        return False
    if not torch.equal(torch.nan_to_num(a[~known]), torch.nan_to_num(e[~known])):
        return False
    off, allowed = (a - x).abs()[known], (e - x).abs()[known]
    rtol, atol = torch.testing._comparison.default_tolerances(actual.dtype)
    worst = allowed.max() if allowed.numel() else 0.0
    if (off <= atol + rtol * x.abs()[known]).all():
        return True
    # A very inaccurate eager result would accept any value.
    if worst > 0.05 * x.abs()[known].max() + 1e-3:
        return False
    return bool((off <= 2 * worst + atol + rtol * x.abs()[known]).all())


def _strides(tensor: torch.Tensor) -> list[int]:
    """The strides that matter: a dimension of size 1 may have any stride."""
    if tensor.numel() == 0:
        return []
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
