"""Partitioning of graphs with control flow: compiled parts, and Python that runs from part to part.

A graph is cut at its branches and loops (``graph_operators.control_operators``) and at operators
that run as they were recorded. Each part between two of them is a graph of its own for a backend,
and is compiled when it is first reached; branch bodies and loop bodies are partitioned likewise. A
plain ``if`` chooses the branch, a plain ``while`` or ``for`` repeats the body, and numbers and
lists are Python objects. Gradients flow as in eager mode: inputs of the branch that was not taken
receive none. A branch that returns an external tensor returns the tensor object itself.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.autograd.deferred_weight_gradients import (
    FACTORS_PER_WEIGHT,
    LoopExecution,
    add_auxiliary_inputs,
)
from magpy_like.compiler.inferred_dynamic_sizes import InputForm, VaryingInputs, input_form
from magpy_like.compiler.passes.mutations.overlapping_writes import (
    possible_aliases,
    written_arguments,
)
from magpy_like.compiler.writes_of_parts import note_writes
from magpy_like.graph_operators.control_operators import (
    CONTROL,
    RANGE_LOOPS,
    body_of,
    for_loop_with_exits,
    has_parts,
    is_between_parts,
    is_control,
    is_python_value,
    may_write,
)
from magpy_like.graph_operators.custom_functions import mark_custom_functions
from magpy_like.graph_operators.node_metadata import AS_IS, NUMBER
from magpy_like.graph_operators.node_origins import (
    ProfilerRegion,
    enclose,
    enclosing_regions,
)
from magpy_like.graph_operators.profiled_graphs import add_regions, interpreted
from magpy_like.torch_compat.operators import OpOverload
from magpy_like.torch_compat.tensor_memory import TensorGuards
from magpy_like.torch_compat.tracing.unobserved_modules import (
    UnobservedGraphModule,
    UnobservedModule,
)
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def make_interpreter(gm: fx.GraphModule) -> Callable[..., Any]:
    """A callable that runs the graph operator by operator, its branches and loops in Python."""
    if has_parts(gm):
        return compile_in_parts(gm, lambda graph, inputs: interpreted(graph))
    return interpreted(gm)


def eager_under_autograd(gm: fx.GraphModule, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``gm`` operator by operator where gradients are recorded, else ``compiled``.

    For graphs with writes to tensors that another part may have saved: in eager mode autograd
    checks the saved tensors of each operator by itself.
    """
    constants = (*gm.parameters(), *gm.buffers())
    run = interpreted(gm)

    def call(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(map(_requires_grad, (*args, *constants))):
            return run(*args)
        return compiled(*args)

    return call


def compile_in_parts(
    gm: fx.GraphModule,
    backend: Backend,
    varying: Sequence[bool] = (),
    *,
    eager_with_gradients: bool = False,
) -> Callable[..., Any]:
    """A callable like ``gm`` whose parts between control flow are compiled by ``backend``.

    A part is compiled for the inputs of the first call that reaches it, and again when a branch, or
    an operator that runs as recorded, passes it tensors of another form (dtype, device, sizes,
    strides).

    Args:
        varying: per input of ``gm``, True if its form may differ between calls.
        eager_with_gradients: parts run by :func:`eager_under_autograd`, because one part may write
            to a tensor that another has saved.
    """
    mark_custom_functions(gm)  # its switches of the gradient mode may divide it only now
    return _Partitioner(gm, backend, varying, eager_with_gradients=eager_with_gradients).build()


class _Partitioner:
    """Cuts one graph at its control flow."""

    def __init__(
        self,
        gm: fx.GraphModule,
        backend: Backend,
        varying: Sequence[bool],
        *,
        eager_with_gradients: bool,
        is_loop_body: bool = False,
        around: Collection[ProfilerRegion] = (),
    ) -> None:
        """For a loop body, the first argument of the callable is a :class:`LoopExecution`.

        ``around``: the regions of the program that the whole graph is in.
        """
        self._gm, self._backend, self._eager_with_gradients = gm, backend, eager_with_gradients
        inputs = gm.graph.find_nodes(op="placeholder")
        self._varying = {node for node, varies in zip(inputs, varying, strict=False) if varies}
        """Nodes whose tensors may have another form at another call."""
        self._whole, self._root = fx.Graph(), UnobservedModule()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._numbers = itertools.count()
        self._execution = self._whole.placeholder("execution") if is_loop_body else None
        self._constant = set() if _may_write_inside(gm) else set(inputs) - self._varying
        """Inputs that are the same tensor objects in all iterations."""
        self._around = frozenset(around)
        self._regions: dict[fx.Node, frozenset[ProfilerRegion]] = {}
        """The regions of the program in each step of the whole graph."""
        self._part_graphs: dict[fx.Node, fx.Graph] = {}

    def build(self) -> Callable[..., Any]:
        part: list[fx.Node] = []
        for node in self._gm.graph.nodes:
            if is_between_parts(node):
                if not _may_come_before(node, part):
                    self._compile_part(part)
                    part = []
                self._keep(node)
            elif node.op != "get_attr":
                part.append(node)
        self._show_regions()
        return UnobservedGraphModule(self._root, self._whole, class_name="Parts").forward

    def _keep(self, node: fx.Node) -> None:
        """Copy a node that runs between parts, its subgraphs partitioned."""
        for source in node.all_input_nodes:
            if source.op == "get_attr" and source not in self._copies:
                value = self._attribute(source)
                if isinstance(value, fx.GraphModule) and is_control(node):
                    varying = self._varying_operands(node, source)
                    is_body = source is body_of(node)
                    inside = _Partitioner(
                        value, self._backend, varying,
                        eager_with_gradients=self._eager_with_gradients, is_loop_body=is_body,
                        around=self._around.union(enclosing_regions(node)),
                    ).build()  # fmt: skip
                    value = (_LoopBody if is_body else _FunctionModule)(inside)
                self._copies[source] = self._whole.get_attr(self._add(value))
        copy = self._copies[node] = self._whole.node_copy(node, self._copies.__getitem__)
        self._regions[copy] = frozenset(enclosing_regions(node)) - self._around
        if is_control(node):
            copy.target = CONTROL[node.target]
        if any(
            n in self._varying or n.target in CONTROL or AS_IS in n.meta or is_python_value(n)
            for n in (node, *node.all_input_nodes)
        ):
            self._varying.add(node)

    def _varying_operands(self, node: fx.Node, graph: fx.Node) -> list[bool]:
        """Per input of an operator's subgraph, True if its form may differ between calls."""
        operands: Any = node.args[-1]
        varying = [operand in self._varying for operand in operands]
        if node.target is for_loop_with_exits and graph is not body_of(node):
            inputs = self._attribute(graph).graph.find_nodes(op="placeholder")
            return [True] * (len(inputs) - len(operands)) + varying
        if node.target in (torch.ops.higher_order.while_loop, *RANGE_LOOPS):
            carried: Any = node.args[2]
            indices = [True] * (node.target in RANGE_LOOPS)
            return indices + [True] * len(carried) + varying
        return varying

    def _compile_part(self, nodes: Sequence[fx.Node]) -> None:
        """Replace the operators of a part by one call of the compiled part."""
        inside = set(nodes)
        sources = dict.fromkeys(s for n in nodes for s in n.all_input_nodes if s not in inside)
        inputs = [source for source in sources if source.op != "get_attr"]
        outputs = [node for node in nodes if any(user not in inside for user in node.users)]
        if not nodes:
            return
        graph, root = fx.Graph(), UnobservedModule()
        copies = {source: graph.placeholder(f"input_{i}") for i, source in enumerate(inputs)}
        for source in sources:
            if source.op == "get_attr":
                setattr(root, str(source.target), self._attribute(source))
                copies[source] = graph.get_attr(str(source.target))
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in outputs))
        varying = [
            i
            for i, source in enumerate(inputs)
            if source in self._varying or source.meta.get(NUMBER)
        ]
        part: UnobservedModule
        captured = UnobservedGraphModule(root, graph, class_name="Part")
        arguments = tuple(self._copies[source] for source in inputs)
        if self._eager_with_gradients:
            compiled = Part(captured, varying, self._backend)
            part = _FunctionModule(eager_under_autograd(captured, compiled))
        elif self._execution is None or not self._constant.intersection(inputs):
            part = Part(captured, varying, self._backend)
        else:
            constant = [i for i, source in enumerate(inputs) if source in self._constant]
            part = _LoopBodyPart(captured, varying, self._backend, constant)
            arguments = (self._execution, *arguments)
        call = self._whole.call_module(self._add(part), arguments)
        self._regions[call] = frozenset().union(*map(enclosing_regions, nodes)) - self._around
        self._part_graphs[call] = graph
        for i, node in enumerate(outputs):
            self._copies[node] = self._whole.call_function(operator.getitem, (call, i))
        if varying:
            self._varying.update(outputs)

    def _show_regions(self) -> None:
        """Show regions of the program that no part contains around the steps that they enclose;
        the parts themselves show the others."""
        steps = [*self._regions]
        count = Counter(itertools.chain.from_iterable(self._regions.values()))
        inside = {region for call in self._part_graphs for region in self._regions[call]}
        inside = {region for region in inside if count[region] == 1}
        for graph in self._part_graphs.values():
            for node in graph.nodes:
                if regions := enclosing_regions(node):
                    enclose(node, [region for region in regions if region in inside])
        add_regions(self._whole, steps, [self._regions[step] - inside for step in steps])

    def _add(self, value: Any) -> str:
        name = f"part_{next(self._numbers)}"
        setattr(self._root, name, value)
        return name

    def _attribute(self, node: fx.Node) -> Any:
        return operator.attrgetter(str(node.target))(self._gm)


_FACTORIES = {
    torch.zeros, torch.ones, torch.full, torch.arange,
    "new_zeros", "new_ones", "new_full",
}  # fmt: skip


def _may_come_before(node: fx.Node, part: Sequence[fx.Node]) -> bool:
    """True if a node may run before the part that precedes it: one part is cheaper than two."""
    if node.target not in _FACTORIES or not set(part).isdisjoint(node.all_input_nodes):
        return False
    return not any(map(may_write, (node, *part)))


def _may_write_inside(gm: fx.GraphModule) -> bool:
    """True if a node of a graph or of its subgraphs may mutate an input."""
    graphs = (module for module in gm.modules() if isinstance(module, fx.GraphModule))
    nodes = itertools.chain.from_iterable(module.graph.nodes for module in graphs)
    return any(AS_IS in node.meta or may_write(node) for node in nodes)


class _FunctionModule(UnobservedModule):
    """A function, where ``torch.fx`` requires a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def __call__(self, *args: Any) -> Any:  # ``Module.__call__`` costs as much as a small kernel
        return self.function(*args)


class _LoopBody(_FunctionModule):
    """The body of a loop."""

    def begin_execution(self) -> Callable[..., Any]:
        """The function that runs one iteration, for one execution of the loop."""
        return functools.partial(self.function, LoopExecution())


MAX_COMPILED = 8
"""Number of times that one part is compiled. Inputs of further forms run operator by operator."""


class Part(UnobservedModule):
    """A graph without control flow, compiled when it is first called."""

    def __init__(self, gm: fx.GraphModule, varying: Sequence[int], backend: Backend) -> None:
        """``varying`` are the indices of inputs whose form may differ between calls."""
        super().__init__()
        self._graph, self._varying, self._backend = gm, varying, backend
        self._written = _find_written_inputs(gm.graph)
        self._compiled: dict[tuple[InputForm, ...], Callable[..., Any]] = {}
        self._general: list[tuple[Callable[..., bool], Callable[..., Any]]] = []
        """(condition on the forms, callable) of compilations with symbolic sizes."""
        self._left = MAX_COMPILED
        self._last: tuple[Callable[..., bool], Callable[..., Any]] | None = None
        """(native check that the arguments have the last call's forms, its callable)."""

    def __call__(self, *args: Any) -> Any:
        last = self._last
        if last is not None and last[0](*map(args.__getitem__, self._varying)):
            return last[1](*args)
        if not all(isinstance(args[i], torch.Tensor) for i in self._varying):
            return self._graph(*args)  # a backend would make a number a constant
        if self._varying and self._written and _share_memory(args, self._written):
            return self._graph(*args)
        key = tuple(input_form(args[i]) for i in self._varying)
        call = self._compiled.get(key)
        if call is None:
            with TRACING_LOCK:
                call = self._compiled.get(key)
                if call is None:
                    call = self._compiled[key] = self._compile(key, args)
        if self._varying and not self._written:
            self._last = _same_forms([args[i] for i in self._varying]), call
        return call(*args)

    def _call_backend(
        self, args: Sequence[Any], examples: Sequence[Any] | None = None
    ) -> Callable[..., Any]:
        """A callable for inputs like ``args``; some sizes of ``examples`` are symbols."""
        if not self._left:
            return self._graph.forward
        self._left -= 1
        note_writes(self._graph, args)
        return self._backend(self._graph, args if examples is None else examples)

    def _compile(self, key: tuple[InputForm, ...], args: tuple[Any, ...]) -> Callable[..., Any]:
        """A callable for inputs of these forms, with symbols for sizes that have differed.

        Not compiled where a written input shares memory with another: AOTAutograd would write to
        a new base of both, and count no write to either.
        """
        if _share_memory(args, self._written):
            return self._graph.forward
        forms = self._forms_of_all(key, args)
        for admits, call in self._general:
            if admits(forms):
                return call
        for earlier in reversed(self._compiled):
            try:
                varying = VaryingInputs(args, forms, self._forms_of_all(earlier, args))
                call = self._call_backend(args, varying.examples)
                self._general.append((varying.condition(), call))
            except (ValueError, NotImplementedError):
                continue
            return call
        return self._call_backend(args)

    def _forms_of_all(
        self, key: tuple[InputForm, ...], args: tuple[Any, ...]
    ) -> list[InputForm | None]:
        """The form of each varying input, None for the others."""
        forms = dict(zip(self._varying, key, strict=True))
        return [forms.get(i) for i in range(len(args))]


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


class _LoopBodyPart(UnobservedModule):
    """A part of a loop body, whose first argument is a :class:`LoopExecution`.

    Where gradients are recorded, the gradients of its weights are deferred
    (:mod:`.autograd.deferred_weight_gradients`).
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        varying: Sequence[int],
        backend: Backend,
        constant: Sequence[int],
    ) -> None:
        """``constant`` are the indices of inputs that are the same tensors in all iterations."""
        super().__init__()
        self._constant = constant
        self._part = Part(gm, varying, backend)
        self._deferring: Callable[..., Part] = functools.cache(
            lambda weights: Part(add_auxiliary_inputs(gm, weights), varying, backend)
        )

    def __call__(self, execution: LoopExecution, *args: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._part(*args)
        weights = {i: args[i] for i in self._constant if _may_be_weight(args[i])}
        if not weights:
            return self._part(*args)
        auxiliary = execution.auxiliary_input(self, weights)
        count = FACTORS_PER_WEIGHT * len(weights)
        return self._deferring(tuple(weights))(*args, *[auxiliary] * count)


def _may_be_weight(value: Any) -> bool:
    return _requires_grad(value) and value.dim() > 1


def _same_forms(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A check that tensors have the types, dispatch keys and forms of these, and are distinct.

    One native call: in every iteration of a loop, :func:`input_form` would cost more than small
    kernels do.
    """
    strided = all(tensor.layout is torch.strided for tensor in tensors)
    if not strided:
        return lambda *tensors: False
    check: Callable[..., bool] = TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return check


def _find_written_inputs(graph: fx.Graph) -> list[int]:
    """The indices of inputs whose memory an operator of the graph may write to."""
    written: list[fx.Node] = []
    for node in filter(may_write, graph.nodes):
        by_schema = isinstance(node.target, OpOverload)
        written += node.all_input_nodes if by_schema else written_arguments(node)
    aliases = set(possible_aliases(written))
    inputs = graph.find_nodes(op="placeholder")
    return [i for i, node in enumerate(inputs) if node in aliases]


def _share_memory(args: Sequence[Any], written: Sequence[int]) -> bool:
    """True if one of the written arguments is in the memory of another argument."""
    if not written:
        return False
    memory = [arg.untyped_storage()._cdata if _has_memory(arg) else None for arg in args]
    return any(memory[i] is not None and memory.count(memory[i]) > 1 for i in written)


def _has_memory(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided
