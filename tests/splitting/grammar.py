"""Random program texts: templates whose parts {n}, {i}, {e} and {b} are filled at random."""

import textwrap
from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Grammar:
    """Templates of expressions and statements.

    The first ``1 / ends`` of either have no parts of their own kind, or none that nest without end:
    only these are drawn at depth 0.
    """

    expressions: tuple[str, ...]
    statements: tuple[str, ...]
    ends: int

    def block(self, draw, depth):
        """One to three statements; each may hold blocks of smaller depth."""
        count = draw(st.integers(1, 3))
        return "\n".join(self._fill(draw, self.statements, depth) for _ in range(count))

    def _fill(self, draw, templates, depth):
        text = draw(
            st.sampled_from(templates if depth else templates[: len(templates) // self.ends])
        )
        for part in ("{n}", "{i}", "{e}", "{b}"):
            while part in text:
                text = text.replace(part, self._part(draw, part, depth - 1), 1)
        return text.replace("{{", "{").replace("}}", "}")

    def _part(self, draw, part, depth):
        if part == "{n}":
            return draw(st.sampled_from("abc"))
        if part == "{i}":
            return str(draw(st.integers(0, 3)))
        if part == "{e}":
            return self._fill(draw, self.expressions, min(max(depth, 0), 2))
        return textwrap.indent(self.block(draw, max(depth, 0)), "    ")
