"""The tree of a program's text, and its expansion from templates with typed slots.

Slots of a template:

- ``<kind>``: an expression of the kind
- ``<kind!>``: the name of an existing variable of the kind
- ``<=kind>``: a variable to assign, new or existing
- ``<block>``, ``<loop>``: statements, alone on their line; ``break`` and ``continue`` in a loop
- ``<kind:name>`` names a slot, and ``<$name>`` repeats its text
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SLOT = re.compile(r"<(=?)([a-z]+)(!?)(?::([a-z]+))?>|<\$([a-z]+)>")
Production = tuple[float, str]
Table = Mapping[str, Sequence[Production]]


@dataclass
class Fragment:
    """An expression or a statement: pieces of text, expressions, names and blocks of statements."""

    kind: str
    pieces: list[str | Fragment | Block]

    def text(self) -> str:
        """The source text; blocks are indented like the line on which they stand."""
        found = ""
        for piece in self.pieces:
            if isinstance(piece, Block):
                margin = found[found.rfind("\n") + 1 :]
                found += piece.text().replace("\n", "\n" + margin)
            else:
                found += piece if isinstance(piece, str) else piece.text()
        return found

    def expressions(self) -> Iterator[tuple[Fragment, int]]:
        """Each expression directly in this fragment, as its position among the pieces."""
        for k, piece in enumerate(self.pieces):
            if isinstance(piece, Fragment):
                yield self, k

    def blocks(self) -> list[Block]:
        return [piece for piece in self.pieces if isinstance(piece, Block)]


@dataclass
class Block:
    """A sequence of statements."""

    statements: list[Fragment] = field(default_factory=list)

    def text(self) -> str:
        return "\n".join(statement.text() for statement in self.statements) or "pass"


class Scope:
    """The variables that an expression may read, by kind."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.kinds = dict(names or {})

    def of_kind(self, kind: str) -> list[str]:
        return [name for name, known in self.kinds.items() if known == kind]

    def inner(self) -> Scope:
        """The scope of a block: its new variables are unknown after it."""
        return Scope(self.kinds)


@functools.cache
def _kinds_of_variables(template: str) -> frozenset[str]:
    """The kinds of the ``<kind!>`` slots of a template."""
    return frozenset(kind for _, kind, old, *_ in SLOT.findall(template) if old)


class Expansion:
    """Draws fragments from the tables."""

    def __init__(
        self, rng: random.Random, expressions: Table, leaves: Mapping[str, Sequence[str]],
        statements: Sequence[Production], prefixes: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.rng = rng
        self._expressions, self._leaves, self._statements = expressions, leaves, statements
        self._prefixes = prefixes
        self._count = 0
        self.functions: dict[str, list[str]] = {}
        """Templates of calls of the program's own functions, by the kind of their result."""

    def expression(self, kind: str, scope: Scope, depth: int) -> Fragment:
        """An expression; at depth 0 a variable, or one of the kind's leaves."""
        known = scope.of_kind(kind)
        if depth <= 0 or self.rng.random() < 0.3:
            if known and (depth > 0 or self.rng.random() < 0.85):
                return Fragment(kind, [self.rng.choice(known)])
            return self._fill(kind, self.rng.choice(self._leaves[kind]), scope, 0, 0)
        table = self._expressions.get(kind, ())
        calls = [(2.0, call) for call in self.functions.get(kind, ())]
        template = self._choose([*table, *calls], scope)
        if template is None:
            return self.expression(kind, scope, 0)
        return self._fill(kind, template, scope, depth - 1, 0)

    def block(self, scope: Scope, count: int, depth: int, *, in_loop: bool = False) -> Block:
        """``count`` statements, which share ``scope``; ``depth`` limits nested blocks."""
        found = Block()
        for _ in range(count):
            table = [p for p in self._statements if depth > 0 or "<block>" not in p[1]]
            table = [p for p in table if depth > 0 or "<loop>" not in p[1]]
            if in_loop:
                table += [(1.5, "if <flag>:\n    break"), (1.5, "if <flag>:\n    continue")]
            template = self._choose(table, scope)
            assert template is not None
            found.statements.append(self.statement(template, scope, depth))
        return found

    def statement(self, template: str, scope: Scope, depth: int) -> Fragment:
        nested = "<block>" in template or "<loop>" in template
        return self._fill("", template, scope.inner() if nested else scope, 2, depth)

    def _choose(self, table: Sequence[Production], scope: Scope) -> str | None:
        """A template whose ``<kind!>`` slots have a variable."""
        kinds = set(scope.kinds.values())
        fitting = [p for p in table if _kinds_of_variables(p[1]) <= kinds]
        if not fitting:
            return None
        return self.rng.choices([t for _, t in fitting], [w for w, _ in fitting])[0]

    def _fill(
        self, kind: str, template: str, scope: Scope, expressions: int, depth: int
    ) -> Fragment:
        pieces: list[str | Fragment | Block] = []
        named: dict[str, str] = {}
        assigned: list[tuple[str, str]] = []
        end = 0
        for slot in SLOT.finditer(template):
            pieces.append(template[end : slot.start()])
            end = slot.end()
            new, wanted, old, name, repeated = slot.groups()
            if repeated:
                pieces.append(named[repeated])
                continue
            if wanted in ("block", "loop"):
                for target, of_kind in assigned:
                    scope.kinds[target] = of_kind
                count = self.rng.choice((1, 1, 2, 3))
                inner = scope.inner()
                pieces.append(self.block(inner, count, depth - 1, in_loop=wanted == "loop"))
            elif new:
                target = self._target(wanted, scope)
                assigned.append((target, wanted))
                pieces.append(target)
            elif old:
                pieces.append(self.rng.choice(scope.of_kind(wanted)))
            else:
                pieces.append(_grouped(self.expression(wanted, scope, expressions)))
            if name:
                text = pieces[-1]
                named[name] = text if isinstance(text, str) else text.text()
        pieces.append(template[end:])
        for target, of_kind in assigned:
            scope.kinds[target] = of_kind
        return Fragment(kind, pieces)

    def _target(self, kind: str, scope: Scope) -> str:
        known = scope.of_kind(kind)
        if known and self.rng.random() < 0.45:
            return self.rng.choice(known)
        self._count += 1
        return f"{self._prefixes.get(kind, kind)}{self._count}"


def _grouped(expression: Fragment) -> Fragment:
    """The expression in parentheses, if it needs some."""
    text = expression.text()
    if re.fullmatch(r"[\w.]+|[\w.]+\([^()]*\)", text) and not re.fullmatch(r"[\d.]+", text):
        return expression
    return Fragment(expression.kind, ["(", *expression.pieces, ")"])
