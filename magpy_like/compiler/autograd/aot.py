"""AOTAutograd: the joint graph, its partition into forward and backward ATen graphs, their calls.

torch's AOTAutograd traces the captured graph to a functional joint graph; the passes of this
package inspect and rewrite it before and after the min-cut partition (PyTorch 2, section 3.9).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from magpy_like.compiler.autograd.absent_gradients import AbsentGradients, tangents
from magpy_like.compiler.autograd.autograd_node import Program, make_autograd_node
from magpy_like.compiler.autograd.conjugate_gradients import (
    resolve_conj_and_neg,
    take_resolved_gradients,
)
from magpy_like.compiler.autograd.deferred_weight_gradients import DeferredWeightGradients
from magpy_like.compiler.autograd.double_backward import (
    SecondRun,
    autocast_states,
    draws_alike_again,
    find_overwritten,
)
from magpy_like.compiler.autograd.outside_writes import (
    forbid_recomputation_from_visible_memory,
    is_backward,
)
from magpy_like.compiler.autograd.saved_values import clone_before_mutation, save_gradient_sizes
from magpy_like.compiler.autograd.shared_gradients import compile_with_shared_gradients
from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.decompositions.decomposition_table import decompositions
from magpy_like.compiler.passes.alias_analysis import Aliases
from magpy_like.compiler.passes.graph_queries import (
    draws_random_numbers,
    have_same_sizes,
    insert,
    is_in_order,
    is_view,
)
from magpy_like.compiler.passes.layout.channels_last import (
    avoid_duplicate_saves,
    use_channels_last,
)
from magpy_like.compiler.passes.mutations.overlapping_writes import has_overlap
from magpy_like.compiler.runtime_scalars import keep_integers_exact
from magpy_like.compiler.version_counters import (
    find_forward_versions,
    find_result_versions,
    set_result_versions,
)
from magpy_like.graph_operators.checkpoint_batch_norm import (
    CheckpointStatistics,
    StatisticsUpdateUnsupported,
    append_auxiliary_inputs,
)
from magpy_like.torch_compat.aot_autograd import (
    aot_module_simplified,
    functorch_config,
    min_cut_rematerialization_partition,
)
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.dispatch import is_any_autocast_enabled
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensor
from magpy_like.torch_patches import (
    dropout_of_all_draws_nothing,
    gradients_own_elements,
    graphs_count_writes,
    keep_error_checks,
    lazy_unobserved_graphs,
)

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def aot_compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, forward: Compiler, backward: Compiler,
    inference: Compiler, program: Callable[..., Any] | None,
) -> Callable[..., Any]:  # fmt: skip
    """Trace ``gm`` to functional ATen graphs and compile each with the given compilers.

    ``example_inputs`` are tensors, fake tensors (symbolic sizes included) or numbers, one per
    placeholder. The result takes the same arguments; it applies input mutations, regenerates
    aliased outputs, and has a backward when an input or parameter requires grad. ``program``
    computes the same operator by operator, for gradients of gradients; None if nothing does.

    Raises:
        Unsupported: the functional graphs would differ from eager.
        StatisticsUpdateUnsupported: a checkpointed function updates statistics, and AOTAutograd's
            own node of autograd's graph is needed.
    """
    return _AotCompilation(gm, example_inputs, forward, backward, inference, program).build()


class _AotCompilation:
    """One call of AOTAutograd: its compilers and partitioner, and their findings about the
    graph."""

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        forward: Compiler,
        backward: Compiler,
        inference: Compiler,
        program: Callable[..., Any] | None,
    ) -> None:
        self._gm, self._program = gm, program
        self._forward, self._inference = forward, inference
        self._absent, self._deferred = AbsentGradients(gm), DeferredWeightGradients(gm)
        self._statistics = CheckpointStatistics(gm, example_inputs)
        # No method: it outlives the compilation, and must keep neither graph nor example inputs.
        self._compile_backward = functools.partial(
            _compile_backward, self._absent, self._deferred, backward
        )
        auxiliary = self._statistics.make_example_inputs(example_inputs)
        self._example_inputs = [*example_inputs, *auxiliary]
        # AOTAutograd turns autocast off while it compiles a graph, and in its wrapper: the graph
        # has all casts, and its operators must not cast again.
        self._autocast, self._autocast_states = is_any_autocast_enabled(), autocast_states()
        self._direct: list[Callable[..., Any]] = []
        """The compiled inference graph, if it needs no wrapper of AOTAutograd's."""
        self._forwards: list[Callable[..., Any]] = []
        self._second_run: SecondRun | None = None
        self._returns_saved_memory = False
        """Whether a result is a view of memory that the backward pass reads: AOTAutograd's own node
        gives it a version counter of its own."""

    def build(self) -> Callable[..., Any]:
        keep_error_checks()
        with (
            lazy_unobserved_graphs(),
            graphs_count_writes(_check_mutations),
            gradients_own_elements(has_overlap),
            dropout_of_all_draws_nothing(),
        ):
            wrapped = aot_module_simplified(
                self._gm,
                list(self._example_inputs),
                fw_compiler=self._compile_forward,
                bw_compiler=self._compile_backward,
                inference_compiler=self._compile_inference,
                partition_fn=self._partition,
                decompositions=decompositions(),
                keep_inference_input_mutations=True,
            )
        if self._direct:
            return without_grad(*self._direct)
        own = None
        if self._forwards:
            program = Program(
                self._example_inputs,
                self._second_run,
                self._statistics,
                self._absent,
                autocast=self._autocast,
            )
            own = make_autograd_node(wrapped, self._forwards[-1], self._compile_backward, program)
            if own is None and self._returns_saved_memory:
                raise Unsupported(
                    "a graph",
                    "autograd would not see writes to a result that is saved for backward",
                )
        if not self._statistics.auxiliary_inputs:
            return wrapped if own is None else own
        if own is None:
            raise StatisticsUpdateUnsupported
        return append_auxiliary_inputs(own, self._statistics.auxiliary_inputs)

    def _compile_forward(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        call = self._forward(graph, inputs)
        versions = find_forward_versions(graph.graph, find_result_versions(self._gm))
        if versions:  # before autograd notes them, with what it saves
            call = set_result_versions(call, versions)
            call._boxed_call = True  # type: ignore[attr-defined]
        self._forwards.append(call)
        return call

    def _compile_inference(
        self, graph: fx.GraphModule, inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        keep_integers_exact(graph)
        _check_draws(graph)
        # Before passes replace values: one that is written to an input and returned is both.
        is_direct = not self._autocast and _needs_no_wrapper(self._gm, graph, self._example_inputs)
        call = self._inference(graph, inputs)
        if is_direct:
            self._direct.append(call)
        return call

    def _partition(self, joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        forward_outputs = kwargs["num_fwd_outputs"]
        _check_gradients(joint, forward_outputs)
        forbid_recomputation_from_visible_memory(joint, forward_outputs)
        keep_integers_exact(joint)
        use_channels_last(joint)
        program, has_sums = self._program, self._deferred.has_auxiliary_inputs
        if program is not None and not has_sums and draws_alike_again(joint):
            self._second_run = SecondRun(
                program,
                self._autocast_states,
                overwritten=find_overwritten(joint),
                copied=frozenset(),
                draws=any(map(draws_random_numbers, joint.graph.nodes)),
            )
        else:
            self._second_run = None
        self._absent.inspect_joint_graph(joint)
        self._deferred.rewrite_joint_graph(joint, forward_outputs)
        self._statistics.inspect_joint_graph(joint, forward_outputs)
        pairs = _results_apart(joint, forward_outputs)
        forward, backward = _partition(joint, *args, **kwargs)
        _keep_apart(forward, pairs)
        avoid_duplicate_saves(forward, backward, forward_outputs)
        clone_before_mutation(forward, backward)
        if self._absent.several:
            save_gradient_sizes(forward, backward)
        self._returns_saved_memory = _returns_saved_memory(forward, forward_outputs)
        return forward, backward


def _compile_backward(
    absent: AbsentGradients,
    deferred: DeferredWeightGradients,
    backward: Compiler,
    graph: fx.GraphModule,
    inputs: Sequence[Any],
) -> Callable[..., Any]:
    gradients = tangents(graph.graph)
    take_resolved_gradients(graph.graph, gradients)
    graph.recompile()

    def compile_part(part: fx.GraphModule) -> Callable[..., Any]:
        return backward(part, inputs)

    call = absent.compile_variants(
        graph,
        functools.partial(compile_with_shared_gradients, compile_part),
        functools.partial(compile_with_shared_gradients, interpret),
    )
    return resolve_conj_and_neg(deferred.wrap_backward(call), gradients)


def _check_mutations(metadata: Any) -> None:
    """Check, by AOTAutograd's metadata, that no input is both written to and resized or transposed.

    Its wrapper copies the new value to the input, whose memory the value may not fit, or leaves out
    the change of dimensions.

    Raises:
        Unsupported: one is.
    """
    if any(info.mutates_data and info.mutates_metadata for info in metadata.input_info):
        raise Unsupported(
            "a graph", "it resizes or transposes an argument in place, and writes to it"
        )


def _check_gradients(joint: fx.GraphModule, forward_outputs: int) -> None:
    """Check that some input gets a gradient.

    Custom functions may return None for all of them. AOTAutograd detaches inputs without a
    gradient, and results of detached inputs alone would not require one.

    Raises:
        Unsupported: none gets one.
    """
    gradients = joint.graph.output_node().args[0][forward_outputs:]
    if all(gradient is None for gradient in gradients):
        raise Unsupported("a graph", "its results require gradients, and no input gets one")


_aten = torch.ops.aten
_UNIQUE = {
    _aten._unique.default, _aten._unique2.default, _aten.unique_dim.default,
    _aten.unique_consecutive.default, _aten.unique_dim_consecutive.default,
}  # fmt: skip


def _check_sizes(gm: fx.GraphModule) -> None:
    """Check that torch has not assumed a data-dependent size.

    Torch 2.11 assumes one element for the result of a ``unique`` whose gradient is computed.

    Raises:
        Unsupported: it has.
    """
    for node in gm.graph.nodes:
        if node.target in _UNIQUE and not node.meta.get("unbacked_bindings"):
            raise Unsupported(
                str(node.target),
                "the number of its results depends on the data, and gradients are computed",
            )


_DRAWN_IN_PLACE = {_aten.bernoulli.p, _aten.bernoulli.Tensor}


def _check_draws(gm: fx.GraphModule) -> None:
    """Check that the order of eager's random draws is kept.

    ``x.bernoulli_(0.5)`` draws in the order of the memory of ``x``; the functional form draws row
    by row, for a new tensor. ``x.normal_()`` draws in another way for ``x`` with gaps.

    Raises:
        Unsupported: it is lost.
    """
    for node in gm.graph.nodes:
        if _is_drawn_anew(node):
            raise Unsupported(
                str(node.target),
                "eager may draw random numbers in another order for this memory layout",
            )


def _is_drawn_anew(node: fx.Node) -> bool:
    """True for the functional form of a draw in place whose result has another memory order."""
    if node.target in _DRAWN_IN_PLACE:
        return not is_in_order(node.args[0].meta["val"])
    if node.target is _aten.normal_functional.default:
        return not have_same_sizes(node.args[0].meta["val"].stride(), node.meta["val"].stride())
    return False


def _results_apart(joint: fx.GraphModule, count: int) -> set[tuple[int, int]]:
    """The pairs of the first ``count`` results that operators with several results make, each in
    memory of its own."""
    made = joint.graph.output_node().args[0]
    found = [
        k
        for k, node in enumerate(made[:count])
        if isinstance(node, fx.Node) and node.target is operator.getitem
    ]
    if len(found) < 2:
        return set()
    roots = Aliases(joint.graph).roots
    pairs = itertools.combinations(found, 2)
    return {(a, b) for a, b in pairs if roots[made[a]].isdisjoint(roots[made[b]])}


def _keep_apart(forward: fx.GraphModule, pairs: set[tuple[int, int]]) -> None:
    """Copy the second result of each of these pairs if both are in one memory now: the partitioner
    has merged equal operators, and a caller may write to one of the results."""
    if not pairs:
        return
    output = forward.graph.output_node()
    results, roots = list(output.args[0]), Aliases(forward.graph).roots
    merged = {b for a, b in pairs if not roots[results[a]].isdisjoint(roots[results[b]])}
    for k in merged:
        results[k] = insert(forward.graph, _aten.clone.default, results[k], like=output)
    if merged:
        output.args = (tuple(results),)
        forward.recompile()


def _returns_saved_memory(forward: fx.GraphModule, count: int) -> bool:
    """True if one of the first ``count`` results is a view of memory that the graph allocates and
    another result is in."""
    results = forward.graph.output_node().args[0]
    roots = Aliases(forward.graph).roots
    saved = [roots[node] for node in results[count:] if isinstance(node, fx.Node)]
    memory = {root for found in saved for root in found if root.op != "placeholder"}
    returned = [node for node in results[:count] if isinstance(node, fx.Node) and is_view(node)]
    return any(not memory.isdisjoint(roots[node]) for node in returned)


def _is_tuple(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), tuple | list)


SMALL_RESULT_RATIO = 64
"""The minimal ratio of the largest input's number of elements to a small result's."""


def _is_small(node: fx.Node) -> bool:
    """True if the results of a node have few elements compared with its inputs, such as the
    statistics of a batch norm."""
    inputs = [n.meta.get("val") for n in node.all_input_nodes]
    results = node.meta.get("val")
    results = results if isinstance(results, tuple | list) else [results]
    if not all(isinstance(v, torch.Tensor) for v in (*inputs, *results)) or not inputs:
        return False
    sizes = [v.numel() for v in (*inputs, *results)]
    if not all(type(size) is int for size in sizes):
        return False
    return sum(v.numel() for v in results) * SMALL_RESULT_RATIO <= max(v.numel() for v in inputs)


def _partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Min-cut partitioning that leaves random draws of the backward pass in the backward graph.

    The forward graph could draw as well, but then it would do so without a backward pass, too.
    """
    _check_sizes(joint)
    _check_draws(joint)
    saves_memory = any(map(_is_checkpointed, joint.graph.nodes))
    if saves_memory:
        _keep_results(joint)
    for node in filter(draws_random_numbers, joint.graph.nodes):
        if is_backward(node):
            node.meta["partitioner_tag"] = "must_be_in_backward"
    # A checkpointed function trades time for memory: recompute values even where the backward pass
    # has to store them, rather than save them as well.
    with _RECOMPUTE_MATERIALIZED if saves_memory else _SAVE_MATERIALIZED:
        return min_cut_rematerialization_partition(joint, *args, **kwargs)


# Made once: torch gives each change of settings a context variable, which a thread's context keeps.
# *Seen* on torch 2.13.
_SAVE_MATERIALIZED, _RECOMPUTE_MATERIALIZED = (
    functorch_config.patch(ban_recompute_materialized_backward=banned) for banned in (True, False)
)


def _keep_results(joint: fx.GraphModule) -> None:
    """Save small results of checkpointed functions, and their random draws, which must not be drawn
    anew."""
    for node in joint.graph.nodes:
        small = _is_small(node)
        if small or draws_random_numbers(node):
            elements = node.users if not small or _is_tuple(node) else ()
            for result in filter(_is_checkpointed, (node, *elements)):
                del result.meta["recompute"]


def _is_checkpointed(node: fx.Node) -> bool:
    return node.meta.get("recompute") is CheckpointPolicy.MUST_RECOMPUTE


def _needs_no_wrapper(
    gm: fx.GraphModule, graph: fx.GraphModule, example_inputs: Sequence[Any]
) -> bool:
    """True if the ATen graph takes and returns exactly the inputs and results of ``gm``.

    AOTAutograd's runtime wrapper costs microseconds. It is needed only when an output or a
    changed shape of an input must be regenerated from the input, when inputs were merged, split or
    lifted out of the module, and under autocast, which the caller checks.
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
    for node in results:
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return False
    aliases = Aliases(graph.graph)
    # The value written to an input at the end represents that input in the graph.
    written = (n.args[1] for n in graph.graph.nodes if _writes_input(n))
    represents_input = frozenset().union(*(aliases.roots[n] for n in (*placeholders, *written)))
    # By the schemas of the operators, not by the storages of the fake results: the passes of
    # AOTAutograd put nodes with new ones between a value and its views.
    return all(represents_input.isdisjoint(aliases.roots[node]) for node in results)


def _writes_input(node: fx.Node) -> bool:
    """True if a node writes a tensor to an input."""
    if node.target is not torch.ops.aten.copy_.default:
        return False
    target, source = node.args[:2]
    assert isinstance(target, fx.Node)
    return target.op == "placeholder" and isinstance(source, fx.Node)


def interpret(gm: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """A function that runs the graph through ATen, operator by operator.

    It takes one list of arguments, which it empties.
    """
    # ATen's operators that fill a new tensor count a write, which torch's functions hide.
    unwritten = [(k, 0) for k in _created_results(gm.graph)]

    def call(args: list[Any]) -> Any:
        arguments = list(args)
        args.clear()
        with torch.no_grad():
            return gm(*arguments)

    return set_result_versions(call, unwritten)


def _created_results(graph: fx.Graph) -> list[int]:
    """The indices of the results in memory that operators without tensor arguments allocate."""
    roots = Aliases(graph).roots
    return [
        k
        for k, node in enumerate(graph.output_node().args[0])
        if isinstance(node, fx.Node) and _is_tensor(node) and all(map(_creates, roots[node]))
    ]


def _creates(node: fx.Node) -> bool:
    return node.op == "call_function" and not any(map(_is_tensor, node.all_input_nodes))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def without_grad(call: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """A function of positional arguments that runs ``call`` under ``no_grad``."""

    def run(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(list(args))
        set_grad_enabled(False)
        try:
            return call(list(args))
        finally:
            set_grad_enabled(True)

    # Not ``entry``: AOTAutograd's wrappers copy the attributes of the function that they wrap.
    run.captured_entry = getattr(call, "entry", None)  # type: ignore[attr-defined]
    run.obstacle_line = getattr(call, "obstacle_line", None)  # type: ignore[attr-defined]
    run.profiled = getattr(call, "profiled", None)  # type: ignore[attr-defined]
    return run
