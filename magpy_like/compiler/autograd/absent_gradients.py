"""Absent gradients: backward passes that not all results of a graph take part in.

Autograd substitutes zeros for the gradient of such a result. Computing with them is wasted work,
makes NaN where a zero meets an infinity, and zeros where eager leaves None, which an optimizer
treats differently. So there is a backward pass for each set of results that take part, compiled
when it first occurs: the whole backward graph without the nodes that only the other results'
gradients lead to. In eager mode these would not run either.
"""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.passes.graph_queries import aten, insert, is_interchangeable, value
from magpy_like.compiler.passes.mutations.detached_writes import UnrecordedWrite
from magpy_like.graph_operators.checkpoint_batch_norm import (
    functions_of_inputs,
    update_on_recompute,
)
from magpy_like.torch_compat.autograd import custom_function_of, registered_functions
from magpy_like.torch_compat.operators import OperatorBase, OpOverloadPacket
from magpy_like.torch_compat.tracing.symbolic_expressions import (
    PythonReferenceAnalysis,
    sympy_interp,
)
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedGraphModule
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from magpy_like.torch_patches import untraced

Call = Callable[[list[Any]], Any]

MAX_BACKWARD_VARIANTS = 8
"""Sets of results with a compiled backward pass; the passes of further sets run through ATen."""


class AbsentGradients:
    """Has autograd pass absent gradients as None, and compiles a backward pass per set of them."""

    def __init__(self, captured: fx.GraphModule) -> None:
        self._by_function = any(map(_is_custom_multi_output_function, captured.graph.nodes))
        self.several = False
        """Whether several results may have gradients."""

    @property
    def materializes(self) -> bool:
        """Whether the gradient of the one result, if absent, arrives as zeros."""
        return self._by_function and not self.several

    def inspect_joint_graph(self, joint: fx.GraphModule) -> None:
        """Read from the joint graph how many results have gradients."""
        self.several = len(tangents(joint.graph)) > 1

    def compile_variants(
        self, graph: fx.GraphModule, compiler: Callable[[fx.GraphModule], Call],
        interpret: Callable[[fx.GraphModule], Call],
    ) -> Call:  # fmt: skip
        """The backward pass of ``graph``, whose incoming gradients may be None.

        Each variant is compiled on its first call; after ``MAX_BACKWARD_VARIANTS``, by
        ``interpret``.
        """
        if not self.several:
            return compiler(graph)
        inputs = graph.graph.find_nodes(op="placeholder")
        indices = [inputs.index(node) for node in tangents(graph.graph)]
        known: dict[frozenset[int], Call] = {}
        lock = threading.Lock()

        def run(args: list[Any]) -> Any:
            absent = frozenset(k for k in indices if args[k] is None)
            with lock:
                call = known.get(absent)
                if call is None:
                    part = prune_absent_gradients(graph, absent, by_function=self._by_function)
                    with TRACING_LOCK, torch.no_grad():
                        call = (compiler if len(known) < MAX_BACKWARD_VARIANTS else interpret)(part)
                    if len(known) < MAX_BACKWARD_VARIANTS:
                        known[absent] = call
            for k in sorted(absent, reverse=True):
                del args[k]
            return call(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def read_inputs(self, graph: fx.GraphModule, absent: frozenset[int]) -> set[int]:
        """The indices of the inputs that the backward pass of ``graph`` reads if the gradients with
        the numbers ``absent`` are."""
        inputs, gradients = graph.graph.find_nodes(op="placeholder"), tangents(graph.graph)
        indices = frozenset(inputs.index(gradients[k]) for k in absent)
        part = prune_absent_gradients(graph, indices, by_function=self._by_function)
        kept = [node for k, node in enumerate(inputs) if k not in indices]
        pairs = zip(kept, part.graph.find_nodes(op="placeholder"), strict=True)
        return {inputs.index(node) for node, copied in pairs if copied.users}

    def adapt_node(self, function: Any) -> None:
        """Have nodes of AOTAutograd's ``autograd.Function`` receive None for absent gradients, and
        pass None on.

        In the forward pass, as nothing that the program holds may lead to the node later: a call
        may only modify arguments, and those of a call may be detached.
        """
        forward, backward = function.forward, function.backward

        def run_forward(ctx: Any, *args: Any) -> Any:
            results = forward(ctx, *args)
            if not self.materializes:
                ctx.set_materialize_grads(False)
            ctx.register_hook(functools.partial(_skip_unreached_functions, weakref.ref(ctx)))
            return results

        def run_backward(ctx: Any, *gradients: Any) -> Any:
            incoming = gradients[0] if type(gradients[0]) is list else gradients
            if not self.materializes and all(gradient is None for gradient in incoming):
                return (None,) * len(ctx.needs_input_grad)
            return backward(ctx, *gradients)

        function.forward, function.backward = staticmethod(run_forward), staticmethod(run_backward)


@untraced
def _skip_unreached_functions(node: Any, gradients: Sequence[Any], _: Any) -> None:
    functions = (function for function, _ in node().next_functions)
    pairs = zip(functions, gradients, strict=True)
    _skip_functions({f for f, gradient in pairs if gradient is None and f is not None})


def skip_unreached_functions(
    ctx: Any, gradients: Sequence[Any], tensor_inputs: Sequence[int]
) -> None:
    """Keep custom functions from running for inputs of a compiled pass that get no gradient.

    Autograd runs the functions that computed such an input even so: it does not know which results
    an input leads to. Torch's own functions then pass None on. A custom ``autograd.Function`` would
    receive zeros, and may compute anything from them; eager mode does not reach it.

    ``gradients`` are those that the pass with context ``ctx`` returns, one per input; the inputs at
    ``tensor_inputs`` are tensors.
    """
    functions = functions_of_inputs(ctx, tensor_inputs)
    unreached = {f for k, f in functions.items() if gradients[k] is None}
    if unreached:
        _skip_functions(unreached)


def _skip_functions(functions: set[Any]) -> None:
    """Make the custom functions among these nodes and their successors skippable."""
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        if _is_custom_function(function) and "apply" not in vars(function):
            function.apply = _SkippableFunction(function)
        others = {other for other, _ in function.next_functions if other is not None} - functions
        functions |= others
        waiting += others


def _is_custom_function(node: Any) -> bool:
    """True for a node of the program's own, also of an operator that it has registered."""
    function = custom_function_of(node)
    if function is None:
        return False
    package = function.__module__.split(".")[0]
    return package not in ("magpy_like", "torch") or any(registered_functions(function))


class _SkippableFunction:
    """The backward pass of a custom function, which does not run if no gradient arrives."""

    def __init__(self, node: Any) -> None:
        self._node, self._reached = weakref.ref(node), True
        node.register_prehook(self._record_reached)

    @untraced
    def _record_reached(self, gradients: Sequence[Any]) -> None:
        """A pre-hook: it runs before autograd substitutes zeros for absent gradients."""
        self._reached = any(g is not None for g in gradients)

    @untraced
    def __call__(self, *gradients: Any) -> Any:
        node: Any = self._node()
        if self._reached:
            return type(node).apply(node, *gradients)
        return (None,) * len(node.needs_input_grad)


def tangents(graph: fx.Graph) -> list[fx.Node]:
    """The placeholders of a backward or joint graph for incoming gradients."""
    return [n for n in graph.find_nodes(op="placeholder") if n.name.startswith("tangents")]


def _is_custom_multi_output_function(node: fx.Node) -> bool:
    """True for a custom ``autograd.Function`` or operator of several results.

    Its backward pass receives zeros where some of them have no gradient, and may compute anything
    from them.
    """
    target = node.target
    owner = getattr(target, "__self__", None)
    if node.op != "call_function" or target in _TORCHS or isinstance(target, UnrecordedWrite):
        return False
    if isinstance(target, OperatorBase | OpOverloadPacket):
        known = str(target).startswith(("aten.", "prims."))
    else:
        module = str(getattr(target, "__module__", None)).split(".")[0]
        is_custom = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        known = module in ("torch", "_operator", "math", "builtins", "None") and not is_custom
    several = any(user.op == "output" or user.target is operator.getitem for user in node.users)
    return several and not known


_TORCHS = (operator.getitem, update_on_recompute)
"""Functions that only call torch's operators."""


def prune_absent_gradients(
    graph: fx.GraphModule, absent: frozenset[int], *, by_function: bool = False
) -> fx.GraphModule:
    """A copy of the backward graph without the inputs at the indices ``absent``.

    Gradients computed from absent ones alone become None. Each node is linear in every incoming
    gradient, so its value for those that are present is the sum without the others.

    ``by_function``: the nodes of one function of eager's backward pass are all computed, with zeros
    for absent gradients, or none is.
    """
    gm = UnobservedGraphModule(graph, copy.deepcopy(graph.graph))
    inputs = gm.graph.find_nodes(op="placeholder")
    dropped = _find_absent_nodes(gm.graph, {inputs[k] for k in absent}, by_function)
    used = {node for node in gm.graph.nodes if node.users}
    output = gm.graph.output_node()
    (gradients,) = output.args
    output.args = (tuple(None if g in dropped else g for g in gradients),)
    # From the last node on, so that zeros are made only for nodes that stay. Not dead code
    # elimination, which would keep random draws.
    for node in reversed(list(gm.graph.nodes)):
        if node not in dropped and (node.users or node not in used):
            _drop_arguments(node, dropped)
        unused = node in used and not node.users and node.op != "placeholder"
        if node in dropped or unused:
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _find_absent_nodes(graph: fx.Graph, absent: set[fx.Node], by_function: bool) -> set[fx.Node]:
    """The nodes computed from absent gradients and from no present one."""
    present = {node for node in tangents(graph) if node not in absent}
    dependent = present | absent  # on gradients
    for node in graph.nodes:
        reads_gradient = not dependent.isdisjoint(node.all_input_nodes)
        if reads_gradient and node.op != "output" and not _reads_only_metadata(node):
            dependent.add(node)
    reached: set[Any] = set()  # functions with a present gradient
    count = 0
    while count < len(present):
        count = len(present)
        for node in graph.nodes:
            function = _autograd_function_key(node) if by_function else node
            if node in dependent and (
                function in reached or not present.isdisjoint(node.all_input_nodes)
            ):
                present.add(node)
                reached.add(function)
    return dependent - present


def _autograd_function_key(node: fx.Node) -> Any:
    """The function of eager's backward pass that a node is part of.

    Sums of gradients are autograd's own, each a function by itself.
    """
    if "is_gradient_acc" in node.meta:
        return node
    return node.meta.get("seq_nr", node)


def _drop_arguments(node: fx.Node, dropped: set[fx.Node]) -> None:
    """Remove absent arguments: a sum becomes its other operand, any other node reads zeros."""
    absent = [argument for argument in node.all_input_nodes if argument in dropped]
    if node.target is aten.add.Tensor and len(absent) == 1:
        a, b = node.args
        other = b if a is absent[0] else a
        scaled = other is b and node.kwargs.get("alpha", 1) != 1
        if not scaled and is_interchangeable(node, other):
            node.replace_all_uses_with(other)
            return
    for argument in absent:
        node.replace_input_with(argument, _zeros(argument, node, dropped))


def _reads_only_metadata(node: fx.Node) -> bool:
    """True if the node reads the sizes and dtype of its arguments, and not their elements.

    Zeros are no such result: they are the gradient of a tensor that is overwritten as a whole.
    """
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    is_other = name.endswith("_like") or name.startswith(("new_", "sym_"))
    return is_other and name not in ("zeros_like", "new_zeros")


def _zeros(node: fx.Node, like: fx.Node, dropped: set[fx.Node]) -> fx.Node:
    """Zeros in place of a node's result, inserted before the node ``like``."""
    val = value(node)
    size = [_size_argument(n, like, dropped) for n in val.shape]
    return insert(like.graph, aten.full.default, size, 0, like=like, dtype=val.dtype,
                  device=val.device)  # fmt: skip


def _size_argument(n: Any, like: fx.Node, dropped: set[fx.Node]) -> Any:
    """A size as an argument: a number, or the node of a symbolic size, before ``like``."""
    if not isinstance(n, torch.SymInt):
        return n
    expression = n.node.expr
    if (found := _find_number(expression, like, dropped)) is not None:
        return found
    graph = like.graph
    numbers = {s: _find_number(s, like, dropped) for s in expression.free_symbols}
    before = set(graph.nodes)
    with graph.inserting_before(like):
        proxies = {s: fx.Proxy(number) for s, number in numbers.items()}
        result = sympy_interp(PythonReferenceAnalysis, proxies, expression).node
    for new in graph.nodes:
        if new not in before:
            new.meta["val"] = new.target(*map(value, new.args))
    return result


def _find_number(expression: Any, like: fx.Node, dropped: set[fx.Node]) -> fx.Node | None:
    """The node of a symbolic number before ``like``: one that has it as result, or reads the size
    of a tensor, which is added to the graph.

    AOTAutograd saves the symbols in the sizes of gradients, ``save_gradient_sizes`` other sizes.
    """
    for node in itertools.takewhile(lambda node: node is not like, like.graph.nodes):
        if node in dropped:
            continue
        if _is_number(value(node), expression):
            return node
        if isinstance(value(node), torch.Tensor):
            for k, size in enumerate(value(node).shape):
                if _is_number(size, expression):
                    return insert(like.graph, aten.sym_size.int, node, k, like=like)
    return None


def _is_number(number: Any, expression: Any) -> bool:
    return isinstance(number, torch.SymInt) and bool(number.node.expr == expression)
