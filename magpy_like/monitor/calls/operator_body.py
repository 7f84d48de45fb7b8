"""References of operators in Python code to objects other than their arguments."""

from __future__ import annotations

import builtins
import gc
from collections.abc import Iterable, Mapping
from types import CellType, FunctionType
from typing import Any

import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.calls.argument_kinds import tensors_in
from magpy_like.monitor.calls.backward_code import Reference
from magpy_like.monitor.calls.operator_closures import Closure
from magpy_like.monitor.objects.attributes import read_attribute
from magpy_like.monitor.objects.containers import CONTAINERS, elements
from magpy_like.monitor.recording import Recording
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Relation
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import EffectInsideOperator, Split
from magpy_like.split_reasons import SplitReason


def check_undeclared_tensors(
    rec: Recording, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Check that the code of a running operator uses only tensors among its arguments.

    Raises:
        EffectInsideOperator: the graph computes the tensor; a second run would use an old one.
        Split: the tensor is external; the operator finds it again only if it runs uncompiled.
    """
    for tensor in tensors_in((args, kwargs)):
        if id(tensor) in rec.running.inputs:
            continue
        if rec.variables.node(tensor) is not None:
            raise Split(
                SplitReason.FUNCTION_OPERAND,
                "uses an external tensor that is not an argument of the operator",
            )
        if rec.operators.nodes.node_of(tensor) is not None:
            raise EffectInsideOperator(
                SplitReason.EFFECT_IN_OPERATOR,
                "uses a tensor inside an operator that is not an argument of it",
            )


def add_object_inputs(rec: Recording, args: tuple[Any, ...]) -> None:
    """Add the external objects among the arguments of a custom function to the graph's inputs.

    Its backward pass may read them later, unseen by the monitor. The function runs uncompiled: a
    compiled graph would bake in the present contents of the objects.
    """
    for value in args[1:]:
        if is_instance(value, torch.Tensor | Closure) or is_plain(value) or is_identity(value):
            continue
        if is_instance(value, CONTAINERS):
            add_object_inputs(rec, (None, *elements(value)))
            continue
        rec.running.as_is = f"a custom function receives a {type(value).__qualname__}"
        node = rec.variables.node(value)
        if node is not None:
            rec.operators.nodes.add_object(value, node.node_id)
        else:
            rec.lifted.specialize(_numbers_held_by(rec, value))


def record_references(rec: Recording, references: Iterable[Reference]) -> None:
    """Record reads of the references of a backward pass."""
    for owner, name in references:
        if is_instance(owner, FunctionType):
            if not rec.variables.is_new_object(owner):
                rec.reads.record_function(owner)
        elif is_instance(owner, CellType):
            cell = rec.variables.node(owner)
            if cell is not None and (contents := gc.get_referents(owner)):
                rec.reads.record(cell, Relation(RelationKind.CELL), contents[0])
        elif is_instance(owner, dict):
            rec.reads.record_global(owner, name, vars(builtins))
        else:
            read_attribute(rec, owner, name)


def _numbers_held_by(rec: Recording, value: Any) -> list[Any]:
    """The numbers and texts in an object that the program has created, and in others of these."""
    found, pending, seen = list[Any](), [value], set[int]()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if is_plain(part):
            found.append(part)
        elif is_instance(part, FunctionType):
            pending += (part.__closure__, part.__defaults__, part.__kwdefaults__)
        elif not (is_identity(part) or is_instance(part, torch.Tensor) or rec.variables.node(part)):
            pending += gc.get_referents(part)
    return found
