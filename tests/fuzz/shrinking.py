"""A smaller program that fails in the same way."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator

from tests.fuzz.fragments import Block, Fragment
from tests.fuzz.generation import Program

Change = Callable[[Program], bool]
"""Simplifies a program in place; False if there is nothing to simplify."""


def shrink(program: Program, fails: Callable[[Program], bool], *, seconds: float = 60.0) -> Program:
    """Simplify a program step by step while ``fails`` accepts it."""
    end = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for steps in (_calls, _statements, _expressions):
            k = 0
            while time.monotonic() < end:
                smaller = copy.deepcopy(program)
                step = next((s for i, s in enumerate(steps(smaller)) if i == k), None)
                if step is None:
                    break
                step()
                if fails(smaller):
                    program, changed = smaller, True
                else:
                    k += 1
    return program


def _calls(program: Program) -> Iterator[Callable[[], object]]:
    for k in reversed(range(len(program.calls))):
        if len(program.calls) > 1:
            yield lambda k=k: program.calls.pop(k)
    for call in program.calls:
        for name in ("change", "write"):
            if getattr(call, name) != "pass":
                yield lambda call=call, name=name: setattr(call, name, "pass")
    for lower in {"second": ("none", "first"), "first": ("none",)}.get(program.backward, ()):
        yield lambda lower=lower: setattr(program, "backward", lower)
    for function in program.functions:
        yield lambda function=function: program.functions.remove(function)


def _blocks(program: Program) -> Iterator[Block]:
    assert program.main is not None
    waiting = [program.main.body, *(f.body for f in program.functions)]
    while waiting:
        block = waiting.pop(0)
        yield block
        for statement in block.statements:
            waiting += statement.blocks()


def _statements(program: Program) -> Iterator[Callable[[], object]]:
    for block in _blocks(program):
        for k in reversed(range(len(block.statements))):
            yield lambda block=block, k=k: block.statements.pop(k)
        for k, statement in enumerate(block.statements):
            for inner in statement.blocks():
                new = inner.statements
                yield lambda block=block, k=k, new=new: block.statements.__setitem__(
                    slice(k, k + 1), new
                )


def _expressions(program: Program) -> Iterator[Callable[[], object]]:
    assert program.main is not None
    roots = [s for block in _blocks(program) for s in block.statements]
    roots += [program.main.result, *(f.result for f in program.functions)]
    waiting = list(roots)
    while waiting:
        owner = waiting.pop(0)
        for fragment, k in owner.expressions():
            expression = fragment.pieces[k]
            assert isinstance(expression, Fragment)
            for simpler in _simpler(expression):
                yield lambda fragment=fragment, k=k, new=simpler: fragment.pieces.__setitem__(
                    k, new
                )
            waiting.append(expression)


def _simpler(expression: Fragment) -> list[Fragment]:
    """Expressions of the same kind: those inside, and the simplest one."""
    inside = [
        piece for piece in expression.pieces
        if isinstance(piece, Fragment) and piece.kind == expression.kind
    ]  # fmt: skip
    simple = _SIMPLEST.get(expression.kind)
    text = expression.text()
    if simple is not None and len(text) > len(simple):
        inside.append(Fragment(expression.kind, [simple]))
    return inside


_SIMPLEST = {
    "vec": "x",
    "num": "1",
    "flag": "True",
    "flt": "0.5",
    "nl": "[1]",
    "tl": "[x]",
    "small": "1",
}
