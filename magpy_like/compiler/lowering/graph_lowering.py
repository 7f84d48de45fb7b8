"""Lowering of an ATen graph to buffers and loop nests, one operator at a time (PyTorch 2, 4.3).

:class:`Graph` interprets the FX graph node by node. An operator with a lowering becomes a lazy
:class:`~magpy_like.compiler.ir.loop_ir.Box`; any other becomes an ATen call (``ExternOp``) of its
own, so an unknown operator does not affect the rest of the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.index_arithmetic import Expr, contiguous_strides
from magpy_like.compiler.ir.loop_ir import (
    Box,
    Buffer,
    Computed,
    Cost,
    ExternOp,
    LoopOp,
    Strided,
    View,
)
from magpy_like.compiler.ir.ops import LOW_PRECISION, Value, compute_dtype, ops, record
from magpy_like.compiler.ir.size_names import SizeNames, expr, using_size_names
from magpy_like.compiler.lowering.aten_graph_properties import (
    assumptions,
    checkpointed_function_of,
    dense_stride,
    example_values,
    find_shape_env,
    has_effect,
    has_symbols,
    is_conjugate_or_negative,
    is_program_input,
    is_returned,
    mutated_arguments,
    reads_number,
    returns_alias,
    tensors_in,
)
from magpy_like.compiler.lowering.scatters_in_place import find_scatters_in_place
from magpy_like.graph_operators.node_metadata import FOLDED
from magpy_like.interruption import check_interruption

#: Operators on complex tensors without complex arithmetic: loops see pairs of reals.
COMPLEX_PART_OPERATORS = frozenset(
    (
        torch.ops.aten.view_as_real.default, torch.ops.aten.view_as_complex.default,
        torch.ops.aten.complex.default,
    )
)  # fmt: skip

# Limits of inlining. Beyond them a computation is stored rather than repeated in each consumer.
MAX_INLINE_OPERATIONS = 64
MAX_INLINE_READS = 12
#: A buffer this many times smaller than the result stays cached: reading it again is free.
MIN_CACHED_RATIO = 16


class Graph:
    """Buffers and operations of one ATen graph, in program order.

    ``inputs`` has, per placeholder, a buffer name, a SymPy expression (symbolic number) or None
    (unused, or not a tensor). ``outputs`` has a Strided, an expression, a constant or None each.
    """

    def __init__(self, gm: fx.GraphModule, *, backward: bool = False) -> None:
        self.gm = gm
        self.backward = backward
        self.freed: set[str] = set()  # inputs whose memory is free after their last use
        self.buffers: dict[str, Buffer] = {}
        self.operations: list[loop_ir.Operation] = []
        self.inputs: list[str | Expr | None] = []
        self.outputs: list[Any] = []
        self.results: list[Any] = []  # each output's node before any pass
        self.saved: set[int] = set()  # positions of outputs only the backward pass receives
        self.constants: dict[str, torch.Tensor] = {}
        self.attributes: dict[str, str | None] = {}  # constant -> attribute of ``gm``; None: folded
        self.fallbacks: dict[str, int] = {}  # operator -> calls that run through ATen
        self.lowered: dict[str, int] = {}
        self.mutated_inputs: set[str] = set()
        self.scatters_in_place = find_scatters_in_place(gm.graph)
        self.concatenated: set[str] = set()  # buffers whose writers write disjoint parts
        self.numbers = 0  # floats computed at run time so far
        self._env: dict[fx.Node, Any] = {}
        self.shared_memory: dict[str, Set[str]] = {}
        """Buffer -> the buffers that may share memory with it; see :meth:`buffers_sharing`."""
        self._lazy: list[Box] = []
        self._readers: dict[str, list[Box]] = {}  # buffer -> lazy boxes that read it when created
        self._counts: dict[str, int] = {}  # buffers by name prefix
        self._hint_cache: dict[Expr, int] = {}
        self._bytes: dict[str, int] = {}
        self.origin: fx.Node | None = None
        self.inlined: dict[fx.Node, None] = {}  # nodes that the loops being recorded compute
        self.origins: dict[str, fx.Node] = {}  # by the names of operations' origins
        self.shape_env = find_shape_env(gm)
        self.size_names = SizeNames(self.is_known)
        self.assumed = assumptions(self.shape_env)

    # --- building ------------------------------------------------------------------------------

    def run(self) -> Graph:
        """Lower every node. Raises Unsupported for a graph that cannot be compiled as a whole."""
        with using_size_names(self.size_names):
            return self._lower()

    def _lower(self) -> Graph:
        for node in self.gm.graph.nodes:
            check_interruption()
            self.origin = node
            if node.op == "placeholder":
                self._env[node] = self._placeholder(node)
            elif node.op == "get_attr":
                self._env[node] = self._constant(node)
            elif node.op == "call_function":
                self._env[node] = self._call(node)
                self._maybe_realize(node)
            elif node.op == "output":
                self._output(node)
            else:
                raise Unsupported(str(node.target), f"a {node.op} node in an ATen graph")
        return self

    def new_buffer(
        self,
        dtype: torch.dtype,
        device: torch.device,
        size: Sequence[Expr],
        stride: Sequence[Expr] | None = None,
        kind: str = "computed",
    ) -> Buffer:
        """Add a buffer, row-major unless ``stride`` is passed."""
        prefix = {"input": "arg", "constant": "const"}.get(kind, "buf")
        count = self._counts.get(prefix, 0)
        self._counts[prefix] = count + 1
        layout = list(stride) if stride is not None else contiguous_strides(size)
        buffer = Buffer(f"{prefix}{count}", dtype, device, list(size), layout, kind)
        self.buffers[buffer.name] = buffer
        return buffer

    def box(self, buffer: Buffer) -> Box:
        """A whole buffer as a box."""
        window = Strided(buffer.name, buffer.size, buffer.stride, sympy.S.Zero)
        return Box(self, buffer.dtype, buffer.device, list(buffer.size), window)

    def add_loops(
        self,
        sizes: Sequence[Expr],
        reduction_sizes: Sequence[Expr],
        function: Any,
        *,
        stores: fx.Node | None = None,
    ) -> None:
        """Record a loop nest ``function(xs, rs)`` and append it, unless it has no iterations.

        Without ``stores``, the node whose result it stores, it is part of the node being lowered.
        """
        if any(s == 0 for s in sizes):
            return
        self.inlined = {}
        body = record(sizes, reduction_sizes, function, lambda b: self.buffers[b].dtype)
        for store in body.of("store"):
            if store.args[3] is not None:
                check_accumulating(self.buffers[store.args[0]], store.args[3])
        name = f"op{len(self.operations)}"
        node = self.origin if self.backward else None
        function_number = None if node is None else checkpointed_function_of(node)
        computed = [*self.inlined]
        if stores is None and not (computed and self.origin and self.origin.op == "output"):
            computed.append(self.origin)
        self.operations.append(LoopOp(name, body, self._origins(computed), function_number))

    def store_computed(self, box: Box) -> str:
        """Write a lazy box to a new buffer; returns its name."""
        buffer = self.new_buffer(box.dtype, box.device, box.size, box.stride_hint)
        self.store_into(box, self.box(buffer), stores=box.origin)
        return buffer.name

    def store_into(self, source: Box, target: Box, *, stores: fx.Node | None = None) -> None:
        """Copy ``source`` to the memory of ``target``, with loops in the order of its strides.

        ``stores``: see :meth:`add_loops`.
        """
        window = target.strided()
        assert window is not None
        order = self.stride_order(window.stride, target.size)
        buffer = window.buffer

        def loops(xs: Sequence[Expr], rs: Sequence[Expr]) -> None:
            index: list[Expr] = [sympy.S.Zero] * len(order)
            for dim, x in zip(order, xs, strict=True):
                index[dim] = x
            value = source.load(index)
            if value.dtype != compute_dtype(target.dtype):
                value = ops.to_dtype(value, target.dtype)
            ops.store(buffer, window.address(index), value)

        self.add_loops([target.size[d] for d in order], [], loops, stores=stores)

    def stride_order(self, stride: Sequence[Expr], size: Sequence[Expr]) -> list[int]:
        """Dimensions from the largest stride to the smallest, ties in their given order."""
        dims = range(len(stride))
        return sorted(dims, key=lambda d: (-self.hint(stride[d]), self.hint(size[d]) == 1, d))

    def hint(self, e: Expr) -> int:
        """The value of an expression for the example inputs (a guess for unbacked symbols)."""
        if e.is_Integer:
            return int(e)
        found = self._hint_cache.get(e)
        if found is None:
            known = example_values(self.shape_env)
            meant = self.size_names.expand(e)
            value = meant.xreplace({s: known.get(s, sympy.Integer(64)) for s in meant.free_symbols})
            found = self._hint_cache[e] = int(value)
        return found

    def bytes_of(self, name: str) -> int:
        """Bytes of a buffer for the example inputs. Cached: fusion queries it for many pairs of few
        buffers."""
        found = self._bytes.get(name)
        if found is None:
            buffer = self.buffers[name]
            found = self._bytes[name] = self.hint(buffer.numel()) * buffer.dtype.itemsize
        return found

    def allocated_bytes(self, name: str) -> int:
        """Bytes of a buffer that the graph allocates or may free; 0 for others."""
        own = name in self.freed or self.buffers[name].kind in ("computed", "extern")
        return self.bytes_of(name) if own else 0

    def is_known(self, relation: Any) -> bool:
        """True if a relation between sizes holds for all sizes that the guards admit."""
        if not isinstance(relation, sympy.Basic):
            return bool(relation)
        if relation in (sympy.true, sympy.false):
            return relation is sympy.true
        if self.shape_env is None:
            return False
        relation = self.size_names.expand(relation)
        return self.shape_env._maybe_evaluate_static(relation) is sympy.true

    def _is_one(self, size: Expr) -> bool:
        if size.is_Integer or size.is_Symbol:
            return size == 1
        return self.hint(size) == 1 and self.is_known(sympy.Eq(size, 1))

    def assume(self, relation: Any) -> None:
        """Require a relation between sizes; calls for which it fails run in eager."""
        if not self.is_known(relation):
            self.assumed.append(self.size_names.expand(relation))

    def _origins(self, nodes: Sequence[fx.Node | None]) -> list[str]:
        """Names for nodes, with their operators."""
        found = {f"{node.name}: {node.target}": node for node in nodes if node is not None}
        self.origins.update(found)
        return [*found]

    # --- leaves --------------------------------------------------------------------------------

    def _placeholder(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            buffer = self._leaf_buffer(value, "input")
            self.inputs.append(buffer.name)
            if self.backward and not is_program_input(node):
                self.freed.add(buffer.name)
            return self.box(buffer)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            number = expr(value) if isinstance(value, torch.SymInt) else value.node.expr
            self.inputs.append(number)
            return number
        if isinstance(value, (int, float, bool)):
            self.inputs.append(None)
            return value
        self.inputs.append(None)
        return value

    def _constant(self, node: fx.Node) -> Any:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        for name, tensor in self.constants.items():
            if tensor is value:
                return self.box(self.buffers[name])
        buffer = self._leaf_buffer(value, "constant")
        self.constants[buffer.name] = value
        self.attributes[buffer.name] = None if FOLDED in node.meta else str(node.target)
        return self.box(buffer)

    def _leaf_buffer(self, value: torch.Tensor, kind: str) -> Buffer:
        if value.layout != torch.strided or value.is_quantized or value.is_nested:
            raise Unsupported(f"a {kind} tensor", f"layout {value.layout} is not strided")
        if is_conjugate_or_negative(value):
            raise Unsupported(f"a {kind} tensor", "it is a conjugate or negative view")
        size = [expr(s) for s in value.shape]
        return self.new_buffer(
            value.dtype, value.device, size, [expr(s) for s in value.stride()], kind
        )

    # --- operators -----------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> Any:
        from magpy_like.compiler.lowering import LOWERINGS

        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            number = expr(value) if isinstance(value, torch.SymInt) else value.node.expr
            if not reads_number(node):
                return self._float(node) if isinstance(value, torch.SymFloat) else number
        elif isinstance(value, (int, float, bool)) and not has_effect(node.target):
            return value
        if getattr(node.target, "__name__", "") == "getitem":
            source, index = node.args
            return self._env[source][index]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self._env[n])
        lowering = LOWERINGS.get(node.target)
        name = str(node.target)
        if lowering is not None and _is_loopable(node):
            # Buffers stored by a lowering before it fails stay: boxes may refer to them, and the
            # scheduler removes unused ones.
            try:
                result = self._conform(lowering(self, *args, **kwargs), value, name)
                if isinstance(result, list) and not returns_alias(
                    getattr(node.target, "_schema", None)
                ):
                    result = _in_own_memory(result)
                self.lowered[name] = self.lowered.get(name, 0) + 1
                return result
            except Unsupported:
                pass
            except TypeError:  # a comparison that symbolic numbers do not decide
                if not any(has_symbols(a) for a in (*args, *kwargs.values())):
                    raise
        self.fallbacks[name] = self.fallbacks.get(name, 0) + 1
        return self.fallback(node.target, args, kwargs, value)

    def _float(self, node: fx.Node) -> Expr:
        """Arithmetic on Python floats runs step by step as in eager: SymPy would reorder it."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self._env[n])
        result = sympy.Symbol(f"f{self.numbers}", real=True)
        self.numbers += 1
        self.operations.append(
            ExternOp(f"op{len(self.operations)}", node.target, args, kwargs, [result], False)
        )
        return result

    def _conform(self, result: Any, value: Any, name: str) -> Any:
        """Check a lowering's result against the meta function's: sizes, dtype, layout."""
        if isinstance(value, torch.Tensor):
            if not isinstance(result, Box):
                raise Unsupported(name, "its lowering returned no tensor")
            size = [expr(s) for s in value.shape]
            if result.dtype != value.dtype or len(size) != len(result.size):
                raise Unsupported(name, f"lowered to {result.dtype}, eager has {value.dtype}")
            for a, b in zip(size, result.size, strict=True):
                if a.is_Integer and b.is_Integer and a != b:
                    raise Unsupported(name, f"lowered to size {result.size}, eager has {size}")
            # Operators broadcast sizes that guards prove to be 1, however they are expressed.
            result.size = [sympy.S.One if self._is_one(s) else s for s in result.size]
            if result.dtype in LOW_PRECISION and isinstance(result.data, Computed):
                result = _rounded(result, result.data)
            if result.stride_hint is None:
                result.stride_hint = dense_stride(value)
            return result
        if isinstance(value, (tuple, list)):
            return [
                self._conform(r, v, name) if isinstance(v, torch.Tensor) and r is not None else r
                for r, v in zip(result, value, strict=True)
            ]
        return result

    def fallback(self, target: Any, args: Any, kwargs: Any, value: Any) -> Any:
        """Call ``target`` through ATen; ``value`` is its fake result."""
        schema = getattr(target, "_schema", None)
        mutated = mutated_arguments(schema, args, kwargs)
        for box in mutated:
            if isinstance(box, Box):
                self.realize_readers(box.realize().buffer)
        args, kwargs = self._extern_arguments((args, kwargs), mutated)
        mutates = [
            s.buffer for s in loop_ir.strided_leaves(mutated_arguments(schema, args, kwargs))
        ]
        self.mutated_inputs.update(mutates)
        if returns_alias(schema):
            for window in loop_ir.strided_leaves((args, kwargs)):
                self.buffers[window.buffer].aliased = True
        outputs: list[Any] = []
        results: list[Any] = []
        multiple = isinstance(value, (tuple, list))
        used = self.used_results(target) if multiple else None
        for k, item in enumerate(value if multiple else [value]):
            if used is not None and k not in used and isinstance(item, torch.Tensor):
                item = None  # may be no tensor at run time
            name, result = self._extern_output(item, returns_alias(schema))
            outputs.append(name)
            results.append(result)
        if returns_alias(schema):
            windows = loop_ir.strided_leaves((args, kwargs))
            self._note_shared_memory([w.buffer for w in windows], outputs)
        if mutated and not multiple and isinstance(mutated[0], Box) and len(mutated) == 1:
            # An in-place operator returns the tensor it writes.
            if isinstance(value, torch.Tensor):
                outputs, results = [None], [mutated[0]]
        dynamic = self.origin is not None and "unbacked_bindings" in self.origin.meta
        operation = ExternOp(
            f"op{len(self.operations)}", target, args, kwargs, outputs, multiple,
            mutates, has_effect(target), dynamic, self._origins([self.origin]),
        )  # fmt: skip
        self.operations.append(operation)
        return results if multiple else results[0]

    def _extern_arguments(self, arguments: Any, mutated: Sequence[Any]) -> Any:
        """Arguments of an ATen call: every box realized, with eager's strides unless it is written
        to. The strides of many results follow from them."""
        nodes = self.origin.all_input_nodes if self.origin is not None else []
        values = {id(self._env[node]): node.meta.get("val") for node in nodes}

        def realized(tree: Any) -> Any:
            if isinstance(tree, Box):
                value = values.get(id(tree))
                if isinstance(value, torch.Tensor) and not any(tree is box for box in mutated):
                    return self._with_strides(tree, value)
                return tree.realize()
            if isinstance(tree, (tuple, list)):
                return type(tree)(map(realized, tree))
            if isinstance(tree, dict):
                return {key: realized(each) for key, each in tree.items()}
            return tree

        return realized(arguments)

    def used_results(self, target: Any) -> set[Any] | None:
        """The used results of the operator being lowered; None if unknown."""
        node = self.origin
        if node is None or node.target is not target or "unbacked_bindings" in node.meta:
            return None
        if any(user.target is not operator.getitem for user in node.users):
            return None
        return {user.args[1] for user in node.users}

    def _extern_output(self, item: Any, alias: bool) -> tuple[Any, Any]:
        if isinstance(item, torch.Tensor):
            if item.layout != torch.strided:
                raise Unsupported(str(self.origin and self.origin.target), "a sparse result")
            size = [expr(s) for s in item.shape]
            stride = [expr(s) for s in item.stride()]
            buffer = self.new_buffer(item.dtype, item.device, size, stride, "extern")
            buffer.aliased = alias
            return buffer.name, self.box(buffer)
        if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return item.node.expr, item.node.expr
        if item is None or isinstance(item, (int, float, bool)):
            return None, item
        raise Unsupported(str(self.origin and self.origin.target), f"returns {type(item)}")

    # --- laziness ------------------------------------------------------------------------------

    def _maybe_realize(self, node: fx.Node) -> None:
        """Store boxes that would be recomputed too often or grow too large, and those returned."""
        result = self._env[node]
        for box in result if isinstance(result, list) else [result]:
            if not isinstance(box, Box) or isinstance(box.data, Strided):
                continue
            if box.origin is None:
                box.origin = node
            self._lazy.append(box)
            cost = box.cost()
            for buffer in cost.reads:
                self._readers.setdefault(buffer, []).append(box)
            # A consumer that unpacks a list reads each element once.
            shared = len(node.users) > 1 and not isinstance(result, list)
            large = cost.operations > MAX_INLINE_OPERATIONS or len(cost.reads) > MAX_INLINE_READS
            source = box
            while isinstance(source.data, View):
                source = source.data.base
            # A returned box too: its inputs are cached now, and then need not be kept to the end.
            returned = source.stride_hint is not None and is_returned(node)
            if large or returned or (shared and self._without_cached_reads(cost, box).is_expensive):
                source.realize()

    def _without_cached_reads(self, cost: Cost, box: Box) -> Cost:
        """The cost without reads much smaller than ``box``, such as a mean per row, which stay
        cached.

        One read remains: a computation from memory is not one from positions.
        """
        size = self.hint(box.numel())
        by_size = sorted(cost.reads, key=lambda b: self.hint(self.buffers[b].numel()))
        small = [
            b for b in by_size[:-1] if MIN_CACHED_RATIO * self.hint(self.buffers[b].numel()) <= size
        ]
        return replace(cost, reads=cost.reads - set(small))

    def realize_readers(self, buffer: str) -> None:
        """Store every lazy box that reads the memory of ``buffer``, which is about to be
        overwritten."""
        shared = self.buffers_sharing(buffer)
        # Only views read another buffer once their base is stored in a computed buffer.
        computed = len(shared) > 1 or self.buffers[buffer].kind == "computed"
        for box in self._lazy if computed else self._readers.get(buffer, ()):
            if not isinstance(box.data, Strided) and not shared.isdisjoint(box.cost().reads):
                box.realize()

    def buffers_sharing(self, buffer: str) -> Set[str]:
        """The buffers that may share memory with one, and itself: arguments and results of ATen
        calls that return a view."""
        return self.shared_memory.get(buffer) or {buffer}

    def _note_shared_memory(self, arguments: Iterable[str], results: Iterable[Any]) -> None:
        names = {*arguments, *(name for name in results if isinstance(name, str))}
        shared = {other for name in names for other in self.buffers_sharing(name)}
        self.shared_memory.update(dict.fromkeys(shared, shared))

    # --- results -------------------------------------------------------------------------------

    def _output(self, node: fx.Node) -> None:
        (results,) = node.args
        if not isinstance(results, (tuple, list)):
            raise Unsupported("output", "an ATen graph must return a tuple")
        for result in results:
            box = self._env[result] if isinstance(result, fx.Node) else result
            if isinstance(box, Box):
                assert isinstance(result, fx.Node)
                self.outputs.append(self.with_eager_strides(box, result.meta["val"]))
            else:
                self.outputs.append(box)

    def with_eager_strides(self, box: Box, value: torch.Tensor) -> Strided:
        """The box as memory with exactly eager's strides, those of ``value``, to be returned.

        Constants belong to the graph: a caller that writes to its result must not reach them.
        """
        window = self._with_strides(box, value)
        if self.buffers[window.buffer].kind == "constant" and 0 not in box.size:
            return self._stored_like(box, value)
        return window

    def _with_strides(self, box: Box, value: torch.Tensor) -> Strided:
        """The box as memory with the strides of ``value``; if it has no elements, with any."""
        window, stride = box.realize(), [expr(s) for s in value.stride()]
        same = all(
            self.is_known(sympy.Eq(a, b)) or n == 1
            for a, b, n in zip(window.stride, stride, box.size, strict=True)
        )
        if same or 0 in box.size:
            used = stride if same else window.stride
            return Strided(window.buffer, box.size, used, window.offset)
        return self._stored_like(box, value)

    def _stored_like(self, box: Box, value: torch.Tensor) -> Strided:
        """A copy of the box with the strides of ``value``."""
        size, stride = box.size, [expr(s) for s in value.stride()]
        # Expanded elements are stored once and shown repeatedly.
        expanded = [d for d, (n, step) in enumerate(zip(size, stride, strict=True))
                    if step == 0 and n != 1]  # fmt: skip
        once = [sympy.S.One if d in expanded else n for d, n in enumerate(size)]
        buffer = self.new_buffer(box.dtype, box.device, once, stride)
        buffer.dense = not expanded and dense_stride(value) is not None
        first = Box(self, box.dtype, box.device, once, View(box, lambda i: i, lambda w: None))
        self.store_into(first, self.box(buffer))
        return Strided(buffer.name, size, stride, sympy.S.Zero)


def _rounded(box: Box, data: Computed) -> Box:
    """The box rounded to its dtype, as eager's kernel stores it; computed in float32."""

    def function(index: loop_ir.Index) -> Value:
        return ops.to_dtype(data.function(index), box.dtype)

    rounded = Computed(function, data.cost)
    return Box(box.graph, box.dtype, box.device, box.size, rounded, box.stride_hint)


def _in_own_memory(results: Sequence[Any]) -> list[Any]:
    """The results of one operator, each in memory of its own: the caller may write to one of them.

    A lowering may compute equal results once.
    """
    own: list[Any] = []
    bases: list[Any] = []
    for result in results:
        base = _base_of(result)
        if base is not None and base in bases:
            result = replace(result, data=Computed(result.load, result.cost()))
        bases.append(base)
        own.append(result)
    return own


def _base_of(result: Any) -> Computed | str | None:
    """What a box shows: a computation, or the name of a buffer; None for another result."""
    while isinstance(result, Box) and isinstance(result.data, View):
        result = result.data.base
    if not isinstance(result, Box):
        return None
    if isinstance(result.data, Strided):
        return result.data.buffer
    return result.data if isinstance(result.data, Computed) else None


def _is_loopable(node: fx.Node) -> bool:
    """True if all tensors of a node are strided, of dtypes of the loop IR, and on one device."""
    if node.target in COMPLEX_PART_OPERATORS:
        return True
    devices = set()
    for value in tensors_in([node.meta.get("val"), *(a.meta.get("val") for a in
                                                   node.all_input_nodes)]):  # fmt: skip
        if value.dtype not in loop_ir.LOOP_DTYPES or value.layout != torch.strided:
            return False
        if is_conjugate_or_negative(value):
            return False
        devices.add(value.device)
    return len(devices) <= 1


#: dtypes of atomic additions on GPUs. Low precision would round at every addition.
ATOMIC_DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64)


def check_accumulating(buffer: Buffer, mode: str) -> None:
    """Check that threads can combine values atomically in ``buffer``.

    Raises:
        Unsupported: they cannot.
    """
    if buffer.device.type == "cpu":
        return
    if mode != "add" or buffer.dtype not in ATOMIC_DTYPES:
        raise Unsupported("a scatter", f"{mode} of {buffer.dtype} on {buffer.device.type}")
    if torch.are_deterministic_algorithms_enabled() and buffer.dtype.is_floating_point:
        raise Unsupported("a scatter", "atomic sums are not deterministic")
