"""Native functions of lifted numbers, which the mock calls again."""

import functools
import itertools
import math
import operator

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")

VALUES = [2.5, 3.25, 4.0, 7.5, 1.25, 9.75, 2.0, 0.5]
SPECIAL_VALUES = [
    math.nan,
    math.inf,
    -math.inf,
    -0.0,
    0.0,
    1.0,
    -1.0,
    1e308,
    -2.5,
    5e-324,
    2.5,
    math.nan,
]
PAIRS = list(zip(VALUES, VALUES[5:] + VALUES[:5], strict=True))
SPECIAL_PAIRS = [
    *zip(SPECIAL_VALUES, SPECIAL_VALUES[5:] + SPECIAL_VALUES[:5], strict=True),
    *PAIRS[:4],
]

ONE_RECORD = {
    "a function of two": lambda x, a, b: x * math.atan2(a, b) + math.hypot(a, b),
    "a base": lambda x, a, b: x * math.log(abs(a) + 1, 3),
    "two results": lambda x, a, b: (x * divmod(a, 3)[0], divmod(a, 3), math.frexp(b), math.modf(b)),
    "an unpacked result": lambda x, a, b: [x * part for part in divmod(a, 4)],
    "a method": lambda x, a, b: (x * a.__add__(b), a.hex(), a.as_integer_ratio()),
    "a method of text": lambda x, a, b: (x, f"{a:.2f}".rjust(12).upper(), str(b).replace(".", ",")),
    "a function of operators": lambda x, a, b: x * operator.add(a, b) - operator.neg(a),
    "a start": lambda x, a, b: x * sum([a, b], 2.0) + sum((a, b), start=1.5),
    "a product": lambda x, a, b: x * math.prod([a, b]) + math.fsum([a, b, 1]),
    "parts of text": lambda x, a, b: (x, str(a)[:1], repr(b)[-2::-1], f"{a:9.2f}"[-1]),
    "an item of text by a method": lambda x, a, b: (x, str(a).__getitem__(0)),
    "a list as text": lambda x, a, b: (x, str([a, (b, 2)]), "{0} {1!r:>9}".format(a, b)),  # noqa: UP032
    "keywords": lambda x, a, b: (x * round(a, ndigits=1), "{n:.1e}".format(n=b)),  # noqa: UP032
    "a default": lambda x, a, b: x * max([a, b], default=0) + min([b, a], default=None),
    "in order": lambda x, a, b: [x * n for n in sorted([a, b, 3.0], reverse=True)],
    "to another number": lambda x, a, b: x * float(str(a)) + int(math.trunc(b)),
    "several fields": lambda x, a, b: (x, "%.3f of %s" % (a, (b, 1))),
    "a range": lambda x, a, b: x * a if int(a) in range(100) else x,
    "an order of pairs": lambda x, a, b: x * a if (b + 1e9, a) > (0, b) else x,
    "an item of its own": lambda x, a, b: x * [0.5, a, 2.5, b][int(abs(a)) % 4],
    "an item": lambda x, a, b: x * TABLE[int(b) % 5] + TABLE[-1 - int(a) % 2],
    "reduced": lambda x, a, b: x * functools.reduce(operator.mul, [a, b], 2.0),
    "reduced by Python": lambda x, a, b: x * functools.reduce(lambda p, q: p / 2 + q, (a, b, 1.0)),
    "mapped": lambda x, a, b: [x * n for n in map(lambda n: n + 1, [a, b])],
    "mapped natively": lambda x, a, b: [x * n for n in map(operator.mul, [a, b], [b, 2.0])],
    "mapped to a list": lambda x, a, b: torch.tensor(list(map(abs, (a, b)))) * x[:2],
    "mapped to a sum": lambda x, a, b: x * sum(map(float, [a, b])) + max(map(abs, [a, b])),
    "filtered": lambda x, a, b: x * sum(filter(lambda n: n > -1e9, [a, b])),
    "filtered by truth": lambda x, a, b: x * sum(filter(None, [a + 1e9, 0.0, b + 1e9])),
    "spread": lambda x, a, b: list(itertools.starmap(math.copysign, [(a, b), (b, 2)])),
    "accumulated": lambda x, a, b: [x * n for n in itertools.accumulate([a, b, 1.0])],
    "all of a generator": lambda x, a, b: x + all(n + 1e9 for n in (a, b)),
    "a question": lambda x, a, b: x * a if math.isfinite(b) else x,
    "a close one": lambda x, a, b: x * a if not math.isclose(b, 1e9) else x - 1,
    "largest by key": lambda x, a, b: x * max([a, b + 1e9], key=lambda n: n / 2 + 1),
    "smallest by key": lambda x, a, b: x * min(a, b + 1e9, key=abs),
}  # fmt: skip

TABLE = [0.25 * i for i in range(5)]

SOURCES = {
    "argument": lambda x, arguments: arguments,
    "item of a tensor": lambda x, arguments: (x[0].item(), x[1].item()),
    "list of a tensor": lambda x, arguments: x.tolist()[:2],
}


def _compare_calls(use, source, pairs, split=False, **options):
    """Compare calls with pairs of numbers to eager calls; returns which hit, and the cache info."""
    between = magpy.disable(lambda: None)

    def program(x, arguments):
        numbers = [*SOURCES[source](x, arguments)]
        if split:
            between()
        a, b = numbers
        return use(x, a, b)

    fast, hits = magpy.compile(program, **options), []
    for pair in pairs:
        numbers = [0.5, 2.5] if source == "argument" else pair
        x, found = torch.tensor([*numbers, 1.5], dtype=torch.float64), []
        before = magpy.cache_info(fast).misses
        for run in (program, fast):
            try:
                found.append(run(x.clone(), pair))
            except (ValueError, ArithmeticError) as error:
                found.append((type(error), str(error)))
        hits.append(magpy.cache_info(fast).misses == before)
        assert repr(found[0]) == repr(found[1])
        assert_same(*found)
    return hits, magpy.cache_info(fast)


@pytest.mark.parametrize(
    ("source", "split"),
    [("argument", False), ("item of a tensor", False), ("list of a tensor", True)],
)
@pytest.mark.parametrize("use", ONE_RECORD)
def test_one_record_serves_functions_of_all_numbers(use, source, split):
    hits, info = _compare_calls(ONE_RECORD[use], source, PAIRS, split, backend="eager")
    assert all(hits[2:])
    assert info.graphs <= 1 + split


@pytest.mark.filterwarnings("ignore:magpy_like. ")
@pytest.mark.parametrize("source", ["argument", "item of a tensor"])
@pytest.mark.parametrize("use", ONE_RECORD)
def test_functions_of_special_values_match_eager(use, source):
    _compare_calls(ONE_RECORD[use], source, SPECIAL_PAIRS, backend="eager")


@pytest.mark.filterwarnings("ignore:magpy_like. ")
@pytest.mark.parametrize("use", ["a function of two", "two results", "in order", "reduced"])
def test_functions_of_large_integers_match_eager(use):
    whole = [(2, 3), (4, 5), (2**63, 7), (10**40, 2**53 + 1), (10**400, 2), (0, 0), (True, 5)]
    _compare_calls(ONE_RECORD[use], "argument", [*whole, *whole[::-1], (2, 3.0)], backend="eager")


@pytest.mark.parametrize("use", ["a base", "a function of two", "two results", "in order"])
def test_compiled_graph_excludes_functions_of_numbers(use, recwarn):
    """The operators around the functions are compiled."""

    def compute(x, a, b):
        return ONE_RECORD[use](x.sin() + 1, a, b)

    hits, _ = _compare_calls(compute, "item of a tensor", PAIRS[:4], backend="magpy")
    assert all(hits[1:])
    assert not [str(w.message) for w in recwarn if "magpy" in str(w.message)]


MISSES = {
    "a question": (ONE_RECORD["a question"], (2.5, 1.0), (2.5, math.nan)),
    "a close one": (ONE_RECORD["a close one"], (2.5, 1.0), (2.5, 1e9)),
    "a truth": (lambda x, a, b: x + a.is_integer(), (2.5, 1.0), (3.0, 1.0)),
    "text that begins": (lambda x, a, b: x + f"{a}".startswith("-"), (2.5, 1.0), (-2.5, 1.0)),
    "no text": (lambda x, a, b: (x, "=" * int(a)), (0.5, 1.0), (2.5, 1.0)),
    "a range": (lambda x, a, b: x + (int(a) in range(3)), (2.5, 1.0), (3.5, 1.0)),
    "one of several": (lambda x, a, b: x + (a in (2.5, 7.0)), (2.5, 1.0), (3.5, 1.0)),
    "an order of pairs": (lambda x, a, b: x + ((a, b) < (b, a)), (2.5, 1.0), (2.5, 3.5)),
    "largest by key": (lambda x, a, b: x * max([a, b], key=abs), (2.5, 1.0), (2.5, -7.0)),
    "filtered": (lambda x, a, b: x * sum(filter(None, [a, b])), (2.5, 1.0), (2.5, 0.0)),
    "any of a generator": (lambda x, a, b: x + any(n for n in (a, b)), (0.0, 1.0), (0.0, 0.0)),
    "another type": (lambda x, a, b: x * sum(map(float, [a, b])), (2.5, 1.0), (2, 1.0)),
}


@pytest.mark.parametrize("source", ["argument", "item of a tensor"])
@pytest.mark.parametrize("change", MISSES)
def test_function_results_that_decide_control_flow_are_guarded(change, source):
    use, one, other = MISSES[change]
    if change == "another type" and source != "argument":
        return  # numbers of a tensor have one type
    hits, _ = _compare_calls(use, source, [one, one, one, other], backend="eager")
    assert hits == [False, True, True, False]


def test_item_at_a_varying_index_matches_eager():
    def program(x, items, i):
        y = x * items[i]
        items[0] = 7.5
        return y + items[i]

    fast = magpy.compile(program, backend="eager")
    for items, i in (
        ([1.0, 2.0, 3.0], 1), ([1.0, 2.0, 3.0], 2), ([4.0, 5.0, 6.0, 7.0], 3), ([4.0, 5.0, 6.0], 0),
        ((8.0, 9.0, 3.0), 1), ([1.0, 2.0, 3], 2), ([1.0, True, 3.0], 1), ([1.0], 2),
        ([1.0, 2.0], -1),
    ):  # fmt: skip
        found = []
        for run in (program, fast):
            arguments = items[:]
            try:
                found.append((run(torch.ones(2), arguments, i), arguments))
            except (IndexError, TypeError) as error:
                found.append((type(error), str(error), arguments))
        assert_same(*found)


def test_items_at_varying_indices_hit():
    def program(x, items, i):
        return x * items[i] + items[-i]

    fast = magpy.compile(program, backend="eager")
    for i in (1, 2, 3, 2, 4, 5):
        items = [0.5 * (n + i) for n in range(6)]
        assert_same(fast(torch.ones(2), items, i), program(torch.ones(2), items, i))
    assert magpy.cache_info(fast).hits == 4


def test_fraction_is_one_lifted_value():
    """A fraction is compared and stored as one value."""
    from fractions import Fraction

    def program(x, n):
        total = sum(Fraction(n + i, 7) for i in range(2))
        return x * total.numerator, total

    fast = magpy.compile(program, backend="eager")
    for n in (2, 3, 4, 3, 11, 4):
        assert_same(fast(torch.ones(2), n), program(torch.ones(2), n))


@pytest.mark.parametrize("function", [functools.reduce, max, min])
def test_exceptions_of_native_functions_match_eager(function):
    def program(x, items):
        try:
            arguments = (operator.add, items) if function is functools.reduce else (items,)
            keywords = {} if function is functools.reduce else {"key": lambda n: -n}
            return x * function(*arguments, **keywords)
        except (TypeError, ValueError) as error:
            return x, type(error), str(error), error.__context__ is None

    fast = magpy.compile(program, backend="eager")
    for items in ([1.0, 2.0], [], [3.0], [], [2.0, 1.0]):
        assert_same(fast(torch.ones(2), items), program(torch.ones(2), items))


def test_program_splits_inside_a_native_function():
    """The order of two tensors' values decides ``max``; the rest is a segment of its own."""

    def program(x):
        return x * max([x[0].item(), x[1].item()], key=lambda n: -n)

    fast = magpy.compile(program, backend="eager")
    for i, pair in enumerate(PAIRS):
        x = torch.tensor([*pair[:: 1 if i % 3 else -1], 1.0])
        assert_same(fast(x), program(x))
    info = magpy.cache_info(fast)
    assert info.hits >= len(PAIRS) - 7


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magpy"])
@pytest.mark.parametrize(
    "power",
    [
        lambda x: (-2.0) ** x,
        lambda x: x * (-2) ** x.shape[0],
        lambda x: (x, (-2) ** x.shape[0]),
    ],
)
def test_power_of_a_negative_base_matches_eager(power, backend):
    fast = magpy.compile(power, backend=backend, dynamic=True)
    for size in (3, 4, 5, 6, 4):
        x = torch.arange(1.0, size + 1)
        assert_same(fast(x), power(x))


REJECTED = {
    "with multiple positional": lambda x, n: x * max(n, 3, key=abs, default=2),
    "arg 2 must support": lambda x, n: x * functools.reduce(operator.add, n),
}


@pytest.mark.parametrize("message", REJECTED)
def test_polyfills_reject_invalid_arguments_as_native_functions_do(message):
    fast = magpy.compile(REJECTED[message], backend="eager")
    for _ in range(2):
        with pytest.raises(TypeError, match=message):
            fast(torch.ones(2), 5)
