"""The native watch: contents of fixed objects."""

import collections

import pytest
import torch

import magpy_like as magpy
from magpy_like.native import ABSENT, Watch


class Base:
    def act(self):
        return "base"


class Middle(Base):
    pass


class Leaf(Middle):
    def act(self):
        return super().act()


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.defaultdict])
def test_size_of_a_dictionary_is_watched(kind):
    hooks = kind()
    watch = Watch()
    watch.size(hooks, 0)
    assert watch()
    hooks["a"] = 1
    assert not watch()
    assert watch.why() == "the keys of a dictionary changed"
    hooks.clear()
    assert watch()


def test_size_keys_and_an_entry_of_a_dictionary_are_watched():
    entries = {"a": 1, "b": 2}
    watch = Watch()
    watch.size(entries, 2)
    watch.size(entries, ["a", "b"])
    watch.location(entries, "a", 1, True)
    assert watch()
    entries["b"] = 3
    assert watch()
    del entries["a"]
    entries["a"] = 1
    assert not watch()  # in a different order


def test_attribute_found_by_super_is_watched():
    watch = Watch()
    watch.location(Leaf, ("act", Leaf), Base.act, False)
    assert watch()
    original = Base.act
    try:
        Middle.act = lambda self: "middle"
        assert not watch()
        del Middle.act
        assert watch()
        Base.act = lambda self: "changed"
        assert not watch()
    finally:
        Base.act = original
    assert watch()
    Leaf.__bases__ = (Middle, collections.UserString)
    assert watch()


def test_absence_of_an_attribute_of_super_is_watched():
    class Alone:
        pass

    watch = Watch()
    watch.location(Alone, ("act", Alone), ABSENT, False)
    assert watch()
    Alone.act = None  # super() skips the class itself
    assert watch()


ELLIPSIS = ...


class HoldsEllipsis:
    value = ...


def test_ellipsis_in_a_fixed_object_is_a_value_like_any_other():
    """Guards have a sentinel of their own for "any value"."""
    cell = ...

    def set_cell(value):
        nonlocal cell
        cell = value

    def program(x):
        return x[ELLIPSIS], x[HoldsEllipsis.value], x[cell]

    def setters(value):
        globals()["ELLIPSIS"] = value

    fast, x = magpy.compile(program, backend="eager"), torch.ones(2, 3)
    for change in (setters, lambda v: setattr(HoldsEllipsis, "value", v), set_cell):
        for value in (..., ..., 0, None, ...):
            change(value)
            assert [t.shape for t in fast(x)] == [t.shape for t in program(x)]


def test_sign_of_a_zero_in_a_slot_is_a_value():
    class Settings:
        __slots__ = ("divisor",)

    settings, x = Settings(), torch.ones(2)
    fast = magpy.compile(lambda x: x / settings.divisor, backend="eager")
    for divisor in (0.0, 0.0, -0.0, -0.0, 0.0):
        settings.divisor = divisor
        assert torch.equal(fast(x), x / divisor)


def test_sparse_buffer_of_a_module_is_fixed():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("adjacency", torch.eye(3).to_sparse_csr())

        def forward(self, x):
            return self.adjacency @ x

    net, x = Net(), torch.ones(3, 1)
    fast = magpy.compile(net, backend="eager")
    for _ in range(3):
        assert torch.equal(fast(x), net(x))
    net.adjacency = torch.eye(3).mul(2).to_sparse_csr()
    assert torch.equal(fast(x), net(x))
