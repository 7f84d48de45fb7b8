"""Attention written out by hand becomes ``scaled_dot_product_attention``.

This runs on the graph as captured, before autograd, so that the backward pass is the library's
too. The graph may hold torch functions, Tensor methods, Python operators or ATen operators; the
tables below say which of them are the same thing. What is looked for is

    softmax(q @ kT [* scale] [+ bias] [+ mask]) @ v

where the mask may be added or, on a CPU, filled in (``filled`` says how that is the library's).
Anything else between the two products (dropout that is switched on, a second reader of the
probabilities) leaves the program as it is.

Rows in which every position is masked need care: the library returns zeros where the formula
gives NaN (fill of -inf) or the plain mean of ``v`` (finite fill). Such rows are unmasked for the
library and put right afterwards.
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
from magpy_like.torch_compat.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    detect_fake_mode,
    enable_python_dispatcher,
)
from magpy_like.torch_compat.operators import OpOverload

_log = topic("fusion")

# A fill below this is "masked": no attention score of float32 comes near it.
MASKING_FILL = -1e9
# What float32 holds also in units of log(2), and by far low enough that no score adds to it.
LOWEST_BIAS = -1e38

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
# One-argument functions that leave values alone.
_KEEPING = {"contiguous", "clone"}


def rewrite_attention(gm: GraphModule, example_inputs: Sequence[Any]) -> GraphModule:
    """Rewrite every hand-written attention in a captured graph, in place; returns the graph.

    float32 and float64 only: in lower precisions eager rounds the scores, the library does not,
    and the results differ by more than rounding.
    """
    softmaxes = [node for node in gm.graph.nodes if _name(node) in _SOFTMAX]
    if not softmaxes:
        return gm
    vals = values(gm, example_inputs)
    if vals is None:
        return gm
    changed = _erase_idle(gm, vals)
    for softmax in softmaxes:
        found = _match(softmax, vals)
        chain = found and found.chain()
        if found and chain and _nothing_is_written(gm, chain):
            _emit(gm, found, chain, vals)
            changed = True
    if changed:
        gm.graph.lint()
        gm.recompile()
    return gm


def _erase_idle(gm: GraphModule, vals: dict[Node, Any]) -> bool:
    """Erase what gives its argument back and is not read: a capture that follows identities has
    switched-off dropout beside the probabilities, not behind them. Was there any?"""
    idle = 0
    for node in reversed(list(gm.graph.nodes)):
        if not node.users and node.op != "output" and _changes_nothing(node, vals):
            gm.graph.erase_node(node)
            idle += 1
    return idle > 0


# --- reading the graph -------------------------------------------------------------------------


def _name(node: Any) -> str | None:
    """What a node calls, whichever way it is spelled; None for what is not torch's."""
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


class _Recorder(FakeTensorProp):
    """Remembers each node's fake value beside the graph, not in it."""

    def __init__(self, gm: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(gm, mode)
        self.vals: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        self.vals[n] = result = torch.fx.Interpreter.run_node(self, n)
        return result


def values(gm: GraphModule, example_inputs: Sequence[Any]) -> dict[Node, Any] | None:
    """Each node's fake value; None where fake tensors cannot run the graph."""
    mode = detect_fake_mode(list(example_inputs))
    if mode is None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = _Recorder(gm, mode)
    fakes = [_own_fake(a, mode) if isinstance(a, torch.Tensor) else a for a in example_inputs]
    env = mode.shape_env
    unbound = contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols()
    try:
        # Without the Python dispatcher, operators made of others would fix sizes (pad does).
        with torch.random.fork_rng(devices=[]), unbound, enable_python_dispatcher():
            recorder.propagate_dont_convert_inputs(*fakes)
    except Exception as error:  # a graph that fake tensors cannot run is left alone
        _log.debug("attention is not looked for: %s: %s", type(error).__name__, error)
        return None
    return recorder.vals


def _own_fake(given: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor that nobody else has: one remembers what was read from it."""
    if not isinstance(given, FakeTensor):
        return mode.from_tensor(given, static_shapes=True)
    return given.detach().requires_grad_(given.requires_grad)


@dataclass
class _Attention:
    q: Node
    k_transposed: Node
    v: Node
    scale: float
    mask: Node | None
    bias: Node | None  # added before a mask that is added, too
    # How the mask is read: "add" its values; "drop" or "keep" where it is true.
    mask_kind: str
    fill: float
    product: Node  # of the probabilities and v: its value is the attention's

    def chain(self) -> list[Node] | None:
        """The nodes from the product back to the scores' own product, last first; None where that
        one is its own mask or bias."""
        return self._path(self.product)

    def _path(self, node: Node) -> list[Node] | None:
        if _name(node) in _MATMUL and _operands(node) == (self.q, self.k_transposed):
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
    if _origin(probabilities, vals) is not softmax:
        return None
    return _match_scores(scores, _Attention(v, v, v, 1.0, None, None, "", 0.0, product), vals)


def _forward_to_product(node: Node, vals: dict[Node, Any]) -> Node | None:
    """Follow the only user through what changes nothing, to the product with ``v``."""
    while len(node.users) == 1:
        (user,) = node.users
        if _name(user) in _MATMUL:
            return user
        if not _changes_nothing(user, vals):
            return None
        node = user
    return None


def _origin(node: Any, vals: dict[Node, Any]) -> Any:
    while isinstance(node, Node) and _changes_nothing(node, vals):
        node = _argument(node, 0, "input", "self")
    return node


def _changes_nothing(node: Node, vals: dict[Node, Any]) -> bool:
    """Whether the node gives its first argument back: same values, same sizes, same dtype."""
    name = _name(node)
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
    return name in _KEEPING or name in ("to", "type", "type_as", "float", "expand", "_to_copy")


def _operands(product: Node) -> tuple[Any, Any]:
    return _argument(product, 0, "input", "self"), _argument(product, 1, "other", "mat2", "tensor2")


def _match_scores(scores: Any, found: _Attention, vals: dict[Node, Any]) -> _Attention | None:
    """From the softmax's argument back to the product of ``q`` and ``kT``."""
    scores = _sole(scores, vals)
    if scores is None:
        return None
    masked = _match_mask(scores, vals)
    if masked is not None:
        scores, found.mask, found.mask_kind, found.fill = masked
        scores = _sole(scores, vals)
        added = _match_mask(scores, vals) if scores and found.mask_kind == "add" else None
        if added is not None and added[2] == "add":
            scores, found.bias, *_ = added
            scores = _sole(scores, vals)
    if scores is not None and _name(scores) in _SCALE:
        factor = _factor(scores)
        if factor is None:
            return None
        found.scale, scores = factor, _sole(_argument(scores, 0, "input", "self"), vals)
    if scores is None or _name(scores) not in _MATMUL:
        return None
    found.q, found.k_transposed = _operands(scores)
    return found if _fits(found, vals) else None


def _sole(node: Any, vals: dict[Node, Any]) -> Node | None:
    """The node behind what changes nothing, if each on the way has one user."""
    while isinstance(node, Node) and len(node.users) == 1:
        if not _changes_nothing(node, vals):
            return node
        node = _argument(node, 0, "input", "self")
    return None


def _factor(node: Node) -> float | None:
    other = _argument(node, 1, "other", "value")
    if type(other) not in (int, float) or "rounding_mode" in node.kwargs:
        return None
    if "mul" in str(_name(node)):
        return float(other)
    return 1.0 / other if other else None


def _match_mask(node: Node, vals: dict[Node, Any]) -> tuple[Any, Node, str, float] | None:
    """(scores, mask, kind, fill) of a node that masks scores; None for any other."""
    name = _name(node)
    if name in _FILL:
        fill = _number(_argument(node, 2, "value"))
        mask = _argument(node, 1, "mask")
        if _masks(fill) and isinstance(mask, Node):
            return _argument(node, 0, "input", "self"), mask, "drop", fill  # type: ignore[return-value]
    elif name == "where":
        condition, yes, no = node.args if len(node.args) == 3 else (None, None, None)
        if isinstance(condition, Node):
            if _masks(_number(no)):
                return yes, condition, "keep", _number(no)  # type: ignore[return-value]
            if _masks(_number(yes)):
                return no, condition, "drop", _number(yes)  # type: ignore[return-value]
    elif name in _ADD and _argument(node, 2, "alpha", default=1) == 1:
        left, right = _argument(node, 0, "input", "self"), _argument(node, 1, "other")
        has_inplace_flag = str(name).endswith(("add_", "iadd", "iadd__"))
        for scores, mask in (
            ((left, right),) if has_inplace_flag else ((left, right), (right, left))
        ):
            if not isinstance(scores, Node) or not isinstance(mask, Node):
                continue
            inner = _sole(scores, vals)
            if inner is None:
                continue
            biased = _match_mask(inner, vals) if _name(inner) in _ADD else None
            if _name(inner) in _MATMUL or _scaled_product(inner, vals) or biased is not None:
                return scores, mask, "add", 0.0
    return None


def _scaled_product(node: Node, vals: dict[Node, Any]) -> bool:
    if _name(node) not in _SCALE or _factor(node) is None:
        return False
    return _name(_sole(_argument(node, 0, "input", "self"), vals)) in _MATMUL


def _masks(fill: float | None) -> bool:
    return fill is not None and fill <= MASKING_FILL


def _number(given: Any) -> float | None:
    """A number, also one wrapped in a 0-d tensor by the graph itself."""
    if type(given) in (int, float):
        return float(given)
    if _name(given) in ("full", "tensor", "scalar_tensor"):
        inner = given.args[1 if _name(given) == "full" else 0] if given.args else None
        size = given.args[0] if _name(given) == "full" else ()
        if isinstance(inner, (int, float)) and (not isinstance(size, (list, tuple)) or not size):
            return float(inner)
    return None


def _fits(found: _Attention, vals: dict[Node, Any]) -> bool:
    """Whether the library takes these tensors and means the same by them."""
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
        return False  # by its alignment the library chooses the kernel, so it would be fixed
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
    """Whether it can be expanded to scores of these sizes, and no gradient of it is wanted."""
    if not isinstance(mask, torch.Tensor) or mask.requires_grad:
        return False
    return 2 <= mask.dim() <= len(scores) and all(
        have_same_sizes([m], [1]) or have_same_sizes([m], [s])
        for m, s in zip(reversed(mask.shape), reversed(scores), strict=False)
    )


def _nothing_is_written(gm: GraphModule, chain: list[Node]) -> bool:
    """Whether the first product may move to the second: no node in between writes anything."""
    nodes = list(gm.graph.nodes)
    between = nodes[nodes.index(chain[-1]) : nodes.index(chain[0])]
    return not any(_may_write(node) for node in between if node not in chain)


def _may_write(node: Node) -> bool:
    name = _name(node)
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
        if rank == 3:  # the fast kernels want batch and head
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
        if not layout_is_hidden(result):
            # A product is row-major; the library may lay out its result otherwise.
            new = call(torch.Tensor.contiguous, new)
    new.meta.update(result.meta)
    vals[new] = vals[result]
    result.replace_all_uses_with(new)
    # Not by dead code elimination: in a captured graph, what nobody reads may write.
    for node in chain:
        gm.graph.erase_node(node)


def layout_is_hidden(result: Node) -> bool:
    """Whether a result is only made row-major, as it is or as ``result.transpose(1, 2)``."""
    for user in result.users:
        if _name(user) == "contiguous" and len(user.args) == 1 and not user.kwargs:
            continue
        if _name(user) != "transpose" or sorted(map(str, user.args[1:])) != ["1", "2"]:
            return False
        if not user.users or any(_name(u) not in ("reshape", "contiguous") for u in user.users):
            return False
    return bool(result.users)


def _mask_and_repair(
    call: Callable[..., Node], found: _Attention, q: torch.Tensor
) -> tuple[Node | None, Node | None, Callable[[Node], Node]]:
    """Mask and bias as the library wants them; what a fill keeps; and what sets fully masked rows
    right afterwards."""
    keep = None
    if found.mask is None:
        return None, None, lambda new: new
    if found.mask_kind == "add":
        given = found.mask
        if found.bias is not None:
            given = call(torch.add, found.bias, found.mask)
        rows = call(torch.all, call(torch.eq, given, -math.inf), -1, keepdim=True)
        mask = call(torch.masked_fill, given, rows, 0.0)
        if q.device.type == "cuda" and q.dtype == torch.float32:
            # The library's kernels multiply by log2(e), and so make infinities of the lowest
            # numbers. Where a row has no others, all of it is moved up, which softmax does not see.
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
        # Computed from v, so that v's gradient too is what the formula gives: the mean's, or NaN
        # for the heads that have such a row, and for them only.
        instead = call(torch.mean, found.v, -2, keepdim=True)
        if found.mask_kind == "add" or math.isinf(found.fill):
            factor = call(torch.where, call(torch.any, rows, -2, keepdim=True), math.nan, 1.0)
            instead = call(torch.mul, instead, call(torch.Tensor.to, factor, new))
        return call(torch.where, rows, instead, new)

    return mask, keep, repair
