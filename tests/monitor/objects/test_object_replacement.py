"""Replacement of the stand-ins of numbers by their originals, in all objects that hold them."""

import pytest

from magpy_like.monitor.objects.object_replacement import replace_all
from magpy_like.native import fresh_plain


class Meta(type):
    def __setattr__(cls, name, value):
        raise AssertionError("the program's code must not run")


@pytest.mark.parametrize("base", [{}, {"metaclass": Meta}])
def test_attributes_of_classes_are_read_anew(base):
    """Python looks up an attribute of a class once, and keeps a pointer to it without a count."""

    class Holder(**base):
        number = fresh_plain(7)

    class Derived(Holder):
        pass

    original = 7
    stand_in = Holder.__dict__["number"]
    assert Holder.number is stand_in and Derived.number is stand_in
    assert stand_in is not original
    replace_all([stand_in], {id(stand_in): original}, ())
    del stand_in
    others = [int(str(1000 + k)) for k in range(2000)]
    assert Holder.number is original and Derived.number is original and Derived().number is original
    assert Holder.__dict__["number"] is original and len(others) == 2000


def test_entries_of_other_dictionaries_with_a_docstring_are_replaced():
    stand_in = fresh_plain(7)
    entries = {"__doc__": None, "number": stand_in, "tracked": []}
    replace_all([stand_in], {id(stand_in): 7}, ())
    assert entries["number"] is not stand_in and entries["number"] == 7
