"""The launcher: generated Python that binds sizes, allocates buffers, and calls kernels
and ATen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch

from magpy_like.compiler.codegen.common.kernel_plan import Kernel, Lines
from magpy_like.compiler.codegen.launcher_pieces import StepLines
from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Buffer, ExternOp, Strided
from magpy_like.compiler.lowering.aten_graph_properties import returns_alias
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.runtime import huge_pages, narrow_products
from magpy_like.compiler.scheduling.memory_planning import Step
from magpy_like.compiler.version_counters import not_view
from magpy_like.torch_compat.autograd import increment_version, set_version
from magpy_like.torch_compat.dispatch import AutoDispatchBelowAutograd
from magpy_like.torch_compat.operators import OpOverload
from magpy_like.torch_compat.tensor_memory import empty_strided_cpu, reinterpret_tensor
from magpy_like.torch_compat.tracing.symbolic_expressions import PythonPrinter
from magpy_like.torch_patches import compile_source


class _Printer(PythonPrinter):
    def _print_Float(self, e: Any) -> str:
        return repr(float(e))  # all digits


_printer = _Printer()


def print_size(e: Expr) -> str:
    """A size expression as Python source."""
    return str(int(e)) if e.is_Integer else str(_printer.doprint(e))


class AssumptionFailed(RuntimeError):
    """A number read from a tensor differs from the traced graph's assumption.

    Internal: such a call runs in eager instead, unless it happens in a backward pass.
    """


def relayout(t: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy of ``t`` with the strides that its meta function declared."""
    copy = torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device)
    return unwritten(copy.copy_(t))


def unwritten(t: torch.Tensor) -> torch.Tensor:
    """The new tensor ``t``, with the version of one that nobody has written to."""
    if not t.is_inference():
        set_version((t,), (0,))
    return t


def view_of(t: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    """A window of ``t`` that shares its version counter, as autograd's views do."""
    return t.as_strided(size, stride, t.storage_offset() + offset)


def for_backward(operator: Callable[..., Any]) -> Callable[..., Any]:
    """``operator`` below autograd with grad mode enabled."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with AutoDispatchBelowAutograd(), torch.enable_grad():
            return operator(*args, **kwargs)

    return run


#: Operators whose last result, a workspace for their backward, exists in grad mode only.
_MAKES_WORKSPACE = {torch.ops.aten.mkldnn_rnn_layer.default}

#: Operators with a cheaper Python binding of the same arguments: *measured*, 0.3 µs less for a
#: matrix product and 2 µs for a convolution.
_BINDINGS = {
    torch.ops.aten.addmm.default: "torch.addmm",
    torch.ops.aten.baddbmm.default: "torch.baddbmm",
    torch.ops.aten.bmm.default: "torch.bmm",
    torch.ops.aten.convolution.default: "torch.convolution",
    torch.ops.aten.mm.default: "torch.mm",
    narrow_products.PRODUCT: "product",
}

#: Names available to every launcher's source.
COMMON: dict[str, Any] = {
    "torch": torch,
    "math": math,
    "AssumptionFailed": AssumptionFailed,
    "empty": empty_strided_cpu,
    "empty_large": huge_pages.empty_large,
    "empty_on": torch.empty_strided,
    "window": reinterpret_tensor,
    "view_of": view_of,
    "not_view": not_view,
    "relayout": relayout,
    "unwritten": unwritten,
    "for_backward": for_backward,
    "product": narrow_products.product,
    "will_write": increment_version,
}


def define(source: str, names: dict[str, Any]) -> Callable[[list[Any]], Any]:
    """The ``call`` function of a launcher's source; tracebacks show its lines."""
    exec(compile_source("magpy_like launcher", source), names)
    call: Callable[[list[Any]], Any] = names["call"]
    return call


def _written(work: Kernel | ExternOp | None) -> Sequence[str]:
    """The buffers that a step writes to."""
    if work is None:
        return ()
    return work.outputs if isinstance(work, Kernel) else work.writes


class Launcher:
    """Prints the function ``call(args)``; ``obstacles``: see ``capture_obstacles``.

    It empties its argument list, as AOTAutograd expects of a boxed function, so that arguments die
    after their last use.
    """

    def __init__(
        self, graph: Graph, steps: Sequence[Step], obstacles: Sequence[str | None]
    ) -> None:
        self.graph = graph
        self.steps = steps
        self._obstacles = obstacles
        self.lines = Lines()
        self.namespace: dict[str, Any] = dict(COMMON)
        for name, tensor in graph.constants.items():
            self.namespace[name] = tensor
        self._bound: set[sympy.Symbol] = set()
        self._assumed = list(dict.fromkeys(graph.assumed))
        self.assumes = False  # may the call raise AssumptionFailed?
        self._wrote = False  # has a step printed so far written an input?
        self.step_lines: list[StepLines] = []
        self._taken: dict[str, str] = {}
        """Buffer -> the buffer whose memory it has taken."""
        self._names: dict[int, str] = {}
        self._computed: dict[str, str] = {}
        """Computed sizes and tuples of sizes: expression -> variable."""

    def print(self) -> str:
        """The source. Its names are in ``namespace``; kernels are added by name."""
        line = self.lines.line
        line("def call(args):")
        self.lines.indent()
        names = [name if isinstance(name, str) else f"arg_{k}"
                 for k, name in enumerate(self.graph.inputs)]  # fmt: skip
        if names:
            line(f"{', '.join(names)}, = args")
        line("args.clear()")
        self._bind_inputs(names)
        self._mark_writes()
        for step, obstacle in zip(self.steps, self._obstacles, strict=True):
            first = len(self.lines)
            self._step(step)
            written = frozenset(self._find_memory(_written(step.work)))
            self.step_lines.append(StepLines(first, len(self.lines), obstacle is None, written))
        values = self._outputs()
        line(f"return ({', '.join(values)}{',' if values else ''})")
        self.lines.indent(-1)
        return self.lines.text()

    def _mark_writes(self) -> None:
        """Bump the version counters of inputs that kernels write, which autograd checks on saved
        tensors; also of those that no step writes, as the write is to no elements."""
        kernels = (step.work for step in self.steps if isinstance(step.work, Kernel))
        written = dict.fromkeys(name for kernel in kernels for name in kernel.outputs)
        of_steps = {name for step in self.steps for name in _written(step.work)}
        written |= dict.fromkeys(sorted(self.graph.mutated_inputs - of_steps))
        shared = [b for b in written if self.graph.buffers[b].kind in ("input", "constant")]
        if shared:
            self.lines.line(f"will_write(({', '.join(shared)},))")

    # --- sizes ---------------------------------------------------------------------------------

    def _bind_inputs(self, names: list[str]) -> None:
        for name, value in zip(names, self.graph.inputs, strict=True):
            if isinstance(value, sympy.Symbol):
                self.lines.line(f"{value.name} = {name}")
                self._bound.add(value)
        for value in self.graph.inputs:
            if isinstance(value, str):
                self._bind_sizes(self.graph.buffers[value])
        self._assume_bound()

    def _assume_bound(self) -> None:
        """Check the graph's assumptions about the numbers bound so far."""
        ready = [a for a in self._assumed if a.free_symbols <= self._bound]
        self._assumed = [a for a in self._assumed if a not in ready]
        for relation in ready:
            self._assume(self._size(relation))

    def _assume(self, condition: str) -> None:
        self.assumes = True
        if self._wrote:
            raise Unsupported(
                "a graph", "it depends on numbers read from tensors after it overwrote inputs"
            )
        self.lines.line(f"if not ({condition}): raise AssumptionFailed({condition!r})")

    def _size(self, e: Expr) -> str:
        """A size, or any other expression of numbers, as Python source."""
        unknown = e.free_symbols - self._bound
        for name in sorted(unknown, key=str):
            self._bind_name(name)
        if unknown := unknown - self._bound:
            raise Unsupported("a graph", f"no input determines {sorted(map(str, unknown))}")
        text = print_size(e)
        return text if e.is_Atom or e.is_Relational else self._bind_once(text)

    def _bind_name(self, e: Expr) -> None:
        """Compute a size symbol once the symbols of its definition are bound."""
        meaning = self.graph.size_names.definitions.get(e)
        if meaning is not None and e not in self._bound and meaning.free_symbols <= self._bound:
            self.lines.line(f"{e.name} = {print_size(meaning)}")
            self._bound.add(e)

    def _sizes(self, sizes: Sequence[Expr]) -> str:
        text = "(" + "".join(self._size(s) + ", " for s in sizes) + ")"
        return self._bind_once(text) if any(s.free_symbols for s in sizes) else text

    def _bind_once(self, text: str) -> str:
        """A variable for a text that occurs repeatedly."""
        if text not in self._computed:
            name = self._computed[text] = f"size{len(self._computed)}"
            self.lines.line(f"{name} = {text}")
        return self._computed[text]

    def _bind_sizes(self, buffer: Buffer) -> None:
        for method, values in (("size", buffer.size), ("stride", buffer.stride)):
            for dim, e in enumerate(values):
                self._bind_name(e)
                if e.is_Symbol and e not in self._bound:
                    self.lines.line(f"{e.name} = {buffer.name}.{method}({dim})")
                    self._bound.add(e)

    def _find_memory(self, buffers: Iterable[str]) -> Iterator[str]:
        """These buffers, and those whose memory they have taken."""
        for name in buffers:
            owner: str | None = name
            while owner is not None:
                yield owner
                owner = self._taken.get(owner)

    # --- steps ---------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        line = self.lines.line
        for name, source in step.allocate:
            self._allocate(self.graph.buffers[name], source)
        if isinstance(step.work, Kernel):
            kernel = step.work
            args = [*kernel.inputs, *kernel.outputs]
            if kernel.device.type == "cpu":  # functions of addresses
                args = [f"{b}.data_ptr()" for b in args]
            args += [self._size(e) for e in (*kernel.size_symbols, *kernel.numbers)]
            line(f"{kernel.name}({', '.join(args)})")
        elif step.work is not None:
            self._extern(step.work)
        if not self.graph.mutated_inputs.isdisjoint(_written(step.work)):
            self._wrote = True
        if step.free:
            line(f"del {', '.join(step.free)}")

    def _allocate(self, buffer: Buffer, source: str | None) -> None:
        line = self.lines.line
        if source is not None:
            self._taken[buffer.name] = source
            old = self.graph.buffers[source]
            if old.size == buffer.size and old.stride == buffer.stride:
                line(f"{buffer.name} = {source}; del {source}")
                return
        shape = f"{self._sizes(buffer.size)}, {self._sizes(buffer.stride)}"
        if source is not None:
            line(f"{buffer.name} = window({source}, {shape}, 0); del {source}")
        elif buffer.device.type == "cpu":
            large = self.graph.bytes_of(buffer.name) >= huge_pages.MIN_HUGE_PAGE_BYTES
            make = "empty_large" if large else "empty"
            line(f"{buffer.name} = {make}({shape}, {self._name(buffer.dtype)})")
        else:
            dtype, device = self._name(buffer.dtype), self._name(buffer.device)
            line(f"{buffer.name} = empty_on({shape}, dtype={dtype}, device={device})")

    def _extern(self, operation: ExternOp) -> None:
        line = self.lines.line
        maker = "window"
        if _returns_views(operation) and any(map(self._is_returned, operation.outputs)):
            maker = "view_of"  # the result shares the version counter of the buffer
        args = [self._argument(a, maker) for a in operation.args]
        args += [f"{k}={self._argument(v, maker)}" for k, v in operation.kwargs.items()]
        if operation.target in _BINDINGS:
            target = _BINDINGS[operation.target]
        else:
            target = self._name(operation.target)
            if isinstance(operation.target, OpOverload):
                target += "._op"  # its own call is a Python wrapper around this one
        if operation.target in _MAKES_WORKSPACE and self._is_returned(operation.outputs[-1]):
            target = f"for_backward({target})"
        call = f"{target}({', '.join(args)})"
        if not operation.multiple:
            (output,) = operation.outputs
            if output is None:
                line(call)
                return
            if not operation.reads and isinstance(operation.target, OpOverload):
                call = f"unwritten({call})"  # the operator counts its own write to a new tensor
            self._bind_result(output, call, operation.dynamic)
        else:
            line(f"results = {call}")
            for k, output in enumerate(operation.outputs):
                if output is not None:
                    self._bind_result(output, f"results[{k}]", operation.dynamic)
            line("del results")
        self._assume_bound()

    def _bind_result(self, output: Any, text: str, dynamic: bool) -> None:
        """Bind a result: symbols known from it alone, and checks of its declared sizes
        and strides."""
        line = self.lines.line
        if not isinstance(output, str):
            if output.is_Symbol and output not in self._bound:
                line(f"{output.name} = {text}")
                self._bound.add(output)
            else:
                line(f"number = {text}")
                self._assume(f"number == {self._size(output)}")
            return
        line(f"{output} = {text}")
        buffer = self.graph.buffers[output]
        bound_before = set(self._bound)
        self._bind_sizes(buffer)
        # An operator may return fewer tensors than its meta function declares.
        missing = f"{output} is None or " if text.startswith("results[") else ""
        for dim, e in enumerate(buffer.size if dynamic else ()):
            if not e.is_Symbol or e in bound_before:
                self._assume(f"{missing}{output}.size({dim}) == {self._size(e)}")
        if not buffer.aliased and buffer.size:
            stride = self._sizes(buffer.stride)
            same = f"{missing}{output}.stride() == {stride}"
            line(f"if not ({same}): {output} = relayout({output}, {stride})")

    def _is_returned(self, buffer: str | None) -> bool:
        windows = [value for value in self.graph.outputs if isinstance(value, Strided)]
        return any(window.buffer == buffer for window in windows)

    # --- values --------------------------------------------------------------------------------

    def _window(self, window: Strided, maker: str) -> str:
        buffer = self.graph.buffers[window.buffer]
        whole = window.size == buffer.size and window.stride == buffer.stride and window.offset == 0
        return buffer.name if whole else self._new_window(window, maker)

    def _new_window(self, window: Strided, maker: str = "window") -> str:
        return (
            f"{maker}({window.buffer}, {self._sizes(window.size)}, {self._sizes(window.stride)}, "
            f"{self._size(window.offset)})"
        )

    def _argument(self, value: Any, maker: str = "window") -> str:
        if isinstance(value, Strided):
            return self._window(value, maker)
        if isinstance(value, sympy.Basic):
            return self._size(value)
        if isinstance(value, (list, tuple)):
            inner = "".join(self._argument(v, maker) + ", " for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if isinstance(value, dict):
            items = (f"{k!r}: {self._argument(v, maker)}" for k, v in value.items())
            return "{" + ", ".join(items) + "}"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float) and value - value == 0:
            return repr(value)
        return self._name(value)

    def _name(self, thing: Any) -> str:
        """A readable name for an object that source cannot spell."""
        known = self._names.get(id(thing))
        if known is not None:
            return known
        if isinstance(thing, torch.dtype):
            return str(thing)
        base = "".join(c if c.isalnum() else "_" for c in str(thing))[:40].strip("_") or "value"
        name = base if base.isidentifier() else f"v_{base}"
        while name in self.namespace:
            name += "_"
        self.namespace[name] = thing
        self._names[id(thing)] = name
        return name

    def _outputs(self) -> list[str]:
        """The returned expressions. Distinct captured tensors stay distinct objects, even when they
        show the same memory, and distinct from the arguments.

        No result is a view to autograd: a view was made without gradients, of a tensor that the
        program does not have, and autograd would refuse writes to it whose gradients it records.
        """
        texts: list[str] = []
        returned = self._arguments_of_caller()
        views = self._views()
        saved, shared = self._saved_memory(views), self._shared_with_caller(views)
        for position, (value, result) in enumerate(
            itertools.zip_longest(self.graph.outputs, self.graph.results)
        ):
            text = self._argument(value)
            if isinstance(value, Strided):
                is_window, memory = text != value.buffer, views.get(value.buffer, {value.buffer})
                if position in self.graph.saved:
                    if is_window and not shared.isdisjoint(memory):
                        text = self._new_window(value, "view_of")
                elif is_window or returned.setdefault(text, result) is not result:
                    if saved.isdisjoint(memory):
                        text = self._new_window(value)
                    else:
                        text = f"not_view({self._new_window(value, 'view_of')})"
                elif value.buffer in views:
                    text = f"not_view({text})"
            texts.append(text)
        return texts

    def _arguments_of_caller(self) -> dict[str, Any]:
        """The buffers that are arguments, with their nodes: an operator that returns the whole
        memory of an argument returns another object. Gradients have no identity."""
        if self.graph.backward:
            return {}
        placeholders = self.graph.gm.graph.find_nodes(op="placeholder")
        named = zip(self.graph.inputs, placeholders, strict=True)
        return {name: node for name, node in named if isinstance(name, str)}

    def _views(self) -> dict[str, set[str]]:
        """The buffers that ATen may have made as views, with those whose memory they may share."""
        views: dict[str, set[str]] = {}
        for operation in self.graph.operations:
            if isinstance(operation, ExternOp) and _returns_views(operation):
                memory = _memory(operation.reads, views)
                views.update({o: memory | {o} for o in operation.outputs if isinstance(o, str)})
        return views

    def _saved_memory(self, views: dict[str, set[str]]) -> set[str]:
        """Buffers of memory that the backward pass reads: autograd must see all writes to it."""
        outputs = (self.graph.outputs[k] for k in self.graph.saved)
        return _memory((v.buffer for v in outputs if isinstance(v, Strided)), views)

    def _shared_with_caller(self, views: dict[str, set[str]]) -> set[str]:
        """Buffers of memory that the caller also holds, and may write."""
        outputs = [value for k, value in enumerate(self.graph.outputs) if k not in self.graph.saved]
        names = [name for name in self.graph.inputs if isinstance(name, str)]
        names += [value.buffer for value in outputs if isinstance(value, Strided)]
        return _memory(names, views)


def _memory(buffers: Iterable[str], views: dict[str, set[str]]) -> set[str]:
    """The buffers, and those whose memory they may share."""
    return set[str]().union(*(views.get(name, {name}) for name in buffers))


def _returns_views(operation: ExternOp) -> bool:
    """True if ATen's results may be views of the arguments."""
    return returns_alias(getattr(operation.target, "_schema", None))
