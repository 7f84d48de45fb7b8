"""The dispatcher of a compiled function: with the native helper, while it is compiled, and without.

The monitor needs the helper. Where that cannot be used, programs run natively after one warning.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

from magpy_like.compile_modes import compile_settings
from magpy_like.errors import MagpyWarning
from magpy_like.native import helper_status
from magpy_like.records.interface import CacheInfo, Explanation, dispatchers, native_call
from magpy_like.records.record_limits import Limits
from magpy_like.records.reports import calling_location
from magpy_like.split_points import SplitPoint
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_compat import supported_torch

_warning_lock = threading.Lock()
_has_warned = False


def make_dispatcher(target: Callable[..., Any], **settings: Any) -> Any:
    """The dispatcher of a compiled function. ``settings`` are the arguments of ``compile``."""
    if helper_status.is_decided():
        return _dispatcher_of_process(target, settings)
    helper_status.start_build()
    return DeferredDispatcher(target, **settings)


def _dispatcher_of_process(target: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """A ``Dispatcher``; an ``UncompiledProgram`` without the native helper, with one warning."""
    reason = helper_status.obstacle()
    difference = supported_torch.difference()
    if reason is None:
        from magpy_like.native import own_work

        try:
            with own_work:  # an import that is interrupted leaves locks held and modules half made
                from magpy_like.records.dispatcher import Dispatcher
        except (AttributeError, ImportError) as error:
            if not difference:
                raise
            reason = f"{difference}: {error}."
    if reason is None:
        if difference:
            _warn_once(f"magpy_like compiles programs as far as that works: {difference}.")
        with own_work:
            return Dispatcher(target, **settings)
    dispatcher = UncompiledProgram(target, reason, **settings)
    _warn_once(
        "magpy_like compiles nothing in this process: all programs run natively, with the same "
        f"results but no faster. The reason: {reason} Then restart the process."
    )
    return dispatcher


def _warn_once(text: str) -> None:
    """Warn at the user's line, once in a process."""
    global _has_warned
    with _warning_lock:
        is_first, _has_warned = not _has_warned, True
    if is_first:
        where = calling_location()
        warnings.warn_explicit(text, MagpyWarning, where.filename, where.lineno)


class _CheckedSettings:
    """A target and the arguments of ``compile``, checked without the helper."""

    def __init__(
        self,
        target: Callable[..., Any],
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: str | Callable[..., Any] = "magpy",
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Takes the arguments of ``compile``.

        Raises:
            TypeError, ValueError: see ``compile``.
        """
        _check(backend, mode, options)
        self.target = target
        self.fullgraph, self.dynamic = fullgraph, dynamic
        self.backend, self.mode, self.options = backend, mode, options
        self.on_miss: Callable[[], Callable[..., Any]] | None = None
        """See ``native_call``."""


class DeferredDispatcher(_CheckedSettings):
    """The dispatcher of a compiled function while the native helper is compiled.

    The first use that needs records waits for the helper.
    """

    def __init__(self, target: Callable[..., Any], **settings: Any) -> None:
        super().__init__(target, **settings)
        self._settings = settings
        self._lock = threading.RLock()
        self._made: Any = None

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._dispatcher().call(args, kwargs)

    def cache_info(self) -> CacheInfo:
        return CacheInfo(0, 0, 0, 0) if self._made is None else self._made.cache_info()

    def reset(self) -> None:
        if self._made is not None:
            self._made.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher(), name)

    def _dispatcher(self) -> Any:
        with self._lock:
            if self._made is None:
                made = _dispatcher_of_process(self.target, self._settings)
                made.on_miss = self.on_miss
                self._made, self.call = made, made.call  # type: ignore[method-assign]
        return self._made


class UncompiledProgram(_CheckedSettings):
    """The dispatcher's interface where the native helper cannot be used: calls run the program."""

    def __init__(self, target: Callable[..., Any], reason: str, **settings: Any) -> None:
        """``reason``: why nothing can be monitored."""
        super().__init__(target, **settings)
        self.reason = reason
        self.native = 0
        dispatchers.add(self)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.native += 1
        return native_call(self)(*args, **kwargs)

    def cache_info(self) -> CacheInfo:
        return CacheInfo(0, 0, 0, 0, native=self.native)

    def explain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], known: Any = None
    ) -> Explanation:
        self.target(*args, **kwargs)
        name = getattr(self.target, "__qualname__", type(self.target).__qualname__)
        code = getattr(self.target, "__code__", None)
        cause = SplitCause(SplitReason.NO_MONITOR, self.reason)
        return Explanation(split_points=[SplitPoint.of(str(name), code, cause)])

    def reset(self) -> None:
        self.native = 0


def _check(
    backend: str | Callable[..., Any], mode: str | None, options: dict[str, Any] | None
) -> None:
    """Check these arguments of ``compile`` without the helper.

    Raises:
        TypeError, ValueError: see ``compile``.
    """
    _, backend_options = Limits.of(options)
    if backend == "magpy":  # which cannot be imported without the helper
        compile_settings(mode, backend_options)
    else:
        from magpy_like.records.backend_names import resolve_backend

        resolve_backend(backend, mode, backend_options)
