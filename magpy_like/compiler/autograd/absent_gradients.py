"""Backward passes in which not all results take part: for the others there is no gradient.

Autograd puts zeros in the place of such a gradient. What the pass would make of them is work for
nothing, NaN where one meets an infinity, and zeros where eager leaves None, from which an optimizer
tells them. So there is a pass for each set of results that have taken part, compiled when it first
happens: the whole one without what only the other results' gradients lead to. In eager that would
not run either.
"""

from __future__ import annotations

import copy
import functools
import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.passes.graph_queries import aten, insert, interchangeable, value
from magpy_like.graph_operators.checkpoint_statistics import written_again
from magpy_like.torch_compat.operators import OperatorBase, OpOverloadPacket
from magpy_like.torch_compat.symbolic_expressions import PythonReferenceAnalysis, sympy_interp
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from magpy_like.torch_patches import untraced

Call = Callable[[list[Any]], Any]

LIMIT = 8  # sets of results with a compiled pass; the passes of others run through ATen


class Absent:
    """Lets autograd hand on that a gradient is absent, and compiles a pass for what is there."""

    def __init__(self, captured: fx.GraphModule) -> None:
        self._whole = any(map(_is_given_zeros, captured.graph.nodes))
        self.several = False  # have several results gradients?
        self._kind: type | None = None  # of the node of autograd's graph that runs the pass

    @property
    def materializes(self) -> bool:
        """Whether the one gradient, if it is absent, is to come in as zeros."""
        return self._whole and not self.several

    def see_joint(self, joint: fx.GraphModule) -> None:
        """Learn from the graph of both passes how many results have gradients."""
        self.several = len(tangents(joint.graph)) > 1

    def forward(self, call: Call) -> Call:
        """``call``, by which AOTAutograd's node of autograd's graph is known."""
        call.absent = self  # type: ignore[attr-defined]
        return call

    def backward(
        self, graph: fx.GraphModule, compiler: Callable[[fx.GraphModule], Call],
        interpret: Callable[[fx.GraphModule], Call],
    ) -> Call:  # fmt: skip
        """A function of the pass's arguments, of which gradients may be None."""
        if not self.several:
            return compiler(graph)
        inputs = graph.graph.find_nodes(op="placeholder")
        places = [inputs.index(node) for node in tangents(graph.graph)]
        known: dict[frozenset[int], Call] = {}
        lock = threading.Lock()

        def run(args: list[Any]) -> Any:
            absent = frozenset(place for place in places if args[place] is None)
            with lock:
                call = known.get(absent)
                if call is None:
                    part = without(graph, absent, whole=self._whole)
                    with TRACING_LOCK, torch.no_grad():
                        call = (compiler if len(known) < LIMIT else interpret)(part)
                    if len(known) < LIMIT:
                        known[absent] = call
            for place in sorted(absent, reverse=True):
                del args[place]
            return call(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, whose backward pass is told which gradients are absent."""

        def run(*args: Any) -> Any:
            results = call(*args)
            for result in results:
                node: Any = result.grad_fn if isinstance(result, torch.Tensor) else None
                if node is not None and not self._is_ours(node) and node.next_functions:
                    node = node.next_functions[0][0]  # of a view that AOTAutograd has made again
                if node is not None and self._is_ours(node):
                    if self.several:
                        node.set_materialize_grads(False)
                    node.register_hook(functools.partial(_spare_behind, weakref.ref(node)))
                    break
            return results

        return run

    def _is_ours(self, node: Any) -> bool:
        if self._kind is None:
            forward = getattr(getattr(type(node), "_forward_cls", None), "compiled_fw", None)
            if getattr(forward, "absent", None) is self:
                self._kind = type(node)
        return type(node) is self._kind


@untraced
def _spare_behind(node: Any, gradients: Sequence[Any], _: Any) -> None:
    makers = (maker for maker, _ in node().next_functions)
    _spare({m for m, g in zip(makers, gradients, strict=True) if g is None and m is not None})


def spare_behind(ctx: Any, gradients: Sequence[Any]) -> None:
    """Have nothing run for inputs of a compiled pass that get no gradient.

    Autograd calls what has made an input even so: it does not know which results an input leads
    to. Torch's own functions then hand on that there is no gradient. A function of somebody's own
    would be given zeros, and may make anything of them; in eager it is not reached.
    """
    got = [g is not None for g, n in zip(gradients, ctx.needs_input_grad, strict=False) if n]
    if not all(got):
        makers = (maker for maker, _ in ctx.next_functions if maker is not None)
        _spare({maker for maker, reached in zip(makers, got, strict=True) if not reached})


def _spare(makers: set[Any]) -> None:
    waiting = list(makers)
    while waiting:
        maker = waiting.pop()
        if _is_somebodys_own(maker) and "apply" not in vars(maker):
            maker.apply = _Spared(maker)
        others = {other for other, _ in maker.next_functions if other is not None} - makers
        makers |= others
        waiting += others


def _is_somebodys_own(node: Any) -> bool:
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    home: str = type(node)._forward_cls.__module__
    return home.split(".")[0] not in ("magpy_like", "torch")


class _Spared:
    """The backward pass of somebody's own function, which does not run if no gradient comes in."""

    def __init__(self, node: Any) -> None:
        self._node, self._reached = weakref.ref(node), True
        node.register_prehook(self._look)

    @untraced
    def _look(self, gradients: Sequence[Any]) -> None:
        """Before autograd puts zeros in the places of absent ones."""
        self._reached = any(g is not None for g in gradients)

    @untraced
    def __call__(self, *gradients: Any) -> Any:
        node: Any = self._node()
        if self._reached:
            return type(node).apply(node, *gradients)
        return (None,) * len(node.needs_input_grad)


def tangents(graph: fx.Graph) -> list[fx.Node]:
    """The gradients that come in."""
    return [n for n in graph.find_nodes(op="placeholder") if n.name.startswith("tangents")]


def _is_given_zeros(node: fx.Node) -> bool:
    """Does somebody's own function of several results stand here? Its backward pass is given zeros
    where some of them have no gradient, and may make anything of them."""
    target = node.target
    owner = getattr(target, "__self__", None)
    if node.op != "call_function" or target in (operator.getitem, written_again):
        return False
    if isinstance(target, OperatorBase | OpOverloadPacket):
        known = str(target).startswith(("aten.", "prims."))
    else:
        module = str(getattr(target, "__module__", None)).split(".")[0]
        own = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        known = module in ("torch", "_operator", "math", "builtins", "None") and not own
    several = any(user.op == "output" or user.target is operator.getitem for user in node.users)
    return several and not known


def without(
    graph: fx.GraphModule, absent: frozenset[int], *, whole: bool = False
) -> fx.GraphModule:
    """The backward graph for gradients of which some are absent, by the places of its inputs.

    These inputs are no more, and gradients that are made of absent ones alone are None. Each node
    depends on every gradient by itself: what it is made of those that are there is the sum
    without the others. ``whole``: what eager computes in one function is computed in whole, of
    zeros for what is absent, or not at all.
    """
    gm = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    inputs = gm.graph.find_nodes(op="placeholder")
    gone = _gone(gm.graph, {inputs[place] for place in absent}, whole)
    used = {node for node in gm.graph.nodes if node.users}
    for node in list(gm.graph.nodes):
        if node.op == "output":
            (gradients,) = node.args
            node.args = (tuple(None if g in gone else g for g in gradients),)
        elif node not in gone:
            _leave_out(node, [a for a in node.all_input_nodes if a in gone])
    for node in reversed(list(gm.graph.nodes)):  # draws, too, that nothing else asks for
        idle = node in used and not node.users and node.op != "placeholder"
        if node in gone or idle:
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _gone(graph: fx.Graph, absent: set[fx.Node], whole: bool) -> set[fx.Node]:
    """What is made of absent gradients only."""
    there = {node for node in tangents(graph) if node not in absent}
    made = there | absent  # of gradients
    for node in graph.nodes:
        of_gradients = not made.isdisjoint(node.all_input_nodes)
        if of_gradients and node.op != "output" and not _asks_for_form(node):
            made.add(node)
    met: set[Any] = set()  # functions that something is there for
    count = 0
    while count < len(there):
        count = len(there)
        for node in graph.nodes:
            function = _function(node) if whole else node
            if node in made and (function in met or not there.isdisjoint(node.all_input_nodes)):
                there.add(node)
                met.add(function)
    return made - there


def _function(node: fx.Node) -> Any:
    """The function of eager's backward pass that a node is part of; autograd itself adds up."""
    if "is_gradient_acc" in node.meta:
        return node
    return node.meta.get("seq_nr", node)


def _leave_out(node: fx.Node, lost: Sequence[fx.Node]) -> None:
    """Let a node do without some arguments: a sum is the one that stays, else they are zeros."""
    if node.target is aten.add.Tensor and len(lost) == 1:
        a, b = node.args
        other = b if a is lost[0] else a
        scaled = other is b and node.kwargs.get("alpha", 1) != 1
        if not scaled and interchangeable(node, other):
            node.replace_all_uses_with(other)
            return
    for argument in lost:
        node.replace_input_with(argument, _zeros(argument, node))


def _asks_for_form(node: fx.Node) -> bool:
    """Whether the values of the node's arguments do not matter, only their sizes and dtype."""
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    return name.endswith("_like") or name.startswith(("new_", "sym_"))


def _zeros(node: fx.Node, like: fx.Node) -> fx.Node:
    """Zeros for a node's result, before the node ``like``."""
    val = value(node)
    size = [_number(n, like) for n in val.shape]
    return insert(like.graph, aten.full.default, size, 0, like=like, dtype=val.dtype,
                  device=val.device)  # fmt: skip


def _number(n: Any, like: fx.Node) -> Any:
    """A size as an argument: a number, or a node that is one of the numbers that come in, or is
    made of them. AOTAutograd saves what sizes of gradients are made of."""
    if not isinstance(n, torch.SymInt):
        return n
    graph = like.graph
    numbers = {
        value(p).node.expr: p
        for p in graph.find_nodes(op="placeholder")
        if isinstance(value(p), torch.SymInt)
    }
    if n.node.expr in numbers:
        return numbers[n.node.expr]
    before = set(graph.nodes)
    with graph.inserting_before(like):
        proxies = {s: fx.Proxy(numbers[s]) for s in n.node.expr.free_symbols}
        result = sympy_interp(PythonReferenceAnalysis, proxies, n.node.expr).node
    for made in graph.nodes:
        if made not in before:
            made.meta["val"] = made.target(*map(value, made.args))
    return result
