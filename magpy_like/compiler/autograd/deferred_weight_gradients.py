"""Gradients of weights that all rounds of a loop use: one product behind the last round.

The gradient of a matrix that a round multiplies by is a product itself, over the rows of the round:
sixteen rows, say, for a million elements. Round by round, nearly all time goes into writing that
million and adding it to the sum. But the sum of products is one product, of all rounds' rows
written one below the other, and rows are small. So a round's backward pass gives both factors
instead of their product, and they are multiplied when there are many rows, or no more rounds.

Autograd has to hand the factors on. Each graph of a round has two further inputs for each weight,
**taps**, which it does not use; the gradients that its backward pass gives for them are the
factors. All taps of a call are one tensor, made by :class:`_Tap`, which collects what arrives; that
is made of a tensor that :class:`_Token` makes of the weights, once a loop: its turn in the backward
pass comes behind the last round's, as for anything that several others use. Factors have not the
size of the tap, which autograd insists on: they are attributes of a tensor that has.

Rows are copied when they come, so nothing is kept alive, and there are never more of them than
take a quarter of the gradient's memory. Eager adds up in a second gradient, which takes more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.autograd.function import once_differentiable

from magpy_like.compiler.passes.graph_queries import aten, is_view, tensor
from magpy_like.torch_compat.autograd import current_backward_pass
from magpy_like.torch_compat.operators import foreach_copy_
from magpy_like.torch_patches import untraced

TAP_OF = "tap_of"
"""The key by which ``torch.fx`` keeps of which input, by number, an input is a tap."""
TAPS = 2  # of each weight, one for either factor


def with_taps(gm: fx.GraphModule, weights: Sequence[int]) -> fx.GraphModule:
    """The graph with two taps for each of the inputs of these numbers, behind its own inputs."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs = gm.graph.find_nodes(op="placeholder")
    for node in inputs:
        copies[node] = graph.node_copy(node)
    for weight in weights:
        for side in range(TAPS):
            graph.placeholder(f"tap_{weight}_{side}").meta[TAP_OF] = weight
    for node in gm.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(gm, graph, class_name=type(gm).__name__)


class _Product:
    """A gradient that a backward pass gives the factors of, and where among its results."""

    def __init__(self, weight: int, a: int, b: int, views: Sequence[fx.Node]) -> None:
        """``views`` make the gradient of the product, the last one first."""
        self.weight, self.a, self.b = weight, a, b
        self._views = [(v.target, v.args[1:], v.kwargs) for v in reversed(views)]
        self._kind = weight, str(self._views)

    def kind(self, a: Tensor, b: Tensor) -> object:
        """What products of these factors may be added up by, be they of different graphs: the
        first round's may be a graph of its own."""
        return *self._kind, len(a), b.shape[1], a.dtype, a.device

    def gradient(self, product: Tensor) -> Tensor:
        view: Any
        for view, args, kwargs in self._views:
            product = view(product, *args, **kwargs)
        return product


class Late:
    """Has the backward pass of a graph with taps give factors for them."""

    def __init__(self, captured: fx.GraphModule) -> None:
        inputs = captured.graph.find_nodes(op="placeholder")
        self._inputs = len(inputs)
        self._held = len(dict(captured.named_parameters(remove_duplicate=False)))
        self._held += len(dict(captured.named_buffers(remove_duplicate=False)))
        self._taps: dict[int, list[int]] = {}
        for place, node in enumerate(inputs):
            if TAP_OF in node.meta:
                self._taps.setdefault(node.meta[TAP_OF], []).append(place)
        self._products: list[_Product] = []

    @property
    def has_taps(self) -> bool:
        return bool(self._taps)

    def see_joint(self, joint: fx.GraphModule, forward_outputs: int) -> None:
        """Put factors in the place of products in the graph of both passes."""
        output = joint.graph.output_node()
        outputs: list[Any] = list(output.args[0])
        self._products = []
        if not self._taps or len(outputs) - forward_outputs != self._held + self._inputs:
            return
        for weight, taps in self._taps.items():
            at, a, b = (self._held + place for place in (weight, *taps))
            found = _as_product(outputs[forward_outputs + at])
            if found is None:
                continue
            product, views = found
            outputs[forward_outputs + at] = None
            outputs[forward_outputs + a], outputs[forward_outputs + b] = product.args
            self._products.append(_Product(weight, a, b, views))
        output.args = (tuple(outputs),)

    def backward(self, call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """The backward pass ``call``, with the factors in a tensor that a tap may be given."""
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


def _as_product(node: Any) -> tuple[fx.Node, list[fx.Node]] | None:
    """The product of two matrices that a gradient is, or a view of, and these views; None where it
    is none, or one of so many rows that to add it up takes less than to multiply."""
    views = []
    while isinstance(node, fx.Node) and is_view(node) and len(node.users) == 1:
        if len(node.all_input_nodes) != 1:
            return None  # of a size that varies
        views.append(node)
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.target is not aten.mm.default or len(node.users) != 1:
        return None
    a, b = map(tensor, node.args)
    if a is None or b is None:
        return None
    rows, columns, count = (_hint(size) for size in (a.shape[0], b.shape[1], a.shape[1]))
    if None in (rows, columns, count) or cast(int, count) > _most_rows(rows, columns):
        return None
    return node, views


def _hint(size: Any) -> Any:
    """A size, or what it is in the example if that is known."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _most_rows(m: Any, n: Any) -> int:
    """How many rows of both factors take a quarter of the memory of their product."""
    return int(m * n // (4 * max(m + n, 1)))


class _Sum:
    """A sum of products, of which some are still to be multiplied."""

    def __init__(self) -> None:
        self._product: Tensor | None = None
        self._rows: tuple[Tensor, Tensor]
        self._blocks: list[tuple[Tensor, Tensor]] = []
        """Rows of both factors, as many as a round has."""
        self._count, self._used = 0, 0  # rows in a block, rows to be multiplied

    def block(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Where to write the rows of ``a.t()`` and ``b``, to add ``a @ b``: m x k by k x n."""
        (m, count), n = a.shape, b.shape[1]
        if not self._blocks or count != self._count:
            if self._used:
                self._multiply()
            most = max(_most_rows(m, n) // max(count, 1), 1) * count
            self._rows = a.new_empty(most, m), b.new_empty(most, n)
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


class _Sums:
    """What the rounds of one call of a loop have left in one graph, by backward pass."""

    def __init__(self) -> None:
        self._passes: dict[int, dict[object, tuple[_Product, _Sum]]] = {}

    def add(self, factors: Sequence[tuple[_Product, Tensor, Tensor]]) -> None:
        # A pass that has failed leaves what nobody may add to.
        sums = self._passes.setdefault(current_backward_pass(), {})
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for product, a, b in factors:
            _, sum_ = sums.setdefault(product.kind(a, b), (product, _Sum()))
            targets += sum_.block(a, b)
            sources += a.t(), b
        foreach_copy_(targets, sources)

    def gradients(self) -> dict[int, Tensor]:
        """The gradients of weights, by number."""
        found: dict[int, Tensor] = {}
        sums = self._passes.pop(current_backward_pass(), {})
        for product, sum_ in sums.values():
            gradient = product.gradient(sum_.total())
            known = found.get(product.weight)
            found[product.weight] = gradient if known is None else known + gradient
        return found


class Rounds:
    """One call of a loop, for which its graphs are given taps."""

    def __init__(self) -> None:
        self._tokens: dict[object, tuple[Tensor, _Sums]] = {}

    def tap(self, part: object, weights: dict[int, Tensor]) -> Tensor:
        """A tap for a call of ``part`` with these weights, which all rounds give it."""
        found = self._tokens.get(part)
        if found is None:
            sums = _Sums()
            found = _Token.apply(sums, tuple(weights), *weights.values()), sums
            self._tokens[part] = found
        return cast(Tensor, _Tap.apply(*found))


class _Token(torch.autograd.Function):
    """What all taps of a graph are made of: its turn comes when there are no more factors."""

    @staticmethod
    def forward(ctx: Any, sums: _Sums, numbers: Sequence[int], *weights: Tensor) -> Tensor:
        ctx.sums, ctx.numbers = sums, numbers
        ctx.set_materialize_grads(False)
        return torch.zeros(1, device=weights[0].device)

    @staticmethod
    @once_differentiable
    @untraced
    def backward(ctx: Any, _: Tensor | None) -> Any:
        found = ctx.sums.gradients()
        return None, None, *map(found.get, ctx.numbers)


class _Tap(torch.autograd.Function):
    """Collects the factors of one round."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, sums: _Sums) -> Tensor:
        ctx.sums = sums
        ctx.set_materialize_grads(False)
        return torch.empty_like(token)

    @staticmethod
    @once_differentiable
    @untraced
    def backward(ctx: Any, carrier: Tensor | None) -> tuple[None, None]:
        if carrier is not None:
            ctx.sums.add(carrier.factors)
        return None, None
