"""Forward and backward ATen graphs through torch's AOTAutograd (PyTorch 2, section 3.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from magpy_like.compiler.autograd.absent_gradients import Absent, tangents
from magpy_like.compiler.autograd.autograd_node import as_they_read, own_node
from magpy_like.compiler.autograd.deferred_weight_gradients import Late
from magpy_like.compiler.autograd.saved_values import save_before_writing
from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.decompositions import decompositions
from magpy_like.compiler.lowering.random_numbers import is_in_order
from magpy_like.compiler.passes.layout.channels_last import (
    save_once,
    use_channels_last,
)
from magpy_like.graph_operators.checkpoint_statistics import Again, NotWritten, with_taps
from magpy_like.torch_compat.aot_autograd import (
    aot_module_simplified,
    functorch_config,
    min_cut_rematerialization_partition,
    use_lazy_graph_module,
)
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.dispatch import is_any_autocast_enabled
from magpy_like.torch_compat.fake_tensors import FakeTensor

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def aot_compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, forward: Compiler, backward: Compiler,
    inference: Compiler,
) -> Callable[..., Any]:  # fmt: skip
    """Trace ``gm`` to functional ATen graphs and compile each with the given compilers.

    ``example_inputs`` are tensors, fake tensors (symbolic sizes included) or numbers, one per
    placeholder. The result takes the same arguments; it applies input mutations, regenerates
    aliased outputs, and has a backward when an input or parameter requires grad.
    """
    direct: list[Callable[..., Any]] = []
    absent, late, written = Absent(gm), Late(gm), Again(gm, example_inputs)
    example_inputs = [*example_inputs, *written.examples(example_inputs)]
    # AOTAutograd turns autocast off while it compiles a graph, and in its wrapper: the graph has
    # all casts, and its operators must not cast again.
    autocast = is_any_autocast_enabled()

    forwards: list[Callable[..., Any]] = []
    again: Callable[..., Any] | None = gm

    def compile_forward(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        forwards.append(absent.forward(forward(graph, inputs)))
        return forwards[-1]

    def compile_backward(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        call = absent.backward(graph, lambda part: backward(part, inputs), interpret)
        return as_they_read(late.backward(call), tangents(graph.graph))

    def compile_inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        _check_draws(graph)
        call = inference(graph, inputs)
        if not autocast and _needs_no_wrapper(gm, graph, example_inputs):
            direct.append(call)
        return call

    def partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        nonlocal again
        use_channels_last(joint)
        again = None if late.has_taps or any(map(_draws, joint.graph.nodes)) else gm
        absent.see_joint(joint)
        late.see_joint(joint, kwargs["num_fwd_outputs"])
        written.see_joint(joint, kwargs["num_fwd_outputs"])
        forward, backward = _partition(joint, *args, **kwargs)
        save_once(forward, backward, kwargs["num_fwd_outputs"])
        save_before_writing(forward, backward)
        return forward, backward

    # Nobody runs the graphs in between: their Python source would be written ten times for nothing.
    with use_lazy_graph_module(True):
        wrapped = aot_module_simplified(
            gm,
            list(example_inputs),
            fw_compiler=compile_forward,
            bw_compiler=compile_backward,
            inference_compiler=compile_inference,
            partition_fn=partition,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )
    if direct:
        return without_grad(*direct)
    theirs = absent.after(wrapped)
    ours = own_node(
        theirs, forwards[-1], compile_backward, example_inputs, again,
        written, materialize=absent.materializes, autocast=autocast,
    ) if forwards else None  # fmt: skip
    if not written.taps:
        return theirs if ours is None else ours
    if ours is None:
        raise NotWritten
    return with_taps(ours, written.taps)


_aten = torch.ops.aten
_UNIQUE = {
    _aten._unique.default, _aten._unique2.default, _aten.unique_dim.default,
    _aten.unique_consecutive.default, _aten.unique_dim_consecutive.default,
}  # fmt: skip


def _check_sizes(gm: fx.GraphModule) -> None:
    """Raise Unsupported where torch has taken a size for known that only a run tells: 2.11 gives
    each ``unique`` behind a gradient one element."""
    for node in gm.graph.nodes:
        if node.target in _UNIQUE and not node.meta.get("unbacked_bindings"):
            raise Unsupported(str(node.target), "how many results it has only a run tells")


_DRAWN_IN_PLACE = {_aten.bernoulli.p, _aten.bernoulli.Tensor}


def _check_draws(gm: fx.GraphModule) -> None:
    """Raise Unsupported where it is lost in which order eager draws: ``x.bernoulli_(0.5)`` goes
    through the memory of ``x``, and what torch makes of it here row by row, as a new tensor."""
    for node in gm.graph.nodes:
        if node.target in _DRAWN_IN_PLACE and not is_in_order(node.args[0].meta["val"]):
            raise Unsupported(str(node.target), "eager may draw in another order")


def _draws(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_tuple(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), tuple | list)


def _is_small(node: fx.Node) -> bool:
    """Whether the results of a node have few elements beside what it is made of, such as the
    statistics of a batch norm."""
    given = [n.meta.get("val") for n in node.all_input_nodes]
    made = node.meta.get("val")
    made = made if isinstance(made, tuple | list) else [made]
    if not all(isinstance(v, torch.Tensor) for v in (*given, *made)) or not given:
        return False
    sizes = [v.numel() for v in (*given, *made)]
    if not all(type(size) is int for size in sizes):
        return False
    return sum(v.numel() for v in made) * 64 <= max(v.numel() for v in given)


def _partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Min-cut partitioning that leaves random draws of the backward pass where they are.

    The forward graph could make them as well, but then without a backward pass, too.
    """
    _check_sizes(joint)
    _check_draws(joint)
    saves_memory = any("recompute" in node.meta for node in joint.graph.nodes)
    if saves_memory:
        _keep_results(joint)
    for node in filter(_draws, joint.graph.nodes):
        if node.meta.get("partitioner_tag") == "is_backward":
            node.meta["partitioner_tag"] = "must_be_in_backward"
    # Whoever checkpoints functions would rather have what a kept result leads to computed again
    # than kept beside it, even where the backward pass has to store it.
    with functorch_config.patch(ban_recompute_materialized_backward=not saves_memory):
        return min_cut_rematerialization_partition(joint, *args, **kwargs)


def _keep_results(joint: fx.GraphModule) -> None:
    """Have small results of checkpointed functions kept, and what they draw, which is the same
    again."""
    for node in joint.graph.nodes:
        small = _is_small(node)
        if small or _draws(node):
            parts = node.users if not small or _is_tuple(node) else ()
            for result in (node, *parts):
                result.meta.pop("recompute", None)


def _needs_no_wrapper(
    gm: fx.GraphModule, graph: fx.GraphModule, example_inputs: Sequence[Any]
) -> bool:
    """Does the ATen graph take and return exactly what ``gm`` does?

    AOTAutograd's runtime wrapper costs microseconds. It has work to do only when an output or a
    changed shape of an input must be made from the input itself, when inputs were merged, taken
    apart or lifted out of the module, and under autocast, of which the caller knows.
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    values = [n.meta.get("val") for n in placeholders]
    results = graph.graph.output_node().args[0]
    if len(values) != len(example_inputs) or len(results) != len(gm.graph.output_node().args[0]):
        return False
    for value, example in zip(values, example_inputs, strict=True):
        if isinstance(example, torch.Tensor):
            plain = type(example) in (torch.Tensor, torch.nn.Parameter, FakeTensor)
            if not plain or not isinstance(value, torch.Tensor):
                return False
            if (value.dim(), value.dtype) != (example.dim(), example.dtype):
                return False
    tensors = [v for v in values if isinstance(v, torch.Tensor) and v.layout is torch.strided]
    # What is written to an input at the end is what the program has had as that input until then.
    tensors += [n.args[1].meta["val"] for n in graph.graph.nodes if _writes_input(n)]
    memory = {v.untyped_storage()._cdata for v in tensors}
    for node in results:
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return False
        if value.untyped_storage()._cdata in memory:
            return False
    return True


def _writes_input(node: fx.Node) -> bool:
    """Whether a node writes a strided tensor to an input."""
    if node.target is not torch.ops.aten.copy_.default:
        return False
    target, source = node.args[:2]
    assert isinstance(target, fx.Node)
    value = source.meta.get("val") if isinstance(source, fx.Node) else None
    return (
        target.op == "placeholder"
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
    )


def interpret(gm: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The graph through ATen, operator by operator."""

    def call(args: list[Any]) -> Any:
        taken = list(args)
        args.clear()
        with torch.no_grad():
            return gm(*taken)

    return call


def without_grad(call: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """``call`` on its arguments, with gradients off: nothing in it is to be differentiated."""

    def run(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(list(args))
        set_grad_enabled(False)
        try:
            return call(list(args))
        finally:
            set_grad_enabled(True)

    # Not by the same name: AOTAutograd's wrappers take over what the function in them has.
    run.leads_to = getattr(call, "entry", None)  # type: ignore[attr-defined]
    return run
