"""Metadata of graph nodes: the keys of ``torch.fx.Node.meta`` that this project sets.

Each key is a string, as torch's own keys are, and is declared here with the type of its values.
``undeclared`` finds whatever a graph carries besides these and torch's keys. ``stack_trace``, which
is torch's, has the line of the program that a node is from: see ``source_line``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx


@dataclass(frozen=True)
class MetadataKey:
    """A declared key."""

    name: str
    type: type | tuple[type, ...]
    """The type of its values."""
    meaning: str


DECLARED: dict[str, MetadataKey] = {}
"""All keys of this project, by name."""


def _declare(name: str, type_: type | tuple[type, ...], meaning: str) -> str:
    DECLARED[name] = MetadataKey(name, type_, meaning)
    return name


# --- set by the monitor --------------------------------------------------------------------------

NUMBER = _declare("number", bool, "True if the node is a number of Python's, not a tensor.")
LIST = _declare("list", bool, "True if the node is a list of tensors.")
WRITTEN_SHAPE = _declare(
    "written_shape", torch.Size, "The sizes of the tensor that ``tensor[key] = tensor`` writes."
)
ON_GPU = _declare("on_gpu", bool, "True if the node is a tensor on a CUDA device.")
AS_IS = _declare(
    "as_is", str, "Why no backend receives the node, which runs as it was recorded: a verb phrase."
)
DIFFERENTIATES = _declare(
    "differentiates", bool, "True for a custom function that computes gradients inside."
)
CUSTOM_VIEW = _declare(
    "custom_view",
    bool,
    "True for a custom function that returns a view, and for a later operator whose result is in "
    "the memory of one.",
)
CUSTOM_WRITES = _declare(
    "custom_writes",
    tuple,
    "Of a custom function: the indices of the arguments that it writes to and gives its gradient "
    "(``ctx.mark_dirty``); present if there are any.",
)
INPUT_WRITES = _declare(
    "input_writes",
    int,
    "How many writes to an input the program counts in its version; present if there is one. Of an "
    "input of a part, 0 if all writes are uncounted, such as those to ``tensor.data``.",
)
INPUT_UNCHANGED = _declare(
    "input_unchanged",
    bool,
    "True for an input to which the program counts writes, and whose elements, sizes and strides "
    "they leave as they were: they change dimensions of its views, or change its own and restore "
    "them.",
)
RESULT_VERSIONS = _declare(
    "result_versions",
    tuple,
    "Of the output node: the versions of the results, 0 for one that is an input or shares its "
    "version counter; present if the program has written to a result.",
)
PROFILER_REGIONS = _declare(
    "profiler_regions",
    tuple,
    "Of the output node: the regions of ``record_function`` that the program has left, in the "
    "order in which they began; present if there are any.",
)
TWIN = _declare(
    "twin",
    object,
    "The node's symbolic twin: fake tensors, symbolic numbers and plain values. Removed when the "
    "captured graph is finished.",
)

# --- set for checkpointed functions --------------------------------------------------------------

RECOMPUTED = _declare(
    "recomputed",
    object,
    "The ``CheckpointedFunction`` that the node is part of. Removed when the captured graph is "
    "finished.",
)
WRITES = _declare(
    "writes",
    bool,
    "Present if the node writes to an external tensor; True if it writes again in the backward "
    "pass.",
)
TRIGGERS_RECOMPUTATION = _declare(
    "triggers_recomputation",
    bool,
    "True for a result whose gradient makes the backward pass recompute a function with "
    "statistics.",
)
DIFFERENTIATED = _declare(
    "differentiated",
    list,
    "The indices of a reentrant checkpoint's operands, other than arguments, that require "
    "gradients.",
)

# --- set by the compiler -------------------------------------------------------------------------

FOLDED = _declare(
    "folded", bool, "True for a constant that the compiler computed: no code outside writes to it."
)
LAYOUT_COPY = _declare("layout_copy", bool, "True for a copy of a tensor to channels-last memory.")
AUXILIARY_INPUT_OF = _declare(
    "auxiliary_input_of",
    int,
    "The index of the weight for whose deferred gradient this auxiliary input stands.",
)

# --- set by torch --------------------------------------------------------------------------------

FROM_TORCH = frozenset(
    {
        "ac_graph_id", "autograd_backward", "custom", "desc", "eager_input_vals", "example_value",
        "from_node", "fwd_nn_module_stack", "fwd_source_fn_stack", "grapharg", "is_gradient_acc",
        "mutation_region_id", "nn_module_stack", "original_aten", "output_stack_traces",
        "partitioner_tag", "recompute", "seq_nr", "source_fn_stack", "stack_trace", "tensor_meta",
        "type", "unbacked_bindings", "val",
    }
)  # fmt: skip
"""The keys that torch's tracing, its partitioner and its activation checkpointing use."""


def source_line(stack_trace: str | None) -> str | None:
    """``file:line`` of the innermost frame of a node's stack trace, or None."""
    found = _FRAME.findall(stack_trace or "")
    return ":".join(found[-1]) if found else None


def first_line_of(gm: fx.GraphModule, operator: str = "") -> str | None:
    """``file:line`` of the first node of a graph that calls an operator of this name, or has any
    line; None if there is none."""
    lines = [(str(node.target), source_line(node.stack_trace)) for node in gm.graph.nodes]
    known = [(target, line) for target, line in lines if line is not None]
    of_operator = (line for target, line in known if target == operator)
    return next(of_operator, known[0][1] if known else None)


def line_of_error(error: BaseException) -> str | None:
    """``file:line`` of the node at which the interpreter of torch.fx raised an error, or None."""
    _, found, trace = str(error).rpartition("Original traceback:")
    return source_line(trace) if found else None


_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)


def undeclared(graph: fx.Graph) -> Iterator[str]:
    """Describes each key in a graph that is not declared, or whose value has another type."""
    for node in graph.nodes:
        for name, value in node.meta.items():
            key = DECLARED.get(name)
            if key is None and name not in FROM_TORCH:
                yield f"{node}: {name!r} is not declared"
            elif key is not None and not isinstance(value, key.type):
                yield f"{node}: {name!r} is a {type(value).__name__}"
