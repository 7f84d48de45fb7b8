"""How far a program's results move when its operators round in another way.

A compiler that reorders a sum or fuses a product rounds differently, and what that does to a result
depends on the program: nothing much, or all there is, where terms cancel out or a rectifier sits
at zero. It is measured here, by running the program in eager mode again. Once, every operator that
rounds computes in float64 and rounds its result: that shows what eager mode's own sums lose. Then
by Monte Carlo arithmetic (D. S. Parker, 1997): such operators are given inputs that are off by up
to one unit in their last place, as if the operators before them had rounded in another way. The
random numbers that the program draws stay what they are.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import current_backward_node
from magpy_like.torch_compat.decompositions import get_decompositions
from magpy_like.torch_compat.dispatch import TorchDispatchMode

aten = torch.ops.aten

NOISY_RUNS = 8
# To first order, what a compiler's rounding does to a result is another draw from what the noisy
# runs are drawn from: a sum over the operators of how much each one's error counts. A result is off
# as a whole (Euclidean norm) by more than `NORM_FACTOR` times the largest of `NOISY_RUNS` such draws once in
# 6,000 times when all errors work in one direction, and next to never when they work in two or
# more (`tests/paritybench/test_limits.py`); single roundings are off by half of what the noise is.
# Where rounding flips a share p of the elements, such as a layer's rectifiers, other ones in each
# run, those move by 1 / sqrt(RUNS p) times the root mean square: `ELEMENT_FACTOR` allows for one
# element in 130,000.
NORM_FACTOR, ELEMENT_FACTOR = 4.0, 128.0
# The root of the mean square may be few elements' that moved far. So half of all or more are held
# to what moves each of them: of a single run, a draw is smaller by this factor once in 25 times.
HALF_FACTOR = 16.0

# Operators that hand on values of their inputs or compare them: with inputs off by different
# amounts they would tell apart what is one value in the program (`x == x.max()`), which rounding
# never does.
_SELECTING_NAMES = """
    _local_scalar_dense _to_copy _unique2 abs adaptive_max_pool2d adaptive_max_pool3d amax
    amin argmax argmin argsort bucketize cat ceil clamp clamp_max clamp_min clone
    constant_pad_nd copy cummax cummin embedding eq equal fill flip floor fmax fmin frac
    gather ge gt hardtanh histc index index_put index_select is_nonzero isclose item kthvalue
    le leaky_relu lt masked_fill masked_select max max_pool2d_with_indices
    max_pool3d_with_indices maximum median min minimum mode nanmedian ne neg new_full nonzero
    reflection_pad1d reflection_pad2d reflection_pad3d relu remainder repeat replication_pad1d
    replication_pad2d replication_pad3d roll round scatter searchsorted select_scatter sgn
    sign slice_scatter sort stack take threshold topk tril triu trunc unique_consecutive where
"""
_SELECTING_OPERATORS = frozenset(f"aten::{name}" for name in _SELECTING_NAMES.split())
# These hold sums that cancel each other, rounded once for many elements: they are taken apart, so
# that the sums are inputs of something.
_DECOMPOSITIONS = get_decompositions(
    [
        aten._log_softmax_backward_data,
        aten._softmax_backward_data,
        aten.native_batch_norm_backward,
        aten.native_group_norm_backward,
        aten.native_layer_norm_backward,
    ]
)
# Nothing can be told about a result whose noise comes to this share of the largest value of its
# kind.
_MAX_NOISE_SHARE = 0.1
# Except where it is next to nothing: all terms cancel, as in the difference of equal values.
_NEGLIGIBLE = 1e-5
# Less than the last place of single precision, and more than what a clock goes on by.
_CLOCK_DRIFT = 1e-9
# Whole numbers that leave so many bits unused are counts, masks and positions. They are exact, and
# a program may rely on it: `floor(i / 2)`. A gradient is as inexact at 1 as anywhere.
_MIN_UNUSED_BITS = 6


class _RoundingMode(TorchDispatchMode):
    """Changes how operators round. Batch norm's backward pass and the like are taken apart."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DECOMPOSITIONS:
            with self:
                return _DECOMPOSITIONS[func](*args, **kwargs)
        if not _rounds(func):
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        return self.rounded(func, dict(zip(names, args, strict=False)), kwargs)

    def rounded(self, func: Any, args: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        """What an operator that rounds gives; ``args`` are its arguments by position."""
        raise NotImplementedError


class Float64Operators(_RoundingMode):
    """Operators on float32 and less compute in float64 and round their results."""

    def rounded(self, func: Any, args: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        given = [tensor for tensor in pytree.tree_leaves(args) if _is_low_precision(tensor)]
        if not given:
            return func(*args.values(), **kwargs)
        exact = pytree.tree_map_only(
            torch.Tensor,
            lambda tensor: tensor.double() if _is_low_precision(tensor) else tensor,
            args,
        )
        result = func(*exact.values(), **kwargs)
        for name, value in args.items():
            if name.startswith("running_") and value is not None:
                value.copy_(exact[name])
        if kwargs.get("dtype") is not None:
            return result
        dtype = functools.reduce(torch.promote_types, {tensor.dtype for tensor in given})
        return pytree.tree_map_only(
            torch.Tensor, lambda x: x.to(dtype) if x.dtype == torch.float64 else x, result
        )


class PerturbedInputs(_RoundingMode):
    """Gives operators that round inputs that are off by up to one unit in their last place.

    Args:
        seed: of the generators that the errors are drawn from.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def rounded(self, func: Any, args: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        # Batch norm changes its running statistics, whatever its schema says.
        moved = (
            value if name.startswith("running_") else self._perturb(value)
            for name, value in args.items()
        )
        return func(*moved, **kwargs)

    def _perturb(self, value: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, self._perturb_tensor, value)

    def _perturb_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.layout != torch.strided or not tensor.numel():
            return tensor
        if tensor.device not in self._generators:
            generator = torch.Generator(tensor.device).manual_seed(self._seed)
            self._generators[tensor.device] = generator
        precise = torch.promote_types(tensor.dtype, torch.float32)
        noise = torch.empty_like(tensor, dtype=precise)
        noise.uniform_(-1, 1, generator=self._generators[tensor.device])
        eps = torch.finfo(tensor.dtype).eps
        moved = noise.mul_(eps).add_(1).mul_(tensor).to(tensor.dtype)
        if current_backward_node() is not None:
            return moved
        exact = (tensor == tensor.round()) & (tensor.abs() < 2.0**-_MIN_UNUSED_BITS / eps)
        return torch.where(exact, tensor, moved)


def _is_low_precision(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and value.layout == torch.strided
    )


def _rounds(func: Any) -> bool:
    schema = func._schema
    return (
        not any(argument.alias_info for argument in (*schema.arguments, *schema.returns))
        and torch.Tag.nondeterministic_seeded not in func.tags
        and schema.name not in _SELECTING_OPERATORS
    )


_GRADIENTS = "gradients"
Tensors = dict[str, torch.Tensor]  # by path
Mode = contextlib.AbstractContextManager[object]


class Spreads:
    """How far each element of what a run left moves under other rounding.

    Most of what a large model leaves is its parameters: what no run moves takes no memory here.

    Args:
        left: the tensors that the run left behind.
        again: repeats that run in such a mode, from the same state, and says what it left; None
            when the program fails in that mode.
    """

    def __init__(self, left: Tensors, rerun: Callable[[Mode], Tensors | None]) -> None:
        self._left = {
            path: tensor.detach() for path, tensor in left.items() if _is_measurable(tensor)
        }
        self._rerun = rerun
        self._exact: Tensors = {}
        self._found: Tensors = {}
        self._modes = self._iterate_modes()
        self._largest: dict[str, float] = {}

    def iterate(self, path: str) -> Iterator[torch.Tensor]:
        """The largest distances seen so far, more of them after each repetition of the run.

        float64, of the tensor's shape. Ends after `NOISY_RUNS` noisy runs, or when one fails; nothing for
        what is no floating point tensor, and no more once it is nearly all noise. First comes what
        eager mode's own operators lose, also when that is more: where they lose much, eager mode is
        no better than another. But answers that are off by half of what they are stay wrong.
        """
        if not self._found and not self._run_next_mode():
            return
        if path in self._exact:
            values = self._left[path]
            lost, size = _rms(self._exact[path]), _rms(values[values.isfinite()].double())
            excess = 2 * NORM_FACTOR * lost / size if size > 0 else 1.0
            yield self._exact[path] / max(1.0, excess)
        while path in self._left:
            if path in self._found:
                spread = self._found[path]
                if not _rms(spread) <= self.noise_limit(path):
                    return
                yield spread
            if not self._run_next_mode():
                return

    def noise_limit(self, path: str) -> float:
        """Up to what noise a tensor's results are told from wrong ones."""
        kind = _scale_group(path)
        if kind not in self._largest:
            # A backward pass begins with gradients of 1; all that it ends with may cancel out.
            alike = (tensor for other, tensor in self._left.items() if _scale_group(other) == kind)
            least = 1.0 if kind == _GRADIENTS else 0.0
            self._largest[kind] = max(least, *map(_largest_finite, alike))
        return max(_max_noise_share(self._left[path].dtype) * self._largest[kind], _NEGLIGIBLE)

    def _iterate_modes(self) -> Iterator[_RoundingMode]:
        if self._is_repeatable():
            yield Float64Operators()
            yield from map(PerturbedInputs, range(NOISY_RUNS))

    def _run_next_mode(self) -> bool:
        mode = next(self._modes, None)
        if mode is None:
            return False
        noisy = self._rerun(mode)
        if noisy is None:  # it looks at torch's modes, or an operator takes no float64
            return isinstance(mode, Float64Operators)
        for path, tensor in self._left.items():
            distance, known = _distances(tensor, noisy.get(path)), self._found.get(path)
            if known is None or _is_shared_zero(known):
                self._found[path] = distance
            elif not _is_shared_zero(distance):
                self._found[path] = torch.maximum(known, distance)
        if isinstance(mode, Float64Operators):
            self._exact = dict(self._found)
        return True

    def _is_repeatable(self) -> bool:
        """Whether it is rounding that moves the results, and not, say, a count of the calls."""
        rerun = self._rerun(contextlib.nullcontext())
        return rerun is not None and all(
            path in rerun
            and rerun[path].shape == tensor.shape
            and (
                torch.equal(rerun[path], tensor)
                or torch.allclose(rerun[path], tensor, rtol=_CLOCK_DRIFT, atol=0.0, equal_nan=True)
            )
            for path, tensor in self._left.items()
        )


def _scale_group(path: str) -> str:
    """Results, gradients and what else is left: each have a scale of their own.

    Paths begin with a name, ``result[0]``, or with one as a key, ``['result'][0]``.
    """
    return _GRADIENTS if path.endswith(".grad") else re.findall(r"\w+", path)[0]


def _max_noise_share(dtype: torch.dtype) -> float:
    return max(_MAX_NOISE_SHARE, 32 * torch.finfo(dtype).eps)


def _rms(spread: torch.Tensor) -> float:
    return float(spread.square().mean().sqrt())


def _is_measurable(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_floating_point()
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
    )


def _largest_finite(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()].abs()
    return float(finite.max()) if len(finite) else 0.0


def _distances(tensor: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
    if other is None or other.shape != tensor.shape:
        return torch.full_like(tensor, torch.nan, dtype=torch.float64)
    if torch.equal(other, tensor):
        return tensor.new_zeros((), dtype=torch.float64).expand(tensor.shape)
    return (other.detach().double() - tensor.double()).abs()


def _is_shared_zero(distance: torch.Tensor) -> bool:
    """Whether it is what :func:`_distances` gives for equal tensors."""
    return distance.untyped_storage().nbytes() == distance.element_size() and not distance.any()


def is_within_rounding(
    distance: torch.Tensor, spread: torch.Tensor, rounding: torch.Tensor | float = 0.0
) -> bool:
    """Whether a tensor is off by no more than other rounding may move it.

    Elements that the few noisy runs happened not to move are given what moves the others of that
    tensor: the root of the mean square.

    Args:
        distance: of each element from eager's; not finite is too far.
        spread: how far it moved in noisy runs, float64, of the same shape. Where one element went
            to infinity, nothing is told about any.
        rounding: what a single operator may round by.
    """
    distance = distance.double()
    if not (spread.isfinite().all() and distance.isfinite().all()):
        return False
    near = distance <= ELEMENT_FACTOR * spread.clamp_min(_rms(spread))
    as_each_moves = distance <= HALF_FACTOR * spread + rounding
    return (
        bool(near.all())
        and float(as_each_moves.double().mean()) >= 0.5
        and _rms(distance) <= NORM_FACTOR * _rms(spread)
    )
