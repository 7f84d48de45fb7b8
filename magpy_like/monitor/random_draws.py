"""Random draws of Python and NumPy: the mock repeats them, by the same calls in the same order.

A call that draws, seeds a generator or creates one is repeated before the operator graph runs; so
are NumPy's and torch's functions of drawn arrays. A number among the results is lifted, a tensor is
an input of the graph. No guard can check a drawn array: an inspection splits the
program.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation import ValueRead
from magpy_like.config import config
from magpy_like.monitor.symbolic.expressions import DrawnValue, is_liftable, is_number
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.split_points import Split, UnguardableRead
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.recording import Recording

    Token = tuple[Callable[..., Any], Any]

REWINDABLE: dict[type, tuple[str, str]] = {
    random.Random: ("{0}.getstate()", "{0}.setstate({1})"),
    np.random.RandomState: ("{0}.get_state()", "{0}.set_state({1})"),
    torch.Generator: ("{0}.get_state()", "{0}.set_state({1})"),
    np.random.Generator: ("{0}.bit_generator.state", "{0}.bit_generator.state = {1}"),
}
"""Random generators, with the source text that reads the state, and the text that sets it."""

_GENERATOR_TYPES: dict[Any, type] = {
    random.Random: random.Random,
    np.random.RandomState: np.random.RandomState,
    np.random.default_rng: np.random.Generator,
}
"""Functions that create a generator, and its type."""

_SEEDED_GENERATORS: dict[Any, Any] = {
    np.random.seed: np.random.mtrand._rand,
    torch.manual_seed: torch.default_generator,
}
"""Functions that seed a global generator."""


@dataclass(frozen=True, eq=False)
class RepeatedCall:
    """A call that the mock repeats before the operator graph.

    ``generator`` is the external generator that it changes, if any.
    """

    operation: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    generator: Any = None

    @property
    def can_roll_back(self) -> bool:
        if self.generator is torch.default_generator and torch.cuda.is_available():
            return False  # a seed is set on all devices
        return self.generator is None or type(self.generator) in REWINDABLE


def shuffled(shuffle: Callable[..., None], generator: Any, items: list[Any]) -> list[Any]:
    """The elements in random order, drawn from ``generator``."""
    items = list(items)
    shuffle(generator, items)
    return items


def repeat_draw(
    context: Context, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Token:
    """Record a call that draws random numbers, or seeds or creates a generator.

    Raises:
        Split: it draws from other values than plain ones, or changes another object than a list.
    """
    rec, of_a_generator = (
        context.recording,
        operation not in _GENERATOR_TYPES and operation not in _SEEDED_GENERATORS,
    )
    if operation is torch.manual_seed and rec.state.drawn_from():
        raise Split(SplitReason.RANDOM_GENERATOR, "seeds torch's generator after drawing from it")
    arguments = args[1:] if of_a_generator else args
    kept = tuple(_snapshot(rec, value) for value in arguments)
    keywords = {name: _snapshot(rec, value) for name, value in kwargs.items()}
    if not context.lifted.guards.are_computable_at_entry((kept, tuple(keywords.values()))):
        context.lifted.specialize((kept, tuple(keywords.values())))
    generator = _SEEDED_GENERATORS.get(operation)
    if of_a_generator:
        kept = (args[0], *kept)
        if context.lifted.expression(args[0]) is None:
            generator = args[0]
            rec.variables.constant(generator)
    call = RepeatedCall(operation, kept, keywords, generator)
    if getattr(operation, "__name__", "") == "shuffle":
        order = args[1] if len(args) == 2 and not kwargs else None
        if (
            type(order) is not list
            or rec.variables.node(order) is not None
            or not _all_numbers(order)
        ):
            raise Split(
                SplitReason.RANDOM_VALUE_DECIDES,
                "draws random elements of a container, or into one",
            )
        if len(set(map(type, order))) > 1:
            raise Split(
                SplitReason.RANDOM_VALUE_DECIDES,
                "draws a random element among values of several types",
            )
        call = RepeatedCall(shuffled, (operation, *kept), {}, generator)
        return context.suspension.until(_finish_shuffle, (call, order))
    if of_a_generator and len({type(value) for value in _leaves(kept[1:2])}) > 1:
        raise Split(
            SplitReason.RANDOM_VALUE_DECIDES, "draws a random element among values of several types"
        )
    return context.suspension.until(_finish_draw, call)


def _all_numbers(values: Any) -> bool:
    return bool(values) and all(map(is_number, values))


def _leaves(value: Any) -> Iterator[Any]:
    if type(value) in (list, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _snapshot(rec: Recording, value: Any, depth: int = 2) -> Any:
    """A copy of an argument's current contents.

    Raises:
        Split: it contains more than plain values.
    """
    if is_plain(value) or _is_type(value) or rec.lifted.expression(value) is not None:
        return value
    if type(value) in (list, tuple) and depth:
        rec.inspections.visit(value, ValueRead.ELEMENTS)
        return type(value)(_snapshot(rec, item, depth - 1) for item in value)
    if type(value) is np.ndarray and not value.dtype.hasobject:
        if rec.variables.node(value) is not None or rec.variables.is_new_object(value):
            rec.inspections.visit(value, ValueRead.ALL)
            copy = value.copy()
            rec.variables.add_new(copy)
            return copy
    raise Split(
        SplitReason.RANDOM_VALUE_DECIDES, "draws random elements of a container, or into one"
    )


def _is_type(value: Any) -> bool:
    """True for a class of NumPy scalars."""
    return is_instance(value, type) and issubclass(value, np.generic)


def _finish(context: Context, call: RepeatedCall, result: Any) -> Any:
    context.account()  # torch.manual_seed calls operators, too
    kind = _GENERATOR_TYPES.get(call.operation)
    if kind is not None and type(result) is not kind:
        raise UnguardableRead(
            SplitReason.RANDOM_GENERATOR,
            f"creates a random generator of type {type(result).__qualname__}",
        )
    return _register_result(context, call, result)


def _finish_draw(context: Context, call: RepeatedCall, result: Any) -> Any:
    """Register the result of a draw.

    Lifted arguments may seed a generator or bound a number. For any other result they are
    specialized: a draw by other arguments may return another kind of result.
    """
    arguments = call.args, tuple(call.kwargs.values())
    if context.lifted.identities.holds_lifted(arguments):
        if is_liftable(result):
            call = replace(call, operation=_with_drawn_type(type(result), call.operation))
        elif result is not None and type(result) not in REWINDABLE:
            context.lifted.specialize(arguments)
    return _finish(context, call, result)


def _with_drawn_type(kind: type, operation: Callable[..., Any]) -> Callable[..., Any]:
    """``operation``, which raises TypeError if the result has another type."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        result = operation(*args, **kwargs)
        if type(result) is not kind:
            raise TypeError(f"a {type(result).__name__} is drawn, and not a {kind.__name__}")
        return result

    return draw


def _finish_shuffle(context: Context, drawn: tuple[RepeatedCall, list[Any]], _: Any) -> None:
    call, order = drawn
    order[:] = _lifted_items(context, context.lifted.repeat(call), order)
    context.watch_numbers()


def _register_result(context: Context, call: RepeatedCall, result: Any) -> Any:
    """Register the result of a repeated call; returns its replacement, or None.

    Raises:
        UnguardableRead: the mock could not restore such a result.
    """
    lifted, rec = context.lifted, context.recording
    if is_liftable(result):
        return lifted.lift(result, lifted.repeat(call))
    if type(result) is list and _all_numbers(result):
        return _lifted_items(context, lifted.repeat(call), result)
    if result is None or result is torch.default_generator:
        lifted.repeat(call)
    elif is_instance(result, torch.Tensor):
        rec.graph.add_drawn(result, lifted.repeat(call))
    elif type(result) in (np.ndarray, *_GENERATOR_TYPES.values()) and not _holds_objects(result):
        rec.reads.record_drawn(result)
        lifted.identities.register_object(result, lifted.repeat(call))
        context.watch_numbers()
    else:
        raise UnguardableRead(
            SplitReason.RANDOM_VALUE_DECIDES, f"draws a random {type(result).__qualname__}"
        )
    return None


def _holds_objects(value: Any) -> bool:
    return is_instance(value, np.ndarray) and value.dtype.hasobject


def _lifted_items(context: Context, drawn: DrawnValue, items: list[Any]) -> list[Any]:
    """The numbers of a drawn list, lifted: each is known by its index in the mock's list."""
    return [context.lifted.lift(item, DrawnValue(drawn.index, i)) for i, item in enumerate(items)]


_REPEATABLE: set[Any] = {
    *(
        getattr(np.ndarray, name)
        for name in (
            *("astype", "reshape", "copy", "transpose", "swapaxes", "repeat", "clip", "round"),
            *("sum", "mean", "min", "max", "std", "var", "prod", "cumsum", "item", "argsort"),
            *("argmax", "argmin"),
        )
    ),
    *(
        getattr(np, name)
        for name in (
            *("clip", "round", "reshape", "transpose", "stack", "concatenate", "sum", "mean"),
            *("min", "max", "std", "var", "argsort", "sort", "cumsum", "outer", "expand_dims"),
            *("argmax", "argmin"),
            *("array", "asarray", "ascontiguousarray", "float32", "float64", "int64"),
        )
    ),
    *(
        getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "neg", "pos"),
            *("lt", "le", "gt", "ge", "eq", "ne", "getitem"),
        )
    ),
    *(np.generic.item, int, float, abs, round),
}
_SHARE_MEMORY: set[Any] = {
    *(np.ndarray.reshape, np.ndarray.transpose, np.ndarray.swapaxes, np.reshape, np.array),
    *(np.asarray, np.ascontiguousarray, np.expand_dims, torch.from_numpy, torch.as_tensor),
}
"""Functions among them whose results may share memory with their arguments."""
_INDICES = (np.dtype(np.int64), np.dtype(np.int32))
_IN_PLACE: set[Any] = {np.ndarray.sort}
_FOLDS = {sum, min, max, math.prod}
_TENSOR_MAKERS = {torch.from_numpy, torch.tensor, torch.as_tensor}
_MAY_REPEAT = _REPEATABLE | _IN_PLACE | _FOLDS | _TENSOR_MAKERS


def repeat_array_call(
    context: Context, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Token | None:
    """The token of a call on drawn arrays or lifted numbers that the mock repeats; None for any
    other call. The arguments' types and shapes must determine those of the result."""
    lifted, rec = context.lifted, context.recording
    if not lifted or rec.running.depth or context.isolation.branch_run is not None:
        return None
    if not (is_instance(operation, np.ufunc) or operation in _MAY_REPEAT):
        return None  # before all elements of its arguments are looked at
    if not lifted.any_lifted(tuple(_leaves(args))):
        return None
    values = [*_leaves(args), *kwargs.values()]
    of_numpy = any(is_instance(value, np.ndarray | np.generic) for value in values)
    if of_numpy:
        is_repeatable = (
            is_instance(operation, np.ufunc) or operation in _REPEATABLE | _TENSOR_MAKERS
        )
        if operation in _IN_PLACE:
            is_repeatable = lifted.is_drawn(args[0])
    elif operation in _FOLDS:
        is_repeatable = any(map(lifted.is_drawn, values)) and len(set(map(type, values))) == 1
    else:
        is_repeatable = operation in _TENSOR_MAKERS and not is_number(args[0])
    from_outside = [v for v in values if is_instance(v, np.ndarray) and not lifted.is_drawn(v)]
    if from_outside and is_repeatable:
        is_repeatable = _creates_new_memory(operation, args, kwargs)
    if not is_repeatable or "out" in kwargs:
        return None
    if not all(_is_type(value) or _is_computable_before_graph(context, value) for value in values):
        return None
    kept = tuple(_snapshot(rec, value) for value in args)
    if operation in _TENSOR_MAKERS:
        arrays = [value for value in values if is_instance(value, np.ndarray)]
        rec.operators.shared_arrays += [(array, array.copy()) for array in arrays]
    finish = _finish_in_place if operation in _IN_PLACE else _finish
    return context.suspension.until(finish, RepeatedCall(operation, kept, kwargs))


def _is_computable_before_graph(context: Context, value: Any) -> bool:
    """True if the mock can compute a value, or an equal array, before the operator graph runs."""
    if is_instance(value, np.ndarray) and context.lifted.expression(value) is None:
        node = context.recording.variables.node(value)  # the guard compares its contents
        return (
            node is not None
            and not value.dtype.hasobject
            and value.nbytes <= config.max_guarded_array_bytes
        )
    return context.lifted.is_computable_before_graph(value)


def is_element_index(array: Any, key: Any) -> bool:
    """True if an index selects one number of an array."""
    keys = key if type(key) is tuple else (key,)
    return len(keys) == array.ndim and all(type(part) is int for part in keys)


def yields_drawn_numbers(context: Context, array: Any) -> bool:
    """True if a loop over an array reads numbers that the mock can draw."""
    if type(array) is not np.ndarray or array.ndim != 1 or array.dtype.hasobject:
        return False
    return (
        not context.recording.running.depth
        and context.isolation.branch_run is None
        and context.lifted.is_drawn(array)
    )


def _creates_new_memory(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if a result shares no memory with external arrays."""
    if operation in _SHARE_MEMORY or not kwargs.keys() <= {"axis", "keepdims"}:
        return False
    return operation is not np.ndarray.astype or len(args) == 2


def tensor_index(context: Context, key: Any) -> Any:
    """An index of a tensor, with tensors in place of drawn arrays and of lists of lifted numbers:
    torch treats both alike."""
    if type(key) is tuple:
        parts = tuple(tensor_index(context, part) for part in key) if context.lifted else key
        # A copy of an external tuple would be used without a guard.
        return key if all(map(operator.is_, parts, key)) else parts
    if context.recording.running.depth or context.isolation.branch_run is not None:
        return key
    if not (_is_drawn_index(context, key) or _is_varying_index(context, key)):
        return key
    tensor = torch.tensor(key)
    _register_result(
        context, RepeatedCall(torch.tensor, (_snapshot(context.recording, key),), {}), tensor
    )
    return tensor


def _is_drawn_index(context: Context, key: Any) -> bool:
    of_integers = is_instance(key, np.ndarray) and key.dtype in _INDICES and bool(key.ndim)
    return of_integers and context.lifted.is_drawn(key)


def _is_varying_index(context: Context, key: Any) -> bool:
    """True if a key is a list of integers, some lifted and all computable by the mock."""
    if type(key) is not list or not context.lifted.any_lifted(tuple(key)):
        return False
    integers = all(type(part) is int for part in key)
    return integers and all(map(context.lifted.is_computable_before_graph, key))


def _finish_in_place(context: Context, call: RepeatedCall, _: Any) -> None:
    """The array is known by the call that drew it: the mock changes its own array, too."""
    context.lifted.repeat(call)
