"""Side effects on external objects, repeated in place at every matched call."""

import logging
import types
from collections import Counter, OrderedDict, UserDict, defaultdict, deque

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import (
    Twins,
    check,
    check_results,
    load,
    matrix,
    namespace,
    one,
    tensor,
)


class Box:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)


class Slotted:
    __slots__ = ("scale", "last", "gone")

    def __init__(self):
        self.scale, self.gone = 2.0, 1


def check_repeated(make, inputs, calls=4):
    """Compares several calls with eager mode while the state changes."""
    twins = Twins(make)
    for i in range(calls):
        twins.call(inputs, why=f"call {i}")
    return twins


def check_settled(make, inputs):
    """As ``check_repeated``, and a hit once the state no longer changes."""
    twins = check_repeated(make, inputs, 3)
    twins.call(inputs, hit=True, why="settled")
    return twins


WRITES = {
    "attribute": lambda s, x: setattr(s, "last", x * 2),
    "attribute by statement": lambda s, x: s.__class__.remember(s, x),
    "attribute of an attribute": lambda s, x: setattr(s.inner, "last", x.sum()),
    "dictionary entry": lambda s, x: s.table.__setitem__("last", x + 1),
    "dictionary update": lambda s, x: s.table.update(last=x + 1, n=3),
    "dictionary merge": lambda s, x: _merge(s, x),
    "dictionary of the instance": lambda s, x: vars(s).update(last=x),
    "list item": lambda s, x: s.items.__setitem__(1, x * 3),
    "negative list item": lambda s, x: s.items.__setitem__(-1, x * 3),
    "list slice": lambda s, x: s.items.__setitem__(slice(0, 2), [x, 2]),
    "set member": lambda s, x: s.names.add("b"),
    "discarded member": lambda s, x: s.names.discard("a"),
    "cleared list": lambda s, x: s.items.clear(),
    "sorted list": lambda s, x: s.numbers.sort(),
    "reversed twice": lambda s, x: (s.numbers.reverse(), s.numbers.reverse()),
    "queue of one": lambda s, x: s.queue.append(x),
    "ordered entry": lambda s, x: s.ordered.__setitem__("last", x),
    "ordered moved": lambda s, x: s.ordered.move_to_end("a"),
    "ordered popped": lambda s, x: s.ordered.pop("a", None),
    "default entry": lambda s, x: s.groups["k"].__class__,
    "user dict": lambda s, x: s.user.__setitem__("last", x),
    "shared object": lambda s, x: (setattr(s, "left", Box(x=x)), setattr(s, "right", s.left)),
    "swap": lambda s, x: setattr(s, "pair", s.pair[::-1] if s.pair[0] > s.pair[1] else s.pair),
    "cycle": lambda s, x: s.table.__setitem__("self", s),
    "closure kept": lambda s, x: setattr(s, "f", lambda: x + 1),
    "deleted attribute": lambda s, x: s.__dict__.pop("scratch", None),
    "temporary attribute": lambda s, x: (setattr(s, "temporary", x), delattr(s, "temporary")),
}  # fmt: skip


def _merge(s, x):
    table = s.table
    table |= {"last": x}


class State(Box):
    def remember(self, x):
        self.last = x
        self.count = 3


def fresh_state():
    state = State(
        inner=Box(last=0), table={"a": 1}, items=[1, 2, 3], names={"a"}, numbers=[3, 1, 2],
        queue=deque(maxlen=1), ordered=OrderedDict(a=1, b=2), groups=defaultdict(list),
        user=UserDict(a=1), pair=(1, 2), scratch=5,
    )  # fmt: skip
    return state


@pytest.mark.parametrize("name", WRITES)
def test_write_to_an_argument(name):
    write = WRITES[name]

    def program(state, x):
        write(state, x)
        return x + 1

    twins = Twins(lambda: program)
    for i in range(3):
        twins.call(
            lambda: (fresh_state(), tensor(i, 2)), hit=None if i == 0 else True, why=f"call {i}"
        )


@pytest.mark.parametrize("name", WRITES)
def test_write_to_an_object_in_a_closure(name):
    write = WRITES[name]

    def make():
        state = fresh_state()

        def program(x):
            write(state, x)
            return x + 1

        return program

    twins = Twins(make)
    for i in range(4):
        twins.call(lambda: (tensor(i, 2),), why=f"call {i}")


def test_log_that_grows_does_not_miss():
    def make():
        log, seen, queue = [], set(), deque()

        def program(x):
            log.append("called")
            seen.add(3)
            queue.append(x * 2)
            log.extend([1, 2])
            return x + 1

        return program

    twins = Twins(make)
    twins.call(one(), hit=False)
    for _ in range(5):
        twins.call(one(), hit=True)


def test_log_in_a_module_does_not_miss():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.history = []
            self.losses = {}

        def forward(self, x):
            self.history.append(x.sum())
            self.losses["last"] = x.mean()
            return x * 2

    twins = Twins(Model_ := lambda: Model())
    twins.call(one(), hit=False)
    for i in range(4):
        twins.call(one(i, 2, 3), hit=True if i else None)


def test_log_that_is_also_read_equals_eagers():
    def make():
        log = []

        def program(x):
            log.append(len(log))
            return x * len(log)

        return program

    check_repeated(make, one())


def test_append_then_read_last():
    def make():
        log = []

        def program(x):
            log.append(x)
            y = log[-1] + 1
            log.append(y)
            return log[0] + y

        return program

    check_repeated(make, one())


def test_read_then_append():
    def make():
        log = [1.0]

        def program(x):
            y = x * log[0]
            log.append(2)
            return y

        return program

    check_repeated(make, one())


def test_append_to_two_names_of_one_list():
    def program(a, b, x):
        a.append(x)
        b.append(x + 1)
        return x

    same = lambda: (lambda s: (s, s, tensor(1)))([])
    check_results(lambda: program, lambda: ([], [], tensor(1)), same)
    check_results(lambda: program, same, lambda: ([], [], tensor(1)))


def test_counter_of_an_instance():
    def make():
        box = Box(step=0, inner=Box(n=5))

        def program(x):
            box.step += 1
            box.inner.n -= 1
            return x * 2

        return program

    check_repeated(make, one())


def test_running_average_of_a_tensor():
    def make():
        box = Box(mean=torch.zeros(3))

        def program(x):
            box.mean = 0.9 * box.mean + 0.1 * x
            return x - box.mean

        return program

    check_settled(make, one())


def test_same_list_under_two_names():
    def program(a, b):
        a.append(1)
        return len(b), a is b

    shared = lambda: (lambda s: (s, s))([0])
    check_results(lambda: program, lambda: ([0], [0]), shared)
    check_results(lambda: program, shared, lambda: ([0], [0]))


def test_same_dict_under_two_names():
    def program(a, b, x):
        a["k"] = x
        return b.get("k", 0) + x, b

    shared = lambda: (lambda s: (s, s, tensor(1)))({})
    check_results(lambda: program, lambda: ({}, {}, tensor(1)), shared)
    check_results(lambda: program, shared, lambda: ({}, {}, tensor(1)))


def test_same_object_under_two_attributes():
    def program(a, b, x):
        a.v = 1
        b.v = 2
        return x * a.v

    shared = lambda: (lambda s: (s, s, tensor(1)))(Box(v=0))
    check_results(lambda: program, lambda: (Box(v=0), Box(v=0), tensor(1)), shared)
    check_results(lambda: program, shared, lambda: (Box(v=0), Box(v=0), tensor(1)))


def test_object_in_a_closure_that_is_also_an_argument():
    def make():
        kept = Box(v=0)

        def program(argument, x):
            argument = kept if argument is None else argument
            argument.v = 5
            kept.v = 6
            return x * argument.v

        program.kept = kept
        return program

    twins = Twins(make)
    for argument in (lambda p: Box(v=0), lambda p: p.kept, lambda p: Box(v=0), lambda p: None):
        eager, actual = argument(twins.eager), argument(twins.target)
        x = tensor(1)
        assert_same(twins.compiled(actual, x), twins.eager(eager, x))
        assert_same((actual, twins.target.kept), (eager, twins.eager.kept))


def test_slots_are_written_read_and_deleted():
    def program(s, x):
        y = x * s.scale
        s.last = y
        del s.gone
        return y, hasattr(s, "gone")

    def other():
        s = Slotted()
        s.scale = 3.0
        return s, tensor(1, 2)

    check(program, lambda: (Slotted(), tensor(1, 2)), other=[other])


def test_globals_are_read_written_and_deleted():
    make = load("""
import torch
factor, count, gone = 2.0, 0, 1
table = {"a": 1}
def program(x):
    global factor, last, gone
    y = x * factor
    factor = 5.0
    last = y
    if "gone" in globals_of():
        del gone
    table["a"] = 2
    return y
def globals_of():
    return ()
""")
    twins = Twins(make)
    for i in range(4):
        twins.call(one())
        assert_same(namespace(twins.target), namespace(twins.eager))
    twins.change(lambda p: p.__globals__.update(factor=7.0))
    twins.call(one())
    assert_same(namespace(twins.target), namespace(twins.eager))


def test_global_that_is_deleted():
    make = load("""
temporary = 1
def program(x):
    global temporary
    temporary = x * 2
    y = temporary
    del temporary
    return y
""")
    twins = Twins(make)
    for i in range(3):
        twins.call(one())
        assert "temporary" not in namespace(twins.target)


def test_reverted_change_leaves_no_effect():
    def program(table, x):
        table["scratch"] = x
        y = table["scratch"] * 2
        del table["scratch"]
        return y

    check(program, lambda: ({"a": 1}, tensor(1, 2)))
    twins = Twins(lambda: program)
    twins.call(lambda: ({"a": 1}, tensor(1)))
    twins.call(lambda: ({"scratch": 1}, tensor(1)))


def test_setattr_in_python_and_descriptors():
    class Typed:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, owner=None):
            return self if obj is None else getattr(obj, self.name)

        def __set__(self, obj, value):
            setattr(obj, self.name, value * 2)

    class Guarded:
        size = Typed()

        def __init__(self):
            self.size = 2

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)
            object.__setattr__(self, "changed", name)

        def __getattr__(self, name):
            return len(name)

        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

        @property
        def double(self):
            return self.size * 2

        @double.setter
        def double(self, value):
            self.size = value // 2

        def __delattr__(self, name):
            self.deleted = name

    def program(g, x):
        y = x * g.size + g.double + g.missing
        g.double = 10
        g.extra = 3
        del g.extra
        return y, g.changed

    def other():
        g = Guarded()
        g.size = 7
        return g, tensor(1, 2)

    def present():
        g = Guarded()
        g.missing = 50
        return g, tensor(1, 2)

    check(program, lambda: (Guarded(), tensor(1, 2)), other=[other, present])


def test_property_that_computes_from_state():
    class Shape:
        def __init__(self, sides):
            self.sides = sides

        @property
        def area(self):
            return self.sides[0] * self.sides[1]

        def __len__(self):
            return len(self.sides)

        def __bool__(self):
            return self.sides[0] > 0

        def __eq__(self, other):
            return self.sides == other.sides

        def __contains__(self, side):
            return side in self.sides

        def __getitem__(self, i):
            return self.sides[i]

        def __iter__(self):
            return iter(self.sides)

        def __add__(self, other):
            return Shape([a + b for a, b in zip(self, other)])

        def __radd__(self, other):
            return self.area + other

        def __hash__(self):
            return 3

    def program(s, x):
        y = x * s.area + len(s) + s[0] + sum(s)
        if s and 3 in s and s == Shape([2, 3]):
            y = y + (s + s).area + (1 + s)
        return y

    check(
        program,
        lambda: (Shape([2, 3]), tensor(1, 2)),
        other=[lambda: (Shape([2, 4]), tensor(1, 2)), lambda: (Shape([0, 3]), tensor(1, 2))],
    )


def test_dataclass_and_counter_effects():
    def program(counts, x):
        counts["seen"] += 1
        counts.update("aab")
        return x * counts["a"]

    check(program, lambda: (Counter(), tensor(1, 2)), other=[lambda: (Counter("a"), tensor(1, 2))])


def test_module_attributes_and_buffers_that_are_reassigned():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))
            self.register_buffer("cache", None)
            self.weight = nn.Parameter(matrix(3, 3))
            self.last = None

        def forward(self, x):
            self.steps += 1
            self.cache = x.detach() * 2
            self.last = x @ self.weight
            return self.last + self.steps

    twins = Twins(Model)
    for i in range(5):
        twins.call(lambda: (matrix(2, 3) + i,), why=f"call {i}", backward=True)
    twins.call(lambda: (matrix(2, 3),), hit=True)


def test_logging_calls_are_repeated(caplog):
    logger = logging.getLogger("a program")

    def program(x, n):
        logger.info("n is %d", n)
        return x * n

    caplog.set_level(logging.INFO)
    twins = Twins(lambda: program)
    for _ in range(3):
        twins.call(lambda: (tensor(1), 3))
    messages = [r.getMessage() for r in caplog.records if r.name == "a program"]
    assert messages == ["n is 3"] * 6


def test_output_to_the_terminal_is_repeated(capsys):
    def program(x):
        print("hello")
        return x + 1

    twins = Twins(lambda: program)
    for _ in range(3):
        twins.call(one())
    assert capsys.readouterr().out == "hello\n" * 6


def test_python_random_numbers_are_drawn_at_each_call():
    import random

    def program(x):
        return x * random.random(), random.choice([1, 2, 3])

    twins = Twins(lambda: program)
    for i in range(4):
        x = tensor(1, 2)
        random.seed(i)
        expected = twins.eager(x), random.getstate()
        random.seed(i)
        assert_same((twins.compiled(x), random.getstate()), expected)


def test_clock_and_environment_are_read_at_each_call(monkeypatch):
    import os
    import time

    def program(x):
        return x + 1, time.perf_counter_ns(), os.environ.get("SOME_NAME", "none")

    twins = Twins(lambda: program)
    first = twins.compiled(tensor(1))
    second = twins.compiled(tensor(1))
    assert second[1] > first[1]
    monkeypatch.setenv("SOME_NAME", "set")
    assert twins.compiled(tensor(1))[2] == "set"


def test_class_attribute_is_written():
    class Shared:
        count = 0

    def program(x):
        Shared.count = Shared.count + 1
        return x * Shared.count

    results = []
    for f in (program, __import__("magpy_like").compile(program, backend="eager")):
        Shared.count = 0
        results.append([f(tensor(1, 2)) for _ in range(4)])
        assert Shared.count == 4
    assert_same(results[1], results[0])


def test_function_attribute_is_written():
    def make():
        def program(x):
            program.last = x * 2
            program.calls = 5
            return x + 1

        return program

    check_repeated(make, one())


# --- order ---------------------------------------------------------------------------------------


def _reinserted_new(x, table):
    table["b"] = 1
    table["a"] = 2
    del table["b"]
    table["b"] = 3
    return x


def _reinserted_same(x, table):
    value = table["a"]
    del table["a"]
    table["a"] = value
    return x * value


def _reinserted_popped(x, table):
    table["a"] = table.pop("a")
    return x


ORDERS = {
    "new key": (_reinserted_new, [{}, {"b": 0}, {"b": 0, "a": 0}]),
    "same value": (_reinserted_same, [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
    "popped value": (_reinserted_popped, [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
}


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("name", ORDERS)
def test_reinserted_key_comes_last(name, kind):
    program, tables = ORDERS[name]
    twins = Twins(lambda: program)
    for table in tables:
        for _ in range(2):
            twins.call(lambda table=table: (tensor(1), kind(table)))
    assert magpy.cache_info(twins.compiled).hits >= len(tables)


def test_reinserted_attribute_comes_last():
    def program(x, thing):
        value = thing.a
        del thing.a
        thing.a = value
        return x * value

    check(program, lambda: (tensor(1), types.SimpleNamespace(a=1, b=2)))


# --- operators that raise ------------------------------------------------------------------------


def _logs(index, log):
    log.append("start")
    row = torch.arange(6.0).reshape(3, 2)[index]
    log.append("end")
    return row


def _catches(index, log):
    try:
        return torch.arange(6.0).reshape(3, 2)[index]
    except IndexError as error:
        log.append(type(error).__name__)
        return None


@pytest.mark.parametrize("program", [_logs, _catches])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_operator_that_raises_in_a_matched_call_leaves_eagers_effects(program, backend):
    twins = Twins(lambda: program, backend=backend)
    for index in (1, 1, 7, 2, 7):
        twins.call(lambda index=index: (torch.tensor([index]), []))
    assert magpy.cache_info(twins.compiled).misses == 1


def test_operator_that_raises_after_a_split():
    def program(index, log):
        log.append("start")
        print("", end="")
        row = torch.arange(6.0).reshape(3, 2)[index]
        log.append("end")
        return row

    twins = Twins(lambda: program)
    for index in (1, 1, 1, 7, 2, 7):
        twins.call(lambda index=index: (torch.tensor([index]), []))


def test_grad_mode_is_restored_when_an_operator_raises_under_no_grad():
    def program(x, i):
        try:
            with torch.no_grad():
                y = x[i]
        except IndexError:
            y = x
        return y * 2

    twins = Twins(lambda: program)
    x = torch.ones(3, requires_grad=True)
    for i in (1, 1, 7, 1, 7):
        twins.call(lambda i=i: (x.detach().requires_grad_(), torch.tensor(i)))
        assert torch.is_grad_enabled()


def test_slots_that_are_filled_and_cleared():
    class Slotted:
        __slots__ = ("kept", "passing")

    slotted = Slotted()

    def fills_and_clears(x):
        slotted.passing = x
        del slotted.passing
        return x * 2, hasattr(slotted, "passing")

    check(fills_and_clears, one(1.0))

    def clears(x):
        del slotted.kept
        return x * 2

    compiled = magpy.compile(clears, backend="eager")
    for _ in range(2):
        slotted.kept = 1
        assert_same(compiled(tensor(1)), tensor(2))
        assert not hasattr(slotted, "kept")
    with pytest.raises(AttributeError):
        compiled(tensor(1))


def test_slot_that_a_derived_class_hides_by_a_property():
    """As in the paths of Python 3.13's ``pathlib``."""

    class Base:
        __slots__ = ("joined",)

    class Derived(Base):
        __slots__ = ("parts",)

        @property
        def joined(self):
            return "/".join(self.parts)

    def program(x):
        made = Derived()
        made.parts = ["a", "b"]
        return x * 2, made.joined, made

    compiled = magpy.compile(program, backend="eager")
    for value in (1, 2, 3):
        y, joined, made = compiled(tensor(value))
        assert_same(y, tensor(2 * value))
        assert joined == made.joined == "a/b"
        with pytest.raises(AttributeError):
            Base.joined.__get__(made)
    assert magpy.cache_info(compiled).hits == 2


def test_attribute_deleted_by_a_descriptor():
    class Deletes:
        def __delete__(self, owner):
            owner.deleted += 1

    class Owner:
        attribute = Deletes()

    def make():
        box = Owner()
        box.deleted = 0

        def program(x):
            del box.attribute
            return x * box.deleted

        program.box = box
        return program

    twins = Twins(make)
    for i in range(3):
        twins.call(one(1.0 + i), hit=i > 0)


def test_returned_exception():
    def created_only(x):
        error = ValueError("found", x * 2)
        error.__cause__ = KeyError("other")
        return error

    compiled = magpy.compile(created_only, backend="eager")
    for value in (1, 2):
        error = compiled(tensor(value))
        assert_same(error.args, ("found", tensor(2 * value)))
        assert repr(error.__cause__) == "KeyError('other')" and error.__suppress_context__
    assert magpy.cache_info(compiled).hits == 1

    def raised(x):
        try:
            raise ValueError(x)
        except ValueError as error:
            return error

    compiled = magpy.compile(raised, backend="eager")
    for _ in range(2):
        assert compiled(tensor(1)).__traceback__.tb_frame.f_code is raised.__code__


def _clears(layer, x):
    layer.weight.grad = None
    return layer(x)


def _clears_all(layer, x):
    layer.zero_grad()
    return layer(x), layer.weight.grad


def _accumulates_by_hand(layer, x):
    layer.weight.grad = (x * 2)[None] if layer.weight.grad is None else layer.weight.grad + x
    return layer(x), layer.weight.grad


def _sets_another_shape(layer, x):
    try:
        layer.weight.grad = x
    except RuntimeError as error:
        return x, type(error).__name__


@pytest.mark.parametrize(
    "program", [_clears, _clears_all, _accumulates_by_hand, _sets_another_shape]
)
def test_gradient_of_a_parameter_is_assigned(program):
    def make():
        torch.manual_seed(0)
        layer = nn.Linear(3, 1)
        made = lambda x: program(layer, x)
        made.layer = layer
        return made

    def has_gradients(made):
        for parameter in made.layer.parameters():
            parameter.grad = torch.ones_like(parameter)

    twins = Twins(make)
    for i in range(6):
        if i % 3:
            twins.change(has_gradients)
        twins.call(one(1.0, 2.0, float(i)), why=f"call {i}")
    if program is not _sets_another_shape:
        assert magpy.cache_info(twins.compiled).hits >= 3
