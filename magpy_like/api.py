"""What users call: ``compile``, ``explain``, ``cache_info``, ``reset``, ``disable`` and friends."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn

from magpy_like.errors import MagpyError
from magpy_like.monitor.calls import compiled_callees
from magpy_like.monitor.symbolic.dynamic_marks import mark_dimension
from magpy_like.records.interface import CacheInfo, Explanation, make_dispatcher, reset_all
from magpy_like.split_points import is_monitoring, mark_disabled
from magpy_like.torch_patches import untraced

T = TypeVar("T", bound=Callable[..., Any])


class CompiledModule(nn.Module):
    """A module that runs by records. All but the call itself is the wrapped module's own."""

    def __init__(self, module: nn.Module, dispatcher: Any) -> None:
        self.__dict__["_orig_mod"] = module
        self.__dict__["_magpy"] = dispatcher

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_magpy"].call(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_orig_mod"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_orig_mod"], name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._orig_mod), "_orig_mod"})

    def __len__(self) -> int:
        return len(cast(Any, self._orig_mod))

    def __getitem__(self, index: Any) -> Any:
        return cast(Any, self._orig_mod)[index]

    def __iter__(self) -> Any:
        return iter(cast(Any, self._orig_mod))

    def __contains__(self, key: Any) -> bool:
        return key in cast(Any, self._orig_mod)

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __repr__(self) -> str:
        return repr(self._orig_mod)

    @property
    def forward(self) -> Callable[..., Any]:
        return self._orig_mod.forward

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return _rebuild(copy.deepcopy(self._orig_mod, memo), _settings(self._magpy))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._orig_mod, _settings(self._magpy))


compiled_callees.register_wrapper(CompiledModule, "_orig_mod")


def _settings(dispatcher: Any) -> dict[str, Any]:
    names = ("fullgraph", "dynamic", "backend", "mode", "options")
    return {name: getattr(dispatcher, name) for name in names}


def _rebuild(module: nn.Module, settings: dict[str, Any]) -> CompiledModule:
    return CompiledModule(module, make_dispatcher(module, **settings))


def compile(
    target: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "magpy",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Make a module, function or bound method fast; the arguments are those of ``torch.compile``.

    The first call runs the program natively under the monitor; later calls whose guard holds run
    the compiled operator graph and the recorded side effects (MagPy, section 3). Without a target
    it is a decorator.

    Args:
        fullgraph: raise :class:`FullGraphError` at a split instead of running natively.
        dynamic: ``True``: all sizes of all input tensors may vary without a new record; ``False``:
            nothing may; ``None``: what has varied between calls may from then on, dimension by
            dimension and number by number.
        backend: a name or a callable ``(gm, example_inputs) -> callable``.
        mode, options: passed to the backend, but for two options: ``generalise_after``, the number
            of records before what varies is lifted (1), and ``record_limit``, that of records
            before the program runs eagerly (8).

    Raises:
        TypeError: the target is not callable.
        ValueError: the backend is unknown, or one of the two options is no positive number.
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
    """Hits, misses, records and operator graphs of a compiled function or module."""
    return cast(CacheInfo, _dispatcher(compiled).cache_info())


def explain(target: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Run the program once under the monitor and report what a record of it consists of.

    The run is real: it returns nothing, but its side effects happen, once. ``target`` may be
    compiled or not; what calls of a compiled one have shown, such as what varies, is known.
    """
    compiled = isinstance(target, CompiledModule) or hasattr(target, "_magpy_dispatcher")
    known = _dispatcher(target) if compiled else None
    dispatcher = make_dispatcher(target if known is None else known.target, backend="eager")
    return cast(Explanation, dispatcher.explain(args, kwargs, known))


def reset(compiled: Any = None) -> None:
    """Forget all records, of one compiled function or of every one."""
    if compiled is None:
        reset_all()
    else:
        _dispatcher(compiled).reset()


def disable(fn: T) -> T:
    """A function that is never part of a record: programs split around its calls."""

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    mark_disabled(disabled)
    return cast(T, disabled)


def is_compiling() -> bool:
    """Whether this thread is inside a monitor run; ``torch.compiler.is_compiling()`` agrees."""
    return is_monitoring()


def mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Say that a dimension of an input varies between calls (0 is the first, -1 the last).

    The first call with the tensor makes a record for all sizes of that dimension. When the program
    needs the size that it has, that call raises :class:`DynamicDimensionError`.

    Raises:
        IndexError: the tensor has no such dimension.
    """
    mark_dimension(tensor, dim)
