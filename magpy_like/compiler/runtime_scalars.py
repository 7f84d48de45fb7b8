"""Numbers that only a call can tell: floats it is given, and what it reads from tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.codegen.launcher.launcher import AssumptionFailed
from magpy_like.torch_compat.fake_tensors import FakeTensor, FakeTensorMode

Call = Callable[..., Any]


def read_floats_from_tensors(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[list[Any], list[int]]:
    """Read each symbolic float out of a 0-d tensor instead, and say which arguments those are.

    AOTAutograd would make the float of the example a constant of the graph.
    """
    examples, floats = list(example_inputs), []
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    for k, (node, example) in enumerate(zip(placeholders, example_inputs, strict=True)):
        if not isinstance(example, torch.SymFloat):
            continue
        floats.append(k)
        mode = next((e.fake_mode for e in example_inputs if isinstance(e, FakeTensor)), None)
        if mode is None:
            mode = FakeTensorMode(shape_env=example.node.shape_env)
        with mode:
            examples[k] = torch.empty((), dtype=torch.float64, device="cpu")
        with gm.graph.inserting_after(placeholders[-1]):
            number = gm.graph.call_method("item", (node,))
        node.replace_all_uses_with(number, lambda user, new=number: user is not new)
        node.meta.clear()
    if floats:
        gm.recompile()
    return examples, floats


def pass_sizes_as_arguments(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[list[Any], list[tuple[int, int]]]:
    """An argument for each size that is a symbol and has none, and the (argument, dimension) it is.

    Parts of AOTAutograd compute with a symbol only where the graph is given it as a number.
    """
    examples = list(example_inputs)
    given = {e.node.expr for e in examples if isinstance(e, torch.SymInt)}
    places = []
    last = [n for n in gm.graph.nodes if n.op == "placeholder"][-1:]
    for k, example in enumerate(example_inputs):
        for d, size in enumerate(example.shape if isinstance(example, FakeTensor) else ()):
            if not isinstance(size, torch.SymInt) or size.node.expr in given:
                continue
            if not size.node.expr.is_Symbol:
                continue
            given.add(size.node.expr)
            with gm.graph.inserting_after(last[-1]):
                last.append(gm.graph.placeholder(f"size_{k}_{d}"))
            examples.append(size)
            places.append((k, d))
    if places:
        gm.recompile()
    return examples, places


def append_sizes(call: Call, places: Sequence[tuple[int, int]]) -> Call:
    def run(*args: Any) -> Any:
        return call(*args, *[args[k].shape[d] for k, d in places])

    return run


def convert_floats(call: Call, floats: Sequence[int]) -> Call:
    def run(*args: Any) -> Any:
        given = list(args)
        numbers = [given[k] for k in floats]
        tensors = torch.tensor(numbers, dtype=torch.float64, device="cpu").unbind()
        for k, tensor in zip(floats, tensors, strict=True):
            given[k] = tensor
        return call(*given)

    return run


def guard_float_values(known: Mapping[int, float], call: Call, captured: Call) -> Call:
    """``call`` where the floats are the ones it was compiled for, bit for bit, else eager."""
    bits = {k: struct.pack("d", value) for k, value in known.items()}

    def run(*args: Any) -> Any:
        same = all(struct.pack("d", args[k]) == wanted for k, wanted in bits.items())
        return call(*args) if same else captured(*args)

    return run


def fall_back_on_failed_assumption(call: Call, captured: Call, graph: fx.GraphModule) -> Call:
    """``call``, or eager where a number read from a tensor is not what the graph was traced for.

    That is found before anything was written; random numbers are drawn again.
    """

    draws = _draws(graph)

    def run(*args: Any) -> Any:
        kept = _generators() if draws else []
        try:
            return call(*args)
        except AssumptionFailed:
            for generator, state in kept:
                generator.set_state(state)
        return captured(*args)

    return run


def _draws(gm: fx.GraphModule) -> bool:
    """Are random numbers drawn in the graph?"""
    tag = torch.Tag.nondeterministic_seeded
    return any(tag in getattr(node.target, "tags", ()) for node in gm.graph.nodes)


def _generators() -> list[tuple[torch.Generator, torch.Tensor]]:
    found = [torch.default_generator]
    if torch.cuda.is_initialized():
        found += torch.cuda.default_generators
    return [(g, g.get_state()) for g in found]
