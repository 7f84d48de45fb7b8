"""Programs that split: each segment has a record, and every observation equals eager's."""

import contextlib
import functools
import gc
import io
import logging
import os
import random
import sys
import time
import traceback

import numpy as np
import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same

LOG = []


def log_and_count(value):
    """A dynamic function with an effect that is visible at once."""
    LOG.append(value)
    return len(LOG)


opaque = magpy.disable(log_and_count)
new_file = magpy.disable(io.StringIO)


@magpy.disable
def refuse(limit):
    """A dynamic function that raises at every ``limit``-th entry of the log."""
    LOG.append("refuse")
    if len(LOG) % limit == 0:
        raise ValueError("refused")


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        return y * 2 if y.sum() > 0 else y - 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.gates = nn.Sequential(Gate(), nn.ReLU(), Gate())

    def forward(self, x):
        y = x + 1
        with torch.no_grad():
            opaque("in with")
            z = y * 2
        self.seen.append(z.shape)
        return self.gates(y) + z


def straight(x):
    y = x * 2
    opaque("between")
    return {"y": y, "z": [y + 1, y]}


def nested(x):
    def inner(a, *, k):
        b = a * k
        opaque(("inner", k))
        return b + k

    return inner(inner(x, k=2), k=3) - x


def in_loop(x):
    total = x
    for i, factor in enumerate([1.0, 2.0, 3.0]):
        total = total * factor
        opaque(i)
    return total


def while_large(x):
    steps = 0
    while x.sum() > 1:
        x = x / 2
        steps += 1
    return x, steps


def with_and_try(x):
    order = []
    with contextlib.suppress(KeyError):
        try:
            refuse(2)
            order.append("passed")
        except ValueError as error:
            order.append(str(error))
            x = x + 10
        finally:
            order.append("finally")
        x = x * 2
    return x, order


def escapes(x):
    y = x + 1
    refuse(2)
    return y


def closure(x):
    count = 0

    def add(n):
        nonlocal count
        count += n
        return count

    add(2)
    opaque("count")
    add(3)
    return x * count, count


def cell_of_an_active_frame(x):
    scale = x + 1
    opaque("cell")
    return x * sum(scale.sum() for _ in range(2))


def file_in_a_loop(x):
    for n in range(3):
        x = x + n
        with new_file() as file:
            write = file.write
            write(f"{n} ")
            x = x * 2
            print(x.sum().item(), file=file)
            opaque(file.getvalue())
    return x


def shared(x):
    pair = [x + 1]
    alias = pair
    opaque("alias")
    alias.append(x)
    return pair, alias is pair


def comprehension(x):
    return [opaque(i) * 0 + x * i for i in range(3)]


def through_partial(x):
    return functools.partial(nested)(x) + 1


PROGRAMS = [
    straight, nested, in_loop, while_large, with_and_try, escapes, closure, cell_of_an_active_frame,
    file_in_a_loop, shared, comprehension, through_partial,
]  # fmt: skip


def outcome(program, x):
    """The result or exception, and the external effects."""
    LOG.clear()
    try:
        result = program(x)
    except ValueError as error:
        result = ("raised", str(error))
    return result, list(LOG)


def inputs(count):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(3, generator=generator) * (1 + i % 3) for i in range(count)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program_that_splits_equals_eager(program):
    fast = magpy.compile(program, backend="eager")
    for x in inputs(8):
        assert_same(outcome(fast, x.clone()), outcome(program, x.clone()))
        assert torch.is_grad_enabled()


@pytest.mark.parametrize("program", [straight, nested, in_loop, closure, file_in_a_loop, shared])
def test_one_monitor_run_records_all_segments(program):
    fast = magpy.compile(program, backend="eager")
    first, *others = inputs(4)
    outcome(fast, first)
    before = magpy.cache_info(fast)
    for x in others:
        assert_same(outcome(fast, x), outcome(program, x))
    info = magpy.cache_info(fast)
    assert (info.hits, info.misses) == (3, 1)
    assert info.records == before.records >= 2


def test_nested_modules_split():
    torch.manual_seed(0)
    model = Model()
    twin = Model()
    twin.load_state_dict(model.state_dict())
    fast = magpy.compile(model, backend="eager")
    for x in inputs(16):
        actual, expected = outcome(fast, x), outcome(twin, x)
        assert_same(actual, expected)
        actual[0].sum().backward()
        expected[0].sum().backward()
    assert model.seen == twin.seen
    assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
    assert magpy.cache_info(fast).hits > 0


def test_change_after_a_split_must_miss():
    scale = [2.0]

    def program(x):
        y = x + 1
        opaque("now")
        return y * scale[0]

    fast = magpy.compile(program, backend="eager")
    x = torch.ones(3)
    for factor in (2.0, 2.0, 2.0, 5.0, 2.0, 7.0):
        scale[0] = factor
        assert_same(outcome(fast, x), outcome(program, x))


def _writes_a_file(x):
    with open(os.devnull, "w") as file:
        file.write("text")


DYNAMIC = {
    "a file": _writes_a_file,
    "print": lambda x: print(x.sum().item()),
    "the clock": lambda x: time.sleep(0) or time.time(),
    "unknown native code": lambda x: os.getpid() and gc.get_count(),
    "a log": lambda x: logging.getLogger(__name__).error("%s", x.shape[0]),
    "a tensor that decides a branch": lambda x: 1 if x.sum() > 5 else 2,
    "an array": lambda x: x.numpy().sort(),
    "a user's function": opaque,
}
"""Dynamic functions: neither an operator graph nor a mock can predict their results."""


@pytest.mark.parametrize("name", DYNAMIC)
def test_change_after_each_kind_of_dynamic_function_must_miss(name):
    does, kind = DYNAMIC[name], ["double"]

    def program(x):
        y = x + 1
        does(y)
        return y * 2 if kind[0] == "double" else y - 1

    fast = magpy.compile(program, backend="eager")
    for kind[0] in ("double", "double", "double", "single", "single", "double", "other"):
        before = magpy.cache_info(fast).misses
        for x in (torch.zeros(3), torch.ones(3)):
            assert_same(outcome(fast, x.clone()), outcome(program, x.clone()))
    assert magpy.cache_info(fast).misses > before
    assert magpy.cache_info(fast).hits


def test_result_of_a_dynamic_function_is_lifted_from_the_first_call():
    def program(x, n):
        y = x * opaque(n)
        if y.shape[0] > 5:
            return y
        return y + 1

    fast = magpy.compile(program, backend="eager")
    x = torch.ones(3)
    for run in (fast, program):
        LOG.clear()
        results = [run(x, 7) for _ in range(6)]
        assert_same(results, [x * n + 1 for n in range(1, 7)])
    assert magpy.cache_info(fast)[:2] == (5, 1)


def test_text_formatted_from_lifted_values_reaches_the_dynamic_function():
    class Steps:
        count = 0

        def __call__(self, x):
            y = x * 2
            self.count += 1
            opaque(f"{self.count:03d}: {y.sum().item():.2f} {'last':>{self.count + 5}}" + "!")
            return y.mean().item()

    fast, eager = Steps(), Steps()
    compiled = magpy.compile(fast, backend="eager")
    for x in inputs(12):
        assert_same(outcome(compiled, x), outcome(eager, x))
    assert fast.count == eager.count
    assert magpy.cache_info(compiled).hits >= 9


def test_text_that_decides_a_branch_is_specialized():
    def program(x, n):
        word = str(opaque(n))
        if word == "2":
            return x * 10
        return x + len(word) + {"1": 1}.get(word, 0)

    fast = magpy.compile(program, backend="eager")
    x = torch.ones(2)
    LOG.clear()
    mine = [fast(x, i) for i in range(12)]
    LOG.clear()
    assert_same(mine, [program(x, i) for i in range(12)])


def test_dynamic_function_sees_the_line_of_its_call():
    @magpy.disable
    def where(fails):
        caller = sys._getframe(2)
        LOG.append((caller.f_code.co_name, caller.f_lineno, sorted(caller.f_globals) != []))
        if fails:
            raise ValueError("here")

    def program(x, fails):
        y = x + 1
        for _ in range(2):
            where(
                fails,
            )
        return y

    fast = magpy.compile(program, backend="eager")
    x = torch.ones(2)
    for fails in (False, False, False, True, True):
        logs = []
        for run in (fast, program):
            LOG.clear()
            try:
                run(x, fails)
            except ValueError as error:
                frames = traceback.extract_tb(error.__traceback__)
                LOG.append([(f.name, f.lineno) for f in frames if f.filename == __file__][1:])
            logs.append(list(LOG))
        assert logs[0] == logs[1]


class Properties(nn.Module):
    """Modules look up attributes in ``__getattr__`` once a property has raised AttributeError."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.steps = 0
        self._parameters["weight"] = nn.Parameter(torch.full((3,), 7.0))

    @property
    def scale(self):
        y = torch.ones(3) * self.steps
        count = opaque("scale")
        return (y + count).sum() if count % 3 else y

    @property
    def weight(self):
        opaque("weight")
        if self.steps % 2:
            raise AttributeError("weight")
        return self.linear.bias

    @property
    def missing(self):
        opaque("missing")
        raise AttributeError("missing")

    @property
    def helper(self):
        opaque("helper")
        return torch.relu if self.steps < 3 else torch.sigmoid

    def forward(self, x):
        self.steps += 1
        y = self.linear(x) * self.scale + self.weight
        try:
            y = y * self.missing
        except AttributeError as error:
            y = y - 1
            LOG.append(str(error))
        return self.helper(y)


def test_property_of_a_module_splits_and_falls_back_to_getattr():
    ends = []
    for compiled in (True, False):
        torch.manual_seed(0)
        LOG.clear()
        module = Properties()
        run = magpy.compile(module, backend="eager") if compiled else module
        results = [run(torch.full((3,), float(i))) for i in range(8)]
        ends.append((results, module.steps, list(LOG)))
        if compiled:
            assert magpy.cache_info(run).hits > 0
    assert_same(*ends)


STATE = {"values": {1, 2}}


class _Sequence:
    def __getitem__(self, i):
        return sorted(STATE["values"])[i]


ITERATORS = {
    "set": lambda: iter(STATE["values"]),
    "map": lambda: map(abs, list(STATE["values"])),
    "sequence": lambda: iter(_Sequence()),
    "list": lambda: iter(sorted(STATE["values"])),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_iterator_from_a_dynamic_function_is_iterated_at_each_call(kind):
    opaque_iterator = magpy.disable(ITERATORS[kind])

    def program(x):
        for value in opaque_iterator():
            x = x * 3 + value
        return x

    fast = magpy.compile(program, backend="eager")
    for values in ({1, 2}, {1, 2}, {3, 5}, {8}, {1, 2}):
        STATE["values"] = values
        assert torch.equal(fast(torch.ones(2)), program(torch.ones(2)))


def shuffled(x):
    order = [1, 2, 3]
    random.shuffle(order)
    return x * order[0], order


def drawn_by_numpy(x):
    return x * torch.from_numpy(np.random.rand(3)).float() + float(np.random.rand())


def drawn_after_a_seed(x):
    random.seed(7)
    y = x * random.random()
    opaque("seeded")
    return y + random.randint(0, 9)


def shuffled_by_numpy(x):
    order = np.arange(3)
    np.random.shuffle(order)
    return x * torch.from_numpy(order)


def drawn_by_a_generator(x):
    generator = np.random.default_rng(1)
    return x * generator.random() + torch.from_numpy(generator.permutation(3))


@pytest.mark.parametrize(
    "program",
    [shuffled, drawn_by_numpy, drawn_after_a_seed, shuffled_by_numpy, drawn_by_a_generator],
)
def test_random_numbers_are_drawn_in_eager_modes_order(program):
    fast = magpy.compile(program, backend="eager")
    ends = []
    for run in (fast, program):
        random.seed(0)
        np.random.seed(0)
        LOG.clear()
        results = [run(torch.ones(3)) for _ in range(6)]
        ends.append((results, random.random(), np.random.rand(), list(LOG)))
    assert_same(*ends)


def test_dynamic_function_sees_earlier_effects_and_may_change_later_ones():
    state = {"n": 0, "kept": None}

    @magpy.disable
    def observe_and_change():
        LOG.append((state["n"], state["kept"].tolist()))
        state["n"] += 10

    def program(x):
        state["n"] += 1
        state["kept"] = x * 2
        observe_and_change()
        return x + state["n"]

    fast = magpy.compile(program, backend="eager")
    seen = []
    for run in (program, fast):
        state.update(n=0, kept=None)
        seen.append([outcome(run, x) for x in inputs(6)])
    assert_same(seen[1], seen[0])


def test_cache_created_by_the_program_is_empty_at_every_call():
    def program(x):
        @functools.lru_cache
        def factor(k):
            opaque(k)
            return k + 1

        return x * factor(2) * factor(2)

    fast = magpy.compile(program, backend="eager")
    for x in inputs(3):
        assert_same(outcome(fast, x), outcome(program, x))


TEXTS = {
    "modulo": lambda x: "%.2f" % x.max(),
    "modulo with a tuple": lambda x: "%s %s" % ("a", x.max()),
    "modulo with a dictionary": lambda x: "%(a)s" % {"a": x.max()},
    "format": lambda x: "{:.2f}".format(x.max()),
    "f-string": lambda x: f"{x.max():.2f} {x}",
    "str": lambda x: str(x),
    "item": lambda x: f"{x.max().item():.2f}",
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_shows_a_tensor_is_formatted_at_each_call(name):
    def program(x):
        y = x * 2
        print(TEXTS[name](y), file=SHOWN)
        return y + 1

    fast = magpy.compile(program, backend="eager")
    for x in inputs(3):
        shown = []
        for run in (fast, program):
            SHOWN.truncate(0)
            SHOWN.seek(0)
            result = run(x)
            shown.append((result, SHOWN.getvalue()))
        assert_same(*shown)
    assert magpy.cache_info(fast)[:2] == (2, 1)


SHOWN = io.StringIO()


def test_dynamic_function_sees_its_callers():
    seen = []

    @magpy.disable
    def record_callers(value):
        frame = sys._getframe(1)
        for _ in range(3):
            location = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            seen.append((*location, frame.f_globals["__name__"]))
            frame = frame.f_back
        return value

    def called(x):
        return x * record_callers(
            x.sum().item(),
        )

    def program(x):
        y = x + 1
        return y - called(
            x,
        )

    compiled = magpy.compile(program, backend="eager")
    for scale in (1.0, 2.0, 3.0):
        assert_same(compiled(torch.full((2,), scale)), program(torch.full((2,), scale)))
    assert seen == seen[:3] * 6
    assert magpy.cache_info(compiled).hits


def test_dynamic_function_sees_the_line_of_the_operation_that_calls_it():
    seen = []

    @magpy.disable
    def record_line():
        seen.append(sys._getframe(3).f_lineno)

    class Factor:
        def __mul__(self, other):
            record_line()
            return 2.0

    first, second = Factor(), Factor()

    def program(x):
        y = x + 1
        return y * (
            first
            * second
        )  # fmt: skip

    compiled = magpy.compile(program, backend="eager")
    for _ in range(3):
        assert_same(compiled(torch.ones(2)), program(torch.ones(2)))
    assert seen == seen[:1] * 6
    assert magpy.cache_info(compiled).hits
