"""The symbolic twin of a monitor run: each operator also runs on symbolic sizes.

While a record has dynamic dimensions, every node of the operator graph has a *twin*: a fake tensor
whose sizes are expressions of one ``ShapeEnv``, or a ``torch.SymInt``. Conditions that the program
and torch's operators evaluate on twins become guards of the ``ShapeEnv``. Where an operator has no
symbolic counterpart, its sizes are specialized instead (PyTorch 2, section 5.1).
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
)

from magpy_like.graph_operators.node_metadata import TWIN
from magpy_like.logs import topic
from magpy_like.monitor.symbolic.expressions import (
    GraphNumber,
    Size,
    Stride,
    Untranslatable,
    from_sympy,
    is_number,
)
from magpy_like.monitor.symbolic.memory_layouts import (
    guard_overlaps,
    inner_dimensions,
    inner_first,
    is_free_of_overlaps,
    neighbours,
)
from magpy_like.monitor.symbolic.shape_environment import Sizes
from magpy_like.monitor.torch_state.outdated_bases import without_outdated_base
from magpy_like.monitor.torch_state.torch_modes import SETTERS
from magpy_like.native import TensorCheck
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import ShadowNode
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import make_nonleaf
from magpy_like.torch_compat.dispatch import TorchDispatchMode
from magpy_like.torch_compat.operators import OpOverload
from magpy_like.torch_compat.tracing.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    enable_python_dispatcher,
)
from magpy_like.torch_interop.own_fake_modes import new_fake_mode
from magpy_like.torch_interop.symbols import SymbolName

log = topic("monitor")

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _detect_devices() -> None:
    """Let torch detect in a thread that never ends that there is no CUDA device.

    Torch binds the substitution of a missing device to the first thread that queries devices;
    torch 2.11 crashes when that thread has ended.
    """

    def detect() -> None:
        with FakeTensorMode():
            pass
        done.set()
        threading.Event().wait()

    done = threading.Event()
    if threading.current_thread() is threading.main_thread():
        with FakeTensorMode():
            return
    threading.Thread(target=detect, name="magpy_like devices", daemon=True).start()
    done.wait()


_detect_devices()


_NATIVE = (types.BuiltinFunctionType, types.MethodDescriptorType, OpOverload)


class _OnTwins(TorchDispatchMode):
    """Replaces all tensors by twins: an operator on real tensors only would run, and might
    write."""

    def __init__(self, fixed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._fixed = fixed
        self._twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        kinds: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._twin, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_instance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._twins:
            self._twins[id(tensor)] = tensor, self._fixed(tensor)
        return self._twins[id(tensor)][1]


class SymbolicTwin:
    """The fake tensors and symbolic numbers of one run, and their guards."""

    def __init__(
        self,
        size_in_graph: Callable[[fx.Node, int], fx.Node],
        account: Callable[[], None] = lambda: None,
        locate: Callable[[], str] = lambda: "",
    ) -> None:
        """
        Args:
            size_in_graph: adds a graph node for one size of a node's result.
            account: called after operators that do not belong to the program.
            locate: returns the program's position.
        """
        self.env = Sizes(assume_static_by_default=False, duck_shape=False, specialize_zero_one=True)
        self.mode = self._new_mode()
        self.sources: dict[sympy.Symbol, Any] = {}
        """The expression of each symbol; for sizes that depend on data, a node and a dimension."""
        self.numbers: dict[Any, Any] = {}
        """Symbolic numbers, by the expression of their value."""
        self.inputs: dict[int, torch.Tensor] = {}
        """Twins of external tensors with dynamic sizes or strides, by the id of their
        ShadowNode."""
        self.checks: dict[int, TensorCheck] = {}
        self.inner_dims: dict[int, tuple[int, ...]] = {}
        """By dimension, the one that determines its stride: see :func:`inner_dimensions`."""
        self._layouts: dict[int, tuple[list[Any], list[Any]]] = {}
        """Symbolic sizes and strides of the tensors in ``inputs``."""
        self._size_in_graph, self.account, self.locate = size_in_graph, account, locate
        self.guard_locations: dict[int, str] = {}
        """The program's position at each guard, by the guard's index."""

    def _new_mode(self) -> FakeTensorMode:
        return new_fake_mode(self.env)

    def forget_graph(self) -> None:
        """Drop the graph, and with it the program's tensors: symbolic sizes outlive the run."""
        self._size_in_graph = _add_to_no_graph

    def begin_examples(self) -> None:
        """Let :meth:`example_input` and :meth:`static_fake` make fake tensors apart from those on
        which the run's operators have run: a mode has one for each tensor, and in-place operators
        change its form."""
        self.mode = self._new_mode()

    # --- external values -------------------------------------------------------------------------

    def add_number(self, source: Any, value: Any, *, size: bool) -> Any:
        """A symbolic number for an external one; as a ``size`` it is not 0 or 1."""
        origin = SymbolName(f"number_{len(self.sources)}")
        if is_instance(value, float):
            symbol = self.env.create_unspecified_symbol(value, origin, DimDynamic.DYNAMIC)
            self.numbers[source] = self.env.create_symfloatnode(symbol, hint=value, source=origin)
            return self.numbers[source]
        symbol = self.env.create_symbol(
            value,
            origin,
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=None,
            positive=size or None,
            do_not_specialize_zero_one=not size,
        )
        number = self.env.create_symintnode(symbol, hint=value, source=origin)
        self.sources[symbol] = source
        self.numbers[source] = number
        return number

    def add_unbacked_number(self, source: Any, value: Any) -> Any:
        """An unbacked symbolic number for a number that no guard can check."""
        if is_instance(value, float):
            self.numbers[source] = self.env.create_unbacked_symfloat()
        else:
            self.numbers[source] = self.env.create_unbacked_symint()
            self.sources[self.numbers[source].node.expr] = source
        self.env.pending_fresh_unbacked_symbols.clear()  # no operator returns it
        return self.numbers[source]

    def add_tensor(
        self, node: ShadowNode, tensor: torch.Tensor, dims: Collection[int], steps: Collection[int]
    ) -> TensorCheck | None:
        """Create the twin of an external tensor whose sizes in ``dims`` and strides in ``steps``
        are dynamic.

        Returns:
            Its guard; None if nothing can be dynamic, as sizes and strides 0 and 1 are specialized.
        """
        if not is_ordinary(tensor):
            return None
        shape, layout = tensor.shape, tensor.stride()
        apart = is_free_of_overlaps(shape, layout)
        dims = {i for i in dims if i < len(shape) and shape[i] > 1}
        steps = {i for i in steps if i < len(layout) and layout[i] > 1 and apart}
        if not (dims or steps):
            return None
        inner = [-1 if i in steps else a for i, a in enumerate(inner_dimensions(shape, layout))]
        sizes = [
            self.add_number(Size(node, i), n, size=True) if i in dims else n
            for i, n in enumerate(shape)
        ]
        strides: dict[int, Any] = {}
        for i in inner_first(layout):
            follows, step = inner[i], layout[i]
            if i in steps:
                strides[i] = self.add_number(Stride(node, i), step, size=True)
            else:
                strides[i] = step if follows < 0 else sizes[follows] * strides[follows]
        guard_overlaps(neighbours(shape, layout), sizes, strides)
        self._layouts[node.node_id] = sizes, [strides[i] for i in range(tensor.dim())]
        self.inputs[node.node_id] = self._make(node.node_id, tensor)
        self.inner_dims[node.node_id] = tuple(inner)
        check = self.checks[node.node_id] = TensorCheck(tensor, tuple(inner))
        return check

    def _make(self, shadow_id: int, tensor: torch.Tensor) -> torch.Tensor:
        with self._unobserved(), torch.inference_mode(False), torch.enable_grad():
            twin = torch.empty_strided(
                *self._layouts[shadow_id],
                dtype=tensor.dtype,
                device=tensor.device,
                requires_grad=tensor.requires_grad,
            )
            # Autograd records writes to a non-leaf only, and so does AOTAutograd.
            return twin if tensor.is_leaf else make_nonleaf(twin)

    def has_dynamic_layout(self, shadow_id: int) -> bool:
        """True if an external tensor may have other sizes or strides at the next call."""
        sizes, strides = self._layouts.get(shadow_id, ((), ()))
        return any(map(self.is_dynamic, (*sizes, *strides)))

    def is_dynamic(self, size: Any) -> bool:
        """True if a size may differ at the next call."""
        return is_instance(size, torch.SymInt) and not self.env.replace(size.node.expr).is_number

    def example_input(self, shadow_id: int, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor with the form of an external one at entry."""
        return (
            self._make(shadow_id, tensor)
            if self.has_dynamic_layout(shadow_id)
            else self.static_fake(tensor)
        )

    def static_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """A twin with constant sizes."""
        with self._unobserved(), torch.inference_mode(False):
            return self.mode.from_tensor(without_outdated_base(tensor), static_shapes=True)

    def add_placeholder(self, node: fx.Node, tensor: torch.Tensor, shadow_id: int) -> None:
        """Set the twin of a placeholder."""
        twin = self.inputs.get(shadow_id)
        if twin is None:
            try:
                twin = self.static_fake(tensor)
            except Exception:  # of a class that torch cannot fake
                return
        node.meta[TWIN] = twin

    # --- operators -------------------------------------------------------------------------------

    def run_node(
        self,
        node: fx.Node,
        constants: dict[str, Any],
        result: Any,
        repeatable: bool = True,
        of_data: bool = False,
    ) -> bool:
        """Run a node of the graph on twins.

        If torch cannot, or if the sizes differ from those of the real run, the sizes of arguments
        and results are specialized, unless they depend on data.

        Args:
            node: the node.
            constants: the values of ``get_attr`` nodes.
            result: the result of the real run.
            repeatable: whether the node can run again without further effects.
            of_data: whether the result's sizes depend on data.

        Returns:
            True if the node has a twin now.
        """
        if node.target in SETTERS:
            return True  # the program has already switched the modes
        try:
            if node.op == "get_attr":
                value = constants[str(node.target)]
                node.meta[TWIN] = (
                    self.static_fake(value) if is_instance(value, torch.Tensor) else value
                )
                return True
            args, kwargs = self._inputs(node)
        except KeyError:
            return False
        try:
            if not repeatable:
                raise ValueError("an operator has effects besides its result")
            with self._unobserved(), self._outer_tensors_as_twins(node):
                if node.op == "call_method":
                    twin = getattr(args[0], str(node.target))(*args[1:], **kwargs)
                else:
                    twin = node.target(*args, **kwargs)
            self._compare(twin, result)
        except _DATA_DECIDES:
            return False
        except Exception as error:
            if of_data or is_number(result) or not self.specialize((args, kwargs)):
                return False
            if _holds_nested_tensor(result):
                return False  # fake tensors cannot have its sizes
            log.debug("%s specializes its sizes: %s", node.target, error)
            twin = _map(result, torch.Tensor, lambda t: self.static_fake(t.detach()))
        self.note_sources(node, twin)
        node.meta[TWIN] = twin
        return True

    def _outer_tensors_as_twins(self, node: fx.Node) -> contextlib.AbstractContextManager[Any]:
        """A context that replaces tensors in a Python function's closure or globals by twins."""
        is_native = node.op == "call_method" or is_instance(node.target, _NATIVE)
        return contextlib.nullcontext() if is_native else _OnTwins(self.static_fake)

    def run_join(
        self,
        node: fx.Node,
        operation: Callable[..., Any],
        element: torch.Tensor | None,
        count: Any,
        args: Sequence[Any],
        kwargs: Any,
        result: torch.Tensor,
    ) -> bool:
        """Set the twin of an operator that joins ``count`` tensors like ``element`` along a
        dimension.

        Returns:
            True if the node has a twin now.
        """
        if element is None or not is_instance(count, int | torch.SymInt):
            return False
        try:
            with self._unobserved():
                one = operation([element], *args, **kwargs)
                dims = [i for i, two in enumerate(operation([element] * 2, *args, **kwargs).shape)
                        if not _equal(two, one.shape[i])]  # fmt: skip
                if len(dims) != 1 or not one.is_contiguous():
                    return False
                sizes = [n * count if i in dims else n for i, n in enumerate(one.shape)]
                twin = one.new_empty(sizes)
            self._compare(twin, result)
        except Exception as error:
            log.debug("%s of a list: %s", operation, error)
            return False
        node.meta[TWIN] = twin
        return True

    def apply(self, function: Callable[[Any], Any], twin: Any) -> Any:
        """Apply a function that queries no size to a twin."""
        with self._unobserved():
            return function(twin)

    def _inputs(self, node: fx.Node) -> tuple[Any, Any]:
        """The twins of a node's arguments.

        Raises:
            KeyError: an input has no twin.
        """
        return (
            fx.node.map_arg(node.args, lambda n: n.meta[TWIN]),
            fx.node.map_arg(node.kwargs, lambda n: n.meta[TWIN]),
        )

    def _compare(self, twin: Any, real: Any) -> None:
        """Compare a twin with the real result.

        Raises:
            ValueError: the twin does not describe the result.
        """
        if is_instance(real, torch.Tensor):
            same = (
                is_instance(twin, torch.Tensor)
                and (twin.dtype, twin.device, twin.dim()) == (real.dtype, real.device, real.dim())
                and all(map(_may_be, twin.shape, real.shape))
            )
        elif is_instance(real, tuple | list):
            same = is_instance(twin, tuple | list) and len(twin) == len(real)
            if same:
                for a, b in zip(twin, real, strict=True):
                    self._compare(a, b)
        elif is_number(real):
            same = _may_be(twin, real)
        else:
            same = True
        if not same:
            raise ValueError("an operator returns other sizes than its symbolic run")

    def note_sources(self, node: fx.Node, twin: Any) -> None:
        """Note the symbols of sizes and numbers that depend on data: the graph computes them."""
        if is_instance(twin, torch.Tensor):
            for dim, size in enumerate(twin.shape):
                symbol = _new_symbol(size)
                if symbol is not None and symbol not in self.sources:
                    self.sources[symbol] = (node, dim)
        else:
            symbol = _new_symbol(twin)
            if symbol is not None and symbol not in self.sources:
                self.sources[symbol] = GraphNumber(node)

    @contextlib.contextmanager
    def _unobserved(self) -> Iterator[None]:
        """Run operators on twins unseen by the monitor.

        Fake tensors draw no random numbers. Resetting generators would affect other threads.
        """
        try:
            with self.mode, enable_python_dispatcher():
                yield
        finally:
            self.env.pending_fresh_unbacked_symbols.clear()  # the results have them
            self.note_location()
            self.account()

    # --- queries ---------------------------------------------------------------------------------

    def expression(self, number: Any) -> Any:
        """The expression of a symbolic number; a plain number if it cannot vary.

        Raises:
            Untranslatable: Python cannot compute a part of it.
        """
        return from_sympy(self.env.simplify(number.node.expr), self.source_of)

    def source_of(self, symbol: sympy.Symbol) -> Any:
        found = self.sources.get(symbol)
        if found is None:
            raise Untranslatable(str(symbol))
        if is_instance(found, tuple):
            found = self.sources[symbol] = GraphNumber(self._size_in_graph(*found))
        return found

    def specialize(self, value: Any) -> bool:
        """Turn all sizes and numbers in ``value`` into constants; False if one depends on data."""
        for number in _numbers_in(value):
            try:
                int(number) if is_instance(number, torch.SymInt) else float(number)
            except Exception:  # of torch or of SymPy, which solves for it
                return False
        self.note_location()
        return True

    def note_location(self) -> None:
        """Store the program's position if a guard has just been added."""
        if len(self.env.guards) > len(self.guard_locations):
            where = self.locate()
            for i in range(len(self.guard_locations), len(self.env.guards)):
                self.guard_locations[i] = where

    def specialization_location(self, symbol: sympy.Symbol) -> str:
        """The position at which the program specialized a number; empty if unknown."""
        for i, guard in enumerate(self.env.guards):
            if symbol in guard.expr.free_symbols and is_instance(guard.expr, sympy.Eq):
                return self.guard_locations.get(i, "")
        return ""

    def only_value(self, symbol: sympy.Symbol) -> int | None:
        """The constant that a symbol was specialized to, or None."""
        constant = self.env.replace(symbol)
        return int(constant) if is_instance(constant, sympy.Integer) else None


_DATA_DECIDES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
"""Exceptions that torch raises where a result depends on data."""


def is_ordinary(tensor: torch.Tensor) -> bool:
    """True if sizes, strides, dtype and device describe a tensor completely."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and tensor.device.type in ("cpu", "cuda")
    )


def hint(number: Any) -> Any:
    """The value of a symbolic number in the real run; None if it depends on data."""
    if not is_instance(number, SYMBOLIC):
        return number
    return number.node.hint if number.node.has_hint() else None


def _equal(one: Any, other: Any) -> bool:
    """True if two sizes are the same number or expression."""
    if is_instance(one, int) and is_instance(other, int):
        return one == other
    return is_instance(one, torch.SymInt) and is_instance(other, torch.SymInt) and (
        one.node.expr == other.node.expr
    )  # fmt: skip


def _may_be(twin: Any, real: Any) -> bool:
    value = hint(twin)
    return value is None or value == real


def _new_symbol(number: Any) -> sympy.Symbol | None:
    if is_instance(number, torch.SymInt | torch.SymFloat) and not number.node.has_hint():
        expr = number.node.expr
        return expr if is_instance(expr, sympy.Symbol) else None
    return None


def has_dynamic_form(tensor: torch.Tensor) -> bool:
    """True if a twin's sizes or strides are symbolic; a row of a larger tensor may have symbolic
    strides only."""
    return any(True for _ in _numbers_in(tensor))


def _numbers_in(value: Any) -> Iterator[Any]:
    if is_instance(value, torch.Tensor):
        yield from _numbers_in((*value.shape, *value.stride(), value.storage_offset()))
    elif is_instance(value, SYMBOLIC):
        yield value
    elif is_instance(value, tuple | list):
        for item in value:
            yield from _numbers_in(item)
    elif is_instance(value, dict):
        yield from _numbers_in(tuple(value.values()))
    elif is_instance(value, slice):
        yield from _numbers_in((value.start, value.stop, value.step))


def _map(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if is_instance(value, kind):
        return function(value)
    if is_instance(value, tuple | list):
        items: Sequence[Any] = [_map(item, kind, function) for item in value]
        return items
    return value


def _holds_nested_tensor(value: Any) -> bool:
    return any(
        is_instance(leaf, torch.Tensor) and leaf.is_nested for leaf in pytree.tree_leaves(value)
    )


def _add_to_no_graph(node: fx.Node, dim: int) -> fx.Node:
    raise AssertionError("the record is made before its graph is dropped")
