"""Writes of one part of a graph to what another part may have saved for the backward pass.

A compiled part has one node in autograd's graph. It leads back to all that the part was given, and
asks for all that the part has saved, although the operators that a gradient passes may need nothing
of it. So gradients that eager mode gives are refused where something unneeded has been written to.
Within a part that shows when it is compiled; of a graph's parts it is predicted here, from who may
hold whose memory, as far as the names of operators tell.
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from magpy_like.compiler.passes.layout.position_tensors import in_place, schemas_of
from magpy_like.graph_operators.control_operators import (
    body_of,
    has_parts,
    is_between,
    is_control,
    may_write,
    name_of,
)
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.operators import has_dispatcher_kernel

_SAVES_NO_RESULT = frozenset(
    (
        "add", "copy", "div", "fill", "iadd", "imul", "isub", "itruediv", "mul", "setitem", "sub",
        "zero",
    )
)  # fmt: skip
"""Writing operators of whose result a backward pass needs nothing."""
_NEW = frozenset(
    (
        "batch_norm", "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
        "conv_transpose2d", "conv_transpose3d", "cross_entropy", "cross_entropy_loss", "group_norm",
        "instance_norm", "layer_norm", "linear", "log_softmax", "matmul", "max_pool1d",
        "max_pool2d", "max_pool3d", "mse_loss", "nll_loss", "rms_norm",
        "scaled_dot_product_attention", "softmax",
    )
)  # fmt: skip
"""Functions made of other operators that give new memory whatever they are given."""


class _Memory(NamedTuple):
    """Memory, by the node that makes it or the tensor that has it."""

    maker: Any
    loops: tuple[fx.Node, ...] = ()
    """The loops in whose rounds it is made, the outermost first."""
    is_earlier: bool = False
    """Whether an earlier round than the present one has made it."""
    copied_in: int | None = None
    """The part for which a copy stands for it: who saves the one may save the other instead."""


class _Place(NamedTuple):
    """Where something happens to memory: in which part, by number, and in which loops."""

    part: int
    loops: tuple[fx.Node, ...]


_BEFORE = _Place(-1, ())
_Held = frozenset[_Memory]
_NOTHING: _Held = frozenset()


def overwrites_saved(gm: fx.GraphModule, saved: Collection[fx.Node] = ()) -> bool:
    """Whether a part of a graph may write to what another part, or the same one in another round of
    a loop, may have saved. A graph that is not cut is one part. ``saved`` are inputs that what ran
    before the graph may have saved."""
    if not saved and not has_parts(gm):
        return False
    walk = _Walk(is_cut=has_parts(gm))
    for node in saved:
        walk.uses[node].add(_BEFORE)
    walk.graph(gm, itertools.repeat(_NOTHING), ())
    return any(
        _may_follow(write, use, memory)
        for memory, write in walk.writes
        for use in walk.uses[memory.maker]
    )


def made_before(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[fx.Node]:
    """The inputs of a graph that operators have made of what needs a gradient, by examples. (To
    parameters an optimizer writes, behind the backward pass.)"""
    nodes = gm.graph.find_nodes(op="placeholder")
    pairs = zip(nodes, inputs, strict=False)
    return [n for n, given in pairs if isinstance(given, torch.Tensor) and not given.is_leaf]


def _may_follow(write: _Place, use: _Place, memory: _Memory) -> bool:
    """Whether another part writes to ``memory``, or another round, after a use of it."""
    shared = set(write.loops).intersection(use.loops)
    return write.part > use.part or (
        bool(shared) and (memory.is_earlier or not shared.issubset(memory.loops))
    )


class _Walk:
    """What the operators of a graph, and of those that it holds, do to memory."""

    def __init__(self, *, is_cut: bool) -> None:
        self._is_cut = is_cut
        self.uses: dict[Any, set[_Place]] = defaultdict(set)
        """Where a part may save memory, by its maker."""
        self.writes: set[tuple[_Memory, _Place]] = set()
        self._records_gradients = True
        self._numbers: dict[Any, int] = {}

    def graph(
        self, gm: fx.GraphModule, given: Iterable[_Held], within: tuple[fx.Node, ...]
    ) -> list[_Held]:
        """What the results of a graph hold, if its inputs hold what is ``given``, and it is one of
        the operators ``within``, the outermost first."""
        loops = tuple(node for node in within if body_of(node) is not None)
        inputs = iter(given)
        held: dict[Any, _Held] = {}
        of_sides: dict[fx.Node, list[_Held]] = {}
        number = self._number(within, gm)
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                held[node] = next(inputs) or _made(node, loops)
            elif node.op == "get_attr":
                held[node] = _made(id(_attribute(gm, node)), ())
            elif node.op == "output":
                (given_back,) = node.args
                results = given_back if isinstance(given_back, tuple | list) else (given_back,)
                return [held[r] if isinstance(r, fx.Node) else _NOTHING for r in results]
            elif is_control(node):
                number = self._number(within, node)
                given_by = self._control(gm, node, held, within)
                held[node] = _NOTHING.union(*given_by)
                if body_of(node) is None:
                    of_sides[node] = given_by
            elif node.target is operator.getitem and node.args[0] in of_sides:
                held[node] = of_sides[node.args[0]][node.args[1]]
            else:
                if node.target is set_grad_enabled:
                    self._records_gradients = node.args[0] is not False
                is_outside = self._is_cut and is_between(node)
                if is_outside:
                    number = self._number(within, node)
                saves = self._records_gradients and not is_outside
                held[node] = self._operator(node, held, _Place(number, loops), saves)
        raise AssertionError("a graph without an output")

    def _number(self, within: tuple[fx.Node, ...], begin: Any) -> int:
        """That of the part that begins here: later ones have greater numbers."""
        return self._numbers.setdefault((within, begin), len(self._numbers))

    def _control(
        self,
        gm: fx.GraphModule,
        node: fx.Node,
        held: dict[Any, _Held],
        within: tuple[fx.Node, ...],
    ) -> list[_Held]:
        """What each result of a branch may hold; of a loop all that any of its results may."""
        *before, others = node.args
        first: list[fx.Node] = []
        fx.map_arg(before, first.append)
        attributes = (_attribute(gm, n) for n in first if n.op == "get_attr")
        graphs = [value for value in attributes if isinstance(value, fx.GraphModule)]
        operands = [held.get(other, _NOTHING) for other in others]
        carried = _NOTHING.union(*(held[n] for n in first))
        while True:
            results = [self._side(graph, carried, operands, (*within, node)) for graph in graphs]
            if body_of(node) is None:
                return [_NOTHING.union(*sides) for sides in zip(*results, strict=True)]
            found = _NOTHING.union(*itertools.chain.from_iterable(results))
            following = carried | {m._replace(is_earlier=node in m.loops) for m in found}
            if following == carried:
                return [carried | found]
            carried = following

    def _side(
        self,
        graph: fx.GraphModule,
        carried: _Held,
        others: Sequence[_Held],
        within: tuple[fx.Node, ...],
    ) -> list[_Held]:
        """What the results of a graph of an operator hold. Its last inputs are ``others``."""
        inputs = graph.graph.find_nodes(op="placeholder")
        return self.graph(graph, (*[carried] * (len(inputs) - len(others)), *others), within)

    def _operator(self, node: fx.Node, held: dict[Any, _Held], place: _Place, saves: bool) -> _Held:
        """What the result of an operator holds, which ``saves`` what it uses and makes if it is in
        a part, and gradients are recorded; other operators save what their own gradients need."""
        takes, kind = node.all_input_nodes, _kind(node)
        made = _made(node, place.loops)
        if kind is _Kind.WRITES:
            written = _written(node)
            for memory in _NOTHING.union(*(held[n] for n in written)):
                if memory.copied_in is None:
                    self.writes.add((memory, place))
            result = _NOTHING.union(*(held[n] for n in written))
            used = [n for n in takes if n not in written or not _saves_no_result(node)]
        elif kind is _Kind.COPY:
            copied = (memory for n in takes for memory in held[n])
            result = made | {memory._replace(copied_in=place.part) for memory in copied}
            used = []
        else:
            result = made if kind is _Kind.NEW else made.union(*(held[n] for n in takes))
            used = [] if kind is _Kind.VIEW or _is_constant(node) else [node, *takes]
        if saves:
            for memory in _NOTHING.union(*(held.get(n, made) for n in used)):
                if memory.copied_in in (None, place.part):
                    self.uses[memory.maker].add(place)
        return result


def _made(maker: Any, loops: tuple[fx.Node, ...]) -> _Held:
    return frozenset((_Memory(maker, loops),))


def _attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(gm)


def _written(node: fx.Node) -> list[fx.Node]:
    """What an operator that writes may write to."""
    out = node.kwargs.get("out", node.args[0] if node.args else None)
    return [out] if isinstance(out, fx.Node) else node.all_input_nodes


def _saves_no_result(node: fx.Node) -> bool:
    return name_of(node).strip("_") in _SAVES_NO_RESULT


def _is_constant(node: fx.Node) -> bool:
    """Whether what a node makes depends on no tensor's elements: so nothing is saved for it."""
    name = name_of(node)
    return not node.all_input_nodes or name.endswith("_like") or name.startswith("new_")


class _Kind(enum.Enum):
    """What an operator does with the memory that it is given."""

    WRITES = enum.auto()
    VIEW = enum.auto()
    """What it gives has the memory of what it is given, or is a copy of that."""
    COPY = enum.auto()
    """What it gives is a copy, which a compiler may take for needless."""
    MIXED = enum.auto()
    """It computes, and what it gives may yet have that memory."""
    NEW = enum.auto()


def _kind(node: fx.Node) -> _Kind:
    name = name_of(node).strip("_")
    if may_write(node) or in_place(node):
        return _Kind.WRITES
    if getattr(node.target, "__module__", "") in ("_operator", "operator"):
        return _Kind.VIEW if node.target in (operator.getitem, operator.pos) else _Kind.NEW
    if name == "clone":
        return _Kind.COPY
    if name in _NEW:
        return _Kind.NEW
    schemas = [schema for schema in schemas_of(node) if _gives_tensors(schema)]
    if any(given.alias_info for schema in schemas for given in schema.returns):
        return _Kind.VIEW
    return _Kind.MIXED if not schemas or any(map(_is_composite, schemas)) else _Kind.NEW


def _gives_tensors(schema: Any) -> bool:
    """Whether an operator makes tensors of tensors: TorchScript has more of the same name."""
    takes, gives = ([str(each.type) for each in s] for s in (schema.arguments, schema.returns))
    return "Tensor" in "".join(takes) and "Tensor" in "".join(gives)


def _is_composite(schema: Any) -> bool:
    """Whether an operator is made of others, of which some arguments need none."""
    name = f"{schema.name}.{schema.overload_name}".rstrip(".")
    try:
        return has_dispatcher_kernel(name, "CompositeImplicitAutograd")
    except RuntimeError:  # an operator of TorchScript alone
        return True
