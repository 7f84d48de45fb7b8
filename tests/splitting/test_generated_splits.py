"""Generated programs that split, over several calls: values, order of effects, exceptions."""

import contextlib
import linecache
import textwrap
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import magpy_like as magpy
from tests.compare import assert_same
from tests.splitting.grammar import Grammar

EXPRESSIONS = (
    "x",
    "{n}",
    "({e} + {e})",
    "({n} * {i})",
    "logged({n})",
    "helper({e}, k={i})",
    "method(Box({n}))",
    "sum([helper({n}, k=j) for j in range({i})], {n})",
    "torch.stack([logged({n} + j) for j in range(2)]).sum(0)",
    "(lambda v: logged(v) + {n})({e})",
    "[{n}, {e}][{i} % 2]",
    "{{'a': {n}, 'b': {e}}}['a']",
    "({n} if {n}.sum() > {i} else logged({e}))",
    "next(parts({n}))",
)
STATEMENTS = (
    "{n} = {e}",
    "effect({n})",
    "state['count'] += 1; effect(state['count'])",
    "log.append({i})",
    "state['kept'] = {n}; effect('kept')",
    "box.value = {e}",
    "{n} = {n} + box.value",
    "refuse({n})",
    "if {n}.sum() > {i}:\n{b}\nelse:\n{b}",
    "if state['count'] > {i}:\n{b}",
    "for j in range({i}):\n    effect(j)\n{b}",
    "for v, f in zip([{n}, {e}], (1.0, 2.0)):\n    {n} = v * f\n    effect(f)\n{b}",
    "while {n}.sum() > 2 and state['steps'] < 3:\n    state['steps'] += 1\n{b}",
    "try:\n{b}\nexcept ValueError as e:\n    effect(str(e))\n{b}\nfinally:\n    effect('f')",
    "try:\n    refuse({n})\nexcept ValueError:\n    {n} = {n} + 1\nelse:\n{b}",
    "with torch.no_grad():\n{b}",
    "with Quiet('q') as q:\n{b}",
    "with noted('g'):\n{b}",
    "return {e}",
    "continue_ = [logged(v) for v in ({n}, {e})]",
    "raise ValueError('own')",
    "def inner(v):\n    effect('inner')\n    return v + {n}\n{n} = inner({e})",
)


GRAMMAR = Grammar(EXPRESSIONS, STATEMENTS, ends=3)


@st.composite
def programs(draw):
    return f"""
class Box:
    def __init__(self, value):
        self.value = logged(value)
class Quiet:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        effect("enter " + self.name)
        return self
    def __exit__(self, kind, value, trace):
        log.append(f"exit {{self.name}} {{kind and kind.__name__}}")
        return kind is ValueError
@contextlib.contextmanager
def noted(name):
    log.append("begin")
    try:
        yield name
    finally:
        effect("end")
def parts(x):
    for factor in (1, 2):
        yield logged(x * factor)
def helper(x, *, k=0):
    return logged(x) + k
def method(box):
    return box.value * 2
def program(x):
    a, b, c = x, x + 1, x * 0 + 1
    box = Box(b)
{textwrap.indent(GRAMMAR.block(draw, 3), "    ")}
    return a, b, c, box.value
"""


def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


class IsolatedProgram:
    """The program with state of its own."""

    def __init__(self, text, fails):
        self.log, self.state = [], {"count": 0, "steps": 0, "kept": None}
        self.calls = 0

        def effect(value):
            self.log.append(("effect", plain(value), plain(self.state["kept"])))
            return len(self.log)

        def logged(value):
            effect(value)
            return value

        def refuse(value):
            self.calls += 1
            effect("refuse")
            if self.calls % fails == 0:
                raise ValueError(f"refused {plain(value)}")

        names = {
            "torch": torch, "contextlib": contextlib, "log": self.log, "state": self.state,
            "effect": magpy.disable(effect), "logged": magpy.disable(logged),
            "refuse": magpy.disable(refuse), "__name__": "program",
        }  # fmt: skip
        name = f"<split program {id(self)}>"
        exec(compile(text, name, "exec"), names)
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        self.run = names["program"]

    def outcome(self, run, x):
        try:
            result = run(x)
        except (ValueError, UnboundLocalError, NameError) as error:
            result = (type(error).__name__, str(error))
        return result, list(self.log), dict(self.state), torch.is_grad_enabled()


def compare(text, fails):
    mine, theirs = IsolatedProgram(text, fails), IsolatedProgram(text, fails)
    fast = magpy.compile(mine.run, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in (1.0, 1.0, -2.0, 1.0, 3.0):
            x = torch.full((2,), value)
            assert_same(mine.outcome(fast, x.clone()), theirs.outcome(theirs.run, x.clone()))


SETTINGS = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=40, **SETTINGS)
@given(programs(), st.integers(1, 3))
def test_generated_program_that_splits_equals_eager(text, fails):
    compare(text, fails)


@pytest.mark.full
@settings(max_examples=3000, **SETTINGS)
@given(programs(), st.integers(1, 4))
def test_many_generated_programs_that_split_equal_eager(text, fails):
    compare(text, fails)
