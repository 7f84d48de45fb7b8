"""Names: arguments of the compiled function, globals, and the variables of closures.

A local of any other frame is the region's own, and no instruction that moves one is told to a rule.
"""

from __future__ import annotations

import opcode
from typing import TYPE_CHECKING, Any

from magpy_like.annotation import RelationKind
from magpy_like.monitor.instructions.step import Step, Token
from magpy_like.monitor.symbolic.expressions import is_number_or_flag
from magpy_like.refgraph import Relation

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun


def read_argument(run: MonitorRun, step: Step) -> Token:
    """A local is loaded: the first look at an argument of the compiled function."""
    run.arguments.read_local(run, step.frame, step.oparg)
    return None


def read_global(run: MonitorRun, step: Step) -> Token:
    """``LOAD_GLOBAL``: the module's name, or where it has none, the built-in one."""
    frame = step.frame
    names = frame.f_globals
    _read_name(run, step.name, names, frame.f_builtins)
    relation = Relation(RelationKind.GLOBAL, step.name)
    found = names.get(step.name)
    if not is_number_or_flag(found):
        return None
    return run.lift_read(step, run.recording.variables.node(names), relation, found)


def _read_name(run: MonitorRun, name: str, names: dict[str, Any], builtins: dict[str, Any]) -> None:
    known = (id(names), name)
    rec = run.recording
    known_before = known in run.globals_read and not rec.running.depth
    if known_before and not is_number_or_flag(names.get(name)):
        return
    run.globals_read.add(known)
    node = rec.variables.constant(names)
    relation = Relation(RelationKind.GLOBAL, name)
    if name in names:
        rec.reads.record(node, relation, names[name])
    elif relation not in node.written:
        rec.reads.record_absent(node, relation)
        if name in builtins:
            rec.reads.record(rec.variables.constant(builtins), relation, builtins[name])


def read_name(run: MonitorRun, step: Step) -> Token:
    """In a class body: the namespace in the making first, which is the region's own."""
    frame = step.frame
    if step.name not in frame.f_locals:
        _read_name(run, step.name, frame.f_globals, frame.f_builtins)
    return None


def write_global(run: MonitorRun, step: Step) -> Token:
    """``STORE_GLOBAL``, and ``STORE_NAME`` in a module."""
    rec = run.recording
    node = rec.variables.constant(step.frame.f_globals)
    rec.mutations.store(node, Relation(RelationKind.GLOBAL, step.name), step.stack[-1])
    return None


def delete_global(run: MonitorRun, step: Step) -> Token:
    """``DELETE_GLOBAL``."""
    rec = run.recording
    node = rec.variables.constant(step.frame.f_globals)
    rec.mutations.remove(node, Relation(RelationKind.GLOBAL, step.name))
    return None


def read_cell(run: MonitorRun, step: Step) -> Token:
    """A closure variable is loaded."""
    cell = run.cell(step.frame, step.oparg)
    node = run.recording.variables.node(cell)
    if cell is not None and node is not None:
        relation = Relation(RelationKind.CELL)
        try:
            found = cell.cell_contents
        except ValueError:
            run.recording.reads.record_absent(node, relation)
            return None
        run.recording.reads.record(node, relation, found)
        return run.lift_read(step, node, relation, found)
    return None


def write_cell(run: MonitorRun, step: Step) -> Token:
    """A closure variable is stored or deleted."""
    cell = run.cell(step.frame, step.oparg)
    node = run.recording.variables.node(cell) if cell is not None else None
    if node is not None:
        relation = Relation(RelationKind.CELL)
        if opcode.opname[step.opcode] == "DELETE_DEREF":
            run.recording.mutations.remove(node, relation)
        else:
            run.recording.mutations.store(node, relation, step.stack[-1])
    return None
