"""Backends: from the ``backend`` argument of ``compile`` to a function that compiles a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import fx

from magpy_like.compile_modes import compile_settings
from magpy_like.errors import ArgumentError, closest_name, known_names
from magpy_like.graph_operators.profiled_graphs import interpreted
from magpy_like.native.instance_checks import is_instance

RELIABLE = frozenset({"eager", "aot_eager", "inductor", "magpy"})
"""Backends whose compiled graphs raise only if one of the operators does."""


def resolve_backend(
    backend: str | Callable[..., Any], mode: str | None, options: dict[str, Any] | None
) -> Callable[[fx.GraphModule, Any], Callable[..., Any]]:
    """The callable ``(graph, example_inputs) -> callable`` of a backend.

    Raises:
        ArgumentError: the backend is neither callable nor registered with ``torch._dynamo``, or it
            has no such mode or option, or none with such a value.
    """
    if backend == "magpy":
        from magpy_like.compiler.compile_fx import compile_untransformed

        compile_settings(mode, options)
        return functools.partial(compile_untransformed, mode=mode, options=options)
    if not is_instance(mode, str | None):
        raise ArgumentError("compile", "mode", mode, "takes the name of a mode or None")
    if callable(backend):
        extra = {k: v for k, v in (("mode", mode), ("options", options)) if v is not None}
        return functools.partial(backend, **extra) if extra else backend
    if backend == "eager":
        return lambda graph, inputs: interpreted(graph)
    from magpy_like.torch_compat.dynamo import list_backends, lookup_backend

    names = list_backends(None)
    if backend not in names:
        known = known_names(backend, sorted({"eager", "magpy", *names}))
        fault = f"unknown backend; there are {known}, and callables"
        raise ArgumentError("compile", "backend", backend, fault)
    found = lookup_backend(backend)
    if backend == "inductor" and (mode or options):
        _check_inductor(mode, options or {})
        found = functools.partial(_inductor, found, mode, options)
    return functools.partial(_named, found)


def _check_inductor(mode: str | None, options: dict[str, Any]) -> None:
    from magpy_like.torch_compat.inductor_names import mode_names, option_names

    if mode is not None and mode not in mode_names():
        known = known_names(mode, mode_names())
        raise ArgumentError("compile", "mode", mode, f"unknown mode; there are {known}")
    for name, value in options.items():
        if name.replace("-", "_") not in option_names():
            fault = f"unknown option of Inductor{closest_name(name, option_names())}"
            raise ArgumentError("compile", f"options[{name!r}]", value, fault)


def _named(found: Callable[..., Any], graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    from magpy_like.compiler.passes.inner_gradients import retain_inner_graphs
    from magpy_like.torch_interop.tracing_lock import TRACING_LOCK  # needs the native helper

    retain_inner_graphs(graph)
    with TRACING_LOCK:
        compiled: Callable[..., Any] = found(graph, inputs)
    return compiled


def _inductor(
    found: Callable[..., Any],
    mode: str | None,
    options: dict[str, Any] | None,
    graph: Any,
    inputs: Any,
) -> Any:
    patches = dict(options or {})
    if mode and mode != "default":
        from magpy_like.torch_compat.inductor_names import mode_options

        patches.update(mode_options(mode))
    return found(graph, inputs, config_patches=patches)
