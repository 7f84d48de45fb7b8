"""Hand-written attention, rewritten as ``scaled_dot_product_attention``.

The pass runs on the captured graph, before autograd, so that the backward pass is the library's
too. The graph may hold torch functions, Tensor methods, Python operators or ATen operators; the
tables below list which of them are equivalent. The pattern is

    softmax(q @ kT [* scale] [+ bias] [+ mask]) @ v

where the mask may be added or, on a CPU, filled in (see ``filled_attention``). Anything else
between the two products (active dropout, a second user of the probabilities) leaves the program as
it is.

Rows in which every position is masked need care: the library returns zeros where the formula
yields NaN (fill of -inf) or the plain mean of ``v`` (finite fill). Such rows are unmasked for the
library and repaired afterwards.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from magpy_like.compiler.passes.attention.filled_attention import FILLED_ATTENTION
from magpy_like.compiler.passes.graph_queries import have_same_sizes
from magpy_like.logs import topic
from magpy_like.torch_compat.operators import OpOverload
from magpy_like.torch_compat.tracing.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    detect_fake_mode,
    enable_python_dispatcher,
)

_log = topic("fusion")

MASKING_FILL = -1e9
"""A fill up to this value masks: no attention score of float32 comes near it."""
LOWEST_BIAS = -1e38
"""A bias that float32 represents in units of log(2) too, and low enough that no score matters."""

_MATMUL = {"matmul", "bmm", "__matmul__"}
_SOFTMAX = {"softmax", "_softmax"}
_SCALE = {"mul", "__mul__", "multiply", "div", "truediv", "__truediv__", "true_divide", "divide"}
_ADD = {"add", "__add__", "iadd", "__iadd__", "add_"}
_FILL = {"masked_fill", "masked_fill_"}
_DROPOUT = {"dropout", "dropout_"}
_IN_PLACE_OPERATORS = (
    {"setitem", "__setitem__", "delitem"}
    | {name for name in dir(operator) if name.startswith("i") and hasattr(operator, name[1:])}
    | {name for name in dir(operator) if name.startswith("__i") and name not in ("__invert__",)}
)
# Functions of one argument that keep its values.
_IDENTITIES = {"contiguous", "clone"}


def rewrite_attention(gm: GraphModule, example_inputs: Sequence[Any]) -> GraphModule:
    """Rewrite every hand-written attention in a captured graph, in place; returns the graph.

    float32 and float64 only: in lower precisions eager rounds the scores, the library does not,
    and the results differ by more than rounding.
    """
    softmaxes = [node for node in gm.graph.nodes if called_name(node) in _SOFTMAX]
    if not softmaxes:
        return gm
    vals = compute_fake_values(gm, example_inputs)
    if vals is None:
        return gm
    changed = _erase_unused_identities(gm, vals)
    for softmax in softmaxes:
        found = _match(softmax, vals)
        chain = found and found.chain()
        # The first product moves to the second.
        if found and chain and not has_writes_between(chain[-1], chain[0], chain):
            _emit(gm, found, chain, vals)
            changed = True
    if changed:
        gm.graph.lint()
        gm.recompile()
    return gm


def _erase_unused_identities(gm: GraphModule, vals: dict[Node, Any]) -> bool:
    """Erase unused identities; True if there were any.

    A capture that follows object identity has inactive dropout as an unused node that also reads
    the probabilities.
    """
    erased = 0
    for node in reversed(list(gm.graph.nodes)):
        if not node.users and node.op != "output" and _is_identity(node, vals):
            gm.graph.erase_node(node)
            erased += 1
    return erased > 0


# --- reading the graph -------------------------------------------------------------------------


def called_name(node: Any) -> str | None:
    """The name of the torch function, method or operator that a node calls; None for others."""
    if not isinstance(node, Node):
        return None
    target: Any = node.target
    if node.op == "call_method":
        return str(target)
    if node.op != "call_function":
        return None
    if isinstance(target, OpOverload):
        return target._opname if target.namespace == "aten" else None
    owner = getattr(target, "__objclass__", None)
    module = getattr(target, "__module__", None) or getattr(owner, "__module__", None) or ""
    if module.split(".")[0] in ("torch", "_operator", "builtins"):
        return getattr(target, "__name__", None)
    return None


class _FakeValues(FakeTensorProp):
    """Computes each node's fake value, and leaves the graph's metadata as it is."""

    def __init__(self, gm: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(gm, mode)
        self.vals: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        self.vals[n] = result = torch.fx.Interpreter.run_node(self, n)
        return result


def compute_fake_values(gm: GraphModule, example_inputs: Sequence[Any]) -> dict[Node, Any] | None:
    """Each node's fake value; None where fake tensors cannot run the graph."""
    mode = detect_fake_mode(list(example_inputs))
    if mode is None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = _FakeValues(gm, mode)
    fakes = [_new_fake(a, mode) if isinstance(a, torch.Tensor) else a for a in example_inputs]
    env = mode.shape_env
    unbound = contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols()
    try:
        # Without the Python dispatcher, composite operators would specialize sizes (pad does).
        with torch.random.fork_rng(devices=[]), unbound, enable_python_dispatcher():
            recorder.propagate_dont_convert_inputs(*fakes)
    except Exception as error:  # a graph that fake tensors cannot run is left alone
        _log.debug("attention is not rewritten: %s: %s", type(error).__name__, error)
        return None
    return recorder.vals


def _new_fake(example: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A new fake tensor: a shared one would memoize the values read from it."""
    if not isinstance(example, FakeTensor):
        return mode.from_tensor(example, static_shapes=True)
    return example.detach().requires_grad_(example.requires_grad)


@dataclass
class _Attention:
    """A matched attention."""

    q: Node
    k_transposed: Node
    v: Node
    scale: float
    mask: Node | None
    bias: Node | None
    """Added to the scores before an additive mask."""
    mask_kind: str
    """ "add": its values are added; "drop" or "keep": scores where it is true."""
    fill: float
    product: Node
    """The product of the probabilities and ``v``, whose value is the attention's."""

    def chain(self) -> list[Node] | None:
        """The nodes from the second product back to the first, last first; None if the first
        product is also the mask or the bias."""
        return self._path(self.product)

    def _path(self, node: Node) -> list[Node] | None:
        if called_name(node) in _MATMUL and _operands(node) == (self.q, self.k_transposed):
            return [node]
        for below in node.all_input_nodes:
            outside = below in (self.mask, self.bias, self.v)
            rest = None if outside else self._path(below)
            if rest is not None:
                return [node, *rest]
        return None


def _argument(node: Node, number: int, *names: str, default: Any = None) -> Any:
    if len(node.args) > number:
        return node.args[number]
    return next((node.kwargs[n] for n in names if n in node.kwargs), default)


def _match(softmax: Node, vals: dict[Node, Any]) -> _Attention | None:
    scores = _argument(softmax, 0, "input", "self")
    val = vals.get(softmax)
    if not isinstance(val, torch.Tensor) or val.dtype not in (torch.float32, torch.float64):
        return None
    dim = _argument(softmax, 1, "dim")
    if val.dim() not in (3, 4) or dim not in (-1, val.dim() - 1):
        return None
    product = _forward_to_product(softmax, vals)
    if product is None:
        return None
    probabilities, v = _operands(product)
    if _skip_identities(probabilities, vals) is not softmax:
        return None
    return _match_scores(scores, _Attention(v, v, v, 1.0, None, None, "", 0.0, product), vals)


def _forward_to_product(node: Node, vals: dict[Node, Any]) -> Node | None:
    """The product with ``v``, following single users through identities from ``node``."""
    while len(node.users) == 1:
        (user,) = node.users
        if called_name(user) in _MATMUL:
            return user
        if not _is_identity(user, vals):
            return None
        node = user
    return None


def _skip_identities(node: Any, vals: dict[Node, Any]) -> Any:
    while isinstance(node, Node) and _is_identity(node, vals):
        node = _argument(node, 0, "input", "self")
    return node


def _is_identity(node: Node, vals: dict[Node, Any]) -> bool:
    """True if the node returns the values of its first argument, in the same sizes and dtype."""
    name = called_name(node)
    source = _argument(node, 0, "input", "self")
    before, after = vals.get(source), vals.get(node)
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if before.dtype != after.dtype or not have_same_sizes(before.shape, after.shape):
        return False
    if name in _DROPOUT:
        p = _argument(node, 1, "p", default=0.5)
        training = _argument(node, 2, "training", "train", default=True)
        return p == 0 or training is False
    return name in _IDENTITIES or name in ("to", "type", "type_as", "float", "expand", "_to_copy")


def _operands(product: Node) -> tuple[Any, Any]:
    return _argument(product, 0, "input", "self"), _argument(product, 1, "other", "mat2", "tensor2")


def _match_scores(scores: Any, found: _Attention, vals: dict[Node, Any]) -> _Attention | None:
    """Match from the softmax's argument back to the product of ``q`` and ``kT``."""
    scores = _skip_sole_identities(scores, vals)
    if scores is None:
        return None
    masked = _match_mask(scores, vals)
    if masked is not None:
        scores, found.mask, found.mask_kind, found.fill = masked
        scores = _skip_sole_identities(scores, vals)
        added = _match_mask(scores, vals) if scores and found.mask_kind == "add" else None
        if added is not None and added[2] == "add":
            scores, found.bias, *_ = added
            scores = _skip_sole_identities(scores, vals)
    if scores is not None and called_name(scores) in _SCALE:
        factor = _factor(scores)
        if factor is None:
            return None
        found.scale, scores = (
            factor,
            _skip_sole_identities(_argument(scores, 0, "input", "self"), vals),
        )
    if scores is None or called_name(scores) not in _MATMUL:
        return None
    found.q, found.k_transposed = _operands(scores)
    return found if _is_supported(found, vals) else None


def _skip_sole_identities(node: Any, vals: dict[Node, Any]) -> Node | None:
    """The node before any identities, if each node on the way has a single user."""
    while isinstance(node, Node) and len(node.users) == 1:
        if not _is_identity(node, vals):
            return node
        node = _argument(node, 0, "input", "self")
    return None


def _factor(node: Node) -> float | None:
    other = _argument(node, 1, "other", "value")
    if type(other) not in (int, float) or "rounding_mode" in node.kwargs:
        return None
    if "mul" in str(called_name(node)):
        return float(other)
    return 1.0 / other if other else None


def _match_mask(node: Node, vals: dict[Node, Any]) -> tuple[Any, Node, str, float] | None:
    """(scores, mask, kind, fill) of a node that masks scores; None for any other."""
    name = called_name(node)
    if name in _FILL:
        fill = _constant_number(_argument(node, 2, "value"))
        mask = _argument(node, 1, "mask")
        if _is_masking_fill(fill) and isinstance(mask, Node):
            return _argument(node, 0, "input", "self"), mask, "drop", fill  # type: ignore[return-value]
    elif name == "where":
        condition, yes, no = node.args if len(node.args) == 3 else (None, None, None)
        if isinstance(condition, Node):
            if _is_masking_fill(_constant_number(no)):
                return yes, condition, "keep", _constant_number(no)  # type: ignore[return-value]
            if _is_masking_fill(_constant_number(yes)):
                return no, condition, "drop", _constant_number(yes)  # type: ignore[return-value]
    elif name in _ADD and _argument(node, 2, "alpha", default=1) == 1:
        left, right = _argument(node, 0, "input", "self"), _argument(node, 1, "other")
        is_in_place = str(name).endswith(("add_", "iadd", "iadd__"))
        for scores, mask in ((left, right),) if is_in_place else ((left, right), (right, left)):
            if not isinstance(scores, Node) or not isinstance(mask, Node):
                continue
            inner = _skip_sole_identities(scores, vals)
            if inner is None:
                continue
            biased = _match_mask(inner, vals) if called_name(inner) in _ADD else None
            if (
                called_name(inner) in _MATMUL
                or _is_scaled_product(inner, vals)
                or biased is not None
            ):
                return scores, mask, "add", 0.0
    return None


def _is_scaled_product(node: Node, vals: dict[Node, Any]) -> bool:
    if called_name(node) not in _SCALE or _factor(node) is None:
        return False
    return called_name(_skip_sole_identities(_argument(node, 0, "input", "self"), vals)) in _MATMUL


def _is_masking_fill(fill: float | None) -> bool:
    return fill is not None and fill <= MASKING_FILL


def _constant_number(operand: Any) -> float | None:
    """The value of a number, or of a 0-d tensor that the graph itself makes of a number."""
    if type(operand) in (int, float):
        return float(operand)
    name = called_name(operand)
    if name in ("full", "tensor", "scalar_tensor"):
        inner = operand.args[1 if name == "full" else 0] if operand.args else None
        size = operand.args[0] if name == "full" else ()
        if isinstance(inner, (int, float)) and (not isinstance(size, (list, tuple)) or not size):
            return float(inner)
    return None


def _is_supported(found: _Attention, vals: dict[Node, Any]) -> bool:
    """True if the library supports these tensors, and computes the same for them."""
    q, k, v = (vals.get(n) for n in (found.q, found.k_transposed, found.v))
    if not all(isinstance(t, torch.Tensor) and t.layout is torch.strided for t in (q, k, v)):
        return False
    assert q is not None and k is not None and v is not None
    if len({(t.dtype, t.device, t.dim()) for t in (q, k, v)}) != 1 or q.dim() not in (3, 4):
        return False
    batches_agree = have_same_sizes(q.shape[:-2], k.shape[:-2]) and have_same_sizes(
        q.shape[:-2], v.shape[:-2]
    )
    if not batches_agree or not have_same_sizes([q.shape[-1]] * 2, [k.shape[-2], v.shape[-1]]):
        return False
    if any(type(size) is int and size == 0 for t in (q, k, v) for size in t.shape):
        return False
    if q.device.type == "cuda" and type(q.shape[-1]) is not int:
        return False  # the library chooses the kernel by its alignment, which would specialize it
    if found.mask is None:
        return True
    if found.mask_kind != "add" and (
        q.device.type != "cpu" or q.dtype != vals[found.product].dtype  # autocast's
    ):
        return False
    if found.mask_kind == "add" and vals[found.product].requires_grad:
        # The library's backward starts from log(sum(exp(scores))). In a row where all scores are
        # as large as a mask's, the logarithm is lost to rounding, and with it the gradient.
        return False
    scores = [*q.shape[:-1], k.shape[-1]]
    masks = [found.mask] if found.bias is None else [found.mask, found.bias]
    dtype = q.dtype if found.mask_kind == "add" else torch.bool
    return all(
        is_mask(vals.get(m), scores) and (vals[m].dtype, vals[m].device) == (dtype, q.device)
        for m in masks
    )


def is_mask(mask: Any, scores: list[Any]) -> bool:
    """True if it expands to scores of these sizes, and needs no gradient."""
    if not isinstance(mask, torch.Tensor) or mask.requires_grad:
        return False
    return 2 <= mask.dim() <= len(scores) and all(
        have_same_sizes([m], [1]) or have_same_sizes([m], [s])
        for m, s in zip(reversed(mask.shape), reversed(scores), strict=False)
    )


def has_writes_between(first: Node, last: Node, besides: Sequence[Node] = ()) -> bool:
    """True if a node from ``first`` on and before ``last`` may write to memory, other than
    ``besides``."""
    nodes = list(first.graph.nodes)
    between = nodes[nodes.index(first) : nodes.index(last)]
    return any(_may_write(node) for node in between if node not in besides)


def _may_write(node: Node) -> bool:
    name = called_name(node)
    if node.op in ("placeholder", "get_attr"):
        return False
    if name is None or "out" in node.kwargs:
        return True
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_OPERATORS


# --- writing the graph -------------------------------------------------------------------------


def _emit(gm: GraphModule, found: _Attention, chain: list[Node], vals: dict[Node, Any]) -> None:
    result = found.product
    with gm.graph.inserting_before(result):

        def call(function: Any, *args: Any, **kwargs: Any) -> Node:
            return gm.graph.call_function(function, args, kwargs)

        rank = vals[found.q].dim()
        q, v = found.q, found.v
        k = call(torch.transpose, found.k_transposed, -2, -1)
        mask, keep, repair = _mask_and_repair(call, found, vals[found.q])
        if rank == 3:  # the fast kernels require batch and head dimensions
            q, k, v = (call(torch.unsqueeze, t, 0) for t in (q, k, v))
        if keep is not None:
            if vals[found.mask].dim() == 3:
                mask, keep = (call(torch.unsqueeze, m, 0) for m in (mask, keep))
            both = call(FILLED_ATTENTION, q, k, v, keep, mask, found.fill, found.scale)
            new = call(operator.getitem, both, 0)
        else:
            options = {"scale": found.scale} | ({} if mask is None else {"attn_mask": mask})
            new = call(F.scaled_dot_product_attention, q, k, v, **options)
        if rank == 3:
            new = call(torch.squeeze, new, 0)
        new = repair(new)
        if not is_layout_hidden(result):
            # A product is row-major; the library's result may have another layout.
            new = call(torch.Tensor.contiguous, new)
    new.meta.update(result.meta)
    vals[new] = vals[result]
    result.replace_all_uses_with(new)
    # Not by dead code elimination: in a captured graph, an unused node may write to memory.
    for node in chain:
        gm.graph.erase_node(node)


def is_layout_hidden(result: Node) -> bool:
    """True if the result's layout is never observed.

    All users copy it to row-major order, directly or as ``result.transpose(1, 2)``.
    """
    for user in result.users:
        if called_name(user) == "contiguous" and len(user.args) == 1 and not user.kwargs:
            continue
        if called_name(user) != "transpose" or sorted(map(str, user.args[1:])) != ["1", "2"]:
            return False
        if not user.users or any(
            called_name(u) not in ("reshape", "contiguous") for u in user.users
        ):
            return False
    return bool(result.users)


def _mask_and_repair(
    call: Callable[..., Node], found: _Attention, q: torch.Tensor
) -> tuple[Node | None, Node | None, Callable[[Node], Node]]:
    """(additive mask for the library, boolean mask of a fill, repair of fully masked rows)"""
    keep = None
    if found.mask is None:
        return None, None, lambda new: new
    if found.mask_kind == "add":
        total = found.mask
        if found.bias is not None:
            total = call(torch.add, found.bias, found.mask)
        rows = call(torch.all, call(torch.eq, total, -math.inf), -1, keepdim=True)
        mask = call(torch.masked_fill, total, rows, 0.0)
        if q.device.type == "cuda" and q.dtype == torch.float32:
            # The library's kernels multiply by log2(e), which overflows to -inf for the lowest
            # numbers. A row that has no others is shifted up, which softmax is invariant to.
            highest = call(torch.amax, mask, -1, keepdim=True)
            over = call(torch.clamp, highest, max=LOWEST_BIAS)
            mask = call(torch.sub, mask, call(torch.sub, over, LOWEST_BIAS))
    else:
        keep = found.mask
        if found.mask_kind == "drop":
            keep = call(torch.logical_not, found.mask)
        rows = call(torch.logical_not, call(torch.any, keep, -1, keepdim=True))
        seen = call(torch.logical_or, keep, rows)
        zero = call(torch.zeros, (), dtype=q.dtype, device=q.device)
        mask = call(torch.where, seen, zero, -math.inf)

    def repair(new: Node) -> Node:
        # Computed from v, so that v's gradient too equals the formula's: that of the mean, or NaN
        # for the heads that have such a row, and for them only.
        repaired = call(torch.mean, found.v, -2, keepdim=True)
        if found.mask_kind == "add" or math.isinf(found.fill):
            factor = call(torch.where, call(torch.any, rows, -2, keepdim=True), math.nan, 1.0)
            repaired = call(torch.mul, repaired, call(torch.Tensor.to, factor, new))
        return call(torch.where, rows, repaired, new)

    return mask, keep, repair
