"""Public functions: compile, explain, cache_info, reset, disable, is_compiling, mark_dynamic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn

from magpy_like.active_run import is_monitoring
from magpy_like.compiled_module import CompiledModule
from magpy_like.errors import MagpyError
from magpy_like.monitor.calls import compiled_callees
from magpy_like.monitor.disabled_functions import mark_disabled
from magpy_like.monitor.symbolic.dynamic_marks import mark_dimension
from magpy_like.records.interface import CacheInfo, Explanation, make_dispatcher, reset_all
from magpy_like.torch_patches import untraced

T = TypeVar("T", bound=Callable[..., Any])


def compile(
    target: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "magpy",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Compile a module, function or bound method; the arguments are those of ``torch.compile``.

    The first call runs the program natively under the monitor; later calls whose guard holds run
    the compiled operator graph and repeat the recorded side effects (MagPy, section 3).

    Args:
        target: a module or callable. Without one, ``compile`` returns a decorator.
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

    Returns:
        A :class:`CompiledModule` for a module, else a function with the target's signature. A
        compiled target is returned as it is.

    Raises:
        TypeError: the target is not callable, or the backend is neither a name nor callable.
        ValueError: the backend is unknown, or a mode or an option of ``"magpy"``, or an option has
            an unsuitable value.
    """
    settings: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": options,
    }
    if target is None:
        return functools.partial(compile, **settings)
    if isinstance(target, CompiledModule) or hasattr(target, "_magpy_dispatcher"):
        return target
    if not callable(target):
        raise TypeError(f"compile needs a module or function, not a {type(target).__name__}")
    dispatcher = make_dispatcher(target, **settings)
    if isinstance(target, nn.Module):
        return CompiledModule(target, dispatcher)

    @functools.wraps(target, updated=())
    @untraced
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return dispatcher.call(args, kwargs)

    compiled_callees.register_wrapper(compiled, "__wrapped__")
    compiled._magpy_dispatcher = dispatcher  # type: ignore[attr-defined]
    return compiled


def _dispatcher(compiled: Any) -> Any:
    if isinstance(compiled, CompiledModule):
        return compiled.__dict__["_magpy"]
    found = getattr(compiled, "_magpy_dispatcher", None)
    if found is None:
        raise MagpyError(f"{compiled!r} is not something that magpy_like.compile returned")
    return found


def cache_info(compiled: Any) -> CacheInfo:
    """Hits, misses, records and operator graphs of a compiled function or module.

    Raises:
        MagpyError: ``compiled`` was not returned by ``compile``.
    """
    return cast(CacheInfo, _dispatcher(compiled).cache_info())


def explain(target: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Run the program once under the monitor, and report the records of that run.

    The run is real: its side effects happen, once. Its result is discarded.

    Args:
        target: a module or callable, compiled or not. The findings of a compiled one, such as
            which values vary, are used.
        args, kwargs: the arguments of the call.

    Raises:
        Exception: any exception that the program raises.
    """
    compiled = isinstance(target, CompiledModule) or hasattr(target, "_magpy_dispatcher")
    known = _dispatcher(target) if compiled else None
    dispatcher = make_dispatcher(target if known is None else known.target, backend="eager")
    return cast(Explanation, dispatcher.explain(args, kwargs, known))


def reset(compiled: Any = None) -> None:
    """Discard all records of one compiled function or module, or of every one (None).

    Raises:
        MagpyError: ``compiled`` was not returned by ``compile``.
    """
    if compiled is None:
        reset_all()
    else:
        _dispatcher(compiled).reset()


def disable(fn: T) -> T:
    """A wrapper of a function whose calls are never part of a record: programs split there."""

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    mark_disabled(disabled)
    return cast(T, disabled)


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
        IndexError: the tensor has no such dimension.
    """
    mark_dimension(tensor, dim)
