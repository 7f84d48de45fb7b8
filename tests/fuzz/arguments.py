"""Productions of the arguments of calls, by kind.

``{n}`` is the call's size, ``{s}`` a seed. Later arguments may share memory or identity with
earlier ones.
"""

from __future__ import annotations

import random

PLAIN = {
    "vec": [
        "random_values({s}, {n})",
        "random_values({s}, {n})",
        "random_values({s}, {n}, 2)[:, 0]",
        "random_values({s}, 1).expand({n}).clone()",
        "random_values({s}, {n} + 1)[1:]",
    ],
    "mat": [
        "random_values({s}, {n}, 3)",
        "random_values({s}, {n}, 3)",
        "random_values({s}, 3, {n}).t()",
    ],
    "row": ["random_values({s}, 3)", "state"],
    "sq": ["random_values({s}, 3, 3)"],
    "num": ["1", "2", "{s}", "0", "True"],
    "flag": ["True", "False"],
    "flt": ["0.5", "1.5", "{s} / 4"],
    "nl": ["[1, 2]", "[{s}]", "[]", "settings['factors']", "plan({s})[1]"],
    "tl": ["[random_values({s}, {n})]", "[random_values({s}, {n}), random_values(1, {n})]"],
    "td": [
        "{{'a': random_values({s}, {n})}}",
        "{{'b': random_values({s}, {n}), 'a': random_values(0, {n})}}",
    ],
    "nd": ["{{'a': {s}}}", "table", "{{}}"],
    "node": [
        "Node(random_values({s}, {n}), {s})",
        "Loud(random_values({s}, {n}))",
        "Base(random_values({s}, {n}))",
    ],
    "item": ["Item(random_values({s}, {n}), {s})", "Item(random_values({s}, {n}), 1, [2])"],
    "pair": ["Pair(random_values({s}, {n}), {s})"],
    "tup": ["(random_values({s}, {n}), {s})"],
    "net": ["net", "net", "other_net", "scaled"],
    "q": ["collections.deque([1, {s}])", "history"],
    "ns": ["{{1, {s}}}", "seen"],
    "fn": ["torch.sin", "torch.tanh", "(lambda v: v * {s})"],
    "ivec": ["torch.arange({n})"],
    "bvec": ["random_values({s}, {n}) > 0"],
    "cvec": ["torch.complex(random_values({s}, {n}).float(), random_values(2, {n}).float())"],
    "nest": ["{{'list': [random_values({s}, {n})], 'n': {s}}}"],
    "od": ["collections.OrderedDict(a=random_values({s}, {n}))"],
}
WITH_GRADIENTS = {
    "vec": ["leaf({s}, {n})", *["leaf({s}, {n}) * 1"] * 3, "(leaf({s}, {n} + 1) * 1)[1:]"],
    "mat": ["leaf({s}, {n}, 3)", *["leaf({s}, {n}, 3) * 1"] * 2],
    "row": ["leaf({s}, 3)", "leaf({s}, 3) * 1"],
    "sq": ["leaf({s}, 3, 3)"],
}
ALIASES = {
    "vec": [
        "{other}",
        "{other}[:]",
        "{other}.view_as({other})",
        "{other}.detach()",
        "{other}.flip(0)",
    ],
    "mat": ["{other}", "{other}[:]", "{other}.t().t()", "{other}.detach()"],
    "row": ["{other}", "{other}[:]"],
    "sq": ["{other}", "{other}.t()", "{other}[:]"],
    "nl": ["{other}"],
    "tl": ["{other}"],
    "td": ["{other}"],
    "nd": ["{other}"],
    "node": ["{other}"],
    "net": ["{other}"],
}
ACROSS = {
    ("vec", "mat"): "{other}[:, 1]",
    ("row", "mat"): "{other}[0]",
    ("row", "sq"): "{other}[1]",
    ("tl", "vec"): "[{other}, {other}]",
    ("td", "vec"): "{{'a': {other}}}",
    ("node", "vec"): "Node({other})",
    ("vec", "tl"): "{other}[0]",
    ("vec", "node"): "{other}.tensor",
    ("nl", "node"): "{other}.children",
    ("item", "nl"): "Item(x, 1, {other})",
}
"""(kind, kind of an earlier argument) -> an argument that shares memory or identity with it."""


def draw_argument(
    rng: random.Random, kind: str, earlier: dict[str, str], n: int, *, gradients: bool, shares: bool
) -> str:
    """The text of one argument; ``earlier`` maps the names of earlier arguments to their kinds."""
    if shares:
        choices = [
            text.format(other=name, n=n)
            for name, other in earlier.items()
            for text in (
                ALIASES.get(kind, []) if other == kind else [ACROSS.get((kind, other), "")]
            )
            if text
        ]
        if choices:
            return rng.choice(choices)
    table = WITH_GRADIENTS if gradients and kind in WITH_GRADIENTS and rng.random() < 0.7 else PLAIN
    return rng.choice(table[kind]).format(n=n, s=rng.randrange(4))
