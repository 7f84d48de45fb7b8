"""Properties of a traced ATen graph: symbols and assumptions, layouts, schemas and effects."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx

from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.size_names import expr
from magpy_like.compiler.passes.graph_queries import is_known_equal, is_view
from magpy_like.torch_compat.operators import HigherOrderOperator, OpOverload
from magpy_like.torch_compat.tracing.symbolic_expressions import sympy_functions


def example_values(env: Any) -> dict[Expr, Expr]:
    """Symbol -> its value in the example inputs; ``env`` is a shape environment or None."""
    if env is None:
        return {}
    table = getattr(env, "backed_var_to_val", None)
    return env.var_to_val if table is None else table


def reads_number(node: fx.Node) -> bool:
    """True if a node reads a number out of a tensor."""
    return any(isinstance(a.meta.get("val"), torch.Tensor) for a in node.all_input_nodes) and (
        not isinstance(node.target, OpOverload) or "sym_" not in node.target.name()
    )


def dense_stride(value: torch.Tensor) -> list[Expr] | None:
    """Strides of a tensor whose elements fill their memory exactly, else None."""
    # Integers stay integers until the end: expressions take a hundred times as long.
    size: list[Any] = [s if type(s) is int else expr(s) for s in value.shape]
    stride: list[Any] = [s if type(s) is int else expr(s) for s in value.stride()]
    if 0 in size:
        return [expr(s) for s in stride]
    # Eager's strides count an empty dimension as one element; then there are no elements.
    steps = [e if type(e) is int else e.replace(_is_at_least_one, _without_one) for e in stride]
    dims = [d for d in range(len(size)) if size[d] != 1]
    step: Any = 1
    while dims:
        found = next((d for d in dims if steps[d] == step), None)
        if found is None:
            return None
        step = step * size[found]
        dims.remove(found)
    return [expr(s) for s in stride]


def _is_at_least_one(e: Expr) -> bool:
    return isinstance(e, sympy_functions.Max) and sympy.S.One in e.args


def _without_one(e: Expr) -> Expr:
    return sympy_functions.Max(*(a for a in e.args if a != 1))


def has_symbols(tree: Any) -> bool:
    """True if nested arguments contain a symbolic number."""
    if isinstance(tree, (tuple, list)):
        return any(has_symbols(t) for t in tree)
    return isinstance(tree, sympy.Basic) and bool(tree.free_symbols)


def assumptions(env: Any) -> list[Any]:
    """Relations that tracing assumed between numbers read from tensors.

    Eager need not agree: it broadcasts, say, if one size happens to be 1.
    """
    if env is None:
        return []
    found = (env.replace(a.expr) for many in env.deferred_runtime_asserts.values() for a in many)
    return [relation for relation in dict.fromkeys(found) if relation is not sympy.true]


def find_shape_env(gm: fx.GraphModule) -> Any:
    """The shape environment of a graph's fake tensors; None for a static graph."""
    for node in gm.graph.nodes:
        for value in tensors_in([node.meta.get("val")]):
            mode = getattr(value, "fake_mode", None)
            if mode is not None and mode.shape_env is not None:
                return mode.shape_env
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
    return None


def checkpointed_function_of(node: fx.Node) -> int | None:
    """The number of the checkpointed function that a node recomputes; None for other nodes."""
    return node.meta.get("ac_graph_id") if "recompute" in node.meta else None


def is_program_input(node: fx.Node) -> bool:
    """True for an input of the program, as opposed to a gradient or a saved value."""
    return node.name.startswith("primals")


def is_returned(node: fx.Node) -> bool:
    """True if the caller receives the elements of a result, possibly through views."""
    return any(
        user.op == "output"
        or (is_view(user) and _has_equal_numel(node, user) and is_returned(user))
        for user in node.users
    )


def _has_equal_numel(node: fx.Node, view: fx.Node) -> bool:
    sizes = [n.meta["val"].numel() if isinstance(n.meta["val"], torch.Tensor) else None
             for n in (node, view)]  # fmt: skip
    return is_known_equal(*sizes)


def is_conjugate_or_negative(value: torch.Tensor) -> bool:
    """True if memory holds the conjugates or negatives of the elements."""
    return value.is_conj() or value.is_neg()


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples and lists."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [t for item in tree for t in tensors_in(item)]
    return []


def mutated_arguments(schema: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes, by its schema."""
    if schema is None or not schema.is_mutable:
        return []
    found = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        if position < len(args):
            found.append(args[position])
        elif argument.name in kwargs:
            found.append(kwargs[argument.name])
    return found


def returns_alias(schema: Any) -> bool:
    """True if a result may share memory with an argument that is not written."""
    return schema is None or any(r.alias_info is not None for r in schema.returns)


def has_effect(target: Any) -> bool:
    """True for random operators and operators with side effects."""
    if not isinstance(target, OpOverload):
        return isinstance(target, HigherOrderOperator)
    return torch.Tag.nondeterministic_seeded in target.tags or not target._schema.returns
