"""Results in eager's memory layout, where torch's decompositions or fake tensors have another.

Some CPU kernels preserve only channels-last, and write any other result row-major. Elementwise
loops over several arguments take the dimension order from them, the first argument first; where
that depends on the values of symbolic sizes, results keep the layout that torch traces.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from magpy_like.compiler.decompositions.registration import (
    Decomposition,
    register_decomposition,
    torch_decomposition,
)
from magpy_like.compiler.lowering import LOWERINGS
from magpy_like.compiler.lowering.value_checks import PROBABILITIES
from magpy_like.torch_compat.decompositions import (
    compute_elementwise_output_logical_to_physical_perm,
    get_decompositions,
    suggest_memory_format,
)

aten = torch.ops.aten

BATCH_NORMS = [
    aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update_functional,
]  # fmt: skip


def _to_channels_of(result: Tensor, a: Tensor) -> Tensor:
    """On a CPU, ``result`` channels-last if ``a`` is, else row-major."""
    if a.device.type != "cpu":
        return result
    return result.contiguous(memory_format=suggest_memory_format(a))


def _batch_norm(decomposition: Decomposition) -> Decomposition:
    @functools.wraps(decomposition)
    def batch_norm(a: Tensor, *args: Any, **kwargs: Any) -> Any:
        result, *rest = decomposition(a, *args, **kwargs)
        return _to_channels_of(result, a), *rest

    return batch_norm


for _operator, _decomposition in get_decompositions(BATCH_NORMS).items():
    register_decomposition(_operator)(_batch_norm(_decomposition))


@register_decomposition(aten.channel_shuffle.default)
def _channel_shuffle(a: Tensor, groups: Any) -> Tensor:
    return _to_channels_of(torch_decomposition(aten.channel_shuffle.default)(a, groups), a)


@register_decomposition(aten.roll.default)
def _roll(a: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """A concatenation of two slices, as in eager: indexing every element costs several times as
    much.

    Without dimensions, eager rolls the flattened tensor. Where a shift is zero, it concatenates an
    empty slice, and the result is not channels-last; on a GPU it never is.
    """
    if a.device.type == "cuda" and not a.is_contiguous():
        return aten.roll(a.contiguous(), shifts, dims)
    if statically_known_true(a.numel() != 0) and all(type(n) is int for n in (*a.shape, *shifts)):
        if not dims:
            return aten.roll(a.reshape(-1), shifts, [0]).reshape(a.shape)
        for shift, dim in zip(shifts, dims, strict=True):
            size = a.shape[dim]
            start = (size - shift) % size
            parts = [a.narrow(dim, start, size - start), a.narrow(dim, 0, start)]
            a = torch.cat(parts, dim)
        return a
    result = torch_decomposition(aten.roll.default)(a, shifts, dims)
    if not dims or statically_known_true(a.numel() == 0):
        return result
    unshifted = (shift % a.shape[dim] == 0 for shift, dim in zip(shifts, dims, strict=True))
    return result if any(map(statically_known_true, unshifted)) else _to_channels_of(result, a)


@register_decomposition(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(a: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Eager's result has the layout of its indices, which fake tensors assume to be contiguous."""
    tensors = [index for index in indices if index is not None]
    if all(index.dim() < 2 or index.is_contiguous() for index in tensors):
        return NotImplemented
    if any(index.dtype in (torch.bool, torch.uint8) for index in tensors):
        return NotImplemented  # masks: the size of the result is data-dependent
    result = aten.index(a, [None if i is None else i.contiguous() for i in indices])
    common = torch.broadcast_tensors(*tensors)
    if a.device.type != "cpu" and len({index.stride() for index in common}) > 1:
        return result
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if adjacent else 0
    kept = [dim for dim in range(a.dim()) if dim not in dims]
    # The operands with the strides of eager's loop, in which an indexed dimension of `a` has zero.
    before, after = kept[:first], kept[first:]
    steps = [*(a.stride(d) for d in before), *[0] * common[0].dim(), *(a.stride(d) for d in after)]
    looked_up = a.as_strided(result.shape, steps)
    looped_indices = [
        index.reshape([1] * len(before) + list(index.shape) + [1] * len(after)).expand_as(result)
        for index in common
    ]
    order, _ = compute_elementwise_output_logical_to_physical_perm(looked_up, *looped_indices)
    back = [order.index(dim) for dim in range(len(order))]
    return result.permute(order).contiguous().permute(back)


def _logical(operator: Any, bitwise: Any) -> None:
    @register_decomposition(operator)
    def logical(a: Tensor, b: Tensor) -> Tensor:
        """In operators whose fake results have eager's layout even if an argument is broadcast."""
        return bitwise(*(x if x.dtype == torch.bool else x != 0 for x in (a, b)))


_logical(aten.logical_and.default, torch.bitwise_and)
_logical(aten.logical_or.default, torch.bitwise_or)
_logical(aten.logical_xor.default, torch.bitwise_xor)


#: Elementwise loops to whose results torch's meta functions and decompositions give another
#: dimension order than eager, where an argument is broadcast or transposed.
ELEMENTWISE_LOOPS = [
    aten.copysign.Tensor, aten.floor_divide.default, aten.div.Tensor_mode, aten.xlogy.Tensor,
    aten.heaviside.default, aten.logaddexp.default, aten.logaddexp2.default,
    aten.special_xlog1py.default, aten.addcmul.default, aten.addcdiv.default,
]  # fmt: skip


class _DependsOnSizes(Exception):
    """A relation between sizes is not the same for all sizes that the guards admit."""


def _is_known(relation: Any) -> bool:
    """True if a relation between sizes is known to hold, without a guard.

    Raises:
        _DependsOnSizes: it is neither known to hold nor known not to.
    """
    if statically_known_true(relation):
        return True
    if statically_known_true(torch.sym_not(relation)):
        return False
    raise _DependsOnSizes


def loop_dim_order(steps: Sequence[Sequence[int]], shape: Sequence[int]) -> list[int]:
    """The dimension order of the result of eager's elementwise loop, outermost first.

    Of two dimensions, the outer one is decided by the first argument that is broadcast along
    neither. ``steps`` has the strides of each argument along all dimensions, 0 where broadcast.
    """

    def compare(one: int, other: int) -> int:
        for step in steps:
            a, b = step[one], step[other]
            if _is_known(a == 0) or _is_known(b == 0):
                continue
            if _is_known(a != b):
                return 1 if _is_known(a > b) else -1
            if _is_known(shape[one] > shape[other]):
                return 1
        return 0

    inner_first = list(range(len(shape)))[::-1]
    for current in range(1, len(shape)):  # eager's insertion sort: the relation is not transitive
        for k in range(current - 1, -1, -1):
            found = compare(inner_first[k], inner_first[current])
            if found < 0:
                break
            if found > 0:
                inner_first[k], inner_first[current] = inner_first[current], inner_first[k]
                current = k
    return inner_first[::-1]


_active = threading.local()


def decompose_into_itself(operator: Any) -> Callable[[Decomposition], Decomposition]:
    """A decorator like ``register_decomposition`` for a function that calls the operator itself.

    Inside of the function, the operator is not decomposed.
    """

    def register(function: Decomposition) -> Decomposition:
        @register_decomposition(operator)
        def outermost(*args: Any, **kwargs: Any) -> Any:
            if operator in (inside := _active.__dict__.setdefault("operators", set())):
                return NotImplemented
            inside.add(operator)
            try:
                return function(*args, **kwargs)
            finally:
                inside.remove(operator)

        return function

    return register


def match_eager_layout(
    operator: Any, lay: Callable[..., Any], decomposition: Decomposition | None = None
) -> None:
    """Register a decomposition with eager's layout: ``lay(results, *arguments)``.

    ``decomposition`` computes the results; by default torch's, or the operator itself.
    """
    if decomposition is None:
        known = {} if operator in LOWERINGS else get_decompositions([operator])
        decomposition = known.get(operator, operator)

    @decompose_into_itself(operator)
    def relaid(*args: Any, **kwargs: Any) -> Any:
        return lay(decomposition(*args, **kwargs), *args)


def _to_loop_layout(result: Tensor, *args: Any) -> Tensor:
    tensors = [a for a in args if isinstance(a, Tensor)]
    alike = all((t.shape, t.stride()) == (result.shape, tensors[0].stride()) for t in tensors)
    return _to_dim_order(result, [_broadcast_strides(t, result.shape) for t in tensors], alike)


def _broadcast_strides(tensor: Tensor, shape: Sequence[int]) -> list[int]:
    """The strides of a tensor that is broadcast to ``shape``; 0 along broadcast dimensions."""
    lead = len(shape) - tensor.dim()
    dims = zip(tensor.shape, shape[lead:], tensor.stride(), strict=True)
    return [0] * lead + [0 if n == 1 and shown != 1 else step for n, shown, step in dims]


def _to_dim_order(result: Tensor, steps: Sequence[Sequence[int]], alike: bool = False) -> Tensor:
    """The result in the dimension order of eager's loop.

    ``alike``: all arguments have the same sizes and strides.
    """
    try:
        order = loop_dim_order(steps, result.shape)
        if _has_dim_order(result, order, alike):
            return result
    except _DependsOnSizes:
        return result
    back = [order.index(d) for d in range(result.dim())]
    return result.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _has_dim_order(tensor: Tensor, order: Sequence[int], of_alike: bool) -> bool:
    step = 1
    for d in reversed(order):
        if not (of_alike and _is_known(tensor.shape[d] == 1)) and _is_known(
            tensor.stride(d) != step
        ):
            return False
        step *= tensor.shape[d]
    return True


def _whole_if_complex(operator: Any) -> Decomposition:
    """Torch's decomposition, not of complex numbers: the order of products decides which parts of
    an infinite result are NaN."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        is_complex = any(isinstance(a, Tensor) and a.is_complex() for a in args)
        return (operator if is_complex else torch_decomposition(operator))(*args, **kwargs)

    return compute


for _operator in ELEMENTWISE_LOOPS:
    _product = _operator in (aten.addcmul.default, aten.addcdiv.default)
    match_eager_layout(
        _operator, _to_loop_layout, _whole_if_complex(_operator) if _product else None
    )


decompose_into_itself(aten.addr.default)(_whole_if_complex(aten.addr.default))


@functools.partial(match_eager_layout, aten.native_dropout_backward.default)
def _dropout_layout(result: Tensor, grad: Tensor, *args: Any) -> Tensor:
    """On a GPU, without a broadcast gradient, one kernel with the layout of torch's decomposition:
    row-major or channels-last."""
    loop = grad.device.type == "cpu" or grad.shape != result.shape
    return _to_loop_layout(result, grad, *args) if loop else result


def _to_contiguous(result: Tensor, *args: Any) -> Tensor:
    return result.contiguous()


for _operator in (aten.take.default, aten.pow.Scalar):
    match_eager_layout(_operator, _to_contiguous)
for _operator in (aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor):
    # By the operator itself, which checks the standard deviations; no formula does.
    match_eager_layout(_operator, _to_contiguous, _operator)


def _to_first_layout(result: Tensor, a: Tensor, *args: Any) -> Tensor:
    return _to_dim_order(result, [a.stride()]) if result.dim() == a.dim() else result


def _cross_entropy_of_two(a: Tensor, target: Tensor, *args: Any) -> Tensor:
    if a.device.type == "cpu":  # on a GPU, eager fails with a device-side assertion
        a = PROBABILITIES(a, "input")
        target = PROBABILITIES(target, "target")
    return torch_decomposition(aten.binary_cross_entropy.default)(a, target, *args)


match_eager_layout(aten.binary_cross_entropy.default, _to_first_layout, _cross_entropy_of_two)


Unique = Callable[[Tensor, int], Sequence[Tensor]]


def _unique_along(a: Tensor, dim: int, unique: Unique) -> Sequence[Tensor]:
    """``unique`` along a dimension; on a CPU, eager's result is a transposed row-major one."""
    if a.device.type != "cpu":  # torch speculates on sizes wrongly for negative dimensions
        return unique(a, dim % max(a.dim(), 1))
    first, *rest = unique(a.movedim(dim, 0), 0)
    return first.movedim(0, dim), *rest


@decompose_into_itself(aten.unique_dim.default)
def _unique_dim(a: Tensor, dim: int, *args: Any) -> Sequence[Tensor]:
    return _unique_along(a, dim, lambda a, dim: aten.unique_dim(a, dim, *args))


@decompose_into_itself(aten.unique_consecutive.default)
def _unique_consecutive(
    a: Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> Sequence[Tensor]:
    if dim is None:
        return aten.unique_consecutive(a, inverse, counts)
    return _unique_along(a, dim, lambda a, dim: aten.unique_consecutive(a, inverse, counts, dim))


def _first_contiguous(results: Sequence[Tensor], *args: Any) -> Sequence[Tensor]:
    first, *rest = results
    return first.contiguous(), *rest


@decompose_into_itself(aten.rrelu_with_noise_functional.default)
def _rrelu(
    a: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> Sequence[Tensor]:  # fmt: skip
    """The mean slope; in training, eager draws one for every negative element. The result is
    row-major in both cases."""
    if not training:
        return aten.leaky_relu(a, (lower + upper) / 2).contiguous(), noise.clone()
    drawn = aten.rrelu_with_noise_functional(a, noise, lower, upper, True, generator)
    return [result.contiguous() for result in drawn]


@register_decomposition(aten.log_sigmoid_forward.default)
def _log_sigmoid(a: Tensor) -> Sequence[Tensor]:
    results = torch_decomposition(aten.log_sigmoid_forward.default)(a)
    return _first_contiguous(results) if a.device.type == "cpu" else results
