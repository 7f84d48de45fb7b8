"""Writes of one part of a graph to tensors that another part may have saved: an alias analysis.

A compiled part has one node in autograd's graph. The node leads to all inputs of the part and
unpacks all its saved tensors, even tensors that the operators on a gradient's path do not need. So
autograd would refuse a gradient that eager mode computes if an unneeded saved tensor was written
to. Within a part, compilation detects that. Between the parts of a graph this module predicts it,
from the memory that each value may share according to the names of operators.
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

from magpy_like.annotation.operator_facts import operator_facts
from magpy_like.compiler.passes.mutations.tensor_subscripts import find_schemas, has_inplace_flag
from magpy_like.graph_operators.control_operators import (
    body_of,
    custom_writes,
    has_parts,
    is_between_parts,
    is_control,
    may_write,
    name_of,
)
from magpy_like.graph_operators.node_metadata import CUSTOM_WRITES
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.operators import has_dispatcher_kernel


class _Memory(NamedTuple):
    """Memory, identified by the node that allocates it or the tensor that owns it."""

    maker: Any
    loops: tuple[fx.Node, ...] = ()
    """The loops in whose iterations it is allocated, outermost first."""
    is_earlier: bool = False
    """Whether an earlier iteration than the present one has allocated it."""
    copied_in: int | None = None
    """The part in which a copy of it was made: that part may save the one for the other."""


class _ProgramPoint(NamedTuple):
    """A point of the program: the number of the part, and the enclosing loops."""

    part: int
    loops: tuple[fx.Node, ...]


_BEFORE = _ProgramPoint(-1, ())
_MemorySet = frozenset[_Memory]
_NO_MEMORY: _MemorySet = frozenset()


def may_overwrite_saved_tensors(gm: fx.GraphModule, saved: Collection[fx.Node] = ()) -> bool:
    """True if a part of a graph may write to a tensor that another part may have saved, or the same
    part in another iteration of a loop.

    A graph that is not partitioned is one part. ``saved`` are inputs that code before the graph may
    have saved.
    """
    if not saved and not has_parts(gm):
        return False
    walk = _MemoryWalk(is_partitioned=has_parts(gm))
    for node in saved:
        walk.uses[node].add(_BEFORE)
    walk.graph(gm, itertools.repeat(_NO_MEMORY), ())
    return any(
        _may_happen_after(write, use, memory)
        for memory, write in walk.writes
        for use in walk.uses[memory.maker]
    )


def find_nonleaf_inputs(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[fx.Node]:
    """The placeholders whose example is a non-leaf of autograd's graph, or that the graph detaches:
    the example of one that was detached is a leaf.

    Parameters do not count: an optimizer writes to them after the backward pass.
    """
    nodes = gm.graph.find_nodes(op="placeholder")
    pairs = zip(nodes, inputs, strict=False)
    tensors = [(node, example) for node, example in pairs if isinstance(example, torch.Tensor)]
    return [node for node, example in tensors if not example.is_leaf or _is_detached(node)]


def _is_detached(node: fx.Node) -> bool:
    return any(name_of(user) == "detach_" for user in node.users)


def _may_happen_after(write: _ProgramPoint, use: _ProgramPoint, memory: _Memory) -> bool:
    """True if another part, or another iteration, writes to ``memory`` after a use of it."""
    shared = set(write.loops).intersection(use.loops)
    return write.part > use.part or (
        bool(shared) and (memory.is_earlier or not shared.issubset(memory.loops))
    )


class _MemoryWalk:
    """The uses of memory by the operators of a graph and of its subgraphs."""

    def __init__(self, *, is_partitioned: bool) -> None:
        self._is_partitioned = is_partitioned
        self.uses: dict[Any, set[_ProgramPoint]] = defaultdict(set)
        """Maker of the memory -> where a part may save it."""
        self.writes: set[tuple[_Memory, _ProgramPoint]] = set()
        self._records_gradients = True
        self._numbers: dict[Any, int] = {}

    def graph(
        self, gm: fx.GraphModule, input_memory: Iterable[_MemorySet], within: tuple[fx.Node, ...]
    ) -> list[_MemorySet]:
        """The memory that each result of a graph may share.

        ``input_memory`` is the memory of each input; ``within`` are the control-flow operators
        around the graph, outermost first.
        """
        loops = tuple(node for node in within if body_of(node) is not None)
        inputs = iter(input_memory)
        held: dict[Any, _MemorySet] = {}
        of_branches: dict[fx.Node, list[_MemorySet]] = {}
        number = self._number(within, gm)
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                held[node] = next(inputs) or _new_memory(node, loops)
            elif node.op == "get_attr":
                held[node] = _new_memory(id(_attribute(gm, node)), ())
            elif node.op == "output":
                (returned,) = node.args
                results = returned if isinstance(returned, tuple | list) else (returned,)
                return [held[r] if isinstance(r, fx.Node) else _NO_MEMORY for r in results]
            elif is_control(node):
                number = self._number(within, node)
                of_results = self._control(gm, node, held, within)
                held[node] = _NO_MEMORY.union(*of_results)
                if body_of(node) is None:
                    of_branches[node] = of_results
            elif node.target is operator.getitem and node.args[0] in of_branches:
                held[node] = of_branches[node.args[0]][node.args[1]]
            else:
                if node.target is set_grad_enabled:
                    self._records_gradients = node.args[0] is not False
                is_outside = self._is_partitioned and is_between_parts(node)
                if is_outside:
                    number = self._number(within, node)
                saves = self._records_gradients and not is_outside
                held[node] = self._operator(node, held, _ProgramPoint(number, loops), saves)
        raise AssertionError("a graph without an output")

    def _number(self, within: tuple[fx.Node, ...], begin: Any) -> int:
        """The number of the part that begins at ``begin``; later parts have greater numbers."""
        return self._numbers.setdefault((within, begin), len(self._numbers))

    def _control(
        self,
        gm: fx.GraphModule,
        node: fx.Node,
        held: dict[Any, _MemorySet],
        within: tuple[fx.Node, ...],
    ) -> list[_MemorySet]:
        """The memory that each result of a branch may share; of a loop, all that any result may.

        Loops are repeated until the memory of the loop-carried values is a fixed point.
        """
        *before, others = node.args
        leading: list[fx.Node] = []
        fx.map_arg(before, leading.append)
        attributes = (_attribute(gm, n) for n in leading if n.op == "get_attr")
        graphs = [value for value in attributes if isinstance(value, fx.GraphModule)]
        operands = [held.get(other, _NO_MEMORY) for other in others]
        carried = _NO_MEMORY.union(*(held[n] for n in leading))
        while True:
            results = [
                self._subgraph(graph, carried, operands, (*within, node)) for graph in graphs
            ]
            if body_of(node) is None:
                return [_NO_MEMORY.union(*branches) for branches in zip(*results, strict=True)]
            found = _NO_MEMORY.union(*itertools.chain.from_iterable(results))
            following = carried | {m._replace(is_earlier=node in m.loops) for m in found}
            if following == carried:
                return [carried | found]
            carried = following

    def _subgraph(
        self,
        graph: fx.GraphModule,
        carried: _MemorySet,
        others: Sequence[_MemorySet],
        within: tuple[fx.Node, ...],
    ) -> list[_MemorySet]:
        """The memory of the results of an operator's subgraph, whose last inputs are ``others``."""
        inputs = graph.graph.find_nodes(op="placeholder")
        return self.graph(graph, (*[carried] * (len(inputs) - len(others)), *others), within)

    def _operator(
        self, node: fx.Node, held: dict[Any, _MemorySet], point: _ProgramPoint, saves: bool
    ) -> _MemorySet:
        """The memory that the result of an operator may share.

        ``saves``: the operator is in a part and gradients are recorded, so the part may save its
        arguments and result; operators outside save only the tensors that their gradients need.
        """
        inputs, kind = node.all_input_nodes, memory_effect(node)
        new = _new_memory(node, point.loops)
        if kind is Effect.WRITES:
            written = _written(node)
            for memory in _NO_MEMORY.union(*(held[n] for n in written)):
                if memory.copied_in is None:
                    self.writes.add((memory, point))
            result = _NO_MEMORY.union(*(held[n] for n in written))
            if CUSTOM_WRITES in node.meta:  # it may return others, and views of all its arguments
                result = new.union(*(held[n] for n in inputs))
            used = [n for n in inputs if n not in written or not _saves_no_result(node)]
        elif kind is Effect.COPY:
            copied = (memory for n in inputs for memory in held[n])
            result = new | {memory._replace(copied_in=point.part) for memory in copied}
            used = []
        else:
            result = new if kind is Effect.NEW else new.union(*(held[n] for n in inputs))
            used = [] if kind is Effect.VIEW or _is_constant(node) else [node, *inputs]
        if saves:
            for memory in _NO_MEMORY.union(*(held.get(n, new) for n in used)):
                if memory.copied_in in (None, point.part):
                    self.uses[memory.maker].add(point)
        return result


def _new_memory(maker: Any, loops: tuple[fx.Node, ...]) -> _MemorySet:
    return frozenset((_Memory(maker, loops),))


def _attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(gm)


def _written(node: fx.Node) -> list[fx.Node]:
    """The arguments that a mutating operator may write to."""
    if CUSTOM_WRITES in node.meta:
        return custom_writes(node)
    out = node.kwargs.get("out", node.args[0] if node.args else None)
    return [out] if isinstance(out, fx.Node) else node.all_input_nodes


def _saves_no_result(node: fx.Node) -> bool:
    return not operator_facts(name_of(node)).saves_result


def _is_constant(node: fx.Node) -> bool:
    """True if the result depends on no tensor's elements: then nothing is saved for it."""
    name = name_of(node)
    return not node.all_input_nodes or name.endswith("_like") or name.startswith("new_")


class Effect(enum.Enum):
    """An operator's effect on the memory of its arguments."""

    WRITES = enum.auto()
    VIEW = enum.auto()
    """The result shares an argument's memory, or is a copy of it."""
    COPY = enum.auto()
    """The result is a copy, which a compiler may remove."""
    MIXED = enum.auto()
    """It computes, and the result may still share an argument's memory."""
    NEW = enum.auto()
    """It computes, and the result never shares memory."""


def memory_effect(node: fx.Node) -> Effect:
    """The effect of a node that calls an operator, judged by the operator's name and schemas."""
    name = name_of(node).strip("_")
    if may_write(node) or has_inplace_flag(node):
        return Effect.WRITES
    if getattr(node.target, "__module__", "") in ("_operator", "operator"):
        return Effect.VIEW if node.target in (operator.getitem, operator.pos) else Effect.NEW
    if name == "clone":
        return Effect.COPY
    if operator_facts(name).new_memory:
        return Effect.NEW
    schemas = [schema for schema in find_schemas(node) if _maps_tensors(schema)]
    if any(result.alias_info for schema in schemas for result in schema.returns):
        return Effect.VIEW
    return Effect.MIXED if not schemas or any(map(_is_composite, schemas)) else Effect.NEW


def _maps_tensors(schema: Any) -> bool:
    """True if an operator maps tensors to tensors: TorchScript has others of the same name."""
    takes, returns = ([str(each.type) for each in s] for s in (schema.arguments, schema.returns))
    return "Tensor" in "".join(takes) and "Tensor" in "".join(returns)


def _is_composite(schema: Any) -> bool:
    """True if an operator is composed of others, and so may return an argument itself."""
    name = f"{schema.name}.{schema.overload_name}".rstrip(".")
    try:
        return has_dispatcher_kernel(name, "CompositeImplicitAutograd")
    except RuntimeError:  # an operator that only TorchScript has
        return True
