"""Dictionary keys compared by identity: a key stands for the variable that is looked up.

A record identifies a key by its access path, so one record serves any key of a call as long as the
values under the keys are alike. Always looking up the recorded key would be wrong.
"""

import weakref
from collections import defaultdict

import pytest
import torch

import magpy_like as magpy
from tests.programs import tensor


class Named:
    pass


def adder(amount):
    return lambda x: x + amount


KEYS = {
    "tensors": lambda: [tensor(i) for i in range(3)],
    "parameters": lambda: [torch.nn.Parameter(tensor(i)) for i in range(3)],
    "functions": lambda: [adder(i) for i in range(3)],
    "modules": lambda: [torch.nn.Identity() for i in range(3)],
    "instances": lambda: [Named() for i in range(3)],
}
"""Three keys of one kind; the dictionary has the first two of them."""


def item(x, table, key):
    return x * table[key]


def item_or_default(x, table, key):
    return x * table.get(key, 5)


def member(x, table, key):
    return x + 1 if key in table else x


def not_missing(x, table, key):
    return x + 1 if key not in table else x * table[key]


def stored(x, table, key):
    table[key] = x.sum()
    return x


def stored_by_default(x, table, key):
    return x * table.setdefault(key, 4)


def counted(x, table, key):
    table[key] = table.get(key, 0) + 1
    return x


def removed(x, table, key):
    if key in table:
        del table[key]
    return x


def popped(x, table, key):
    return x * table.pop(key, 6)


def replaced(x, table, key):
    before = table.pop(key, 1)
    table[key] = before * 2
    return x * before


def stored_with_another(x, table, key):
    new = x * 2 if isinstance(key, torch.Tensor) else lambda: x
    table[new] = 7
    return x * len(table)


def stored_and_removed(x, table, key):
    table[None] = table.get(key, 1)
    new = x * 2
    table[new] = 7
    del table[new], new
    return x * len(table)


def key_in_a_tuple(x, table, key):
    inner = {(key, 1): table.get(key, 3)}
    return x * inner[key, 1]


def keys_of_a_list(x, table, key):
    keys = [key, next(iter([key]))]
    return x * sum(table.get(k, 2) for k in keys)


PROGRAMS = [
    item, item_or_default, member, not_missing, stored, stored_by_default, counted, removed, popped,
    replaced, stored_with_another, stored_and_removed, key_in_a_tuple, keys_of_a_list,
]  # fmt: skip


def outcome(call, x, table, key):
    """Result and values of the table; a missing key results in -1."""
    try:
        result = call(x, table, key)
    except KeyError as error:
        result = tensor(-1) if error.args[0] is key else None
    return result.tolist(), [float(value) for value in table.values()]


def positions(table, keys):
    """Indices of the table's keys in ``keys``, in order; -1 for a key created by the call."""
    ids = [id(key) for key in keys]
    return [ids.index(id(key)) if id(key) in ids else -1 for key in table]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", KEYS)
def test_each_key_is_looked_up_by_identity(kind, program):
    fast = magpy.compile(program, backend="eager")
    found, expected = [], []
    for which in (0, 0, 1, 0, 2, 1, 2):
        for call, into in ((fast, found), (program, expected)):
            keys = KEYS[kind]()
            table = {key: float(i + 2) for i, key in enumerate(keys[:2])}
            for x in (tensor(1, 2), tensor(3, 4)):
                into.append((outcome(call, x, table, keys[which]), positions(table, keys)))
    assert found == expected


@pytest.mark.parametrize("kind", KEYS)
def test_one_record_serves_all_keys_of_tensors(kind):
    """Tensors are arguments of the operator graph; a module is a fixed object of a record."""
    keys = KEYS[kind]()
    table = {key: tensor(i, 1) for i, key in enumerate(keys)}
    fast = magpy.compile(item, backend="eager", fullgraph=True)
    for key in [*keys, *keys]:
        assert torch.equal(fast(tensor(1, 2), table, key), item(tensor(1, 2), table, key))
    assert magpy.cache_info(fast).misses == (3 if kind == "modules" else 1)


def test_aliasing_of_two_keys_is_guarded():
    def program(x, table, one, other):
        table[one] = x + 1
        return table[other] * 2

    fast = magpy.compile(program, backend="eager")
    a, b = tensor(1), tensor(2)
    for one, other in ((a, b), (a, b), (a, a), (b, b), (a, b)):
        tables = [{a: tensor(5), b: tensor(6)} for _ in range(2)]
        results = [call(tensor(1), table, one, other)
                   for call, table in zip((fast, program), tables, strict=True)]  # fmt: skip
        assert torch.equal(*results)
    assert magpy.cache_info(fast).hits >= 2


def test_argument_is_looked_up_in_an_external_table():
    keys = [tensor(i) for i in range(3)]
    table = {keys[0]: 2.0, keys[1]: 3.0}

    def program(x, key):
        return x * table[key] if key in table else -x

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for key in (*keys, *keys):
        assert torch.equal(fast(tensor(1), key), program(tensor(1), key))
    assert magpy.cache_info(fast).hits > 0


def test_parameter_as_a_key_of_an_external_table_is_guarded():
    weight = torch.nn.Parameter(tensor(1, 2))
    table = {}

    def program(x):
        return x * table[weight] if weight in table else x + weight

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for value in (None, None, 2.0, 2.0, 3.0, None):
        table.clear()
        table.update({} if value is None else {weight: value})
        assert torch.equal(fast(tensor(1, 1)), program(tensor(1, 1)))
    assert magpy.cache_info(fast).hits >= 2


def test_state_created_at_its_first_lookup_is_recorded():
    """Optimizers keep their state like this: a dictionary for each parameter."""

    def program(x, states, keys):
        for key in keys:
            state = states[key]
            if not state:
                state["sum"] = torch.zeros_like(key)
            state["sum"].add_(x)
        return x * 2

    fast = magpy.compile(program, backend="eager")
    keys = [tensor(1, 2), tensor(3, 4)]
    found, expected = defaultdict(dict), defaultdict(dict)
    for i in range(5):
        x = tensor(i, 1)
        assert torch.equal(fast(x, found, keys), program(x, expected, keys))
        assert [id(key) for key in found] == [id(key) for key in expected]
        for key in keys:
            assert torch.equal(found[key]["sum"], expected[key]["sum"])
    assert magpy.cache_info(fast).hits == 3


def looked_up(x, names, table):
    return x * sum(1 if name in table else table.get(name, 2) for name in names)


def all_removed(x, names, table):
    for name in names:
        table.pop(name, None)
    return x


def each_stored_and_removed(x, names, table):
    for name in names:
        table[name] = 1
        del table[name]
    return x


def table_emptied(x, names, table):
    for name in list(table):
        del table[name]
    return x


@pytest.mark.parametrize(
    "program", [looked_up, all_removed, each_stored_and_removed, table_emptied]
)
def test_keys_of_one_table_are_looked_up_in_another(program):
    functions = KEYS["functions"]()
    names = dict.fromkeys(functions[:2])
    fast = magpy.compile(program, backend="eager")
    for chosen in (functions[1:], functions[1:], functions[2:], functions[:1], functions[1:]):
        tables = [dict.fromkeys(chosen, 3) for _ in range(2)]
        results = [call(tensor(1), names, table)
                   for call, table in zip((fast, program), tables, strict=True)]  # fmt: skip
        assert torch.equal(*results) and tables[0] == tables[1]
    assert magpy.cache_info(fast).hits > 0


def test_record_keeps_no_key_alive():
    def program(x, table, key):
        return x * table[key]

    fast = magpy.compile(program, backend="eager")
    key = tensor(1)
    gone = weakref.ref(key)
    for _ in range(2):
        fast(tensor(1), {key: tensor(2)}, key)
    del key
    assert gone() is None and magpy.cache_info(fast).hits == 1


def test_equality_added_to_the_class_of_a_key_takes_effect():
    class Key:
        pass

    def program(x, table, key):
        return x * table.get(key, 1)

    fast = magpy.compile(program, backend="eager")
    a, b = Key(), Key()
    table = {a: 5.0}
    for _ in range(2):
        assert torch.equal(fast(tensor(1), table, b), tensor(1))
    Key.__eq__, Key.__hash__ = (lambda self, other: True), (lambda self: 1)
    table = {a: 5.0}
    assert torch.equal(fast(tensor(1), table, b), tensor(5))
