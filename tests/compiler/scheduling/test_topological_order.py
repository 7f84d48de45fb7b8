"""What must run before what is known while things become one, and found out nearby."""

import random
from unittest import mock

import pytest

from magpy_like.compiler.scheduling.topological_order import TopologicalOrder


def program(count, seed):
    """What each of many things needs: some of the few before it."""
    draw = random.Random(seed)
    return {k: {draw.randrange(max(0, k - 6), k) for _ in range(2)} if k else set()
            for k in range(count)}  # fmt: skip


def ancestors(before, k):
    found, pending = set(), [k]
    while pending:
        new = before[pending.pop()] - found
        found |= new
        pending += new
    return found


@pytest.mark.parametrize("seed", range(8))
def test_joined_things_need_what_both_need(seed):
    before = program(40, seed)
    order = TopologicalOrder({k: set(needed) for k, needed in before.items()})
    draw = random.Random(seed)
    while len(before) > 1:
        a, b = draw.sample(sorted(before), 2)
        if order.depends_on(a, b):
            a, b = b, a
        there = {k for k in before if a in ancestors(before, k) and k in ancestors(before, b)}
        assert order.depends_on(b, a) == (a in ancestors(before, b))
        assert not order.depends_on(a, b)
        between = order.between(a, b)
        assert between in there if there else between is None
        if there:
            continue
        before[a] = (before[a] | before.pop(b)) - {a, b}
        for needed in before.values():
            if b in needed:
                needed.remove(b)
                needed.add(a)
        before[a].discard(a)
        order.merge(a, b)
        assert order.predecessors == before


def test_what_lies_elsewhere_in_a_program_is_not_looked_at():
    count = 1000
    order = TopologicalOrder(program(count, 0))
    seen = []

    def needed(*args):
        seen.append(original(*args))
        return seen[-1]

    original = order._ancestors_after
    with mock.patch.object(order, "_ancestors_after", needed):
        for k in range(0, count - 8, 8):
            first, second = k, k + 3
            if order.between(first, second) is None:
                order.merge(first, second)
    assert sum(map(len, seen)) <= 10 * len(seen)
