"""Runtime scalars: float and size arguments, and assumptions on values read from tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.codegen.launcher import AssumptionFailed
from magpy_like.compiler.passes.graph_queries import draws_random_numbers
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor, FakeTensorMode
from magpy_like.torch_interop.random_states import generator_states, restore_generators

Call = Callable[..., Any]


def read_floats_from_tensors(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[list[Any], list[int]]:
    """Have the graph read each symbolic float argument from a 0-d float64 CPU tensor.

    AOTAutograd would make the example's float a constant of the graph. Rewrites ``gm`` in place;
    returns the new example inputs and the indices of these arguments.
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
    """Add a size argument for each symbol in the inputs' sizes that no argument has as its value.

    Parts of AOTAutograd compute with a symbol only if an input of the graph has it as its value.
    Rewrites ``gm`` in place; returns the new example inputs and the (argument, dimension) of each
    size.
    """
    examples = list(example_inputs)
    known = {e.node.expr for e in examples if isinstance(e, torch.SymInt)}
    sources = []
    last = [n for n in gm.graph.nodes if n.op == "placeholder"][-1:]
    for k, example in enumerate(example_inputs):
        for d, size in enumerate(example.shape if isinstance(example, FakeTensor) else ()):
            if not isinstance(size, torch.SymInt) or size.node.expr in known:
                continue
            if not size.node.expr.is_Symbol:
                continue
            known.add(size.node.expr)
            with gm.graph.inserting_after(last[-1]):
                last.append(gm.graph.placeholder(f"size_{k}_{d}"))
            examples.append(size)
            sources.append((k, d))
    if sources:
        gm.recompile()
    return examples, sources


def keep_integers_exact(gm: fx.GraphModule) -> None:
    """Have an ATen graph compute with integer arguments as int64, in place.

    AOTAutograd computes a float from them by operators on 0-d tensors, but makes these of the
    default dtype: float32 rounds an integer from 2**24 on.
    """
    changed: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.scalar_tensor.default:
            if not _is_untyped_integer(node):
                continue
            node.kwargs = {**node.kwargs, "dtype": torch.int64}
        elif node.op != "call_function" or changed.isdisjoint(node.all_input_nodes):
            continue
        old = node.meta["val"]
        with old.fake_mode:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            node.meta["val"] = node.target(*args, **kwargs)
        if node.meta["val"].dtype is not old.dtype:
            changed.add(node)


def _is_untyped_integer(node: fx.Node) -> bool:
    """True if AOTAutograd, not the program, makes a tensor of an integer without naming a dtype."""
    (number,) = node.args
    is_traced = "original_aten" in node.meta
    symbolic = isinstance(number, fx.Node) and isinstance(number.meta.get("val"), torch.SymInt)
    return symbolic and not is_traced and "dtype" not in node.kwargs


def append_sizes(call: Call, sources: Sequence[tuple[int, int]]) -> Call:
    """``call``, with the sizes of its arguments at these (argument, dimension) appended."""

    def run(*args: Any) -> Any:
        return call(*args, *[args[k].shape[d] for k, d in sources])

    return run


def convert_floats(call: Call, floats: Sequence[int]) -> Call:
    """``call``, with the float arguments at these indices as 0-d float64 tensors."""

    def run(*args: Any) -> Any:
        arguments = list(args)
        for k in floats:  # *measured*: 1.7 µs, and ``torch.tensor`` of one number 5.5 µs
            arguments[k] = torch.scalar_tensor(arguments[k], dtype=torch.float64, device="cpu")
        return call(*arguments)

    return run


def guard_float_values(known: Mapping[int, float], call: Call, captured: Call) -> Call:
    """``call`` if the floats equal the compiled ones bit for bit, else ``captured``.

    ``known`` maps indices of float arguments to their values at compile time.
    """
    bits = {k: struct.pack("d", value) for k, value in known.items()}

    def run(*args: Any) -> Any:
        same = all(struct.pack("d", args[k]) == compiled for k, compiled in bits.items())
        return call(*args) if same else captured(*args)

    return run


def fall_back_on_failed_assumption(call: Call, captured: Call, graph: fx.GraphModule) -> Call:
    """``call``, or ``captured`` where a value read from a tensor is not the assumed one.

    ``call`` checks before it writes to anything; the state of the random generators is restored.
    """

    draws = any(map(draws_random_numbers, graph.graph.nodes))

    def run(*args: Any) -> Any:
        saved = generator_states() if draws else []
        try:
            return call(*args)
        except AssumptionFailed:
            restore_generators(saved)
        return captured(*args)

    return run
