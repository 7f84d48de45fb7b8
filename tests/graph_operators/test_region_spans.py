"""Spans of regions in steps: each region once, properly nested."""

import itertools

from magpy_like.graph_operators.node_origins import ProfilerRegion
from magpy_like.graph_operators.region_spans import spans

A, B, C = (ProfilerRegion(k, name, None) for k, name in enumerate("abc"))


def found(*steps):
    return [(span.region.name, span.first, span.last) for span in spans(steps)]


def test_a_region_spans_its_first_to_its_last_step():
    assert found((), (A,), (), (A,), ()) == [("a", 1, 3)]


def test_a_region_inside_another_is_nested():
    assert found((A,), (A, B), (A,)) == [("a", 0, 2), ("b", 1, 1)]


def test_of_two_that_share_a_step_the_later_one_begins_after_it():
    assert found((A,), (A, B), (B,)) == [("a", 0, 1), ("b", 2, 2)]


def test_a_region_whose_only_step_another_shares_is_inside_it():
    assert found((A, B), (B,)) == [("b", 0, 1), ("a", 0, 0)]
    assert found((A,), (A, B)) == [("a", 0, 1), ("b", 1, 1)]


def test_spans_are_nested_and_not_empty():
    """All combinations of three regions in four steps."""
    subsets = [frozenset(c) for n in range(4) for c in itertools.combinations((A, B, C), n)]
    for steps in itertools.product(subsets, repeat=4):
        result = spans(steps)
        assert sorted(span.region for span in result) == sorted(frozenset().union(*steps))
        for one, other in itertools.combinations(result, 2):
            assert one.first <= one.last and other.first <= other.last
            apart = other.first > one.last
            assert apart or one.first <= other.first <= other.last <= one.last
