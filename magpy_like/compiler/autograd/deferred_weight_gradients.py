"""Deferred weight gradients: one matrix product for all iterations of a loop that share a weight.

The gradient of a matrix that an iteration multiplies by is a product itself, over the rows of the
iteration: sixteen rows, say, for a million elements. Iteration by iteration, nearly all time goes
into writing that million and adding it to the sum. But the sum of products is one product, of all
iterations' rows written one below the other, and rows are small. So an iteration's backward pass
returns both factors instead of their product, and they are multiplied when there are many rows, or
no more iterations.

Autograd transports the factors. Each graph of an iteration has two **auxiliary inputs** for each
weight, which it does not use; the gradients that its backward pass returns for them are the
factors. All auxiliary inputs of a call are one tensor, made by :class:`_FactorCollector`, whose
backward collects the factors; its input is the tensor that :class:`_WeightGradients` makes of the
weights, once a loop. Autograd runs the backward of that node after the last iteration's, as for any
tensor with several users. Factors have not the size of the auxiliary input, which autograd insists
on: they are attributes of a tensor that has.

Rows are copied when they arrive, so nothing is kept alive, and they never take more than a quarter
of the gradient's memory. Eager adds up in a second gradient, which takes more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.autograd.function import once_differentiable

from magpy_like.compiler.passes.graph_queries import aten, is_view, tensor
from magpy_like.graph_operators.node_metadata import AUXILIARY_INPUT_OF
from magpy_like.torch_compat.autograd import current_backward_pass
from magpy_like.torch_compat.operators import foreach_copy_
from magpy_like.torch_compat.tracing.unobserved_modules import UnobservedGraphModule
from magpy_like.torch_patches import untraced

FACTORS_PER_WEIGHT = 2
"""Auxiliary inputs of each weight, one for either factor of its gradient."""


def add_auxiliary_inputs(gm: fx.GraphModule, weights: Sequence[int]) -> fx.GraphModule:
    """A copy of the graph with two auxiliary inputs, after its own, for each input in ``weights``.

    ``weights`` are indices of inputs.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs = gm.graph.find_nodes(op="placeholder")
    for node in inputs:
        copies[node] = graph.node_copy(node)
    for weight in weights:
        for factor in range(FACTORS_PER_WEIGHT):
            auxiliary = graph.placeholder(f"auxiliary_{weight}_{factor}")
            auxiliary.meta[AUXILIARY_INPUT_OF] = weight
    for node in gm.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return UnobservedGraphModule(gm, graph, class_name=type(gm).__name__)


class _FactoredGradient:
    """A weight gradient ``a @ b`` that a backward pass returns as its two factors.

    ``weight`` is the index of the weight; ``a`` and ``b`` are the indices of the factors among the
    pass's results.
    """

    def __init__(self, weight: int, a: int, b: int, views: Sequence[fx.Node]) -> None:
        """``views`` make the gradient of the product, the last one first."""
        self.weight, self.a, self.b = weight, a, b
        self._views = [(v.target, v.args[1:], v.kwargs) for v in reversed(views)]
        self._key = weight, str(self._views)

    def key(self, a: Tensor, b: Tensor) -> object:
        """Equal for products that may be added up, even of different graphs: the first iteration
        may have a graph of its own."""
        return *self._key, len(a), b.shape[1], a.dtype, a.device

    def gradient(self, product: Tensor) -> Tensor:
        view: Any
        for view, args, kwargs in self._views:
            product = view(product, *args, **kwargs)
        return product


class DeferredWeightGradients:
    """Rewrites the backward pass of a graph with auxiliary inputs to return factors for them."""

    def __init__(self, captured: fx.GraphModule) -> None:
        inputs = captured.graph.find_nodes(op="placeholder")
        self._inputs = len(inputs)
        self._lifted = len(dict(captured.named_parameters(remove_duplicate=False)))
        self._lifted += len(dict(captured.named_buffers(remove_duplicate=False)))
        self._auxiliary: dict[int, list[int]] = {}
        for index, node in enumerate(inputs):
            if AUXILIARY_INPUT_OF in node.meta:
                self._auxiliary.setdefault(node.meta[AUXILIARY_INPUT_OF], []).append(index)
        self._products: list[_FactoredGradient] = []

    @property
    def has_auxiliary_inputs(self) -> bool:
        return bool(self._auxiliary)

    def rewrite_joint_graph(self, joint: fx.GraphModule, forward_outputs: int) -> None:
        """Replace products among the gradients by their factors, in the joint graph."""
        output = joint.graph.output_node()
        outputs: list[Any] = list(output.args[0])
        self._products = []
        gradients = len(outputs) - forward_outputs
        if not self._auxiliary or gradients != self._lifted + self._inputs:
            return
        for weight, auxiliary in self._auxiliary.items():
            index, a, b = (self._lifted + k for k in (weight, *auxiliary))
            found = _match_product(outputs[forward_outputs + index])
            if found is None:
                continue
            product, views = found
            outputs[forward_outputs + index] = None
            outputs[forward_outputs + a], outputs[forward_outputs + b] = product.args
            self._products.append(_FactoredGradient(weight, a, b, views))
        output.args = (tuple(outputs),)

    def wrap_backward(self, call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """The backward pass ``call``, which returns all factors as attributes of one tensor: the
        gradient of the first auxiliary input."""
        if not self._products:
            return call

        def run(args: list[Any]) -> Any:
            results = list(call(args))
            factors = []
            for product in self._products:
                a, b = results[product.a], results[product.b]
                results[product.a] = results[product.b] = None
                if a is not None and b is not None:
                    factors.append((product, a, b))
            if factors:
                carrier = torch.zeros(1, device=factors[0][1].device)
                carrier.factors = factors
                results[self._products[0].a] = carrier
            return results

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _match_product(node: Any) -> tuple[fx.Node, list[fx.Node]] | None:
    """The matrix product that a gradient is, or is a view of, and these views, last one first.

    None if it is no product, or one of so many rows that adding it up takes less than multiplying.
    """
    views = []
    while isinstance(node, fx.Node) and is_view(node) and len(node.users) == 1:
        if len(node.all_input_nodes) != 1:
            return None  # a symbolic size
        views.append(node)
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.target is not aten.mm.default or len(node.users) != 1:
        return None
    a, b = map(tensor, node.args)
    if a is None or b is None:
        return None
    rows, columns, count = (_hint(size) for size in (a.shape[0], b.shape[1], a.shape[1]))
    if None in (rows, columns, count) or cast(int, count) > _max_deferred_rows(rows, columns):
        return None
    return node, views


def _hint(size: Any) -> Any:
    """The size; of a symbolic one its hint, which may be None."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _max_deferred_rows(m: Any, n: Any) -> int:
    """The number of rows of both factors that take a quarter of the memory of their m x n
    product."""
    return int(m * n // (4 * max(m + n, 1)))


class _DeferredSum:
    """A sum of products ``a @ b`` of which some rows are still to be multiplied."""

    def __init__(self) -> None:
        self._product: Tensor | None = None
        self._rows: tuple[Tensor, Tensor]
        self._blocks: list[tuple[Tensor, Tensor]] = []
        """Views of ``_rows``, each as many rows of both factors as an iteration has."""
        self._count, self._used = 0, 0  # rows in a block, rows not multiplied yet

    def block(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The memory for the rows of ``a.t()`` and ``b``, to add ``a @ b``: m x k by k x n."""
        (m, count), n = a.shape, b.shape[1]
        if not self._blocks or count != self._count:
            if self._used:
                self._multiply()
            limit = max(_max_deferred_rows(m, n) // max(count, 1), 1) * count
            self._rows = a.new_empty(limit, m), b.new_empty(limit, n)
            parts = [rows.split(max(count, 1)) for rows in self._rows]
            self._blocks, self._count = list(zip(*parts, strict=True)), count
        elif self._used == len(self._rows[0]):
            self._multiply()
        self._used += count
        return self._blocks[self._used // max(count, 1) - 1]

    def total(self) -> Tensor:
        if self._used or self._product is None:
            self._multiply()
        assert self._product is not None
        return self._product

    def _multiply(self) -> None:
        a, b = (rows[: self._used] for rows in self._rows)
        if self._product is None:
            self._product = a.t() @ b
        else:
            self._product.addmm_(a.t(), b)
        self._used = 0


class _DeferredSums:
    """The sums of one graph and one execution of a loop, per backward pass."""

    def __init__(self) -> None:
        self._passes: dict[int, dict[object, tuple[_FactoredGradient, _DeferredSum]]] = {}

    def add(self, factors: Sequence[tuple[_FactoredGradient, Tensor, Tensor]]) -> None:
        # Per backward pass: one that has failed leaves sums that no other may add to.
        sums = self._passes.setdefault(current_backward_pass(), {})
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for product, a, b in factors:
            _, sum_ = sums.setdefault(product.key(a, b), (product, _DeferredSum()))
            targets += sum_.block(a, b)
            sources += a.t(), b
        foreach_copy_(targets, sources)

    def gradients(self) -> dict[int, Tensor]:
        """Index of a weight -> its gradient."""
        found: dict[int, Tensor] = {}
        sums = self._passes.pop(current_backward_pass(), {})
        for product, sum_ in sums.values():
            gradient = product.gradient(sum_.total())
            known = found.get(product.weight)
            found[product.weight] = gradient if known is None else known + gradient
        return found


class LoopExecution:
    """One execution of a loop: the auxiliary inputs for the graphs of its iterations."""

    def __init__(self) -> None:
        self._sums: dict[object, tuple[Tensor, _DeferredSums]] = {}

    def auxiliary_input(self, part: object, weights: dict[int, Tensor]) -> Tensor:
        """The auxiliary input for one call of ``part``, whose weights are the same tensors in all
        iterations."""
        found = self._sums.get(part)
        if found is None:
            sums = _DeferredSums()
            found = _WeightGradients.apply(sums, tuple(weights), *weights.values()), sums
            self._sums[part] = found
        return cast(Tensor, _FactorCollector.apply(*found))


class _WeightGradients(torch.autograd.Function):
    """The source of a graph's auxiliary inputs: its backward runs when all factors have arrived,
    and returns the gradients of the weights."""

    @staticmethod
    def forward(ctx: Any, sums: _DeferredSums, indices: Sequence[int], *weights: Tensor) -> Tensor:
        ctx.sums, ctx.indices = sums, indices
        ctx.set_materialize_grads(False)
        return torch.zeros(1, device=weights[0].device)

    @staticmethod
    @once_differentiable
    @untraced
    def backward(ctx: Any, _: Tensor | None) -> Any:
        found = ctx.sums.gradients()
        return None, None, *map(found.get, ctx.indices)


class _FactorCollector(torch.autograd.Function):
    """The auxiliary input of one iteration: its backward collects the factors."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, sums: _DeferredSums) -> Tensor:
        ctx.sums = sums
        ctx.set_materialize_grads(False)
        return torch.empty_like(source)

    @staticmethod
    @once_differentiable
    @untraced
    def backward(ctx: Any, carrier: Tensor | None) -> tuple[None, None]:
        if carrier is not None:
            ctx.sums.add(carrier.factors)
        return None, None
