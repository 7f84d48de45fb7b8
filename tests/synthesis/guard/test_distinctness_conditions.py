"""Equal but distinct values, and dependences through native code."""

import contextlib
import functools
import importlib
import inspect
import itertools
import json
import math
import re
import sys
import types
import typing
import warnings

import numpy as np
import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import Twins, check_results, tensor


def _x():
    return tensor(1.0, -2.0, 3.0)


def _divided_by_keys(x, found):
    for key in found:
        x = x / key
    return x


def _length_of_text(x, found):
    return x * len(str(found)), str(found)


def _sign_of_imaginary(x, found):
    return x * math.copysign(1, found.imag)


def _field(x, found):
    return x + float(found["f"])


def _record(value):
    found = np.zeros(1, dtype=[("f", "f4")])
    found["f"] = value
    return found[0]


def _fortran(array):
    return np.asfortranarray(array)


_ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def _read_only(array):
    array.flags.writeable = False
    return array


DISTINCT_VALUES = {
    "zeros of both signs as keys": (_divided_by_keys, [lambda: {0.0: 1}, lambda: {-0.0: 1}]),
    "zeros in keys that are tuples": (
        lambda x, found: [x / key[0] for key in found],
        [lambda: {(0.0,): 1}, lambda: {(-0.0,): 1}],
    ),
    "times of other units": (
        _length_of_text,
        [lambda: np.timedelta64(1, "h"), lambda: np.timedelta64(60, "m")],
    ),
    "dates of other units": (
        _length_of_text,
        [lambda: np.datetime64("2020-01-01", "D"), lambda: np.datetime64("2020-01-01", "s")],
    ),
    "imaginary zeros of both signs": (
        _sign_of_imaginary,
        [lambda: np.complex64(complex(1, 0.0)), lambda: np.complex64(complex(1, -0.0))],
    ),
    "structured scalars": (_field, [lambda: _record(1), lambda: _record(2)]),
    "shapes of arrays": (
        lambda x, a: (x * a.shape[0], a.ndim),
        [lambda: np.ones(2), lambda: np.ones(3), lambda: np.ones((2, 2))],
    ),
    "shapes of large arrays": (
        lambda x, a: (x * a.shape[0], a.strides),
        [lambda: np.ones(20000), lambda: np.ones(30000), lambda: np.ones((200, 200))],
    ),
    "lengths and types of arrays": (
        lambda x, a: (x * len(a), a.size, a.itemsize),
        [lambda: np.ones(2), lambda: np.ones(3), lambda: np.ones(2, np.float32)],
    ),
    "orders of arrays": (
        lambda x, a: (torch.from_numpy(a), a.strides, x + torch.from_numpy(a)),
        [lambda: _ARRAY.copy(), lambda: _fortran(_ARRAY), lambda: _ARRAY[:, ::2].copy()],
    ),
    "arrays that may not be written": (
        lambda x, a: x * int(a.flags.writeable),
        [lambda: np.ones(2), lambda: _read_only(np.ones(2))],
    ),
}


@pytest.mark.parametrize("name", DISTINCT_VALUES)
def test_equal_but_distinct_values_have_records_of_their_own(name):
    program, values = DISTINCT_VALUES[name]
    check_results(lambda: program, *[lambda make=make: (_x(), make()) for make in values])


def _by_another_key(x, found):
    found.pop(1)
    found[True] = 7
    return x


def _by_another_kind_of_number(x, found):
    value = found.popitem()
    found[float(value[0])] = value[1]
    return x


def _cleared_and_filled(x, found):
    found.clear()
    found[True] = 7
    return x


@pytest.mark.parametrize(
    "program", [_by_another_key, _by_another_kind_of_number, _cleared_and_filled]
)
def test_key_that_replaces_an_equal_one_is_kept(program):
    check_results(lambda: program, lambda: (_x(), {1: 5}), lambda: (_x(), {1: 6}))


def test_member_that_replaces_an_equal_one_is_kept():
    def program(x, found):
        found.remove(1)
        found.add(True)
        return x, sorted(map(repr, found))

    check_results(lambda: program, lambda: (_x(), {1, 2}))


# --- numbers read through two access paths --------------------------------------------------------


class _Holder:
    def __init__(self, v):
        self.v, self.entries, self.table = v, [v, 0.5], {"v": v}


TWO_READS = {
    "getattr, then the attribute": lambda x, o: x * (getattr(o, "v") * 2) + o.v,
    "the attribute, then getattr": lambda x, o: x * o.v + getattr(o, "v") * 2,
    "object's own getter": lambda x, o: x * object.__getattribute__(o, "v") + o.v,
    "the largest, then an element": lambda x, o: x * max(o.entries) + o.entries[0],
    "an element, then the largest": lambda x, o: x * o.entries[0] + max(o.entries),
    "get, then the item": lambda x, o: x * o.table.get("v") + o.table["v"],
    "the item, then pop": lambda x, o: x * o.table["v"] + o.table.pop("v"),
    "unpacked, then an element": lambda x, o: (lambda a, b: x * a + o.entries[0])(*o.entries),
    "all attributes": lambda x, o: x * o.v + sum(v for v in vars(o).values() if type(v) is float),
}


@pytest.mark.filterwarnings("ignore:.*not recorded any more")
@pytest.mark.parametrize("name", TWO_READS)
def test_varying_number_is_guarded_on_all_access_paths(name):
    values = [lambda v=v: (_x(), _Holder(v)) for v in (1.0, 2.0, 3.0, 1.0, 7.0)]
    check_results(lambda: TWO_READS[name], *values)


@pytest.mark.filterwarnings("ignore:.*not recorded any more")
def test_counter_read_before_its_increment_is_guarded():
    def make():
        state = types.SimpleNamespace(steps=1)

        def program(x):
            before = getattr(state, "steps")
            state.steps += 1
            return x * before

        return program

    check_results(make, *[lambda: (_x(),)] * 3)


# --- dependences through native or annotated code -------------------------------------------------


def _with(**state):
    """Decorator: the program receives a namespace with this state as its first argument."""

    def enter(program):
        def make():
            found = types.SimpleNamespace(**{name: value() for name, value in state.items()})

            def bound(x):
                return program(found, x)

            bound.state = found
            return bound

        make.__name__ = program.__name__
        return make

    return enter


class _Named:
    pass


def _plain_class():
    class Plain: ...

    return Plain


def _function():
    def function(a: int, b=1): ...

    return function


@_with(factor=lambda: 2)
def _substitutes(s, x):
    return x * len(re.sub("a", lambda match: "b" * s.factor, "aaa"))


@_with(factor=lambda: 2)
def _encodes(s, x):
    return x * len(json.dumps({"a": _Named()}, default=lambda _: [1] * s.factor))


@_with(factor=lambda: 2)
def _decodes(s, x):
    return x * json.loads('{"a": 1}', object_hook=lambda _: s.factor)


@_with(cls=_plain_class)
def _names_class(s, x):
    return x * len(s.cls.__name__)


@_with(cls=_plain_class)
def _names_class_of_instance(s, x):
    return x * len(type(s.cls()).__name__)


@_with(function=_function)
def _inspects_defaults(s, x):
    return x * inspect.signature(s.function).parameters["b"].default


@_with(function=_function)
def _inspects_annotations(s, x):
    return x * len(typing.get_type_hints(s.function)["a"].__name__)


def _longer_name(program):
    program.state.cls.__name__ = "LongerName"


def _other_defaults(program):
    program.state.function.__defaults__ = (5,)


def _other_annotation(program):
    program.state.function.__annotations__["a"] = float


def _other_factor(program):
    program.state.factor = 5


HIDDEN_DEPENDENCES = [
    (_substitutes, _other_factor),
    (_encodes, _other_factor),
    (_decodes, _other_factor),
    (_names_class, _longer_name),
    (_names_class_of_instance, _longer_name),
    (_inspects_defaults, _other_defaults),
    (_inspects_annotations, _other_annotation),
]


@pytest.mark.parametrize(("make", "change"), HIDDEN_DEPENDENCES, ids=lambda f: f.__name__)
def test_change_of_a_hidden_dependence_must_miss(make, change):
    twins = Twins(make)
    for i in range(3):
        twins.call(lambda: (_x(),), why=f"call {i}")
    twins.change(change)
    for i in range(2):
        twins.call(lambda: (_x(),), why=f"call {i} after the change")


def test_native_method_of_a_pattern_is_on_the_operand_stack_at_a_split():
    found = re.compile("[ ]*").match

    def program(x, _match=found):
        return _after(x, at=_match("  q", 0).end())

    def _after(x, at):
        return x * at

    check_results(lambda: program, lambda: (_x(),))


@contextlib.contextmanager
def _module(**contents):
    module = types.ModuleType("found_by_import")
    vars(module).update(contents)
    sys.modules["found_by_import"] = module
    try:
        yield
    finally:
        del sys.modules["found_by_import"]


def _imports(x):
    import found_by_import

    return x * found_by_import.k


def _imports_name(x):
    from found_by_import import k

    return x * k


def _imports_by_name(x):
    return x * importlib.import_module("found_by_import").k


@pytest.mark.parametrize("program", [_imports, _imports_name, _imports_by_name])
def test_replaced_module_is_imported(program):
    compiled = magpy.compile(program, backend="eager")
    for k in (2.0, 3.0, 2.0):
        with _module(k=k):
            for _ in range(2):
                assert_same(compiled(_x()), _x() * k)


def test_error_handling_of_numpy_is_guarded():
    @magpy.compile(backend="eager")
    def program(x):
        try:
            return x * float(np.log(np.array([0.0]))[0])
        except FloatingPointError:
            return x * 7

    for divide in ("ignore", "raise", "ignore"):
        with np.errstate(divide=divide):
            for _ in range(2):
                expected = _x() * (7 if divide == "raise" else -math.inf)
                assert_same(program(_x()), expected)


# --- new objects ----------------------------------------------------------------------------------


class _Text(str):
    def __str__(self):
        return "other"


class _Whole(int):
    def __int__(self):
        return 77


class _Broken(float):
    def __float__(self):
        return 77.0


class _Bytes(bytes):
    def __bytes__(self):
        return b"77"


class _Doubled(list):
    def append(self, value):
        list.append(self, value)
        list.append(self, value)

    def natively(self):
        return super().append


class _Half:
    __slots__ = ("made", "unset")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 99


def _partial_with_attributes(x):
    found = functools.partial(max, 1)
    found.tag, found.tensor = 5, x
    return found


def _function_with_annotations(x):
    def inner(a: int, b: str = "2") -> float:
        """Says something."""
        return x

    return inner


def _instance_with_an_empty_slot(x):
    half = _Half()
    half.made = x
    return half


NEW_OBJECTS = [
    lambda x: (_Text("a"), _Whole(3), _Broken(2.5), _Bytes(b"q"), x),
    lambda x: _Doubled([x]).natively(),
    _partial_with_attributes,
    _function_with_annotations,
    _instance_with_an_empty_slot,
]


@pytest.mark.parametrize("program", NEW_OBJECTS)
def test_new_object_is_reconstructed_with_its_whole_state(program):
    twins = check_results(lambda: program, lambda: (_x(),))
    assert magpy.cache_info(twins.compiled).hits == 1


@pytest.mark.filterwarnings("ignore:.*not recorded any more")
def test_object_kept_by_the_previous_call_is_finalized():
    def make():
        log, state = [], types.SimpleNamespace(kept=None)

        class Ends:
            def __del__(self):
                log.append(1)

        def program(x):
            state.kept = Ends()
            return x * len(log)

        return program

    twins = Twins(make)
    for i in range(4):
        twins.call(lambda: (_x(),), why=f"call {i}")


# --- classes with overridden attribute access -----------------------------------------------------


class _LogsReads:
    def __init__(self, v):
        object.__setattr__(self, "v", v)
        object.__setattr__(self, "reads", [])

    def __getattribute__(self, name):
        object.__getattribute__(self, "reads").append(name)
        return object.__getattribute__(self, name)


class _LogsReadsOfSlots(_LogsReads):
    __slots__ = ("v", "reads")


class _Claims:
    claims = dict

    def __init__(self, v):
        self.v = v

    @property
    def __class__(self):
        return self.claims


class _Computes:
    def __init__(self, v):
        self.v = v

    def __getattribute__(self, name):
        if name == "doubled":
            return object.__getattribute__(self, "v") * 2
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("cls", [_LogsReads, _LogsReadsOfSlots])
def test_getattribute_of_an_instance_sees_only_reads_of_the_program(cls):
    compiled = magpy.compile(lambda x, o: x * o.v, backend="eager")
    for v in (1.0, 2.0, 1.0, 2.0):
        argument = cls(v)
        assert_same(compiled(_x(), argument), _x() * v)
        assert object.__getattribute__(argument, "reads") == ["v"]


def test_instance_that_claims_to_be_a_dictionary_is_not_treated_as_one():
    compiled = magpy.compile(
        lambda x, o: x * (o.v if isinstance(o, dict) else 5) * (type(o) is _Claims),
        backend="eager",
    )
    for v in (2.0, 3.0, 2.0):
        assert_same(compiled(_x(), _Claims(v)), _x() * v)


@pytest.mark.filterwarnings("ignore:.*not recorded any more")
def test_numbers_read_by_getattribute_are_guarded():
    compiled = magpy.compile(lambda x, o: x * o.doubled + o.v, backend="eager")
    for v in (1.0, 2.0, 1.0, 3.0):
        assert_same(compiled(_x(), _Computes(v)), _x() * 2 * v + v)


class _Refused(Exception):
    pass


def _keeps_text_of_exception(x, k):
    try:
        raise _Refused(k)
    except _Refused as error:
        return x, str(error), repr(error)


READ_BY_NATIVE_CODE = {
    "an exception": _keeps_text_of_exception,
    "deep containers": lambda x, k: (x, str([[[[[[k]]]]]]), json.dumps({"a": {"b": [[[k]]]}})),
    "a namespace": lambda x, k: (x, str(types.SimpleNamespace(k=k))),
    "a view": lambda x, k: (x, str({"a": k}.values()), str({"a": k}.items())),
    "a counter": lambda x, k: (x * next(itertools.count(k)), [*zip("ab", itertools.count(k, 2))]),
    "repetitions": lambda x, k: (x * next(itertools.repeat(k)), [*itertools.repeat(1, k)]),
}


@pytest.mark.filterwarnings("ignore:.*not recorded any more")
@pytest.mark.parametrize("name", READ_BY_NATIVE_CODE)
def test_varying_number_that_native_code_reads_is_guarded(name):
    check_results(lambda: READ_BY_NATIVE_CODE[name], *[lambda k=k: (_x(), k) for k in (2, 3, 4, 2)])


def test_warning_filter_that_raises_is_guarded():
    @magpy.compile(backend="eager")
    def program(x):
        try:
            warnings.warn("careful", UserWarning)
        except UserWarning:
            return x * 5
        return x

    for action in ("ignore", "error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            for _ in range(3):
                assert_same(program(_x()), _x() * (5 if action == "error" else 1))
