"""A launcher in pieces: runs of steps that a CUDA graph can hold, between steps that it cannot.

Some operators wait for the GPU, compute on the CPU, or are unknown. The other steps of such a
launcher still become CUDA graphs: each long run of them is a function of its own. The function
``call`` calls these, and executes the rest in between.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIN_STEPS = 8
"""Steps of the shortest run that becomes a function: passing values costs microseconds."""


@dataclass(frozen=True)
class StepLines:
    """The lines of one step in a launcher's source: those from ``first`` up to ``last``, excluded.

    ``captured``: can a CUDA graph hold it?
    ``written``: variables whose memory it writes to
    """

    first: int
    last: int
    captured: bool
    written: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pieces:
    """A launcher's source in pieces.

    ``source``: the functions ``piece_0``, ``piece_1``, … of one list of arguments, and ``call``
    ``lendable``: per piece, the positions of its results that ``call`` does not return
    ``written``: per piece, the positions of its arguments whose memory it writes to: a dead value's
    memory is taken for a new value, and the program's writes to its inputs are counted by ``call``
    """

    source: str
    lendable: tuple[tuple[int, ...], ...]
    written: tuple[tuple[int, ...], ...]


def split_into_pieces(source: str, steps: Sequence[StepLines]) -> Pieces | None:
    """The pieces of a launcher's source; None if no run of steps is long enough.

    ``source`` has one statement a line, in one function ``call(args)``, whose last line returns the
    results.
    """
    lines = source.splitlines()
    runs = [run for run in _runs(steps) if len(run) >= MIN_STEPS]
    if not runs:
        return None
    uses = [_Names.of(line) for line in lines[1:]]
    local = {name for use in uses for name in use.bound}
    functions: list[str] = []
    lendable, written = [], []
    body: list[str] = []
    at = 1
    for k, run in enumerate(runs):
        first, last = run[0].first, run[-1].last
        body += lines[at:first]
        inside, later = uses[first - 1 : last - 1], uses[last - 1 :]
        needed = _free(inside) & local
        known = _known(uses[: first - 1])
        inputs = sorted(needed & known)
        wanted = _free(later)
        results = sorted(_known(inside) & wanted)
        functions += [f"def piece_{k}(args):", f"    {_tuple(inputs)} = args", "    args.clear()"]
        functions += lines[first:last]
        functions.append(f"    return {_tuple(results)}")
        body.append(f"    {_tuple(results)} = piece_{k}([{', '.join(inputs)}])")
        dead = [name for name in inputs if name not in wanted]
        if dead:
            body.append(f"    del {', '.join(dead)}")
        returned = uses[-1].read
        lendable.append(tuple(p for p, name in enumerate(results) if name not in returned))
        writes = frozenset[str]().union(*(step.written for step in run))
        written.append(tuple(p for p, name in enumerate(inputs) if name in writes))
        at = last
    body += lines[at:]
    return Pieces("\n".join([*functions, lines[0], *body, ""]), tuple(lendable), tuple(written))


def _runs(steps: Sequence[StepLines]) -> list[list[StepLines]]:
    """The maximal runs of steps that can be captured."""
    groups = itertools.groupby(steps, lambda step: step.captured)
    return [list(group) for captured, group in groups if captured]


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if names else ''})"


@dataclass(frozen=True)
class _Names:
    """The names that one line reads, binds and deletes."""

    read: frozenset[str]
    bound: frozenset[str]
    deleted: frozenset[str]

    @classmethod
    def of(cls, line: str) -> _Names:
        found: dict[type, set[str]] = {ast.Load: set(), ast.Store: set(), ast.Del: set()}
        for node in ast.walk(ast.parse(line.strip() or "pass", mode="exec")):
            if isinstance(node, ast.Name):
                found[type(node.ctx)].add(node.id)
        return cls(*map(frozenset, (found[ast.Load], found[ast.Store], found[ast.Del])))


def _known(uses: Iterable[_Names]) -> set[str]:
    """The names that are bound after these lines."""
    known: set[str] = set()
    for use in uses:
        known = (known | use.bound) - use.deleted
    return known


def _free(uses: Iterable[_Names]) -> set[str]:
    """The names that these lines read before they bind them."""
    free: set[str] = set()
    bound: set[str] = set()
    for use in uses:
        free |= (use.read | use.deleted) - bound
        bound |= use.bound
    return free
