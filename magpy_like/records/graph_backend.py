"""Compilation of a dispatcher's operator graphs by the backend of ``compile``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from magpy_like.compiler.autograd.overwritten_saved_values import (
    find_nonleaf_inputs,
    may_overwrite_saved_tensors,
)
from magpy_like.compiler.compiler_errors import collecting_fallbacks
from magpy_like.compiler.graph_partition import (
    compile_in_parts,
    eager_under_autograd,
    make_interpreter,
)
from magpy_like.compiler.runtime.cuda_graphs.capture_reports import collecting
from magpy_like.errors import ArgumentError
from magpy_like.graph_operators.checkpoint_operator import mark_eager_checkpoints
from magpy_like.graph_operators.control_operators import has_parts
from magpy_like.graph_operators.node_metadata import first_line_of
from magpy_like.graph_operators.profiled_graphs import interpreted, regions_of, show_regions
from magpy_like.interruption import is_interruption
from magpy_like.logs import topic
from magpy_like.records.backend_names import RELIABLE, resolve_backend
from magpy_like.records.program_continuations import ProgramState
from magpy_like.records.reports import Kind, Location
from magpy_like.synthesis.mock.unused_results import compile_with_unused_results
from magpy_like.synthesis.shared_graphs import CompiledGraph, compile_assumptions
from magpy_like.torch_compat.operators import make_dual, unpack_dual
from magpy_like.torch_interop.error_texts import in_words
from magpy_like.torch_interop.symbols import is_symbolic

_graph_log = topic("graph")

_OF_TANGENTS = {make_dual, unpack_dual}
"""Operators of forward-mode differentiation, inside a level that the graph does not enter."""


_OTHER_BACKEND = 'mend the backend, or use backend="magpy"'
_OTHER_OPERATORS = (
    "move what cannot be compiled out of the function; results are right either way. "
    'options={"strict": True} makes it an error'
)


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
            return CompiledGraph(graph, make_interpreter(graph), is_compiled=False)
        before = find_nonleaf_inputs(graph, inputs) if self._is_continuation else []
        if self._backend != "eager" and may_overwrite_saved_tensors(graph, before):
            program.run_eagerly_with_gradients()
        eagerly = program.eager_with_gradients
        mark_eager_checkpoints(graph, inlines=self._backend == "magpy")
        if has_parts(graph):
            varying = [is_symbolic(value) for value in inputs]
            with collecting(program.launchers):
                run = compile_in_parts(
                    graph,
                    lambda part, values: self._compile_graph(part, values, program)[0],
                    varying,
                    eager_with_gradients=eagerly,
                )
            return CompiledGraph(graph, run, may_fail)

        def compile_graph() -> CompiledGraph:
            run, is_compiled = self._compile_graph(graph, inputs, program)
            return CompiledGraph(graph, run, may_fail, is_compiled)

        with collecting(program.launchers):
            compiled = program.graphs.compiled(
                graph,
                () if self._backend == "eager" else compile_assumptions(inputs),
                compile_graph,
            )
        if not eagerly:
            return compiled
        run = eager_under_autograd(compiled.graph, compiled.run)
        return CompiledGraph(compiled.graph, run, may_fail, compiled.is_compiled)

    def _compile_graph(
        self, graph: torch.fx.GraphModule, inputs: Any, program: ProgramState
    ) -> tuple[Callable[..., Any], bool]:
        """The callable of a graph, and whether the backend has compiled it."""
        if any(node.target in _OF_TANGENTS for node in graph.graph.nodes):
            return interpreted(graph), False
        try:
            with collecting_fallbacks() as fallbacks:
                run = compile_with_unused_results(graph, lambda whole: self._call(whole, inputs))
        except ArgumentError:
            raise
        except Exception as error:
            if self._fullgraph or is_interruption(error):
                raise
            reason = f"backend {self._backend!r} could not compile its graph: {in_words(error)}"
            self._report(program, graph, reason, _OTHER_BACKEND, first_line_of(graph))
            return interpreted(graph), False
        for found in fallbacks:
            line = found.line or first_line_of(graph)
            self._report(program, graph, str(found), _OTHER_OPERATORS, line)
        if self._backend not in ("magpy", "eager"):
            run = show_regions(run, regions_of(graph))
        return run, not fallbacks

    def _report(
        self,
        program: ProgramState,
        graph: torch.fx.GraphModule,
        reason: str,
        remedy: str,
        line: str | None,
    ) -> None:
        """Report that a graph runs operator by operator."""
        filename, _, lineno = (line or "").rpartition(":")
        where = Location(filename, int(lineno), "") if filename else None
        program.reports.note(Kind.UNCOMPILED, reason, remedy, where)

    def _call(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        compiled = self._compile(graph, inputs)
        if not callable(compiled):
            fault = f"the backend returned {compiled!r}, where it must return a callable"
            raise ArgumentError("compile", "backend", self._backend, fault)
        return compiled
