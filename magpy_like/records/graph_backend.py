"""Compilation of a dispatcher's operator graphs by the backend of ``compile``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch

from magpy_like.compiler.autograd.overwritten_saved_values import (
    find_nonleaf_inputs,
    may_overwrite_saved_tensors,
)
from magpy_like.compiler.graph_partition import (
    compile_in_parts,
    eager_under_autograd,
    make_interpreter,
)
from magpy_like.compiler.runtime.cuda_graphs.capture_reports import collecting
from magpy_like.errors import ArgumentError
from magpy_like.graph_operators.checkpoint_operator import mark_eager_checkpoints
from magpy_like.graph_operators.control_operators import has_parts
from magpy_like.interruption import is_interruption
from magpy_like.logs import topic
from magpy_like.records.backend_names import RELIABLE, resolve_backend
from magpy_like.records.program_continuations import ProgramState
from magpy_like.synthesis.mock.unused_results import compile_with_unused_results
from magpy_like.synthesis.shared_graphs import CompiledGraph, compile_assumptions
from magpy_like.torch_compat.operators import make_dual, unpack_dual
from magpy_like.torch_interop.symbols import is_symbolic

_graph_log = topic("graph")

_OF_TANGENTS = {make_dual, unpack_dual}
"""Operators of forward-mode differentiation, inside a level that the graph does not enter."""


class GraphBackend:
    """Compiles the operator graphs of one compiled function or continuation."""

    def __init__(
        self,
        name: Callable[[], str],
        backend: str | Callable[..., Any],
        mode: str | None,
        options: dict[str, Any] | None,
        *,
        fullgraph: bool,
        is_continuation: bool,
    ) -> None:
        """``name`` returns the name of the function, for people.

        Raises:
            TypeError, ValueError: see :func:`resolve_backend`.
        """
        self._name = name
        self._backend, self._fullgraph = backend, fullgraph
        self._is_continuation = is_continuation
        self._compile = resolve_backend(backend, mode, options)

    @property
    def name(self) -> str:
        """The name of the compiled function or continuation."""
        return self._name()

    def compile(
        self, graph: torch.fx.GraphModule, inputs: Any, program: ProgramState
    ) -> CompiledGraph:
        """Compile a graph for example inputs, in the way that the whole program requires."""
        if _graph_log.isEnabledFor(logging.INFO):
            _graph_log.info("%s: operator graph\n%s", self.name, graph.print_readable(False))
        may_fail = self._backend not in RELIABLE
        if program.exposes_autograd_graph:
            return CompiledGraph(graph, make_interpreter(graph))
        before = find_nonleaf_inputs(graph, inputs) if self._is_continuation else []
        if self._backend != "eager" and may_overwrite_saved_tensors(graph, before):
            program.run_eagerly_with_gradients()
        eagerly = program.eager_with_gradients
        mark_eager_checkpoints(graph, inlines=self._backend == "magpy")
        if has_parts(graph):
            varying = [is_symbolic(value) for value in inputs]
            with collecting(program.launchers):
                run = compile_in_parts(
                    graph, self._compile_graph, varying, eager_with_gradients=eagerly
                )
            return CompiledGraph(graph, run, may_fail)
        with collecting(program.launchers):
            compiled = program.graphs.compiled(
                graph,
                () if self._backend == "eager" else compile_assumptions(inputs),
                lambda: CompiledGraph(graph, self._compile_graph(graph, inputs), may_fail),
            )
        if not eagerly:
            return compiled
        run = eager_under_autograd(compiled.graph, compiled.run)
        return CompiledGraph(compiled.graph, run, may_fail)

    def _compile_graph(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        if any(node.target in _OF_TANGENTS for node in graph.graph.nodes):
            return cast(Callable[..., Any], graph.forward)
        try:
            return compile_with_unused_results(graph, lambda whole: self._call(whole, inputs))
        except ArgumentError:
            raise
        except Exception as error:
            if self._fullgraph or is_interruption(error):
                raise
            warnings.warn(
                f"magpy_like: backend {self._backend!r} could not compile the operator graph of "
                f"{self.name}; it runs operator by operator: {type(error).__name__}: {error}",
                stacklevel=2,
            )
            return cast(Callable[..., Any], graph.forward)

    def _call(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        compiled = self._compile(graph, inputs)
        if not callable(compiled):
            fault = f"the backend returned {compiled!r}, where it must return a callable"
            raise ArgumentError("compile", "backend", self._backend, fault)
        return compiled
