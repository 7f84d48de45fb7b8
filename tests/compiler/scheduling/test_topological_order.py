"""The topological order under merging: dependences stay exact, and searches stay local."""

import random
from unittest import mock

import pytest

from magpy_like.compiler.scheduling.topological_order import TopologicalOrder


def program(count, seed):
    """Random predecessors of each node, from the few nodes before it."""
    generator = random.Random(seed)
    return {k: {generator.randrange(max(0, k - 6), k) for _ in range(2)} if k else set()
            for k in range(count)}  # fmt: skip


def ancestors(before, k):
    found, pending = set(), [k]
    while pending:
        new = before[pending.pop()] - found
        found |= new
        pending += new
    return found


@pytest.mark.parametrize("seed", range(8))
def test_merged_nodes_have_the_predecessors_of_both(seed):
    before = program(40, seed)
    order = TopologicalOrder({k: set(predecessors) for k, predecessors in before.items()})
    generator = random.Random(seed)
    while len(before) > 1:
        a, b = generator.sample(sorted(before), 2)
        if order.depends_on(a, b):
            a, b = b, a
        intermediate = {
            k for k in before if a in ancestors(before, k) and k in ancestors(before, b)
        }
        assert order.depends_on(b, a) == (a in ancestors(before, b))
        assert not order.depends_on(a, b)
        between = order.between(a, b)
        assert between in intermediate if intermediate else between is None
        if intermediate:
            continue
        before[a] = (before[a] | before.pop(b)) - {a, b}
        for predecessors in before.values():
            if b in predecessors:
                predecessors.remove(b)
                predecessors.add(a)
        before[a].discard(a)
        order.merge(a, b)
        assert order.predecessors == before


def test_search_is_local():
    count = 1000
    order = TopologicalOrder(program(count, 0))
    seen = []

    def predecessors(*args):
        seen.append(original(*args))
        return seen[-1]

    original = order._ancestors_after
    with mock.patch.object(order, "_ancestors_after", predecessors):
        for k in range(0, count - 8, 8):
            first, second = k, k + 3
            if order.between(first, second) is None:
                order.merge(first, second)
    assert sum(map(len, seen)) <= 10 * len(seen)
