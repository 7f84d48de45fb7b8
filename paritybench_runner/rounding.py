"""Spread of a program's results when its operators round differently.

A compiler that reorders a sum or fuses a product rounds differently. The effect on a result depends
on the program: little, or everything, where terms cancel out or a rectifier is near zero. Further
eager runs measure it. In the first, every operator that rounds computes in float64 and rounds its
result, which shows the error of eager mode's own sums. The others use Monte Carlo arithmetic
(D. S. Parker, 1997): the inputs of such operators are perturbed by up to one unit in the last
place, as if the operators before had rounded differently. The program's random draws stay the same.
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
# To first order, the effect of a compiler's rounding on a result is a draw from the distribution of
# the noisy runs: a sum of the operators' errors, each with its weight. The error of a result as a
# whole (Euclidean norm) exceeds `NORM_FACTOR` times the largest of `NOISY_RUNS` such draws once in
# 6,000 times when all errors work in one direction, and almost never when they work in two or more
# (`tests/paritybench_runner/test_rounding_limits.py`); single roundings err by half of the noise.
# Where rounding flips a share p of the elements, such as a layer's rectifiers, different ones in
# each run, those move by 1 / sqrt(NOISY_RUNS p) times the root mean square: `ELEMENT_FACTOR` allows
# for one element in 130,000.
NORM_FACTOR, ELEMENT_FACTOR = 4.0, 128.0
# A few elements that moved far may dominate the root mean square. Therefore at least half of all
# elements must stay within their own spread times this factor: a draw of a single run is smaller
# than another one by this factor once in 25 times.
HALF_FACTOR = 16.0

# Operators that select values of their inputs or compare them. With inputs perturbed by different
# amounts they would distinguish equal values of the program (`x == x.max()`), which rounding never
# does.
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
# Operators with sums that cancel each other, rounded once for many elements. Decomposed, so that
# the sums become inputs of operators.
_DECOMPOSITIONS = get_decompositions(
    [
        aten._log_softmax_backward_data,
        aten._softmax_backward_data,
        aten.native_batch_norm_backward,
        aten.native_group_norm_backward,
        aten.native_layer_norm_backward,
    ]
)
# A result with more noise than this share of the largest value in its scale group is chaotic: no
# statement about it is possible.
_MAX_NOISE_SHARE = 0.1
# Noise of this size is accepted anyway: all terms cancel, as in the difference of equal values.
_NEGLIGIBLE = 1e-5
# Relative. Below the last place of single precision, above the advance of a clock between two runs.
_CLOCK_DRIFT = 1e-9
# Whole numbers with this many unused bits are counts, masks and positions. They are exact, and a
# program may rely on it: `floor(i / 2)`. A gradient is as inexact at 1 as anywhere.
_MIN_UNUSED_BITS = 6


class _RoundingMode(TorchDispatchMode):
    """Changes the rounding of operators. Batch norm's backward pass and the like are decomposed."""

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
        """Returns the result of an operator that rounds; ``args``: positional arguments by name."""
        raise NotImplementedError


class Float64Operators(_RoundingMode):
    """Operators on float32 and lower precisions compute in float64 and round their results."""

    def rounded(self, func: Any, args: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        rounded = [tensor for tensor in pytree.tree_leaves(args) if _is_low_precision(tensor)]
        if not rounded:
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
        dtype = functools.reduce(torch.promote_types, {tensor.dtype for tensor in rounded})
        return pytree.tree_map_only(
            torch.Tensor, lambda x: x.to(dtype) if x.dtype == torch.float64 else x, result
        )


class PerturbedInputs(_RoundingMode):
    """Operators that round receive inputs perturbed by up to one unit in the last place.

    Args:
        seed: seeds the generators of the perturbations.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def rounded(self, func: Any, args: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        # Batch norm updates its running statistics in place, although its schema does not say so.
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
    """Distance that each element of a run's final tensors moves under other rounding.

    Most final tensors of a large model are its parameters: a tensor that no run moves takes no
    memory here.

    Args:
        final_tensors: the tensors that the run leaves behind.
        rerun: repeats the run in a mode, from the same state, and returns the tensors that it
            leaves behind; None if the program fails in that mode.
    """

    def __init__(self, final_tensors: Tensors, rerun: Callable[[Mode], Tensors | None]) -> None:
        self._final_tensors = {
            path: tensor.detach()
            for path, tensor in final_tensors.items()
            if _is_measurable(tensor)
        }
        self._rerun = rerun
        self._rounding_loss: Tensors = {}
        self._spreads: Tensors = {}
        self._modes = self._iterate_modes()
        self._largest_by_group: dict[str, float] = {}

    def iterate(self, path: str) -> Iterator[torch.Tensor]:
        """Yields the largest distances so far, after each further repetition of the run.

        Each is float64, of the tensor's shape. Ends after `NOISY_RUNS` noisy runs, after a failed
        one, and once the tensor is chaotic; yields nothing for a tensor of no floating point dtype.
        The error of eager mode's own operators comes first, even if it is larger: where they lose
        much, eager mode is no better than another result. But a result that is wrong by half of its
        size stays wrong.
        """
        if not self._spreads and not self._run_next_mode():
            return
        if path in self._rounding_loss:
            values = self._final_tensors[path]
            lost, size = _rms(self._rounding_loss[path]), _rms(values[values.isfinite()].double())
            excess = 2 * NORM_FACTOR * lost / size if size > 0 else 1.0
            yield self._rounding_loss[path] / max(1.0, excess)
        while path in self._final_tensors:
            if path in self._spreads:
                spread = self._spreads[path]
                if not _rms(spread) <= self.noise_limit(path):
                    return
                yield spread
            if not self._run_next_mode():
                return

    def noise_limit(self, path: str) -> float:
        """Returns the largest noise under which a tensor can still be judged."""
        group = _scale_group(path)
        if group not in self._largest_by_group:
            # A backward pass begins with gradients of 1; all the gradients that it ends with may
            # cancel out.
            same_group = (
                tensor
                for other, tensor in self._final_tensors.items()
                if _scale_group(other) == group
            )
            least = 1.0 if group == _GRADIENTS else 0.0
            self._largest_by_group[group] = max(least, *map(_largest_finite, same_group))
        return max(
            _max_noise_share(self._final_tensors[path].dtype) * self._largest_by_group[group],
            _NEGLIGIBLE,
        )

    def _iterate_modes(self) -> Iterator[_RoundingMode]:
        if self._is_repeatable():
            yield Float64Operators()
            yield from map(PerturbedInputs, range(NOISY_RUNS))

    def _run_next_mode(self) -> bool:
        mode = next(self._modes, None)
        if mode is None:
            return False
        noisy = self._rerun(mode)
        if noisy is None:  # the program inspects torch's modes, or an operator supports no float64
            return isinstance(mode, Float64Operators)
        for path, tensor in self._final_tensors.items():
            distance, known = _distances(tensor, noisy.get(path)), self._spreads.get(path)
            if known is None or _is_shared_zero(known):
                self._spreads[path] = distance
            elif not _is_shared_zero(distance):
                self._spreads[path] = torch.maximum(known, distance)
        if isinstance(mode, Float64Operators):
            self._rounding_loss = dict(self._spreads)
        return True

    def _is_repeatable(self) -> bool:
        """True if only rounding moves the results, not, for example, a count of the calls."""
        rerun = self._rerun(contextlib.nullcontext())
        return rerun is not None and all(
            path in rerun
            and rerun[path].shape == tensor.shape
            and (
                torch.equal(rerun[path], tensor)
                or torch.allclose(rerun[path], tensor, rtol=_CLOCK_DRIFT, atol=0.0, equal_nan=True)
            )
            for path, tensor in self._final_tensors.items()
        )


def _scale_group(path: str) -> str:
    """Returns the group of tensors with a common scale: results, gradients, module, and so on.

    Paths begin with a name, ``result[0]``, or with a name as a key, ``['result'][0]``.
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
    """True for the result of :func:`_distances` on equal tensors, which takes no memory."""
    return distance.untyped_storage().nbytes() == distance.element_size() and not distance.any()


def is_within_rounding(
    distance: torch.Tensor, spread: torch.Tensor, rounding: torch.Tensor | float = 0.0
) -> bool:
    """True if a tensor differs from eager mode's by no more than other rounding may move it.

    An element that the few noisy runs happened not to move has the spread of the others in that
    tensor: the root mean square.

    Args:
        distance: distance of each element from eager mode's; False if one is not finite.
        spread: distance that it moved in noisy runs, float64, of the same shape; False if one is
            not finite.
        rounding: rounding error of a single operator.
    """
    distance = distance.double()
    if not (spread.isfinite().all() and distance.isfinite().all()):
        return False
    near = distance <= ELEMENT_FACTOR * spread.clamp_min(_rms(spread))
    within_own_spread = distance <= HALF_FACTOR * spread + rounding
    return (
        bool(near.all())
        and float(within_own_spread.double().mean()) >= 0.5
        and _rms(distance) <= NORM_FACTOR * _rms(spread)
    )
