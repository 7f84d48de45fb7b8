"""Public functions: compile, explain, cache_info, reset, disable, is_compiling, mark_dynamic."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from magpy_like.active_run import is_monitoring
from magpy_like.arguments import check
from magpy_like.compiled_class import compiled_class, is_class_of_python
from magpy_like.compiled_module import (
    compiled_method_of,
    compiled_object,
    dispatchers_of,
    has_callable_instances,
    has_compiled_form,
    is_compiled_object,
    keep_signature,
)
from magpy_like.disabled_module import (
    disable_instances,
    disabled_function,
    disabled_module,
    original_of_disabled,
)
from magpy_like.errors import ArgumentError, MagpyWarning
from magpy_like.monitor.calls import compiled_callees, torch_wrappers
from magpy_like.monitor.symbolic.dynamic_marks import mark_dimension
from magpy_like.native.instance_checks import is_instance
from magpy_like.records.dispatcher_making import make_dispatcher
from magpy_like.records.interface import CacheInfo, Explanation, reset_all
from magpy_like.records.reports import calling_location
from magpy_like.torch_patches import untraced
from magpy_like.wrapper_classes import original_class

T = TypeVar("T", bound=Callable[..., Any])


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "magpy",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a module, function or bound method; the arguments are those of ``torch.compile``.

    The first call runs the program natively under the monitor; later calls whose guard holds run
    the compiled operator graph and repeat the recorded side effects (MagPy, section 3).

    Args:
        model: a module, a callable, or a class method, static method or property of one. Without a
            model, ``compile`` returns a decorator.
        fullgraph: raise :class:`FullGraphError` at a split instead of splitting the program.
        dynamic: ``True``: all sizes of all input tensors may vary without a new record; ``False``:
            no size or number may; ``None``: a size or number that has varied between calls may
            vary from then on, dimension by dimension and number by number.
        backend: a name, or a callable ``(gm, example_inputs) -> callable``.
        mode: one of ``torch.compile``'s. It decides about CUDA graphs: ``None`` and ``"default"``
            use them where launches bound a call, ``"reduce-overhead"`` and ``"max-autotune"``
            wherever possible, ``"max-autotune-no-cudagraphs"`` nowhere.
        options: ``cuda_graphs`` (bool, overrides the mode), ``strict`` (bool, raise instead of
            running anything unsupported through ATen), ``trace`` (a folder for every stage of the
            compiler), and ``record_limit`` and ``generalise_after``: see
            :class:`magpy_like.config.Config`. Another backend receives ``mode`` and all other
            options as they are.
        disable: compile nothing: return the model itself.

    Returns:
        For a module, or an instance of a class with a ``__call__``, an object that shares its
        state and answers with its class; for a class, a class with the same instances; for a bound
        method, a method bound to the same object; for a ``functools.partial``, one of the compiled
        function; else a function with the target's signature. A compiled target is returned as it
        is if it has these settings; with others, the original is compiled anew, and the first one
        stays as it was.

    Raises:
        ArgumentError: an argument, a mode, a backend's name or an option is none that exists.
    """
    settings: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": options,
    }
    check(
        "compile",
        fullgraph=fullgraph, dynamic=dynamic, backend=backend, options=options, disable=disable,
    )  # fmt: skip
    if model is None:
        return functools.partial(compile, **settings, disable=disable)
    if isinstance(model, _DESCRIPTORS):
        return _compiled_descriptor(model, functools.partial(compile, **settings, disable=disable))
    check("compile", model=model)
    original, known = _original(model)
    if disable:
        return original
    if known is not None and _has_settings(known, settings):
        return model
    if _is_method_of_python(original):
        # As any method: it is copied and pickled with its object.
        return types.MethodType(compile(original.__func__, **settings), original.__self__)
    if _is_partial_of_python(original):
        return _with_function(original, compile(original.func, **settings))
    dispatcher = make_dispatcher(original, **settings)
    if _runs_after_its_call(original):
        return _uncompiled_copy(original, dispatcher)
    if has_compiled_form(original):
        return compiled_object(original, dispatcher)
    if is_class_of_python(original):
        if has_callable_instances(original):
            _warn_of_construction(original)
        return compiled_class(original, dispatcher)
    return _compiled_function(original, dispatcher)


_DESCRIPTORS = (classmethod, staticmethod, property, functools.cached_property)


def _compiled_descriptor(model: Any, compiled: Callable[[Any], Any]) -> Any:
    """A descriptor of compiled functions: ``compile`` above ``@classmethod`` means the same as
    below."""
    if isinstance(model, property):
        get, put, delete = (f and compiled(f) for f in (model.fget, model.fset, model.fdel))
        return property(get, put, delete, model.__doc__)
    if isinstance(model, functools.cached_property):
        return functools.cached_property(compiled(model.func))
    return type(model)(compiled(model.__func__))


def _warn_of_construction(cls: type) -> None:
    name = cls.__qualname__
    _warn(
        f"compile({name}) compiles how instances of {name} are made, not their calls",
        f"compile({name}(…)), or decorate the method that they call",
    )


def _warn(fault: str, remedy: str) -> None:
    """Warn at the line that calls ``compile``."""
    text, where = f"magpy_like: {fault}. To mend it: {remedy}", calling_location()
    warnings.warn_explicit(text, MagpyWarning, where.filename, where.lineno)


_RUNS_AFTER_ITS_CALL = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _runs_after_its_call(target: Any) -> bool:
    """True for generator functions and asynchronous ones."""
    flags = target.__code__.co_flags if type(target) is types.FunctionType else 0
    return bool(flags & _RUNS_AFTER_ITS_CALL)


def _is_copy(model: Any) -> bool:
    """True for what :func:`_uncompiled_copy` has returned."""
    known = vars(model).get("_magpy_dispatcher") if _runs_after_its_call(model) else None
    return known is not None and getattr(known.target, "__code__", None) is model.__code__


def _uncompiled_copy(target: Any, dispatcher: Any) -> Callable[..., Any]:
    """A copy of a function whose body no record can hold: it is one of the same kind to whoever
    asks whether to await or to iterate over the result."""
    copy = types.FunctionType(
        target.__code__, target.__globals__, None, target.__defaults__, target.__closure__
    )
    copy.__kwdefaults__ = target.__kwdefaults__
    functools.update_wrapper(copy, target)
    copy._magpy_dispatcher = dispatcher  # type: ignore[attr-defined]
    kind = "a generator function" if inspect.isgeneratorfunction(target) else "asynchronous"
    _warn(
        f"{target.__qualname__} runs eagerly: it is {kind}, so its body runs after the call",
        "compile the functions that it calls",
    )
    return copy


def _is_method_of_python(model: Any) -> bool:
    return type(model) is types.MethodType and type(model.__func__) is types.FunctionType


def _compiled_function(target: Callable[..., Any], dispatcher: Any) -> Callable[..., Any]:
    """The function that runs a target by a dispatcher.

    Its globals are the target's, in which others look up names of annotations and doctest looks
    for functions.
    """
    names, cells = getattr(target, "__globals__", globals()), (types.CellType(dispatcher),)
    compiled = types.FunctionType(_TEMPLATE.__code__, names, None, None, cells)
    compiled.__dict__.update(_TEMPLATE.__dict__)
    functools.update_wrapper(compiled, target, updated=())
    keep_signature(compiled, target)
    for name, value in _attributes(target):
        compiled.__dict__.setdefault(name, value)
    compiled.__dict__.update(torch_wrappers.marks(compiled, target))
    compiled.__dict__["_magpy_dispatcher"] = dispatcher
    return compiled


def _function_template(dispatcher: Any) -> Any:
    @untraced
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return dispatcher.call(args, kwargs)

    compiled_callees.register_wrapper(compiled, "__wrapped__")
    return compiled


_TEMPLATE = _function_template(None)


def _attributes(target: Callable[..., Any]) -> list[tuple[str, Any]]:
    """What a program has set on a function, and the methods of a cached one."""
    own = [item for item in getattr(target, "__dict__", {}).items() if not item[0].startswith("_")]
    if is_instance(target, functools._lru_cache_wrapper):
        own += [(name, getattr(target, name)) for name in _OF_CACHES]
    return own


_OF_CACHES = ("cache_info", "cache_clear", "cache_parameters")


def _original(model: Any) -> tuple[Any, Any]:
    """What a compiled object, class, function or method was compiled from, and its dispatcher.

    Anything else is its own original, without a dispatcher: a function that wraps a compiled one,
    too, although ``functools.wraps`` copies its attributes.
    """
    method = compiled_method_of(model)
    if method is not None:
        return method.target, method
    if type(model) is types.MethodType:
        function, known = _original(model.__func__)
        return (
            (model, None) if known is None else (types.MethodType(function, model.__self__), known)
        )
    if type(model) is functools.partial:
        function, known = _original(model.func)
        return (model, None) if known is None else (_with_function(model, function), known)
    if _dispatchers(model) and (compiled_callees.is_wrapper(model) or _is_copy(model)):
        known = _dispatcher(model)
        return known.target, known
    of_class = original_class(model)  # of the class of a compiled object
    for inner in (_original_of_torchs(model), original_of_disabled(model), of_class):
        if inner is not model:
            return _original(inner)
    return model, None


def _is_partial_of_python(target: Any) -> bool:
    inner = target.func if type(target) is functools.partial else None
    return is_instance(inner, types.FunctionType | types.MethodType | torch.nn.Module)


def _with_function(partial: functools.partial[Any], function: Any) -> functools.partial[Any]:
    """The same arguments and attributes, for another function."""
    found = functools.partial(function, *partial.args, **partial.keywords)
    vars(found).update(vars(partial))
    return found


def _original_of_torchs(model: Any) -> Any:
    """What ``torch.compile`` or ``torch.compiler.disable`` has wrapped: the last call decides."""
    if torch_wrappers.role_of(model) is None:
        return model
    if torch_wrappers.is_optimized_module(model) and torch_wrappers.has_own_hooks(model):
        return model
    return torch_wrappers.original_of(model)


def _has_settings(dispatcher: Any, settings: dict[str, Any]) -> bool:
    return all(_is_same(getattr(dispatcher, name), value) for name, value in settings.items())


def _is_same(a: Any, b: Any) -> bool:
    """``a`` and ``b`` are one object, or equal names and dictionaries of such."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_is_same(a[name], b[name]) for name in a)
    return a is b or (type(a) is type(b) and isinstance(a, str | int | float) and a == b)


def _dispatchers(compiled: Any) -> list[Any]:
    """The dispatchers of what ``compile`` returned, the one of its calls first; [] for others."""
    if is_compiled_object(compiled):
        return dispatchers_of(compiled)
    if type(compiled) is functools.partial:
        return _dispatchers(compiled.func)
    method = compiled_method_of(compiled)
    if method is not None:
        return [method]
    function = compiled.__func__ if is_instance(compiled, types.MethodType) else compiled
    found = None
    if is_instance(function, types.FunctionType | type):
        found = vars(function).get("_magpy_dispatcher")
    return [] if found is None else [found]


def _known_dispatchers(compiled: Any, function: str = "cache_info") -> list[Any]:
    found = _dispatchers(compiled)
    if not found:
        fault = "takes something that magpy_like.compile returned"
        raise ArgumentError(function, "compiled", compiled, fault)
    return found


def _dispatcher(compiled: Any) -> Any:
    """The dispatcher of its calls."""
    return _known_dispatchers(compiled)[0]


def cache_info(compiled: Any) -> CacheInfo:
    """Hits, misses, records and operator graphs of a compiled function or module.

    Those of a module are over its calls and over those of its compiled methods, such as
    ``forward``; ``cache_info(module.forward)`` has the latter.

    Raises:
        ArgumentError: ``compiled`` was not returned by ``compile``.
    """
    infos = [dispatcher.cache_info() for dispatcher in _known_dispatchers(compiled)]
    return CacheInfo(*map(sum, zip(*infos, strict=True)))


def explain(target: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Run the program once under the monitor, and report the records of that run.

    The run is real: its side effects happen, once. Its result is discarded.

    Args:
        target: a module or callable, compiled or not. The findings of a compiled one, such as
            which values vary, are used.
        args, kwargs: the arguments of the call.

    Raises:
        ArgumentError: the target is not callable.
        Exception: any exception that the program raises.
    """
    check("explain", target=target)
    original, known = _original(target)
    if known is not None and type(original) is functools.partial:
        args, kwargs = (*original.args, *args), original.keywords | kwargs
        original = original.func
    if known is not None and known.target is not original:  # a method whose function is compiled
        original, args = known.target, (original.__self__, *args)
    dispatcher = make_dispatcher(original, backend="eager")
    return cast(Explanation, dispatcher.explain(args, kwargs, known))


def reset(compiled: Any = None) -> None:
    """Discard all records of one compiled function or module, or of every one (None).

    Raises:
        ArgumentError: ``compiled`` was not returned by ``compile``.
    """
    if compiled is None:
        reset_all()
    else:
        for dispatcher in _known_dispatchers(compiled, "reset"):
            dispatcher.reset()


def disable(fn: T) -> T:
    """A wrapper of a function whose calls are never part of a record: programs split there.

    For a module, a module that shares its state; a class whose instances can be called is returned
    itself, and its instances are disabled from now on. A compiled function or module is wrapped as
    it was before. ``torch.compiler.disable`` has the same effect.

    Raises:
        ArgumentError: ``fn`` is not callable.
    """
    check("disable", fn=fn)
    original, _ = _original(fn)
    if is_instance(original, torch.nn.Module):
        return cast(T, disabled_module(original))
    if is_class_of_python(original) and has_callable_instances(original):
        return cast(T, disable_instances(original))
    return cast(T, disabled_function(original))


def is_compiling() -> bool:
    """True if this thread is in a monitor run; ``torch.compiler.is_compiling()`` agrees."""
    return is_monitoring()


def mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Mark a dimension of an input as varying between calls.

    The first call with the tensor creates a record for all sizes of that dimension. If the program
    specializes the size, that call raises :class:`DynamicDimensionError`.

    Args:
        tensor: the input tensor, of at least one dimension.
        dim: counts from 0, or from -1 backwards.

    Raises:
        ArgumentError: the tensor is none, or ``dim`` is not an int.
        DimensionError: the tensor has no such dimension; also an IndexError.
    """
    check("mark_dynamic", tensor=tensor, dim=dim)
    mark_dimension(tensor, dim)
