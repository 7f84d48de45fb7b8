"""Attributes of containers' subclasses beside changes of their contents."""

import collections

import pytest
import torch

import magpy_like as magpy
from tests.programs import load


class List(list):
    n = 0


class Dict(dict):
    n = 0


class Set(set):
    n = 0


class Deque(collections.deque):
    n = 0


class Default(collections.defaultdict):
    n = 0


CHANGES = {
    List: ("o.append(1)", "o[:] = [5, 6]", "o[0] = 9", "o.sort()", "o.clear()"),
    Dict: ("o['k'] = 4", "o.update({'z': 3})", "o.clear()", "del o[0]"),
    Set: ("o.add(7)", "o |= {8}", "o.clear()"),
    Deque: ("o.append(1)", "o.extend([1, 2])", "o.clear()"),
    Default: ("o['k'] = 4", "o.update({'z': 3})", "o['new']"),
}
USES = (
    "o.n += 1", "o.m = x", "y = x * o.k", "del o.k", "o.inner.append(3)",
    "o.n = 1; o.n += o.k", "y = x * hasattr(o, 'm')", "y = x * len(vars(o))",
)  # fmt: skip
ORDERS = ("{0}; {1}", "{1}; {0}", "{1}; {0}; {1}")


def made(kind, k):
    o = kind(int) if kind is Default else kind()
    fill = {Set: {1, 2}, List: [3, 1, 2], Deque: [3, 1, 2]}.get(kind, {0: 1, "a": 2})
    (o.extend if kind in (List, Deque) else o.update)(fill)
    o.k, o.inner = k, [k]
    return o


def run(function, o):
    x = torch.ones(2)
    try:
        result = function(o, x).tolist()
    except Exception as error:
        result = type(error), error.args
    contents = list(o.items()) if isinstance(o, dict) else list(o)
    return result, contents, _as_lists(vars(o))


def _as_lists(attributes):
    return {k: v.tolist() if type(v) is torch.Tensor else v for k, v in attributes.items()}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("kind", "change"), [(kind, c) for kind, changes in CHANGES.items() for c in changes]
)
def test_attributes_are_those_of_eager_mode(kind, change, use):
    for order in ORDERS:
        lines = "".join(f"    {line}\n" for line in order.format(change, use).split("; "))
        program = load(f"def program(o, x):\n    y = x\n{lines}    return y + 1\n")()
        fast = magpy.compile(program, backend="eager")
        kept = [made(kind, 5), made(kind, 5)]
        for k in (2, 2, 3, 4):
            assert run(fast, made(kind, k)) == run(program, made(kind, k)), order
        for _ in range(2):
            assert run(fast, kept[0]) == run(program, kept[1]), order
