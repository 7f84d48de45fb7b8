"""Views of dictionaries from outside: what the program reads through them is the dictionary's."""

import collections

import pytest

import magpy_like as magpy
from tests.programs import load, namespace, tensor

SOURCE = """
import collections
d = {make}({{"a": 1}})
view = d.{kind}()
def program(x, key):
    read = {read}
    d[key] = 5
    return x * 2, read
"""
READS = ["len(view)", "view.__len__()", "view.mapping.get('c')", "len(view.mapping)"]


@pytest.mark.parametrize("kind", ["keys", "values", "items"])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("make", ["dict", "collections.OrderedDict"])
def test_read_through_a_view_before_a_write_is_of_the_dictionary_at_entry(make, read, kind):
    source = load(SOURCE.format(make=make, read=read, kind=kind))
    eager, target = source(), source()
    fast = magpy.compile(target, backend="eager")
    for key in "cceea":
        assert fast(tensor(1), key)[1] == eager(tensor(1), key)[1]
    hits = magpy.cache_info(fast).hits
    for _ in range(2):
        assert fast(tensor(1), "a")[1] == eager(tensor(1), "a")[1]
    assert magpy.cache_info(fast).hits > hits
    assert namespace(target)["d"] == namespace(eager)["d"]


@pytest.mark.parametrize("make", [dict, collections.OrderedDict])
def test_length_of_a_view_that_is_an_argument_is_guarded(make):
    fast = magpy.compile(lambda x, view: (x * 2, len(view)), backend="eager")
    for size in (1, 1, 3, 3):
        assert fast(tensor(1), make.fromkeys(range(size)).keys())[1] == size
    assert magpy.cache_info(fast)[:3] == (2, 2, 2)
