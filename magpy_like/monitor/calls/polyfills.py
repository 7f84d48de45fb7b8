"""Polyfills: Python functions in place of native code that would run tensor operators unseen.

For example, ``sum`` over a generator adds tensors in C, one by one. Before a call of such a
function on arguments that may yield tensors, the monitor replaces the function on the operand stack
by its polyfill and follows it like any Python code.
"""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import itertools
import math
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.utils.checkpoint

from magpy_like.bytecode.local_uses import FRAME_INSPECTORS
from magpy_like.monitor.calls import element_consumers, torchscript
from magpy_like.monitor.calls.checkpoints.checkpoint_calls import (
    begin_checkpoint,
    end_checkpoint,
    fail_checkpoint,
    is_checkpoint_followed,
    is_under_reentrant,
)
from magpy_like.monitor.objects.containers import CONTAINERS, elements
from magpy_like.monitor.objects.object_addresses import ADDRESS_QUERIES
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import is_plain
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.operators import associative_scan
from magpy_like.torch_compat.torchscript import ScriptFunction


def _sum(iterable: Iterable[Any], /, start: Any = 0) -> Any:
    # Native code adds plain numbers: from Python 3.12 on it compensates for rounding.
    total: Any = None
    numbers: list[Any] = []
    for item in iterable:
        if total is not None:
            total = total + item
        elif isinstance(item, torch.Tensor):
            total = sum(numbers, start) + item
        else:
            numbers.append(item)
    if total is not None:
        return total
    return sum(numbers) if type(start) is int and start == 0 else sum(numbers, start)


def _list(iterable: Iterable[Any], /) -> Any:
    items = []
    for item in iterable:
        items.append(item)
    return items


def _list_of_rows(tensor: torch.Tensor, /) -> Any:
    return list(tensor.unbind())


def _tuple_of_rows(tensor: torch.Tensor, /) -> Any:
    return tuple(tensor.unbind())


def _prod(iterable: Iterable[Any], /, *, start: Any = 1) -> Any:
    total = start
    for item in iterable:
        total = total * item
    return total


def _max(*values: Any) -> Any:
    largest, *others = values if len(values) > 1 else values[0]
    for value in others:
        if value > largest:
            largest = value
    return largest


def _min(*values: Any) -> Any:
    smallest, *others = values if len(values) > 1 else values[0]
    for value in others:
        if value < smallest:
            smallest = value
    return smallest


def _reduce(function: Callable[..., Any], iterable: Iterable[Any], /, *initial: Any) -> Any:
    found = bool(initial)
    value = initial[0] if found else None
    for item in iterable:
        value, found = (function(value, item) if found else item), True
    if not found:
        raise TypeError("reduce() of empty iterable with no initial value")
    return value


def _map(function: Callable[..., Any], /, *iterables: Iterable[Any]) -> Iterator[Any]:
    return map(variadic(function), *iterables)


def _filter(function: Callable[..., Any] | None, iterable: Iterable[Any], /) -> Iterator[Any]:
    return filter(variadic(bool if function is None else function), iterable)


def _starmap(function: Callable[..., Any], iterable: Iterable[Any], /) -> Iterator[Any]:
    return itertools.starmap(variadic(function), iterable)


class _End:
    """Equals only itself, which native code finds without running Python code."""


_END = _End()
_End.__eq__ = functools.partial(operator.is_, _END)  # type: ignore[method-assign]


def _iter_until(function: Callable[..., Any], sentinel: Any, /) -> Iterator[Any]:
    def call() -> Any:
        item = function()
        return _END if item is sentinel or sentinel == item else item

    return iter(call, _END)


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _accumulate(iterable: Iterable[Any], func: Any = None, *, initial: Any = None) -> Iterator[Any]:
    return _running(iter(iterable), operator.add if func is None else func, initial)


def _running(items: Iterator[Any], function: Callable[..., Any], total: Any) -> Iterator[Any]:
    if total is None:
        try:
            total = next(items)
        except StopIteration:
            return
    yield total
    for item in items:
        total = function(total, item)
        yield total


def _sorted_by_key(*args: Any, key: Callable[..., Any], **kwargs: Any) -> Any:
    return sorted(*args, key=variadic(key), **kwargs)


# Two functions, as with `_max`: a branch on the result of `>` can become an operator in more cases
# than a branch on the result of a function.
def _max_by_key(*args: Any, key: Callable[..., Any], **kwargs: Any) -> Any:
    found, largest, most = False, None, None
    for value in args[0] if len(args) == 1 else args:
        rank = key(value)
        if not found or rank > most:
            found, largest, most = True, value, rank
    return largest if found else max((), **kwargs)


def _min_by_key(*args: Any, key: Callable[..., Any], **kwargs: Any) -> Any:
    found, smallest, least = False, None, None
    for value in args[0] if len(args) == 1 else args:
        rank = key(value)
        if not found or rank < least:
            found, smallest, least = True, value, rank
    return smallest if found else min((), **kwargs)


def _of_elements(function: Callable[..., Any]) -> Callable[..., Any]:
    def of_list(iterable: Iterable[Any], /, **kwargs: Any) -> Any:
        return function(_list(iterable), **kwargs)

    return of_list


def _any(iterable: Iterable[Any], /) -> bool:
    for item in iterable:  # noqa: SIM110 - this is `any` or `all`
        if item:
            return True
    return False


def _all(iterable: Iterable[Any], /) -> bool:
    for item in iterable:  # noqa: SIM110 - this is `any` or `all`
        if not item:
            return False
    return True


def _of_keys(chooser: Callable[..., Any]) -> Callable[..., Any]:
    def of_keys(mapping: Mapping[Any, Any], /, **kwargs: Any) -> Any:
        return chooser([*mapping], **kwargs)

    return of_keys


def _inactive_checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: Any = None,
    context_fn: Any = None,
    determinism_check: Any = None,
    debug: Any = None,
    early_stop: Any = None,
    preserve_rng_state: Any = None,
    **kwargs: Any,
) -> Any:
    """``checkpoint`` without gradients: it only calls ``function``, as nothing runs backward."""
    if use_reentrant is False:
        return function(*args, **kwargs)
    with torch.no_grad():
        result = function(*args, **kwargs)
    values = []
    # The results of a custom function without gradients, which a reentrant checkpoint is.
    for value in result if isinstance(result, tuple) else (result,):
        if isinstance(value, torch.Tensor):
            for argument in args:
                if value is argument:
                    value = value.detach() if value.requires_grad else value.view_as(value)
                    break
            if value.requires_grad and not value._is_view():
                value.detach_()
        values.append(value)
    return tuple(values) if isinstance(result, tuple) else values[0]


def _generic_scan(
    combine: Callable[..., Any], xs: Any, dim: int, reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:  # fmt: skip
    """``associative_scan`` in its generic mode, which consists of tensor operators.

    The pointwise mode has the same results, but Dynamo compiles a kernel for it.
    """
    return associative_scan(combine, xs, dim, reverse, "generic")


def _active_checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: Any = None,
    preserve_rng_state: Any = None,
    early_stop: Any = None,
    **kwargs: Any,
) -> Any:
    call = begin_checkpoint(function, args, kwargs, use_reentrant)
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        fail_checkpoint(call, error)
        raise
    return end_checkpoint(call, result)


def _attrgetter(getter: operator.attrgetter[Any]) -> Callable[[Any], Any]:
    paths = [name.split(".") for name in getter.__reduce__()[1]]

    def attrgetter(value: Any) -> Any:
        found = []
        for path in paths:
            item = value
            for name in path:
                item = getattr(item, name)
            found.append(item)
        return found[0] if len(found) == 1 else tuple(found)

    return attrgetter


def _itemgetter(getter: operator.itemgetter[Any]) -> Callable[[Any], Any]:
    keys = getter.__reduce__()[1]

    def itemgetter(value: Any) -> Any:
        found = []
        for key in keys:
            found.append(value[key])
        return found[0] if len(found) == 1 else tuple(found)

    return itemgetter


def _methodcaller(caller: operator.methodcaller) -> Callable[[Any], Any]:
    make, arguments = cast("tuple[Any, tuple[Any, ...]]", caller.__reduce__())
    if isinstance(make, functools.partial):  # with keyword arguments
        name, args, keywords = make.args[0], arguments, make.keywords
    else:
        name, args, keywords = arguments[0], arguments[1:], {}

    def methodcaller(value: Any) -> Any:
        return getattr(value, name)(*args, **keywords)

    return methodcaller


def _partial(original: functools.partial[Any]) -> Callable[..., Any]:
    def partial(*args: Any, **kwargs: Any) -> Any:
        return original.func(*original.args, *args, **{**original.keywords, **kwargs})

    return partial


def variadic(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` called by ``*args``, for arguments that an iterable has not yielded yet."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


_GETTERS: dict[type, Callable[[Any], Callable[[Any], Any]]] = {
    operator.attrgetter: _attrgetter,
    operator.itemgetter: _itemgetter,
    operator.methodcaller: _methodcaller,
}


def _consumes_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return bool(args) and may_yield_tensors(args[0])


def _has_rows(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    tensor = len(args) == 1 and not kwargs and type(args[0]) in (torch.Tensor, torch.nn.Parameter)
    return tensor and args[0].dim() > 0


def _is_lazy(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True for a lazy iterable, whose lifted numbers native code would read."""
    if len(args) != 1 or "key" in kwargs:
        return False
    if is_instance(args[0], types.GeneratorType):
        return inspect.getgeneratorstate(args[0]) == inspect.GEN_CREATED
    return type(args[0]) in _LAZY_ITERATORS and not _inspects_frames(args[0])


def _inspects_frames(iterator: Any) -> bool:
    """True if a function that the iterator calls inspects frames: native code has none."""
    found = (f for f in gc.get_referents(iterator) if is_instance(f, types.FunctionType))
    return any(not FRAME_INSPECTORS.isdisjoint(f.__code__.co_names) for f in found)


_LAZY_ITERATORS = (map, filter, itertools.starmap, itertools.takewhile, itertools.accumulate)


def _do_nothing(module: torch.nn.RNNBase) -> None:
    """In place of ``RNNBase.flatten_parameters``.

    The memory layout of the parameters changes no result, and a module flattens them when it is
    created and when it is moved to a GPU.
    """


def _compares_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if kwargs or not args or (len(args) == 1 and type(args[0]) not in (list, tuple)):
        return False
    return any(is_instance(value, torch.Tensor) for value in (args if len(args) > 1 else args[0]))


def _calls_native(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if a native function is called on each item, unseen by the monitor."""
    if not args or is_instance(args[0], types.FunctionType | types.MethodType | str):
        return False
    if is_instance(args[0], _NATIVE_METHODS) and is_instance(args[0].__self__, CONTAINERS):
        return True  # it may change a container
    if is_instance(args[0], type):
        return any(map(_may_yield_numbers, args[1:]))
    return any(may_yield_tensors(it) or _may_yield_numbers(it) for it in args[1:])


_NATIVE_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)


def _may_yield_numbers(iterable: Any) -> bool:
    """True if ``iterable`` may yield lifted numbers."""
    if is_instance(iterable, list | tuple):
        return any(type(item) in _NUMBERS for item in elements(iterable))
    return type(iterable) in (*_LAZY_ITERATORS, types.GeneratorType)


_NUMBERS = (int, float, tuple, list)


def _is_reduction(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if len(args) not in (2, 3) or kwargs:
        return False
    return any(lookup_in_type(type(args[1]), n) is not NULL for n in ("__iter__", "__getitem__"))


def _has_sentinel(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True for ``iter(function, sentinel)``: native code would compare each result."""
    return len(args) == 2 and not kwargs and callable(args[0]) and args[1] is not _END


def _accumulates_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return bool(args) and (may_yield_tensors(args[0]) or _may_yield_numbers(args[0]))


def _by_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    known = {"key", "default"} if len(args) == 1 else {"key"}  # Python raises for others
    return bool(args) and kwargs.get("key") is not None and kwargs.keys() <= known


def _reads_addresses(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if ``id`` or the like is called on each item, and an item is not a plain value."""
    function, *iterables = args or (None,)
    if not any(function is told for told in ADDRESS_QUERIES):
        return False
    return not all(
        is_instance(iterable, range | str | bytes)
        or (type(iterable) in CONTAINERS and all(map(is_plain, iterable)))
        for iterable in iterables
    )


def _by_native_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    key = kwargs.get("key")
    return key is not None and not is_instance(key, types.FunctionType | types.MethodType)


def _is_mapping(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True for a mapping: native code iterates over the keys only."""
    return len(args) == 1 and is_instance(args[0], dict)


def _is_inactive_checkpoint(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return not (torch.is_grad_enabled() or is_under_reentrant()) and "context_fn" not in kwargs


def _is_pointwise_scan(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    mode = kwargs.get("combine_mode", args[4] if len(args) > 4 else "pointwise")
    xs = kwargs.get("xs", args[1] if len(args) > 1 else None)
    tensors = (is_instance(x, torch.Tensor) and x.is_cuda for x in pytree.tree_leaves(xs))
    return mode == "pointwise" and all(tensors)


def _always(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return True


Condition = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]

_RULES: tuple[tuple[Any, Condition, Callable[..., Any]], ...] = (
    (sum, _consumes_tensors, _sum),
    (math.prod, _consumes_tensors, _prod),
    (list, _is_lazy, _list),
    (list, _has_rows, _list_of_rows),
    (tuple, _has_rows, _tuple_of_rows),
    (any, _is_lazy, _any),
    (all, _is_lazy, _all),
    (max, _compares_tensors, _max),
    (min, _compares_tensors, _min),
    (iter, _has_sentinel, _iter_until),
    (operator.call, _always, _call),
    (functools.reduce, _is_reduction, _reduce),
    (filter, _calls_native, _filter),
    (map, _calls_native, _map),
    (map, _reads_addresses, _map),
    (itertools.starmap, _calls_native, _starmap),
    (itertools.accumulate, _accumulates_tensors, _accumulate),
    (torch.utils.checkpoint.checkpoint, _is_inactive_checkpoint, _inactive_checkpoint),
    (associative_scan, _is_pointwise_scan, _generic_scan),
    (torch.utils.checkpoint.checkpoint, is_checkpoint_followed, _active_checkpoint),
    (torch.nn.RNNBase.flatten_parameters, _always, _do_nothing),
    *((chooser, _is_mapping, _of_keys(chooser)) for chooser in (sorted, min, max)),
    *(
        (chooser, _is_lazy, _of_elements(chooser))
        for chooser in (tuple, sorted, min, max, math.fsum)
    ),
    (sorted, _by_native_key, _sorted_by_key),
    (max, _by_key, _max_by_key),
    (min, _by_key, _min_by_key),
)
"""The polyfills: native function, condition on the arguments, and replacement."""
_POLYFILLS: dict[int, list[tuple[Condition, Callable[..., Any]]]] = {}
"""The polyfills of a function, by its id: a callable of the program may have its own hash."""
for _function, _applies, _replacement in _RULES:
    _POLYFILLS.setdefault(id(_function), []).append((_applies, _replacement))


def polyfill(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """The function to call instead of ``function``; None if the native call hides nothing."""
    if type(function) is ScriptFunction:
        return torchscript.python_equivalent(function, args, kwargs)
    if type(function) is functools.partial and _is_replaced_inside(function, args, kwargs):
        return _partial(function)
    getter = _GETTERS.get(type(function))
    if getter is not None:
        return getter(function)
    rows = _POLYFILLS.get(id(function), ())
    return next((replacement for applies, replacement in rows if applies(args, kwargs)), None)


def _is_replaced_inside(
    partial: functools.partial[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """True if the function inside a partial has to be replaced, and the partial with it."""
    if type(partial.func) is ScriptFunction:
        return True
    checkpoints = partial.func is torch.utils.checkpoint.checkpoint
    given, named = (*partial.args, *args), {**partial.keywords, **kwargs}
    return checkpoints and polyfill(partial.func, given, named) is not None


def may_yield_tensors(iterable: Any) -> bool:
    """True if ``iterable`` may yield a tensor; found without iterating over it."""
    if is_instance(iterable, range | str | bytes):
        return False
    if is_instance(iterable, list | tuple | set | frozenset | collections.deque):
        return any(is_instance(item, torch.Tensor) for item in elements(iterable))
    if is_instance(iterable, dict):
        return any(is_instance(item, torch.Tensor) for item in dict.keys(iterable))
    return True


CODE = (
    {_running.__code__, *element_consumers.CODE}
    | {function.__code__ for _, _, function in _RULES if is_instance(function, types.FunctionType)}
    | {
        constant
        for maker in (variadic, _iter_until, _partial, *_GETTERS.values())
        for constant in maker.__code__.co_consts
        if is_instance(constant, types.CodeType) and not constant.co_name.startswith("<")
    }
)
"""The code objects of this package that the monitor follows."""
