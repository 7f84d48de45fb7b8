"""Version counters: a compiled graph counts the writes of the program that it was captured from.

Eager mode counts each write to a tensor. A compiled graph writes to an argument once, with the last
of its values, and returns a result that was never written to; but whoever reads ``_version`` later
sees the count. The monitored run counts the writes of the program, and the captured graph has the
numbers in its metadata. So has each part of a graph that runs in parts, such as one with branches:
see :mod:`.writes_of_parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.graph_operators.node_metadata import INPUT_UNCHANGED, INPUT_WRITES, RESULT_VERSIONS
from magpy_like.torch_compat.aot_autograd import IntermediateBaseAOTOutput, PlainAOTOutput
from magpy_like.torch_compat.autograd import set_version

Call = Callable[..., Any]
Numbers = list[tuple[int, int]]
"""Indices of tensors, each with a number, in ascending order of the numbers.

Tensors that share memory share a counter, which is then set to the largest of their numbers."""


def find_further_writes(gm: fx.GraphModule) -> Numbers:
    """The indices of inputs that the program writes to, each with the number of writes that a
    compiled graph does not make: all but one, or all of them for an input that they leave as it
    was."""
    inputs = [
        (k, node)
        for k, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if node.meta.get(INPUT_WRITES)
    ]
    return _ascending(
        (k, node.meta[INPUT_WRITES] - (INPUT_UNCHANGED not in node.meta)) for k, node in inputs
    )


def find_uncounted_inputs(gm: fx.GraphModule) -> list[int]:
    """The indices of inputs that the program writes to without counting, as through ``x.data``."""
    inputs = enumerate(gm.graph.find_nodes(op="placeholder"))
    return [k for k, node in inputs if node.meta.get(INPUT_WRITES) == 0]


def find_result_versions(gm: fx.GraphModule) -> Numbers:
    """The indices of results that the program has written to, with their versions."""
    return _ascending(enumerate(gm.graph.output_node().meta.get(RESULT_VERSIONS, ())))


def find_forward_versions(graph: fx.Graph, versions: Numbers) -> Numbers:
    """The versions of results in the positions of a forward graph.

    A result that AOTAutograd makes a view of another value has the counter of that value, which the
    graph returns as well.
    """
    of, found = dict(versions), []
    for k, descriptor in enumerate(graph.output_node().meta.get("desc") or ()):
        if isinstance(descriptor, IntermediateBaseAOTOutput):
            descriptor = descriptor.base_of
        if isinstance(descriptor, PlainAOTOutput):
            found.append((k, of.get(descriptor.idx, 0)))
    return _ascending(found)


def _ascending(numbers: Any) -> Numbers:
    return sorted((pair for pair in numbers if pair[1]), key=lambda pair: pair[1])


def count_further_writes(call: Call, further: Numbers) -> Call:
    """``call``, whose inputs at these indices have counted these further writes before it runs.

    Before: what the call saves for a backward pass has the last version.
    """
    if not further:
        return call
    indices, numbers = zip(*further, strict=True)

    def run(*args: Any) -> Any:
        _advance([args[k] for k in indices], numbers)
        try:
            return call(*args)
        except BaseException:  # the program itself runs then
            _advance([args[k] for k in indices], [-n for n in numbers])
            raise

    return run


def _advance(tensors: list[torch.Tensor], numbers: Sequence[int]) -> None:
    try:
        versions = [tensor._version for tensor in tensors]
    except RuntimeError:  # inference tensors have no version counter
        return
    set_version(tensors, [v + n for v, n in zip(versions, numbers, strict=True)])


def set_result_versions(call: Call, versions: Numbers) -> Call:
    """``call``, whose results at these indices get these versions.

    It takes what ``call`` does, and returns its sequence of results, of which some may be None.
    """
    if not versions:
        return call

    def run(*args: Any) -> Any:
        results = call(*args)
        pairs = [(results[k], number) for k, number in versions if results[k] is not None]
        if pairs and not pairs[0][0].is_inference():
            tensors, numbers = zip(*pairs, strict=True)
            set_version(tensors, numbers)
        return results

    return run


def not_view(t: torch.Tensor | None) -> torch.Tensor | None:
    """``t`` as a tensor that autograd does not take for a view, with the same version counter."""
    return t.detach() if t is not None and t._is_view() else t
