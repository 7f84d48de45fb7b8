"""Lifted numbers: their sources, their uses, and uses that specialize them."""

import math
import operator
import warnings
from types import SimpleNamespace

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

INTEGERS = [3, 4, 2, 5, 6, 7, 4, 3]
FRACTIONS = [0.5, 3.0, 1.25, 2.5, 0.75, 7.5, 2.0, 0.5]

SOURCES = {
    "argument": lambda n: n,
    "keyword of a dictionary": lambda n: {"value": n},
    "element of a list": lambda n: [0, n],
    "last element of a tuple": lambda n: (0.5, n),
    "attribute": lambda n: SimpleNamespace(value=n),
    "item of a tensor": lambda n: torch.tensor(n),
    "int of a tensor": lambda n: torch.tensor([n]),
    "list of a tensor": lambda n: torch.tensor([[1, n], [n, 2]]),
    "length of a tensor": lambda n: torch.ones(n + 1),
    "size of a tensor": lambda n: torch.ones(2, n + 1),
}
"""Functions that create the argument in which a number is stored, by its location."""
READS = {
    "argument": lambda argument: argument,
    "keyword of a dictionary": lambda argument: argument["value"],
    "element of a list": lambda argument: argument[1],
    "last element of a tuple": lambda argument: argument[-1],
    "attribute": lambda argument: argument.value,
    "item of a tensor": lambda argument: argument.item(),
    "int of a tensor": lambda argument: int(argument.sum()),
    "list of a tensor": lambda argument: argument.tolist()[0][1],
    "length of a tensor": lambda argument: len(argument) - 1,
    "size of a tensor": lambda argument: argument.shape[1] - 1,
    "float of a tensor": lambda argument: float(argument.sum()),
}
"""Functions that read the number in the program, by its location."""
FRACTION_SOURCES = {
    **{name: SOURCES[name] for name in list(SOURCES)[:6]},
    "float of a tensor": lambda n: torch.tensor([n]),
    "list of a tensor": lambda n: torch.tensor([[1.0, n], [n, 2.0]]),
}


def _in_a_loop(x, n):
    total = 0
    for i in range(3):
        total += n * i
    return x * total


SCALARS = {
    "factor": lambda x, n: x * n + n - 1,
    "left operand": lambda x, n: n - x / (n + 10.0),
    "arithmetic": lambda x, n: x * ((n * 2 + 1) / 3 - n**2),
    "division": lambda x, n: x * (n // 2) + n % 3,
    "sign": lambda x, n: x * -n + abs(-n),
    "power": lambda x, n: x * 2**n,
    "mathematics": lambda x, n: x * math.sqrt(n + 1) + math.sin(n) + math.floor(n / 2),
    "exponential": lambda x, n: x * math.exp(-n),
    "rounding": lambda x, n: x * round(n / 3, 2) + round(n / 3),
    "comparison": lambda x, n: x + 1 if n > 0 else x - n,
    "bounds": lambda x, n: x + n if -2 < n < 100 else x,
    "truth": lambda x, n: x + 1 if n else x - n,
    "text": lambda x, n: (x * n, f"{n:.2f}", str(n), "%s" % n),
    "conversion": lambda x, n: x * int(n) + float(n),
    "result": lambda x, n: (x + 1, n, n * 2, [n, {"n": n}]),
    "sum": lambda x, n: x * sum([n, n]) + max([n, n * 2]),
    "smallest": lambda x, n: x * min(n, n * 2, n + 1) + max([n, n / 2]),
    "fill": lambda x, n: x.masked_fill(x > 0, n),
    "choice": lambda x, n: torch.where(x > 0, x, n),
    "bound": lambda x, n: x.clamp(-n - 10, n + 10),
    "new tensor": lambda x, n: torch.full((2,), n) + torch.full_like(x, n)[:2],
    "multiple": lambda x, n: torch.add(x, x, alpha=n),
    "tensor": lambda x, n: x.sum() + torch.tensor([n, n * 2]) + torch.tensor(n),
    "equality": lambda x, n: x == n,
    "slope": lambda x, n: torch.nn.functional.leaky_relu(x, n),
    "type": lambda x, n: x * 2 if isinstance(n, str) else x * n,
    "integers": lambda x, n: x.long() * n,
    "loop": _in_a_loop,
    "closure": lambda x, n: (lambda: x * n)(),
}
FRACTION_SCALARS = {
    "exponent": lambda x, n: x.abs() ** n,
    "largest of three": lambda x, n: x * max(n, 0.25, 1.5),
}
"""Only for fractions: torch 2.11 compares an integer with several constants."""
SIZES = {
    "size": lambda x, n: torch.zeros(n) + x.sum(),
    "expanded": lambda x, n: x[:1].expand(n) * 2,
    "index": lambda x, n: x[n] * 2,
    "bounds of a slice": lambda x, n: x[n - 1 : n + 1] * 2,
    "end of a slice": lambda x, n: x[:n] * 2,
    "range": lambda x, n: torch.arange(n) * x.sum(),
    "view": lambda x, n: torch.zeros(n * 2).view(n, 2) + x.sum(),
    "repeated": lambda x, n: x.repeat(n),
    "part": lambda x, n: x.narrow(0, 0, n),
    "shift": lambda x, n: x.long() << n,
    "largest of three": lambda x, n: x * max(n, -2, 3) + min(n, 4, 5),
}
"""Uses as sizes and indices, which leave the number free to vary."""

BRANCHING = {
    **FRACTION_SCALARS,
    "smaller of two types": lambda x, n: x.long() * min(n, 2.5) + x.long() * max(n, 2),
    "largest of three": lambda x, n: x.long() * max(n, 1, 2.5),
    "root": lambda x, n: x * (n - 2) ** 0.5,
    "negative power": lambda x, n: x.long() * 3 ** (int(n) - 3),
    "one value": lambda x, n: x + 1 if n == 3 else x - n,
    "key": lambda x, n: x * {3: 2.0, 0.5: 4.0}.get(n, 3.0),
    "member": lambda x, n: x if n in (1, 2, 3, 0.5) else x * 2,
    "order of tuples": lambda x, n: x if (n, 1) > (2, 0) else x * 2,
    "truth of a difference": lambda x, n: x + 1 if not n - 3 else x * n,
    "iterations": lambda x, n: sum((x * i for i in range(int(n))), x),
    "choice of a tensor": lambda x, n: [x, x + 1, x + 2, x * 3, x * 4, x * 5, x, x][int(n)],
}
"""Uses whose control flow depends on the number."""


def _compare(use, read, make, values):
    """Compare calls with all values to eager calls; returns for each whether it hit."""

    def program(x, argument):
        return use(x, read(argument))

    fast = magpy.compile(program, backend="eager")
    hits = []
    for value in values:
        x = torch.arange(8.0) - 2
        expected = program(x, make(value))
        before = magpy.cache_info(fast).hits
        assert_same(fast(x, make(value)), expected)
        hits.append(magpy.cache_info(fast).hits > before)
    return hits


@pytest.mark.parametrize("source", list(SOURCES)[1::2])
@pytest.mark.parametrize("use", SCALARS)
def test_integers_are_lifted(use, source):
    hits = _compare(SCALARS[use], READS[source], SOURCES[source], INTEGERS)
    assert all(hits[4:])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("use", SIZES)
def test_sizes_are_lifted(use, source):
    hits = _compare(SIZES[use], READS[source], SOURCES[source], INTEGERS)
    assert all(hits[4:])


@pytest.mark.parametrize("source", list(FRACTION_SOURCES)[::2])
@pytest.mark.parametrize("use", [*SCALARS, *FRACTION_SCALARS])
def test_fractions_are_lifted(use, source):
    uses = {**SCALARS, **FRACTION_SCALARS}
    hits = _compare(uses[use], READS[source], FRACTION_SOURCES[source], FRACTIONS)
    assert all(hits[4:])


@pytest.mark.parametrize("source", ["argument", "element of a list", "item of a tensor"])
@pytest.mark.parametrize("use", BRANCHING)
def test_control_flow_on_numbers_matches_eager(use, source):
    _compare(BRANCHING[use], READS[source], SOURCES[source], [*INTEGERS, 1, 0, -1, 3])
    _compare(BRANCHING[use], READS[source], FRACTION_SOURCES[source], [*FRACTIONS, -1.5, 0.0, -2.5])


def test_extremes_of_equal_numbers_have_the_type_of_eager():
    def program(x, n):
        return max([n, 2, x.sum().item()]), min((2, n, x.sum().item()))

    fast = magpy.compile(program, backend="eager")
    for n, total in ((3, 10.0), (4, 12.0), (2, 2.0), (1, 2.0), (0, 14.0), (3, 1.0)):
        found, expected = fast(torch.tensor([total]), n), program(torch.tensor([total]), n)
        assert repr(found) == repr(expected), "the types must match too"


def test_branches_on_sizes_zero_and_one_match_eager():
    use = lambda x, n: x + 1 if n == 0 else x * 2 if n < 0 else x * n
    for source in ("length of a tensor", "size of a tensor"):
        _compare(use, READS[source], SOURCES[source], [3, 4, 5, 0, 6, -1, 0, 3])


@pytest.mark.parametrize("source", ["argument", "keyword of a dictionary", "element of a list"])
@pytest.mark.parametrize("values_of_types", [(2, 2.5), (2, True), (2.5, "a"), (True, 2)])
def test_numbers_of_other_types_match_eager(values_of_types, source):
    values = [values_of_types[0], values_of_types[0] + 1, values_of_types[1], values_of_types[0]]
    if isinstance(values_of_types[1], str):
        values[2] = False
    use = lambda x, n: (x.long() * n, n, x + isinstance(n, int))
    _compare(use, READS[source], SOURCES[source], values)


SCALE, TABLE = 1, {"scale": 1}


def _of_a_global(x):
    return x * SCALE


def _of_a_global_table(x):
    return x[: TABLE["scale"]] * 2


def _of_a_cell(box):
    def program(x):
        return x + box

    def change(n):
        nonlocal box
        box = n

    return program, change


def _of_a_module():
    class Scaled(torch.nn.Module):
        def forward(self, x):
            return x * self.scale

    module = Scaled()
    return module, lambda n: setattr(module, "scale", n)


class Slotted:
    __slots__ = ("scale",)


def _of_a_slot():
    slotted = Slotted()
    return lambda x: x * slotted.scale, lambda n: setattr(slotted, "scale", n)


LOCATIONS = {
    "slot": _of_a_slot,
    "global": lambda: (_of_a_global, lambda n: globals().update(SCALE=n)),
    "entry of a global dictionary": lambda: (
        _of_a_global_table, lambda n: TABLE.__setitem__("scale", n),
    ),
    "closure": lambda: _of_a_cell(1),
    "attribute of the module": _of_a_module,
}  # fmt: skip


@pytest.mark.parametrize("location", LOCATIONS)
def test_numbers_are_lifted_in_every_location(location):
    program, change = LOCATIONS[location]()
    fast, x = magpy.compile(program, backend="eager"), torch.arange(8.0)
    for n in (3, 4, 6, 5, 7):
        change(n)
        assert_same(fast(x), program(x))
    assert magpy.cache_info(fast).hits >= 2
    hits = magpy.cache_info(fast).hits
    change(2.0 if location != "entry of a global dictionary" else None)
    assert_same(fast(x), program(x))
    assert magpy.cache_info(fast).hits == hits, "another type is no hit"


FLAG_SOURCES = {
    "argument": (lambda argument: argument, lambda flag: flag),
    "keyword of a dictionary": (lambda argument: argument["value"], lambda flag: {"value": flag}),
    "element of a list": (lambda argument: argument[1], lambda flag: [0, flag]),
    "item of a tensor": (lambda argument: argument.item(), torch.tensor),
    "bool of a tensor": (bool, lambda flag: torch.tensor([flag])),
    "list of a tensor": (
        lambda argument: argument.tolist()[1],
        lambda flag: torch.tensor([True, flag]),
    ),
}
FLAG_USES = {
    "factor": lambda x, flag: x * flag + x.long() * flag,
    "choice": lambda x, flag: torch.where(x > 0, flag, x),
    "fill": lambda x, flag: x.masked_fill(x > 0, flag),
    "new tensor": lambda x, flag: torch.full((2,), flag),
    "mask": lambda x, flag: (x > 0) & flag,
    "sum": lambda x, flag: x * (flag + flag),
    "operator's mode": lambda x, flag: x.sum(0, keepdim=flag),
    "identity": lambda x, flag: x + 1 if flag is True else x,
}


@pytest.mark.parametrize("source", FLAG_SOURCES)
@pytest.mark.parametrize("use", FLAG_USES)
def test_flags_need_at_most_one_record_per_value(use, source):
    flags = [True, False, True, False, False, True, True, False]
    hits = _compare(FLAG_USES[use], *FLAG_SOURCES[source], flags)
    assert all(hits[-4:])


class Holder:
    def __init__(self):
        self.n, self.held, self.items = 1, {"k": 1}, [1]


OTHER_READS = {
    "getattr": (lambda o: getattr(o, "n"), "n"),  # noqa: B009
    "vars": (lambda o: vars(o)["n"], "n"),
    "attrgetter": (operator.attrgetter("n"), "n"),
    "copied": (lambda o: dict(vars(o))["n"], "n"),
    "get": (lambda o: o.held.get("k"), "held"),
    "values": (lambda o: max(o.held.values()), "held"),
    "unpacked": (lambda o: [a for (a,) in [o.items]][0], "items"),  # noqa: RUF015
    "summed": (lambda o: sum(o.items), "items"),
    "greatest": (lambda o: max(o.items), "items"),
    "method": (lambda o: o.items.__getitem__(0), "items"),
    "joined": (lambda o: (*o.items, 2)[0], "items"),
}


@pytest.mark.parametrize("name", OTHER_READS)
def test_number_read_natively_before_a_change_matches_eager(name):
    """Values read before the program changes the number are not lifted with it."""
    read, location = OTHER_READS[name]

    def program(x, holder):
        before = read(holder)
        if location == "n":
            holder.n += 1
        elif location == "held":
            holder.held["k"] += 1
        else:
            holder.items[0] += 1
        return x * (before + 10 * (holder.n + holder.held["k"] + holder.items[0]))

    fast, found, expected = magpy.compile(program, backend="eager"), Holder(), Holder()
    for i in range(6):
        x = torch.ones(2) + i
        assert_same(fast(x, found), program(x, expected))
        assert vars(found) == vars(expected)


def test_counters_read_by_functions_hit():
    def program(x, holder):
        holder.held["k"] = holder.held.get("k", 0) + 1
        setattr(holder, "n", getattr(holder, "n", 0) + 1)  # noqa: B009, B010
        holder.items[0] = holder.items.__getitem__(-1) + 1
        return x * (holder.held["k"] + holder.n + holder.items[0])

    fast, found, expected = magpy.compile(program, backend="eager"), Holder(), Holder()
    for _ in range(6):
        assert_same(fast(torch.ones(2), found), program(torch.ones(2), expected))
        assert vars(found) == vars(expected)
    assert magpy.cache_info(fast).hits >= 3


def _reciprocal(x, n):
    try:
        return 1 / float(x[0])
    except ZeroDivisionError:
        return "none"


def _reciprocals(x, n):
    try:
        return [1 / v.item() for v in x], n
    except ZeroDivisionError:
        return "none"


def _rounded(x, n):
    try:
        return int(x[0] / x[0])
    except ValueError:
        return "none"


def _of_argument(x, n):
    try:
        return x / (1 / n)
    except ZeroDivisionError:
        return x - 1


def _without_operators(x, n):
    try:
        return 1 / n, 7 % n
    except ZeroDivisionError:
        return "none"


def _logarithm(x, n):
    try:
        return x * math.log(n)
    except ValueError:
        return x - 1


@pytest.mark.parametrize(
    "program", [_reciprocal, _reciprocals, _rounded, _of_argument, _without_operators, _logarithm]
)
def test_caught_arithmetic_error_is_raised_for_its_numbers_only(program):
    for starts in ((0, 1, 2, 0, 3), (1, 2, 0, 3, 0)):
        fast = magpy.compile(program, backend="eager")
        for start in starts:
            x = torch.arange(3.0) + start
            assert_same(fast(x, start), program(x, start))


@pytest.mark.parametrize("dynamic", [None, True])
def test_varying_number_may_be_compared_with_a_bool(dynamic):
    def program(x, n, flag):
        factor = 1 if flag < n else 2
        return x * factor + max(flag, n), n == flag, (n, flag) == (flag, n), x[:n].size(0) > flag

    fast = magpy.compile(program, backend="eager", fullgraph=True, dynamic=dynamic)
    for n, flag in ((2, True), (3, True), (4, False), (0, True), (1, True), (1, False), (5, True)):
        x = torch.arange(6.0)
        assert_same(fast(x, n, flag), program(x, n, flag))


def test_mock_creates_tensors_of_computed_numbers():
    def program(x, n):
        return x + torch.tensor([n, n * 2]).sum()

    fast = magpy.compile(program, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (3, 4, 5, 6):
            assert_same(fast(torch.ones(2), n), program(torch.ones(2), n))
    assert magpy.cache_info(fast).misses == 2


def test_varying_number_keeps_its_identity():
    """This holds in the generalising run too, which identifies varying numbers by copies."""

    class Holder:
        pass

    def passes_on(number, x, holder, log):
        holder.number = number
        log.append(number)
        return number, {"value": number}, [number, x + number], lambda: number

    fast = magpy.compile(passes_on, backend="eager")
    for i in range(4):
        number, holder, log = 1000.5 + i, Holder(), []
        first, mapping, items, closure = fast(number, torch.ones(2), holder, log)
        found = [first, mapping["value"], items[0], closure(), holder.number, log[0]]
        assert [value is number for value in found] == [True] * 6
    assert magpy.cache_info(fast).hits == 2


def test_varying_number_keeps_its_identity_across_a_split(tmp_path):
    def split(number, x):
        x = x * number
        (tmp_path / "log").write_text("split")
        return x + number, number

    fast = magpy.compile(split, backend="eager")
    for i in range(4):
        number = 1000.5 + i
        assert fast(number, torch.ones(2))[1] is number


THREE = 3


@pytest.mark.parametrize("source", SOURCES)
def test_small_number_computed_from_a_varying_one_is_the_one_that_python_shares(source):
    def program(argument, x):
        number = READS[source](argument) + 1
        return number is THREE, operator.is_(number, x.shape[0]), number, x * 1

    fast = magpy.compile(program, backend="eager")
    for n in (1, 2, 2, 3, 1, 2):
        argument = SOURCES[source](n)
        expected = program(argument, torch.ones(3))
        found = fast(argument, torch.ones(3))
        assert found[:2] == expected[:2] == (n == 2, n == 2)
        assert (found[2] is THREE) == (n == 2)


def test_number_that_a_call_returns_unchanged_is_its_operand():
    def program(n, fraction, x):
        return int(n) is n, max(n, 0) is n, +n is n, float(fraction) is fraction, n + 1 is n, x * n

    fast = magpy.compile(program, backend="eager")
    for i in range(4):
        n, fraction = 1000 + i, 0.5 + i
        assert fast(n, fraction, torch.ones(2))[:-1] == program(n, fraction, torch.ones(2))[:-1]


def test_small_number_in_a_branch_is_the_one_that_python_shares():
    def program(items, x):
        return (len(items) is THREE) if x.sum() > 0 else (len(items) is 2), x * 2  # noqa: F632

    fast = magpy.compile(program, backend="eager")
    for n, sign in ((1, 1), (3, 1), (2, -1), (3, -1), (2, 1), (3, 1)):
        items, x = [0] * n, torch.ones(2) * sign
        assert fast(items, x)[0] == program(items, x)[0] == (n == (3 if sign > 0 else 2))


class Box:
    pass


def sets_by_setattr(x, box):
    setattr(box, f"a{int(x[0]) % 3}", x)


def sets_by_object(x, box):
    object.__setattr__(box, f"a{int(x[0]) % 3}", int(x[0]))


def sets_and_deletes(x, box):
    setattr(box, f"a{int(x[0]) % 3}", 1)
    delattr(box, f"a{int(x[0]) % 3}")


@pytest.mark.parametrize("program", [sets_by_setattr, sets_by_object, sets_and_deletes])
def test_data_dependent_attribute_name_is_set(program):
    compiled = magpy.compile(program, backend="eager")
    found, expected = Box(), Box()
    for value in (4.0, 1.0, 2.0, 9.0, 0.0, 3.0, 2.0, 2.0):
        for run, box in ((compiled, found), (program, expected)):
            run(torch.full((2,), value), box)
        assert_same(vars(found), vars(expected))


def _row(x, n):
    return x[[n % 8]]


def _rows_and_columns(x, n):
    return x[[n, -n, 0], 1:3] + x[:, [n % 5, 1]].sum() + x[[0, n], [1, 2]].sum()


def _written_rows(x, n):
    x = x.clone()
    x[[n, 0]] = torch.ones(1, 5)
    x[:, [n % 5]] *= 2
    return x


def _list_that_changes_later(x, n):
    indices = [n]
    first = x[indices]
    indices[0] = 3
    indices.append(0)
    return first + x[indices].sum(), indices


def _index_error_caught(x, n):
    try:
        return x[[n, 0]]
    except IndexError:
        return x.sum()


INDEXED = [_row, _rows_and_columns, _written_rows, _list_that_changes_later, _index_error_caught]


@pytest.mark.parametrize("program", INDEXED)
def test_list_of_varying_numbers_indexes_a_tensor(program):
    fast = magpy.compile(program, backend="eager")
    for n in (3, 4, 2, 7, 1, 0, 9, 2):
        x = torch.arange(40.0).reshape(8, 5)
        found = []
        for call in (fast, program):
            try:
                found.append(call(x, n))
            except IndexError as error:
                found.append(str(error))
        assert_same(*found)
    assert magpy.cache_info(fast).hits >= 4


def test_external_list_that_indexes_a_tensor_is_guarded():
    def program(x, indices, n):
        return x[indices] * n

    fast, x = magpy.compile(program, backend="eager"), torch.arange(8.0)
    for indices, n in (([1, 2], 1), ([1, 2], 2), ([1, 3], 3), ([1], 4), ([1, 2], 5)):
        assert_same(fast(x, indices, n), program(x, indices, n))


@pytest.mark.parametrize("last", [float("inf"), float("nan"), -float("inf")])
def test_number_without_a_literal_is_returned_after_others(last):
    class Holder:
        value = 0.0

    def program(holder, x):
        number = holder.value
        number is holder.value  # noqa: B015
        return [number, number], x + 1

    fast, holder = magpy.compile(program, backend="eager"), Holder()
    for value in (1.0, 2.0, last, last):
        holder.value = value
        found, _ = fast(holder, torch.ones(2))
        assert found[0] is found[1] is value or repr(found) == repr([value, value])
