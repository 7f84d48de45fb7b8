"""Which tensor a branch has handed on, when a recording ends while the tensor lies anywhere.

``x if x.sum() > 0 else x * 2`` gives ``x`` itself or a new tensor. While such a branch is recorded,
the program has another tensor with the same memory for it; wherever the recording ends, it must
have its own one, as far as it can ask.
"""

from __future__ import annotations

import collections
import functools
import gc
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magpy_like as magpy


class Talks:
    """A key whose hash talks to the world in the middle of native code."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        print(end="")
        return hash(self.value)

    def __eq__(self, other):
        return self.value == other.value

    def __lt__(self, other):
        print(end="")
        return self.value < other.value


def looks_up() -> int:
    return {Talks(1): 0}[Talks(1)]


def sorts() -> int:
    return len(sorted([Talks(2), Talks(1)])) - 2


def calls_back() -> int:
    return sum(map(lambda _: len(repr(print(end=""))) - 4, [1]))


def splits() -> int:
    return len(repr(print(end=""))) - 4


def nested(depth: int, end: Callable[[], int]) -> int:
    return end() if depth == 0 else nested(depth - 1, end) + 0


def handed(x):
    return x if x.sum() > 0 else x * 2


def first(y, *_: Any, **__: Any):
    return y


class Holder:
    pass


class Slotted:
    __slots__ = ("y",)


def in_containers(x, end):
    items, entries, nested_tuple = [1, handed(x)], {"a": handed(x)}, ((handed(x), 1),)
    queue, holder, slotted = collections.deque([handed(x)]), Holder(), Slotted()
    holder.y, slotted.y = handed(x), handed(x)
    named = collections.namedtuple("named", "y")(handed(x))
    end()
    places = (items[1], entries["a"], nested_tuple[0][0], queue[0], holder.y, slotted.y, named.y)
    return [y is x for y in places], len({id(y) for y in places}), vars(holder)["y"] is x


def in_native_objects(x, end):
    method, partial, part = handed(x).add, functools.partial(first, handed(x)), slice(handed(x))
    iterators = iter([handed(x)]), iter((handed(x),)), zip([handed(x)], [1]), enumerate([handed(x)])
    try:
        raise ValueError(handed(x))
    except ValueError as raised:
        error = raised
    end()
    found = [next(iterators[0]), next(iterators[1]), next(iterators[2])[0], next(iterators[3])[1]]
    found += [method.__self__, partial(), partial.args[0], part.stop, error.args[0]]
    return [y is x for y in found]


def in_functions(x, end):
    y = handed(x)

    def asks():
        return y is x

    def ends():
        end()
        return y is x

    def by_default(y=handed(x)):
        return y is x

    def generates():
        inner = handed(x)
        yield 0
        yield inner is x
        yield first(handed(x), (yield 1)) is x

    generator = generates()
    next(generator)
    return ends(), asks(), by_default(), next(generator), next(generator), generator.send(1)


def on_operand_stacks(x, end):
    def one(y):
        return first(y, two(y))

    def two(y):
        return first(y, first(handed(y), end()) is x) is x, 1

    def takes(*args, **kwargs):
        end()
        return args[0] is x, kwargs["y"] is x

    return (
        first(handed(x), one(handed(x))) is x,
        (handed(x), end())[0] is x,
        [handed(x), end()][0] is x,
        {"a": handed(x), "b": end()}["a"] is x,
        handed(x) is (end(), x)[1],
        takes(handed(x), y=handed(x)),
        [y is x for y in (handed(x), x) if end() == 0],
    )


def as_keys(x, end):
    known = {handed(x): 1, id(handed(x)): 2}
    members = {handed(x), x}
    end()
    return x in known, known.get(x), known.get(id(x)), len(members), [x].count(handed(x))


def is_changed_in_place(x, end):
    y = handed(x)
    end()
    y.add_(1)
    return x.tolist(), y.tolist(), y is x


PROGRAMS = (
    in_containers, in_native_objects, in_functions, on_operand_stacks, as_keys, is_changed_in_place,
)  # fmt: skip


@pytest.mark.parametrize("ends", [looks_up, sorts, calls_back, splits], ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_tensor_that_a_branch_handed_on_is_the_one_that_it_is(program, ends):
    for depth in (0, 2):
        fast = magpy.compile(program, backend="eager")
        for sign in (1.0, 1.0, -1.0, 1.0):
            end = functools.partial(nested, depth, ends)
            expected = program(torch.tensor([sign]), end)
            assert fast(torch.tensor([sign]), end) == expected


def test_native_code_that_is_running_gives_back_the_tensors_that_it_holds():
    def program(x):
        d, y = {}, handed(x)
        d[Talks("stored")] = y
        stored = next(iter(d.values()))
        by_default = {}.get(Talks("missing"), handed(x))
        kept = list(filter(lambda y: print(end="") is None and y is x, [handed(x), handed(x)]))
        ordered = sorted([(0, handed(x)), (1, handed(x))], key=lambda p: (print(end=""), p[0])[1])
        return stored is x, by_default is x, len(kept), [y is x for _, y in ordered]

    fast = magpy.compile(program, backend="eager")
    for sign in (1.0, 1.0, -1.0, 1.0):
        assert fast(torch.tensor([sign])) == program(torch.tensor([sign]))


class ListOfItsOwn(list):
    def __setitem__(self, key, value):
        raise AssertionError("runs the program's code")

    def __iter__(self):
        raise AssertionError("runs the program's code")


class QueueOfItsOwn(collections.deque):
    __setitem__ = ListOfItsOwn.__setitem__
    __iter__ = ListOfItsOwn.__iter__


class HolderOfItsOwn:
    @property
    def y(self):
        raise AssertionError("runs the program's code")


def test_tensors_are_given_back_past_the_methods_of_what_holds_them():
    def program(x):
        items, queue, holder = ListOfItsOwn(), QueueOfItsOwn(), HolderOfItsOwn()
        list.append(items, handed(x))
        collections.deque.append(queue, handed(x))
        vars(holder)["y"] = handed(x)
        splits()
        return items, queue, holder

    fast = magpy.compile(program, backend="eager")
    for sign in (1.0, 1.0, -1.0, 1.0):
        x = torch.tensor([sign])
        items, queue, holder = fast(x)
        found = list.__getitem__(items, 0), collections.deque.__getitem__(queue, 0), holder.__dict__
        assert [y is x for y in (*found[:2], found[2]["y"])] == [sign > 0] * 3


@pytest.mark.parametrize("ends", [splits, lambda: None], ids=["behind a split", "at the end"])
def test_what_is_frozen_before_the_call_has_its_own_tensors(ends):
    items, queue, added = [None], collections.deque([None]), []
    table, holder = {"inner": {"x": None}}, types.SimpleNamespace(y=None)

    def program(x):
        items[0] = table["inner"]["x"] = holder.y = queue[0] = handed(x)
        added.append(handed(x))
        ends()
        return x + 1

    fast = magpy.compile(program, backend="eager")
    gc.freeze()  # hides containers from whoever looks for what refers to an object
    try:
        for sign in (1.0, 1.0, -1.0, 1.0):
            x = torch.tensor([sign])
            fast(x)
            found = (items[0], table["inner"]["x"], holder.y, queue[0], added[-1])
            assert [y is x for y in found] == [sign > 0] * 5
    finally:
        gc.unfreeze()
