"""Random programs over containers, attributes, closures and tensors, compared with eager mode.

A program is generated as source text and loaded twice, each time with globals of its own, so that
one copy runs eagerly and the other compiled. Between calls the inputs change, and so does the state
that the program reads.
"""

from __future__ import annotations

import collections
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import load, namespace, tensor

PRELUDE = """
import torch, collections, functools
class Thing:
    kind = 2
    def __init__(self, size):
        self.size = size
        self.parts = [size, size + 1]
        self.saved = None
    def grow(self, by):
        self.size = self.size + by
        return self.size
    @property
    def double(self):
        return self.size * 2
    def __len__(self):
        return len(self.parts)
    def __getitem__(self, i):
        return self.parts[i]
class Slim:
    __slots__ = ("value",)
    def __init__(self, value):
        self.value = value
scale = 2
shared = {"a": 1, "b": [1, 2], "t": torch.ones(3)}
things = [Thing(3), Thing(1)]
log = []
state = torch.zeros(3)
slim = Slim(4)
"""

# Each statement preserves these locals: n, m (numbers), x, y (tensors of three), d (a dictionary of
# numbers), s (a list of numbers), o (a Thing). Indented blocks are written with a |.
NUMBERS = [
    "n", "m", "len(s)", "scale", "o.size", "d.get('a', 3)", "shared['a']", "len(shared['b'])",
    "s[0] if s else 7", "o.double", "things[0].size", "slim.value", "o.kind", "len(o)", "o[0]",
    "sum(s)", "x.dim()", "x.shape[0]", "max(s, default=1)", "counter()", "1 if 'k' in d else 2",
    "len(log)", "(lambda q: q + n)(1)", "int(o is things[0])", "int(s is shared['b'])",
    "sorted(d.values())[0] if d else 0", "functools.reduce(lambda a, b: a + b, s, 0)",
    "getattr(o, 'extra', 5)", "isinstance(o.saved, torch.Tensor) + 0", "shared['b'][-1]",
]  # fmt: skip
TENSORS = [
    "x", "y", "x + y", "x * {n}", "torch.relu(y) - {n}", "shared['t'] * x", "state + x",
    "torch.stack([x, y]).sum(0)", "(o.saved if o.saved is not None else x)", "x.clone()",
    "x.detach() * 2", "x[torch.tensor([2, 1, 0])]", "torch.where(x > 0, x, y)", "make(x)({n})",
    "torch.cat([x[:1], y[1:]])", "x.view(3)", "sum([x * i for i in range(2)], y)",
    "x @ torch.eye(3)",
]  # fmt: skip
STATEMENTS = [
    "n = {n}", "m = {n} + {n}", "n = {n} % 5", "x = {t}", "y = {t}", "x, y = y, x",
    "s.append({n})", "s = s + [{n}]", "s = list(s[:2])", "s = shared['b']", "s = [n, m]",
    "d['a'] = {n}", "d['k'] = d.pop('a', 1)", "d = dict(d, b={n})", "d = shared if n > 50 else d",
    "o.size = {n}", "o.grow({n})", "o = things[{n} % 2]", "o = Thing({n})", "o.saved = {t}",
    "o.extra = {n}", "o.__dict__.pop('extra', None)", "o.parts[0] = {n}", "o.parts = s",
    "shared['a'] = {n} % 7", "shared['t'] = {t}", "shared['b'] = s[:3]", "shared['o'] = o",
    "shared.pop('o', None)", "log.append({n})", "log.append('called')", "things.reverse()",
    "slim.value = {n} % 9", "x = x.add_({n})", "y.mul_(2)", "x[0] = {n}", "y[1:] += 1",
    "state.add_(1)", "state.copy_({t})", "globals_()['scale'] = {n} % 4", "counter()",
    "del s[:1]", "s.sort()", "s.clear()", "x = (lambda q: q * 2)(x)", "Thing.kind = {n} % 3",
    "if {n} > 2:|    x = {t}|else:|    y = {t}", "for i in s[:3]:|    x = x + i",
    "for k, v in list(d.items()):|    n = n + v", "while n > 3:|    n = n - 3",
    "try:|    n = s[3]|except IndexError:|    n = {n}", "with torch.no_grad():|    y = {t}",
    "match s:|    case [a, *_]:|        n = a|    case _:|        n = 0",
    "n = sum(v for v in s if v > 1)", "s = [v * 2 for v in s][:4]", "x = [x, y][{n} % 2]",
    "d = {{str(i): i for i in s[:2]}}", "y = x", "y = x.view(-1)",
    "y = o.saved if o.saved is x else y",
    "d['self'] = len(d)", "def inner(q):|    return q * n|x = inner(x)",
    "def outer():|    kept = [n]|    def get():|        return kept[0]|    return get|"
    "n = outer()()",
]  # fmt: skip
RESULTS = [
    "x", "(x, y, n)", "[x, s, d]", "{'x': x, 'o': o}", "(o, things[0])", "s", "(n, m, len(log))",
    "shared", "(d, s, x)", "(lambda: x)", "(o.grow, x)", "collections.Counter(s)", "(y is x, x)",
    "(shared['b'] is s, state)", "collections.OrderedDict(x=x, n=n)", "slice(0, n)",
    "(v for v in s)",
]  # fmt: skip
FUNCTIONS = """
def globals_():
    return globals_dict
globals_dict = globals()
def counter():
    global ticks
    ticks = ticks + 1
    return ticks % 3
ticks = 0
def make(t):
    def times(k):
        return t * k
    return times
"""
CHANGES = [
    "scale = 5", "shared['a'] = 9", "shared['b'].append(4)", "shared['t'] = torch.ones(3) * 4",
    "things[0].size = 8", "things.append(Thing(7))", "things[0], things[1] = things[1], things[0]",
    "state.add_(3)", "state = torch.ones(3) * 6", "slim = Slim(1)", "Thing.kind = 5",
    "Thing.double = property(lambda self: 11)", "things[1].extra = 2", "log.clear()",
    "shared['b'] = things[0].parts", "Thing.__len__ = lambda self: 9",
    "things[0].__class__ = Slimmer",
    "counter = lambda: 1", "make = lambda t: lambda k: t + k", "things[0].saved = state", "pass",
]  # fmt: skip
EXTRA = """
class Slimmer(Thing):
    kind = 8
    def grow(self, by):
        return 1
"""


@st.composite
def numbers(draw):
    return draw(st.sampled_from(NUMBERS) | st.integers(-1, 4).map(str))


@st.composite
def tensors(draw):
    return draw(st.sampled_from(TENSORS)).replace("{n}", f"({draw(numbers())})")


@st.composite
def programs(draw, most):
    body = []
    for _ in range(draw(st.integers(1, most))):
        text = draw(st.sampled_from(STATEMENTS))
        while "{n}" in text:
            text = text.replace("{n}", draw(numbers()), 1)
        while "{t}" in text:
            text = text.replace("{t}", draw(tensors()), 1)
        body += text.replace("{{", "{").replace("}}", "}").split("|")
    result = draw(st.sampled_from(RESULTS))
    lines = "\n".join(f"    {line}" for line in body)
    return (
        f"{PRELUDE}{EXTRA}{FUNCTIONS}"
        f"def program(x, y, n, s, d, o=None):\n    m = 1\n    o = things[0] if o is None else o\n"
        f"{lines}\n    return {result}\n"
    )


def inputs(names, which):
    """The arguments of one call; some share objects with each other or with the globals."""
    x, y = tensor(1, -2, 3), tensor(4, 5, -6)
    n, s, d, o = 1, [1, 2], {"a": 2}, None
    if which == 1:
        n = 3
    elif which == 2:
        y = x
    elif which == 3:
        s = names["shared"]["b"]
    elif which == 4:
        o, d = names["things"][1], names["shared"]
    elif which == 5:
        x, s = names["state"], []
    elif which == 6:
        y = x.view(3)
        d = {"k": 1, "a": 2}
    elif which == 7:
        o = names["Thing"](2)
        o.parts = s
    return x, y, n, s, d, o


def outcome(program, args):
    try:
        result = program(*args)
        return list(result) if type(result).__name__ == "generator" else result
    except Exception as error:
        return type(error).__name__, str(error)


def comparable(value):
    """Replaces objects of the program's own classes, which differ between its copies, by their
    state."""
    return Copies().of(value)


class Copies:
    def __init__(self):
        self.made = {}

    def of(self, value):
        if id(value) in self.made:
            return self.made[id(value)][1]
        if type(value).__module__ == "loaded" and not isinstance(value, type):
            stand_in = [type(value).__name__]
            self.made[id(value)] = value, stand_in
            state = vars(value) if hasattr(value, "__dict__") else {"value": value.value}
            stand_in += [(k, self.of(v)) for k, v in sorted(state.items())]
            return stand_in
        kind = type(value)
        if kind in (list, tuple, dict, collections.Counter, collections.OrderedDict):
            if kind is tuple:
                return tuple(self.of(v) for v in value)
            stand_in = [kind.__name__]
            self.made[id(value)] = value, stand_in
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            stand_in += [(k, self.of(v)) for k, v in parts]
            return stand_in
        if kind.__name__ in ("function", "method"):
            return [kind.__name__, value.__name__]
        return value if not isinstance(value, type) else (value.__name__, getattr(value, "kind", 0))


def visible(program):
    """The globals that the program may have changed."""
    names = namespace(program)
    kept = ("scale", "shared", "things", "log", "state", "slim", "ticks", "Thing")
    return {name: names[name] for name in kept if name in names}


def compare(source, calls):
    make = load(source.replace("class Thing:", "__name__ = 'loaded'\nclass Thing:"))
    eager, target = make(), make()
    compiled = magpy.compile(target, backend="eager")
    for i, (which, change) in enumerate(calls):
        for program in (eager, target):
            exec(change, program.__globals__)
        expected_args = inputs(eager.__globals__, which)
        actual_args = inputs(target.__globals__, which)
        expected, actual = outcome(eager, expected_args), outcome(compiled, actual_args)
        assert_same(
            comparable((actual, actual_args, visible(target))),
            comparable((expected, expected_args, visible(eager))),
            what=f"call {i}",
        )
        if callable(expected):
            assert_same(actual(), expected())
    return magpy.cache_info(compiled)


CALLS = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, *range(1, 8)]), st.sampled_from(["pass"] * 12 + CHANGES)),
    min_size=3,
    max_size=7,
)
QUIET = {
    "deadline": None,
    "derandomize": "MAGPY_RANDOM" not in os.environ,
    "suppress_health_check": list(HealthCheck),
    "database": None,
}


@settings(max_examples=120, **QUIET)
@given(programs(most=6), CALLS)
def test_random_program_equals_eager(source, calls):
    compare(source, calls)


@pytest.mark.full
@settings(max_examples=3000, **{**QUIET, "derandomize": False})
@given(programs(most=12), CALLS)
def test_many_random_programs_equal_eager(source, calls):
    compare(source, calls)


def test_generated_programs_are_recorded_and_hit():
    """The comparison would be void if every program ran natively."""
    body = "def program(x, y, n, s, d, o=None):\n    s.append(n)\n    return x * s[0]\n"
    source = f"{PRELUDE}{EXTRA}{FUNCTIONS}{body}"
    info = compare(source, [(0, "pass")] * 4)
    assert (info.hits, info.misses) == (3, 1)
