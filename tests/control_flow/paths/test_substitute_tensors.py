"""Substitute tensors for results of a branch, and their restoration when a recording ends.

``x if x.sum() > 0 else x * 2`` is ``x`` itself or a new tensor. While such a branch is recorded,
the program holds a substitute with the same memory; wherever the recording ends, every location
that the program can inspect must hold the tensor itself again.
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


class PrintingKey:
    """A key whose hash prints in the middle of native code, and so splits the program."""

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


def ends_in_a_lookup() -> int:
    return {PrintingKey(1): 0}[PrintingKey(1)]


def ends_in_a_sort() -> int:
    return len(sorted([PrintingKey(2), PrintingKey(1)])) - 2


def ends_in_a_callback() -> int:
    return sum(map(lambda _: len(repr(print(end=""))) - 4, [1]))


def ends_in_a_split() -> int:
    return len(repr(print(end=""))) - 4


def nested(depth: int, end: Callable[[], int]) -> int:
    return end() if depth == 0 else nested(depth - 1, end) + 0


def branch_result(x):
    return x if x.sum() > 0 else x * 2


def first(y, *_: Any, **__: Any):
    return y


class Holder:
    pass


class Slotted:
    __slots__ = ("y",)


def in_containers(x, end):
    items, entries, nested_tuple = (
        [1, branch_result(x)],
        {"a": branch_result(x)},
        ((branch_result(x), 1),),
    )
    queue, holder, slotted = collections.deque([branch_result(x)]), Holder(), Slotted()
    holder.y, slotted.y = branch_result(x), branch_result(x)
    named = collections.namedtuple("named", "y")(branch_result(x))
    end()
    locations = (items[1], entries["a"], nested_tuple[0][0], queue[0], holder.y, slotted.y, named.y)
    return [y is x for y in locations], len({id(y) for y in locations}), vars(holder)["y"] is x


def in_native_objects(x, end):
    method, partial, part = (
        branch_result(x).add,
        functools.partial(first, branch_result(x)),
        slice(branch_result(x)),
    )
    iterators = (
        iter([branch_result(x)]),
        iter((branch_result(x),)),
        zip([branch_result(x)], [1]),
        enumerate([branch_result(x)]),
    )
    try:
        raise ValueError(branch_result(x))
    except ValueError as raised:
        error = raised
    end()
    found = [next(iterators[0]), next(iterators[1]), next(iterators[2])[0], next(iterators[3])[1]]
    found += [method.__self__, partial(), partial.args[0], part.stop, error.args[0]]
    return [y is x for y in found]


def in_functions(x, end):
    y = branch_result(x)

    def asks():
        return y is x

    def ends():
        end()
        return y is x

    def by_default(y=branch_result(x)):
        return y is x

    def generates():
        inner = branch_result(x)
        yield 0
        yield inner is x
        yield first(branch_result(x), (yield 1)) is x

    generator = generates()
    next(generator)
    return ends(), asks(), by_default(), next(generator), next(generator), generator.send(1)


def on_operand_stacks(x, end):
    def one(y):
        return first(y, two(y))

    def two(y):
        return first(y, first(branch_result(y), end()) is x) is x, 1

    def takes(*args, **kwargs):
        end()
        return args[0] is x, kwargs["y"] is x

    return (
        first(branch_result(x), one(branch_result(x))) is x,
        (branch_result(x), end())[0] is x,
        [branch_result(x), end()][0] is x,
        {"a": branch_result(x), "b": end()}["a"] is x,
        branch_result(x) is (end(), x)[1],
        takes(branch_result(x), y=branch_result(x)),
        [y is x for y in (branch_result(x), x) if end() == 0],
    )


def as_keys(x, end):
    known = {branch_result(x): 1, id(branch_result(x)): 2}
    members = {branch_result(x), x}
    end()
    return x in known, known.get(x), known.get(id(x)), len(members), [x].count(branch_result(x))


def changed_in_place(x, end):
    y = branch_result(x)
    end()
    y.add_(1)
    return x.tolist(), y.tolist(), y is x


PROGRAMS = (
    in_containers, in_native_objects, in_functions, on_operand_stacks, as_keys, changed_in_place,
)  # fmt: skip


@pytest.mark.parametrize(
    "ends",
    [ends_in_a_lookup, ends_in_a_sort, ends_in_a_callback, ends_in_a_split],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_substitutes_are_replaced_by_the_tensors_themselves(program, ends):
    for depth in (0, 2):
        fast = magpy.compile(program, backend="eager")
        for sign in (1.0, 1.0, -1.0, 1.0):
            end = functools.partial(nested, depth, ends)
            expected = program(torch.tensor([sign]), end)
            assert fast(torch.tensor([sign]), end) == expected


def test_tensors_held_by_running_native_code_are_restored():
    def program(x):
        d, y = {}, branch_result(x)
        d[PrintingKey("stored")] = y
        stored = next(iter(d.values()))
        by_default = {}.get(PrintingKey("missing"), branch_result(x))
        kept = list(
            filter(lambda y: print(end="") is None and y is x, [branch_result(x), branch_result(x)])
        )
        ordered = sorted(
            [(0, branch_result(x)), (1, branch_result(x))], key=lambda p: (print(end=""), p[0])[1]
        )
        return stored is x, by_default is x, len(kept), [y is x for _, y in ordered]

    fast = magpy.compile(program, backend="eager")
    for sign in (1.0, 1.0, -1.0, 1.0):
        assert fast(torch.tensor([sign])) == program(torch.tensor([sign]))


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_tensors_are_restored_when_the_program_raises(kind):
    kept: list[Any] = [None]

    def program(x, holder):
        holder.y = kept[0] = branch_result(x)
        raise kind(holder.y)

    fast = magpy.compile(program, backend="eager")
    for sign in (1.0, 1.0, -1.0, 1.0):
        x, holder = torch.tensor([sign]), Holder()
        with pytest.raises(kind) as raised:
            fast(x, holder)
        found = holder.y, kept[0], raised.value.args[0]
        assert [y is x for y in found] == [sign > 0] * 3


class ListWithOwnMethods(list):
    def __setitem__(self, key, value):
        raise AssertionError("runs the program's code")

    def __iter__(self):
        raise AssertionError("runs the program's code")


class QueueWithOwnMethods(collections.deque):
    __setitem__ = ListWithOwnMethods.__setitem__
    __iter__ = ListWithOwnMethods.__iter__


class HolderWithProperty:
    @property
    def y(self):
        raise AssertionError("runs the program's code")


def test_tensors_are_restored_without_calling_methods_of_their_holders():
    def program(x):
        items, queue, holder = ListWithOwnMethods(), QueueWithOwnMethods(), HolderWithProperty()
        list.append(items, branch_result(x))
        collections.deque.append(queue, branch_result(x))
        vars(holder)["y"] = branch_result(x)
        ends_in_a_split()
        return items, queue, holder

    fast = magpy.compile(program, backend="eager")
    for sign in (1.0, 1.0, -1.0, 1.0):
        x = torch.tensor([sign])
        items, queue, holder = fast(x)
        found = list.__getitem__(items, 0), collections.deque.__getitem__(queue, 0), holder.__dict__
        assert [y is x for y in (*found[:2], found[2]["y"])] == [sign > 0] * 3


@pytest.mark.parametrize(
    "ends", [ends_in_a_split, lambda: None], ids=["after a split", "at the end"]
)
def test_tensors_in_containers_frozen_from_garbage_collection_are_restored(ends):
    items, queue, added = [None], collections.deque([None]), []
    table, holder = {"inner": {"x": None}}, types.SimpleNamespace(y=None)

    def program(x):
        items[0] = table["inner"]["x"] = holder.y = queue[0] = branch_result(x)
        added.append(branch_result(x))
        ends()
        return x + 1

    fast = magpy.compile(program, backend="eager")
    gc.freeze()  # hides containers from a search for the referrers of an object
    try:
        for sign in (1.0, 1.0, -1.0, 1.0):
            x = torch.tensor([sign])
            fast(x)
            found = (items[0], table["inner"]["x"], holder.y, queue[0], added[-1])
            assert [y is x for y in found] == [sign > 0] * 5
    finally:
        gc.unfreeze()
