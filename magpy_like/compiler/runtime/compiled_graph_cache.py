"""Compiled graphs on disk: a second process skips lowering, scheduling and printing.

The key of an entry covers an ATen graph (operators, arguments, metadata of its values, all
knowledge about symbolic sizes), the flags of torch that compilation depends on, and the compiler's
own source. A graph with anything else, such as an operator without a name or a tensor of a special
class, has no key and is compiled anew. Entries are text; the sealed files of :mod:`cache_entries`
protect them from truncation and from other processes.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import operator
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from magpy_like.annotation import operator_facts
from magpy_like.annotation.annotation_files import annotations_dir
from magpy_like.compiler.autograd.saved_values import saved_tensor_indices
from magpy_like.compiler.lowering.aten_graph_properties import (
    checkpointed_function_of,
    find_shape_env,
    is_program_input,
)
from magpy_like.compiler.passes.graph_queries import is_literal
from magpy_like.compiler.runtime.cuda_graphs.graph_policy import GraphFacts
from magpy_like.compiler.runtime.profiled_launchers import StepOrigins
from magpy_like.disk_cache import cache_entries
from magpy_like.torch_compat.float32_precision import float32_precisions
from magpy_like.torch_compat.operators import OpOverload
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor
from magpy_like.torch_interop.onednn import has_onednn


class NotCacheable(Exception):
    """A part of the graph has no textual description."""


# --- keys of graphs ------------------------------------------------------------------------------


def key(gm: fx.GraphModule, kind: str) -> str | None:
    """The key of an ATen graph; None if it is not cacheable."""
    try:
        nodes: dict[fx.Node, int] = {}
        lines: list[Any] = []
        for node in gm.graph.nodes:
            lines.append(_node(node, gm, nodes))
            nodes[node] = len(nodes)
        return cache_entries.digest(kind, lines, _size_facts(gm), flags(), compiler())
    except NotCacheable:
        return None


def _node(node: fx.Node, gm: fx.GraphModule, nodes: Mapping[fx.Node, int]) -> Any:
    target = node.target
    if node.op == "call_function":
        described: Any = describe_object(target)
    elif node.op == "get_attr":
        held = functools.reduce(getattr, str(target).split("."), gm)
        described = value(held) if isinstance(held, torch.Tensor) else literal(held, nodes)
        if isinstance(held, torch.Tensor) and is_literal(node, held):
            described = described, serialize_tensor(held)
    elif node.op == "placeholder":
        described = is_program_input(node)
    elif node.op == "output":
        described = saved_tensor_indices(node)
    else:
        raise NotCacheable(node.op)
    unbacked = sorted(str(s) for s in node.meta.get("unbacked_bindings") or ())
    arguments = literal((node.args, node.kwargs), nodes)
    val = value(node.meta.get("val"))
    return node.op, described, arguments, val, unbacked, checkpointed_function_of(node)


def literal(tree: Any, nodes: Mapping[fx.Node, int]) -> Any:
    """An argument as text; equal texts mean equal arguments. Raises NotCacheable."""
    if isinstance(tree, fx.Node):
        return f"%{nodes[tree]}"
    if isinstance(tree, (tuple, list)):
        return (type(tree).__name__, *(literal(t, nodes) for t in tree))
    if isinstance(tree, dict):
        return ("dict", *((repr(k), literal(v, nodes)) for k, v in tree.items()))
    if isinstance(tree, slice):
        return ("slice", literal((tree.start, tree.stop, tree.step), nodes))
    plain = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)
    if tree is None or tree is ... or type(tree) in plain:
        return repr(tree)
    return describe_object(tree)


def value(val: Any) -> Any:
    """The metadata of a value as plain data. Raises NotCacheable for other types."""
    if isinstance(val, torch.Tensor):
        if type(val) not in (torch.Tensor, torch.nn.Parameter, FakeTensor):
            raise NotCacheable(type(val))
        described = [str(val.dtype), str(val.device), str(val.layout), val.requires_grad]
        described += [[text(s) for s in val.shape]]
        if val.layout is torch.strided:
            described += [[text(s) for s in val.stride()], text(val.storage_offset())]
            described += [val.is_conj(), val.is_neg(), val.is_quantized, val.is_nested]
        return described
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(val).__name__, text(val)
    if isinstance(val, (tuple, list)):
        return [value(v) for v in val]
    if val is None or isinstance(val, (bool, int, float, complex)):
        return repr(val)
    raise NotCacheable(type(val))


def text(size: Any) -> str:
    """A plain or symbolic number as text."""
    if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _text_of_expr(size.node.expr)
    return str(size)


@functools.lru_cache(maxsize=4096)
def _text_of_expr(e: Any) -> str:
    """Cached: SymPy prints slowly, and the values of a graph share few sizes."""
    return str(e)


def _size_facts(gm: fx.GraphModule) -> Any:
    env = find_shape_env(gm)
    if env is None:
        return None
    hints = getattr(env, "backed_var_to_val", None)
    asserted = [a.expr for many in env.deferred_runtime_asserts.values() for a in many]
    return (
        sorted(map(str, env.var_to_range.items())),
        sorted(map(str, (env.var_to_val if hints is None else hints).items())),
        sorted(map(str, env.replacements.items())),
        sorted(map(str, env.divisible)),
        [str(guard.expr) for guard in env.guards],
        [str(relation) for relation in asserted],
    )


def flags() -> tuple[Any, ...]:
    """The settings of torch that passes, lowerings and printers depend on."""
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        float32_precisions(),
        has_onednn(),
        torch.get_default_dtype(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        len(os.sched_getaffinity(0)),
    )


_SOURCES = (
    "annotation", "compile_modes.py", "compiler", "disk_cache", "graph_operators", "torch_compat",
    "torch_interop", "torch_patches.py",
)  # fmt: skip
"""The packages and modules that decide what the compiler generates: it imports no others but
exceptions, signals, logs and the native helper."""


def source_files() -> list[Path]:
    """The files whose contents determine the generated code, in a fixed order."""
    root = Path(__file__).parents[2]
    found = [file for name in _SOURCES for file in (root / name).rglob("*")]
    found += [root / name for name in _SOURCES if name.endswith(".py")]
    sources = [file for file in found if file.suffix in (".py", ".h", ".cpp")]
    return [*sorted(sources), annotations_dir() / operator_facts.FILE]


@functools.cache
def compiler() -> str:
    """Digest of the compiler's own source."""
    # By the last parts of their paths: checkouts and installed packages share entries.
    return cache_entries.digest(
        *(("/".join(file.parts[-3:]), file.read_bytes()) for file in source_files())
    )


# --- objects of the launcher's source ------------------------------------------------------------

_HOMES = {"operator": operator, "_operator": operator, "math": math, "torch": torch}


def describe_object(thing: Any) -> tuple[str, str]:
    """(kind, name) from which :func:`find_object` finds the object. Raises NotCacheable without
    any."""
    if isinstance(thing, OpOverload):
        spelled = "operator of torch.ops", str(thing)
    elif isinstance(thing, torch.device):
        spelled = "device", str(thing)
    elif isinstance(thing, (torch.memory_format, torch.layout)):
        spelled = "torch", str(thing).removeprefix("torch.")
    elif isinstance(thing, float):
        spelled = "float", repr(thing)
    else:
        home, name = getattr(thing, "__module__", None), getattr(thing, "__name__", None)
        if home not in _HOMES or not isinstance(name, str):
            raise NotCacheable(thing)
        spelled = str(home), name
    try:
        found = find_object(*spelled)
    except (AttributeError, RuntimeError, KeyError):
        raise NotCacheable(thing) from None
    if found is not thing and (callable(thing) or found != thing) and thing == thing:
        raise NotCacheable(thing)
    return spelled


def find_object(kind: str, name: str) -> Any:
    """The object that :func:`describe_object` described."""
    if kind == "device":
        return torch.device(name)
    if kind == "float":
        return float(name)
    home = torch.ops if kind == "operator of torch.ops" else _HOMES[kind]
    return functools.reduce(getattr, name.split("."), home)


# --- entries ------------------------------------------------------------------------------------


@dataclass
class CompiledGraph:
    """A compiled graph as plain data.

    ``names``: objects of the launcher's source, as :func:`describe_object` writes them
    ``attributes``: constants that are attributes of the ATen graph
    ``folded_constants``: constants computed at compile time
    ``units``: (C++ source, its functions)
    ``functions``: kernel -> C++ function
    ``triton_kernels``: Triton kernels as text; their machine code is in Triton's own cache
    ``triton_indices``: kernel -> its index there
    ``pieces``, ``lendable_of_pieces``, ``written_by_pieces``: see :class:`Pieces`; empty for a
    launcher in one piece
    ``gpu``, ``obstacle``, ``obstacle_node``, ``lendable``, ``symbolic``: see :class:`GraphFacts`
    ``steps``: the nodes that each step of the launcher computes
    """

    launcher: str
    assumes: bool
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    folded_constants: dict[str, str] = field(default_factory=dict)
    units: list[tuple[str, list[str]]] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    triton_kernels: list[str] = field(default_factory=list)
    triton_indices: dict[str, int] = field(default_factory=dict)
    pieces: str = ""
    lendable_of_pieces: list[list[int]] = field(default_factory=list)
    written_by_pieces: list[list[int]] = field(default_factory=list)
    gpu: int | None = None
    obstacle: str | None = None
    lendable: tuple[int, ...] = ()
    symbolic: bool = False
    obstacle_node: int | None = None
    steps: list[StepOrigins] = field(default_factory=list)

    def facts(self) -> GraphFacts:
        return GraphFacts(
            self.gpu, self.obstacle, tuple(self.lendable), self.symbolic, self.obstacle_node
        )

    def objects(self, gm: fx.GraphModule) -> dict[str, Any]:
        """The launcher's names, except kernels; ``gm`` is the ATen graph."""
        found = {name: find_object(*spelled) for name, spelled in self.names.items()}
        for name, target in self.attributes.items():
            found[name] = functools.reduce(getattr, target.split("."), gm)
        return found | {
            name: _deserialize_tensor(text) for name, text in self.folded_constants.items()
        }


def serialize_tensor(tensor: torch.Tensor) -> str:
    """A small tensor with its strides as text. (torch.load searches for fake tensor modes.)"""
    flat = tensor.clone(memory_format=torch.contiguous_format).view(-1)
    data = flat.view(torch.uint8).cpu().numpy().tobytes()
    layout = [str(tensor.dtype), str(tensor.device), list(tensor.shape), list(tensor.stride())]
    return json.dumps([*layout, base64.b64encode(data).decode()])


def _deserialize_tensor(text: str) -> torch.Tensor:
    name, device, size, stride, data = json.loads(text)
    dtype = getattr(torch, name.removeprefix("torch."))
    if not data:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)
    flat = torch.frombuffer(bytearray(base64.b64decode(data)), dtype=dtype)
    return torch.empty_strided(size, stride, dtype=dtype, device=device).copy_(flat.view(size))


def put(name: str, compiled: CompiledGraph) -> None:
    """Keep an entry. An unwritable disk loses it."""
    cache_entries.put(name, json.dumps(asdict(compiled)).encode())


def get(name: str) -> CompiledGraph | None:
    """The entry of a key; None if there is none or it is damaged."""
    data = cache_entries.get(name)
    if data is None:
        return None
    found = CompiledGraph(**json.loads(data))
    found.steps = [StepOrigins(*step) for step in found.steps]
    return found
