"""Names: arguments of the compiled function, globals, and the variables of closures.

The locals of all other frames are created inside the region, and instructions that move them are
not reported.
"""

from __future__ import annotations

import opcode
from typing import TYPE_CHECKING

from magpy_like.annotation import RelationKind
from magpy_like.bytecode.instruction_stream import parts_of
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.objects.containers import cell_at
from magpy_like.monitor.symbolic import varying_reads
from magpy_like.monitor.symbolic.expressions import is_number_or_flag
from magpy_like.refgraph import Relation

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def read_argument(context: Context, step: Step) -> Token:
    """``LOAD_FAST``: the first read of an argument of the compiled function."""
    names, cells = step.code.co_varnames, step.code.co_cellvars
    for name, slot in parts_of(opcode.opname[step.opcode], step.oparg):
        # From Python 3.13 on it also loads cells, for closures.
        if name != "STORE_FAST" and slot < len(names) and names[slot] not in cells:
            context.arguments.read_local(context, step.frame, slot)
    return None


def read_global(context: Context, step: Step) -> Token:
    """``LOAD_GLOBAL``: a name of the module, or else of the built-ins."""
    frame = step.frame
    names = frame.f_globals
    context.recording.reads.record_global(names, step.name, frame.f_builtins)
    relation = Relation(RelationKind.GLOBAL, step.name)
    found = names.get(step.name)
    if not is_number_or_flag(found):
        return None
    return varying_reads.lift_read(
        context, step, context.recording.variables.node(names), relation, found
    )


def read_name(context: Context, step: Step) -> Token:
    """``LOAD_NAME`` in a class body: a name of the new namespace first."""
    frame = step.frame
    if step.name not in frame.f_locals:
        context.recording.reads.record_global(frame.f_globals, step.name, frame.f_builtins)
    return None


def write_global(context: Context, step: Step) -> Token:
    """``STORE_GLOBAL``, and ``STORE_NAME`` in a module."""
    rec = context.recording
    node = rec.variables.constant(step.frame.f_globals)
    rec.mutations.store(node, Relation(RelationKind.GLOBAL, step.name), step.stack[-1])
    return None


def delete_global(context: Context, step: Step) -> Token:
    """``DELETE_GLOBAL``."""
    rec = context.recording
    node = rec.variables.constant(step.frame.f_globals)
    rec.mutations.remove(node, Relation(RelationKind.GLOBAL, step.name))
    return None


def read_cell(context: Context, step: Step) -> Token:
    """``LOAD_DEREF``: a read of a closure variable."""
    cell = cell_at(step.frame, step.oparg)
    node = context.recording.variables.node(cell)
    if cell is not None and node is not None:
        relation = Relation(RelationKind.CELL)
        try:
            found = cell.cell_contents
        except ValueError:
            context.recording.reads.record_absent(node, relation)
            return None
        context.recording.reads.record(node, relation, found)
        return varying_reads.lift_read(context, step, node, relation, found)
    return None


def write_cell(context: Context, step: Step) -> Token:
    """``STORE_DEREF`` and ``DELETE_DEREF``: a write of a closure variable."""
    cell = cell_at(step.frame, step.oparg)
    node = context.recording.variables.node(cell) if cell is not None else None
    if node is not None:
        relation = Relation(RelationKind.CELL)
        if opcode.opname[step.opcode] == "DELETE_DEREF":
            context.recording.mutations.remove(node, relation)
        else:
            context.recording.mutations.store(node, relation, step.stack[-1])
    return None
