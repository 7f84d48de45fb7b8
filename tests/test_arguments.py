"""Arguments of the public functions: an error of the family at the call, with what exists."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.arguments import ARGUMENTS
from tests.compare import assert_same
from tests.programs import matrix, tensor


def program(x):
    return x + 1


def mark(tensor, dim):
    return lambda: magpy.mark_dynamic(tensor, dim)


def compiling(**settings):
    return lambda: magpy.compile(program, **settings)


class BadRepr:
    def __repr__(self):
        raise RuntimeError("no text")


# argument, what was given, what exists: each a part of the message
WRONG = {
    "fullgraph": (compiling(fullgraph="yes"), ("fullgraph", "'yes'", "True or False")),
    "fullgraph 1": (compiling(fullgraph=1), ("fullgraph", "1", "True or False")),
    "dynamic": (compiling(dynamic=2), ("dynamic", "2", "True, False or None")),
    "dynamic array": (compiling(dynamic=np.ones(2)), ("dynamic", "array", "True, False or None")),
    "mode": (compiling(mode=3), ("mode", "3", "'reduce-overhead'")),
    "mode of a callable": (
        compiling(mode=3, backend=lambda g, i: g),
        ("mode", "3", "the name of a mode"),
    ),
    "close mode": (
        compiling(mode="max-autotun"),
        ("mode", "'max-autotun'", "did you mean 'max-autotune'?"),
    ),
    "options": (compiling(options=[1]), ("options", "[1]", "a dictionary")),
    "keys of options": (compiling(options={1: 2}), ("options", "{1: 2}", "names")),
    "record_limit": (
        compiling(options={"record_limit": 0}),
        ("record_limit", "=0", "a positive int"),
    ),
    "limit True": (
        compiling(options={"record_limit": True}),
        ("record_limit", "=True", "a positive int"),
    ),
    "backend": (compiling(backend=3), ("backend", "3", "a callable")),
    "no backend": (compiling(backend=None), ("backend", "None", "a callable")),
    "backend's name": (
        compiling(backend="inducto"),
        ("backend", "'inducto'", "did you mean 'inductor'?"),
    ),
    "disabled": (compiling(disable="no"), ("disable", "'no'", "True or False")),
    "model": (lambda: magpy.compile(3), ("model", "3", "callable")),
    "model without a text": (lambda: magpy.compile(BadRepr()), ("model", "a BadRepr")),
    "without a model": (lambda: magpy.compile(fullgraph="yes"), ("fullgraph", "'yes'")),
    "dim": (mark(torch.ones(2, 2), [0, 1]), ("dim", "[0, 1]", "an int")),
    "dim True": (mark(torch.ones(2, 2), True), ("dim", "True", "an int")),
    "no such dim": (mark(torch.ones(2, 2), 2), ("dim", "2", "2 dimensions")),
    "no tensor": (mark([1, 2], 0), ("tensor", "[1, 2]", "a tensor")),
    "disable": (lambda: magpy.disable(3), ("fn", "3", "callable")),
    "cache_info": (lambda: magpy.cache_info(len), ("cache_info", "compiled", "len", "compile")),
    "reset": (lambda: magpy.reset(len), ("reset", "compiled", "len", "compile")),
    "path": (lambda: magpy.load_annotations(3), ("load_annotations", "path", "3", "path of")),
    "explain": (lambda: magpy.explain(3), ("explain", "target", "3", "callable")),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_argument_raises_an_error_of_the_family_at_the_call(name):
    call, parts = WRONG[name]
    with pytest.raises(magpy.ArgumentError) as raised:
        call()
    assert isinstance(raised.value, magpy.MagpyError)
    assert isinstance(raised.value, TypeError) and isinstance(raised.value, ValueError)
    for part in parts:
        assert part in str(raised.value)


def test_error_has_its_parts_as_attributes():
    with pytest.raises(magpy.ArgumentError) as raised:
        magpy.compile(program, dynamic=2)
    error = raised.value
    assert (error.function, error.argument, error.given) == ("compile", "dynamic", 2)


def test_long_values_are_cut():
    with pytest.raises(magpy.ArgumentError) as raised:
        magpy.compile(program, dynamic=list(range(10_000)))
    assert len(str(raised.value)) < 200 and "…" in str(raised.value)


def test_every_argument_of_the_table_has_a_wrong_value_above():
    listed = {(f, a) for f, arguments in ARGUMENTS.items() for a in arguments}
    seen = set()
    for call, _ in WRONG.values():
        with pytest.raises(magpy.ArgumentError) as raised:
            call()
        seen.add((raised.value.function, raised.value.argument))
    assert listed <= seen


@pytest.mark.parametrize("result", [None, 3])
def test_backend_that_returns_no_callable_raises_at_the_first_call(result):
    fast = magpy.compile(program, backend=lambda graph, inputs: result)
    with pytest.raises(magpy.ArgumentError, match=rf"backend=.*returned {result}"):
        fast(tensor(1))


# --- model and disable, as torch.compile has them -------------------------------------------------


def test_model_may_be_passed_by_name():
    assert_same(magpy.compile(model=program, backend="eager")(tensor(1)), tensor(2))
    assert callable(magpy.compile(model=None))


def test_disable_returns_the_model_itself():
    model = nn.ReLU()
    assert magpy.compile(model, disable=True) is model
    assert magpy.compile(program, disable=True) is program
    assert magpy.compile(disable=True)(program) is program
    assert magpy.compile(magpy.compile(model), disable=True) is model
    assert magpy.compile(magpy.compile(program), disable=True) is program


# --- compiling again ------------------------------------------------------------------------------


class Scaled(nn.Module):
    def forward(self, x):
        return x * 2


@pytest.mark.parametrize("make", [lambda: program, Scaled], ids=["function", "module"])
def test_compiling_again_with_the_same_settings_changes_nothing(make):
    settings = {"backend": "eager", "dynamic": True, "options": {"record_limit": 3}}
    fast = magpy.compile(make(), **settings)
    assert magpy.compile(fast, **{**settings, "options": {"record_limit": 3}}) is fast


@pytest.mark.parametrize("make", [lambda: program, Scaled], ids=["function", "module"])
@pytest.mark.parametrize(
    "other",
    [
        {"mode": "max-autotune"},
        {"fullgraph": True},
        {"dynamic": False},
        {"backend": "eager"},
        {"options": {"record_limit": 2}},
    ],
    ids=str,
)
def test_compiling_again_with_other_settings_compiles_the_original_anew(make, other):
    original = make()
    first = magpy.compile(original)
    first(tensor(1))
    second = magpy.compile(first, **other)
    assert second is not first and magpy.cache_info(second).misses == 0
    for _ in range(2):
        assert_same(second(tensor(1)), original(tensor(1)))
    assert magpy.cache_info(second)[:2] == (1, 1)
    assert magpy.cache_info(first)[:2] == (0, 1), "the first keeps its records"
    assert magpy.compile(second) is not second, "settings that are not given are the defaults"


class Shift:
    def __call__(self, x):
        return x + 1


class Table:
    def __init__(self, x):
        self.content = x * 2


KINDS = {
    "object": lambda **settings: magpy.compile(Shift(), **settings),
    "class": lambda **settings: magpy.compile(Table, **settings),
    "method": lambda **settings: magpy.compile(Scaled().forward, **settings),
    "method of a compiled module": lambda **settings: magpy.compile(Scaled(), **settings).forward,
}


@pytest.mark.parametrize("name", KINDS)
def test_compiling_again_works_for_everything_that_can_be_compiled(name):
    first = KINDS[name](backend="eager")
    expected = vars(first(tensor(1))) if name == "class" else first(tensor(1))
    assert magpy.compile(first, backend="eager") == first
    second = magpy.compile(first, backend="eager", dynamic=True)
    assert second is not first and second != first
    for _ in range(2):
        result = second(tensor(1))
        assert_same(vars(result) if name == "class" else result, expected)
    assert magpy.cache_info(second)[:2] == (1, 1)
    assert magpy.cache_info(first)[:2] == (0, 1)
    assert magpy.explain(second, tensor(1)).graph_count == 1
    original = magpy.compile(second, disable=True)
    original(tensor(1)), magpy.disable(second)(tensor(1))
    assert magpy.cache_info(second)[:2] == (1, 1)
    assert magpy.compile(original, disable=True) == original


def test_compiled_methods_are_compiled_anew_with_their_objects():
    class Model:
        factor = 3

        @magpy.compile(backend="eager")
        def forward(self, x):
            return x * self.factor

    method = Model().forward
    assert magpy.compile(method, backend="eager") is method
    again = magpy.compile(method, backend="eager", dynamic=True)
    assert_same([again(tensor(1)), again(tensor(2))], [tensor(3), tensor(6)])
    assert magpy.cache_info(again).hits == 1


def test_explanation_of_a_compiled_method_knows_what_has_varied():
    class Model:
        @magpy.compile(backend="eager")
        def forward(self, x, n):
            return x * n

    method = Model().forward
    method(tensor(1), 2), method(tensor(1), 3)
    assert magpy.explain(method, tensor(1), 5).lifted == ["args[2]"]


def test_function_around_a_compiled_one_is_compiled_whole():
    fast = magpy.compile(program, backend="eager")

    @functools.wraps(fast)
    def twice(x):
        return fast(fast(x))

    again = magpy.compile(twice, backend="eager", fullgraph=True)
    for _ in range(2):
        assert_same(again(tensor(1)), tensor(3))
    (graph,) = magpy.explain(twice, tensor(1)).graphs
    assert [node.op for node in graph.graph.nodes].count("call_function") == 2


def test_compiled_module_is_disabled_by_its_original():
    model = Scaled()
    fast = magpy.compile(model, backend="eager")
    disabled = magpy.disable(fast)
    assert_same(disabled(matrix()), model(matrix()))
    assert magpy.cache_info(fast)[:2] == (0, 0)
