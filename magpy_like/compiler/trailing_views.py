"""Trailing views: results that are views and share memory, made after the graph.

A view and its base share a version counter, by which autograd refuses gradients that need what a
write to one of them has overwritten. Autograd also keeps with a view how it was made: by an
operator with several results (``unbind``), in inference mode, or under ``no_grad``. By that it
refuses writes to the view whose gradients would be wrong. AOTAutograd's functional graphs have no
such views: without a gradient, and of an operator with several results, they return tensors that
share memory unknown to autograd; other views AOTAutograd makes again, slowly, in the mode of the
caller. So the graph that it receives ends before such views: it returns the tensor that they view,
and the view operators run after the graph, in the program's modes.

One view of a tensor that is no other result's memory stays in the graph: there nothing is shared.

An operator such as ``reshape`` returns a view or a copy. Where the program writes to the memory
later, it must stay in the graph too, as a copy has the old elements. The graph returns its result;
after the graph, this is made a view of its base if it is in the base's memory.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.autograd.gradient_modes import modes_of_nodes
from magpy_like.compiler.autograd.overwritten_saved_values import Effect, memory_effect
from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.passes import find_returned_object
from magpy_like.compiler.passes.mutations.metadata_mutations import may_change_metadata
from magpy_like.compiler.passes.mutations.tensor_subscripts import find_schemas
from magpy_like.graph_operators.control_operators import name_of
from magpy_like.graph_operators.node_metadata import NUMBER, RESULT_VERSIONS
from magpy_like.graph_operators.wrapped_functions import operation_of
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import set_grad_enabled, set_version
from magpy_like.torch_compat.operators import OpOverload, find_packet
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedGraphModule


class TrailingViews:
    """The view operators that run after a graph, and return what the whole graph returned."""

    def __init__(self, graph: fx.GraphModule, inputs: list[int], *, are_all: bool) -> None:
        self._run, self._inputs = graph.forward, inputs
        self.are_all = are_all
        """Whether nothing of the graph is left but modes that it switches back."""

    def after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The whole graph as a function of its inputs; ``call`` is the graph without the views,
        and returns a sequence."""
        run, inputs = self._run, self._inputs
        if not inputs:
            return lambda *args: run(*call(*args))
        return lambda *args: run(*call(*args), *[args[k] for k in inputs])

    def alone(self) -> Callable[..., Any]:
        """The whole graph as a function of its inputs, if the views are all of it."""
        run, inputs = self._run, self._inputs
        return lambda *args: run(*[args[k] for k in inputs])


def take_trailing_views(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> TrailingViews | None:
    """Take the views that AOTAutograd would make unlike eager mode off a captured graph, in place.

    ``gm`` then returns a flat tuple: the tensors that they view, unless these are inputs, and the
    other results. Returns None, and leaves the graph as it is, if there are no such views.

    Raises:
        Unsupported: the graph writes to the memory of such a view after making it.
    """
    (returned,) = gm.graph.output_node().args
    leaves, structure = pytree.tree_flatten(returned)
    program = _Program(gm, example_inputs)
    taken = program.find_trailing_views([leaf for leaf in leaves if isinstance(leaf, fx.Node)])
    if not taken and not program.possible_views:
        return None
    return _Cut(gm, program, taken).make(leaves, structure)


class _Program:
    """The views, modes and writes of a captured graph."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        nodes = list(gm.graph.nodes)
        self.position = {node: k for k, node in enumerate(nodes)}
        inputs = (node for node in nodes if node.op == "placeholder")
        self._examples = dict(zip(inputs, example_inputs, strict=False))
        self._inference = torch.is_inference_mode_enabled()
        self.entry_mode = torch.is_grad_enabled()
        self.modes = modes_of_nodes(gm.graph)
        """Whether gradients are recorded when a node runs. The graph ends in the mode of its entry:
        see ``gradient_modes``."""
        attributes = {n: operator.attrgetter(n.target)(gm) for n in nodes if n.op == "get_attr"}
        self._tensors = {
            node: value
            for node, value in (self._examples | attributes).items()
            if isinstance(value, torch.Tensor)
        }
        """The examples of the tensors from outside."""
        records = not self._inference and any(self.modes.values())
        self._records_gradients = records and any(t.requires_grad for t in self._tensors.values())
        self._switches_inference = any("inference_mode" in name_of(node) for node in nodes)
        self.possible_views: dict[fx.Node, fx.Node] = {}
        """Nodes that trailing views, or results, are views of, and that may themselves be views of
        the memory of another node that is shared, with this node."""
        self._memory: dict[fx.Node, frozenset[Any]] = {}
        self._writes: list[tuple[fx.Node, frozenset[Any]]] = []

    def find_trailing_views(self, results: Iterable[fx.Node]) -> set[fx.Node]:
        """The view operators that run after the graph: of tensors of which AOTAutograd would not
        make some view as eager mode does, or not as fast, all that make views that are results.

        Raises:
            Unsupported: the graph writes to the memory of such a view after making it, and a
                gradient may flow through it; or it then changes the sizes of tensors in memory
                that results share.
        """
        if self._switches_inference:
            return set()
        found = dict.fromkeys(map(find_returned_object, results))
        chains = [self._find_views(result) for result in found]
        sharing = Counter(root for root, _ in chains)
        roots = {
            root
            for root, views in chains
            if views and self._needs_trailing(root, views, is_shared=sharing[root] > 1)
        }
        taken = set()
        for root, views in chains:
            if root not in roots:
                continue
            later = [*itertools.takewhile(functools.partial(self._may_run_later, root), views)]
            taken.update(later)
            rest = views[len(later) :]
            if rest and root not in self._tensors:
                if root in found or not self._may_require_grad(root):
                    self.possible_views[rest[0]] = root
        return taken

    def _find_views(self, result: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
        """The tensor that a result is a view of, and the view operators, the last first."""
        views, root = [], result
        while (source := self.find_viewed(root)) is not None:
            views.append(root)
            root = find_returned_object(source)
        return root, views

    def _needs_trailing(self, root: fx.Node, views: list[fx.Node], *, is_shared: bool) -> bool:
        """True if these views are made after the graph; ``is_shared``: other results share their
        memory."""
        needs_gradient, is_external = self._may_require_grad(root), root in self._tensors
        if needs_gradient:
            special = [view for view in views if self._is_special(view)]
            unrecorded = [*special, *self._find_unrecorded(views)]
            if min(map(self.position.__getitem__, unrecorded), default=len(self.position)) <= (
                self._last_write(root)
            ):
                raise Unsupported(
                    "a graph", "it writes to the memory of a view that no gradient may flow through"
                )
            if special:
                return True
        counts_versions = not self._inference
        if not (is_external or (is_shared and counts_versions)):
            return False
        if self.position[views[-1]] > self._last_metadata_write(root):
            return True
        # AOTAutograd makes no such views, nor detached ones of an input.
        if not needs_gradient and (not is_external or any(map(_is_detached, views))):
            raise Unsupported("a graph", "it changes the sizes of tensors that share memory")
        return False

    def _may_run_later(self, root: fx.Node, view: fx.Node) -> bool:
        """True if a view operator has the same result after the graph: it sees writes to the
        elements of its argument, but a copy does not."""
        copies = name_of(view) in _MAY_COPY
        last = self._last_write(root) if copies else self._last_metadata_write(root)
        return self.position[view] > last

    def find_viewed(self, node: fx.Node) -> fx.Node | None:
        """The tensor, or the list of views, that a node is a view or an item of; None for others.

        Not of operators that return the argument itself or a copy, such as ``contiguous``.
        """
        if node.op not in ("call_function", "call_method"):
            return None
        named = (node.kwargs[name] for name in ("input", "tensor", "self") if name in node.kwargs)
        source = node.args[0] if node.args else next(named, None)
        if not isinstance(source, fx.Node):
            return None
        if _is_data(node):
            return source
        if node.target is operator.getitem:
            if _is_view_operator(source):
                return source if _has_several_results(source) else self._find_subscripted(node)
            return self._find_subscripted(node)
        return source if _is_view_operator(node) else None

    def _find_subscripted(self, node: fx.Node) -> fx.Node | None:
        """The tensor of which a subscript is a view; None if the subscript copies, or may be an
        item of another object."""
        source, key = node.args[:2]
        assert isinstance(source, fx.Node)
        parts = key if isinstance(key, tuple) else (key,)
        return source if all(map(_is_basic, parts)) and self._is_tensor(source) else None

    def _is_tensor(self, node: fx.Node) -> bool:
        node = find_returned_object(node)
        if node in self._tensors:
            return True
        if "example_value" in node.meta:
            return isinstance(node.meta["example_value"], torch.Tensor)
        if node.op == "call_method" and node.target in _CONVERSIONS:
            return True
        if self.find_viewed(node) is not None:
            return not _has_several_results(node)
        if node.target is operator.getitem and isinstance(source := node.args[0], fx.Node):
            items = {each for types in _result_types(source) for each in types}
            return self._is_tensor(source) or (bool(items) and items <= {"Tensor", "List[Tensor]"})
        # A function written in Python may return more than the operator of its name.
        return not hasattr(node.target, "__code__") and _result_types(node) == {("Tensor",)}

    def _is_special(self, view: fx.Node) -> bool:
        """True if autograd keeps with a view of a tensor with a gradient that it was not made as
        AOTAutograd would make it."""
        if _is_data(view):
            return False
        if self._inference:
            return True
        mode = self.modes[view]
        return mode is not self.entry_mode or (mode and _has_several_results(view))

    def _find_unrecorded(self, views: list[fx.Node]) -> Iterator[fx.Node]:
        """The views that autograd may show to have been made where it does not record, and before
        later writes; not detached ones, and views of them, which have no gradient."""
        attached = itertools.takewhile(lambda view: not _is_detached(view), reversed(views))
        return (view for view in attached if not self.modes[view])

    def _may_require_grad(self, root: fx.Node) -> bool:
        example = self._examples.get(root)
        if isinstance(example, torch.Tensor):
            return example.requires_grad
        if not self.modes[root] and root.op.startswith("call"):
            return self._records_gradients and memory_effect(root) is not Effect.NEW
        return self._records_gradients

    def _last_write(self, root: fx.Node) -> int:
        """The position of the last node that may write to the memory of a node."""
        return max(self._find_writes(root).values(), default=-1)

    def _last_metadata_write(self, root: fx.Node) -> int:
        """The position of the last node that may change the sizes or the storage of a tensor in
        the memory of a node: operators that run later than in the program would see the change."""
        writes = self._find_writes(root).items()
        return max((k for node, k in writes if may_change_metadata(node)), default=-1)

    def _find_writes(self, root: fx.Node) -> dict[fx.Node, int]:
        """The nodes that may write to the memory of a node, with their positions."""
        if not self._memory:
            self._find_memory()
        memory = self._memory[root]
        return {
            node: self.position[node]
            for node, written in self._writes
            if not memory.isdisjoint(written)
        }

    def _find_memory(self) -> None:
        """Find the memory that each node's result may share: nodes that allocate it, and storages
        from outside."""
        for node in self.position:
            inputs = [self._memory[source] for source in node.all_input_nodes]
            if node in self._tensors:
                self._memory[node] = frozenset([self._tensors[node].untyped_storage()._cdata])
                continue
            effect = memory_effect(node) if node.op.startswith("call") else Effect.MIXED
            shared = frozenset[Any]().union(*inputs)
            if effect is Effect.WRITES:
                self._writes.append((node, shared))
            new = frozenset([node])
            self._memory[node] = new if effect in (Effect.NEW, Effect.COPY) else shared | new


class _Cut:
    """A captured graph that is cut before its trailing views."""

    def __init__(self, gm: fx.GraphModule, program: _Program, taken: set[fx.Node]) -> None:
        self._gm, self._program, self._taken = gm, program, taken
        self._results: list[fx.Node] = []
        """What the graph returns to the views, or for its caller."""
        self._inputs: list[fx.Node] = []
        self._supplied: set[fx.Node] = set()

    def make(self, leaves: list[Any], structure: Any) -> TrailingViews:
        """Cut the graph; ``leaves`` and ``structure`` are those of its results."""
        gm = self._gm
        nodes = [find_returned_object(leaf) for leaf in leaves if isinstance(leaf, fx.Node)]
        self._results += dict.fromkeys(node for node in nodes if self._is_computed(node))
        self._supplied.update(self._results)
        for node in [*self._taken, *nodes, *self._program.possible_views.values()]:
            self._supply(node)
        order = self._program.position.__getitem__
        graph = fx.Graph()
        copies = {node: graph.placeholder(node.name) for node in (*self._results, *self._inputs)}
        views = {*self._taken, *self._program.possible_views}
        self._copy_views(graph, sorted(views, key=order), copies)
        values = [
            copies[find_returned_object(leaf)] if isinstance(leaf, fx.Node) else leaf
            for leaf in leaves
        ]
        graph.output(pytree.tree_unflatten(values, structure))
        trailing = UnobservedGraphModule(gm, graph, class_name="TrailingViews")

        output = gm.graph.output_node()
        output.args = (tuple(self._results),)
        if (versions := output.meta.get(RESULT_VERSIONS)) is not None:
            output.meta[RESULT_VERSIONS] = self._versions_of_results(leaves, versions)
        for node in reversed(list(gm.graph.nodes)):
            if not node.users and self._program.find_viewed(node) is not None:
                gm.graph.erase_node(node)
        gm.recompile()
        inputs = gm.graph.find_nodes(op="placeholder")
        return TrailingViews(
            trailing, [inputs.index(node) for node in self._inputs], are_all=self._is_empty()
        )

    def _versions_of_results(self, leaves: list[Any], versions: Sequence[int]) -> tuple[int, ...]:
        """The versions of what the cut graph returns: a view has the version of its base, unless it
        is one of ``tensor.data``, which is counted apart."""
        found: dict[fx.Node, int] = {}
        for leaf, version in zip(leaves, versions, strict=True):
            if isinstance(leaf, fx.Node):
                base, *views = self._find_base(leaf)
                if not any(map(_is_data, views)):
                    found[base] = max(version, found.get(base, 0))
        return tuple(found.get(node, 0) for node in self._results)

    def _find_base(self, node: fx.Node) -> list[fx.Node]:
        """The tensor that a node is a view of, and these views, if they are taken."""
        nodes = [find_returned_object(node)]
        while nodes[0] in self._taken and (viewed := self._program.find_viewed(nodes[0])):
            nodes.insert(0, find_returned_object(viewed))
        return nodes

    def _supply(self, node: fx.Node) -> None:
        """See to it that a value can be returned after the graph, or used by the views."""
        node = find_returned_object(node)
        if node in self._supplied:
            return
        self._supplied.add(node)
        if node.op == "placeholder":
            self._inputs.append(node)
        elif self._is_computed(node) and not _is_number(node):
            self._results.append(node)
        else:
            self._taken.add(node)
            for source in node.all_input_nodes:
                self._supply(source)

    def _is_computed(self, node: fx.Node) -> bool:
        """True if the graph computes a value that no view operator makes."""
        return node not in self._taken and node.op not in ("placeholder", "get_attr")

    def _copy_views(
        self, graph: fx.Graph, nodes: list[fx.Node], copies: dict[fx.Node, fx.Node]
    ) -> None:
        """Copy the view operators into a graph, and switches to the modes that they ran in."""
        program = self._program
        now = program.entry_mode
        for node in nodes:
            if program.find_viewed(node) is not None and now is not (mode := program.modes[node]):
                graph.call_function(set_grad_enabled, (mode,))
                now = mode
            if (base := program.possible_views.get(node)) is not None:
                copies[node] = graph.call_function(view_if_shared, (copies[base], copies[node]))
                continue
            copies[node] = graph.node_copy(node, lambda n: copies[find_returned_object(n)])
        if now is not program.entry_mode:
            graph.call_function(set_grad_enabled, (program.entry_mode,))

    def _is_empty(self) -> bool:
        if self._results:
            return False
        return all(
            node.op in ("placeholder", "get_attr", "output")
            or node.target is set_grad_enabled
            or _is_number(node)
            for node in self._gm.graph.nodes
        )


def view_if_shared(base: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``; if it is in the memory of ``base``, as a view of it, with its version counter.

    Not where gradients flow, as AOTAutograd makes such views, nor of another type of elements.
    """
    if tensor.requires_grad or base.requires_grad or base.is_inference():
        return tensor
    if _kind(tensor) != _kind(base) or base.layout is not torch.strided:
        return tensor
    if tensor.untyped_storage()._cdata != base.untyped_storage()._cdata:
        return tensor
    if tensor._version > base._version:
        set_version([base], [tensor._version])
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.layout, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _is_data(node: fx.Node) -> bool:
    """True for ``tensor.data``: the same memory, but no view to autograd."""
    return node.target is getattr and node.args[1] == "data"


def _is_detached(node: fx.Node) -> bool:
    """True for a result that is no view to autograd, though it has the same memory."""
    return _is_data(node) or name_of(node).partition(".")[0] == "detach"


def _is_view_operator(node: fx.Node) -> bool:
    """True if the result of an operator is always a view of its first argument, or several views.

    ``contiguous`` and ``to``, with a memory format, return the argument itself or a copy.
    """
    schemas = list(_schemas_of_tensors(node))
    return bool(schemas) and all(map(_returns_views, schemas))


def _returns_views(schema: Any) -> bool:
    viewed, *others = (argument.alias_info for argument in schema.arguments)
    if viewed is None or viewed.is_write or any(others) or len(schema.returns) != 1:
        return False
    (result,) = (each.alias_info for each in schema.returns)
    if result is None or viewed.after_set != (result.before_set or {"*"}):  # "*": a list holds it
        return False
    return all(argument.name != "memory_format" for argument in schema.arguments)


def _has_several_results(node: fx.Node) -> bool:
    """True if a view operator returns a list of views: ``Tensor(a)[]``."""
    return any(
        str(each.type) == "List[Tensor]"
        for schema in _schemas_of_tensors(node)
        for each in schema.returns
    )


def _schemas_of_tensors(node: fx.Node) -> Iterator[Any]:
    """The schemas of a call whose first argument is a tensor; none for unknown functions."""
    for schema in _schemas(node):
        if schema.arguments and str(schema.arguments[0].type) == "Tensor":
            yield schema


def _result_types(node: fx.Node) -> set[tuple[str, ...]]:
    """The types of the results of a call, for each overload that returns tensors."""
    found = (tuple(str(each.type) for each in schema.returns) for schema in _schemas(node))
    return {types for types in found if any("Tensor" in each for each in types)}


def _schemas(node: fx.Node) -> list[Any]:
    if not node.op.startswith("call"):
        return []
    target = operation_of(node)
    if isinstance(target, OpOverload):
        return [target._schema]
    name = None
    if target is getattr:
        name = str(node.args[1])
    elif target is not node.target and str(target.__module__).split(".")[0] == "torch":
        name = target.__name__
    if name is None:
        return find_schemas(node)
    packet = find_packet(_ATTRIBUTE_OPERATORS.get(name, name))
    return [getattr(packet, each)._schema for each in packet.overloads()] if packet else []


_CONVERSIONS = {
    "bfloat16", "bool", "byte", "cdouble", "cfloat", "chalf", "char", "cpu", "cuda", "double",
    "float", "half", "int", "long", "short", "type",
}  # fmt: skip
"""Methods of tensors that return tensors, and are no ATen operators."""

_MAY_COPY = {
    "flatten", "flatten.using_ints", "ravel", "ravel.default", "reshape", "reshape.default",
    "reshape_as", "reshape_as.default", "resolve_conj", "resolve_conj.default", "resolve_neg",
    "resolve_neg.default",
}  # fmt: skip
"""View operators that return a copy where the memory admits no view."""

_ATTRIBUTE_OPERATORS = {"T": "numpy_T", "H": "matrix_H"}


def _is_basic(part: Any) -> bool:
    """True for a part of a subscript by which the subscript is a view."""
    if isinstance(part, fx.Node):
        return _is_number(part)
    if isinstance(part, slice):
        bounds = (part.start, part.stop, part.step)
        return all(not isinstance(bound, fx.Node) or _is_number(bound) for bound in bounds)
    return part is None or part is Ellipsis or type(part) is int


def _is_number(node: fx.Node) -> bool:
    """True if a node's result is a number."""
    if NUMBER in node.meta:
        return bool(node.meta[NUMBER])
    return isinstance(node.meta.get("example_value"), _NUMBERS)


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
