"""Calls of functions, methods and classes, and native calls that call back."""

import copy
import functools
import importlib.util
import math
import operator
import sys
import typing
import weakref

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import Twins, check, check_results, check_stateful, load, matrix, one, tensor

SCALE = 2.0


def double(x):
    return x * SCALE


def test_called_functions_are_followed():
    def program(x, n):
        return double(x) + n

    check(program, lambda: (tensor(1, 2), 3), other=[lambda: (tensor(1, 2), 4)])


def test_arguments_are_bound_as_in_eager():
    def inner(a, b=2, *rest, c, d=5, **more):
        return a * b + sum(rest) + c * d + sum(more.values())

    def program(x, *args, **kwargs):
        return inner(x, *args, c=1.0, **kwargs)

    check(
        program,
        lambda: (tensor(1, 2), 3, 4),
        keyword={"e": 5, "d": 1},
        other=[
            lambda: (tensor(1, 2), 3, 5),
            lambda: (tensor(1, 2), 3),
            lambda: (tensor(1, 2), 3, 4, 5),
        ],
    )


def test_other_keywords_of_the_compiled_call_miss():
    def program(x, *, factor=2):
        return x * factor

    twins = check(program, one(), keyword={"factor": 3})
    twins.call(one(), keyword={"factor": 4}, hit=False)
    twins.call(one(), keyword={}, hit=False)
    twins.call(one(), keyword={"factor": 3}, hit=True)


def test_changed_defaults_miss():
    def make():
        def inner(x, factor=2.0, *, shift=1.0):
            return x * factor + shift

        def program(x):
            return inner(x)

        program.inner = inner
        return program

    def new_default(p):
        p.inner.__defaults__ = (3.0,)

    def new_keyword_default(p):
        p.inner.__kwdefaults__ = {"shift": 5.0}

    def keyword_default_in_place(p):
        p.inner.__kwdefaults__["shift"] = 6.0

    check_stateful(
        make, one(), changes=[new_default, new_keyword_default, keyword_default_in_place]
    )


def test_mutable_default_accumulates_across_calls():
    def make():
        def program(x, seen=[]):
            seen.append(1)
            return x * len(seen)

        return program

    twins = Twins(make)
    for _ in range(4):
        twins.call(one())


def test_changed_default_of_the_compiled_function_misses():
    def make():
        def program(x, factor=2.0):
            return x * factor

        return program

    def change(p):
        p.__defaults__ = (4.0,)

    check_stateful(make, one(), changes=[change])


COMPILED = magpy.compile(double, backend="eager")


class Affine:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        return self.forward(x)

    def forward(self, x):
        return x * self.scale

    @classmethod
    def unit(cls, x):
        return x / cls.size

    @staticmethod
    def shift(x):
        return x + 1

    size = 2.0


class Shifted(Affine):
    def __init__(self, scale, by):
        super().__init__(scale)
        self.by = by

    def forward(self, x):
        return super().forward(x) + self.by


def test_bound_methods_are_followed():
    def change(p):
        p.__self__.scale = 5.0

    check_stateful(lambda: Affine(2.0).forward, one(), changes=[change])


def test_callable_instances_are_followed():
    def change(p):
        p.scale = 5.0

    check_stateful(lambda: Affine(2.0), one(), changes=[change])


def test_super_finds_inherited_methods():
    def scale(p):
        p.scale = 5.0

    def by(p):
        p.by = 3

    check_stateful(lambda: Shifted(2.0, 1.0), one(), changes=[scale, by])


def test_static_and_class_methods_are_followed(monkeypatch):
    def program(x):
        return Affine.shift(x) + Shifted.unit(x) + Affine(3.0).unit(x)

    check_stateful(
        lambda: program, one(), changes=[lambda p: monkeypatch.setattr(Affine, "size", 4.0)]
    )


def test_replaced_method_of_a_class_misses(monkeypatch):
    def program(x):
        return Shifted(2.0, 1.0)(x)

    def patched(self, x):
        return x - self.scale

    check_stateful(
        lambda: program, one(), changes=[lambda p: monkeypatch.setattr(Affine, "forward", patched)]
    )


def test_method_added_to_a_subclass_misses(monkeypatch):
    def program(x):
        return Shifted(2.0, 1.0)(x)

    def patched(self, x):
        return x - 7

    change = lambda p: monkeypatch.setattr(Shifted, "__call__", patched, raising=False)
    check_stateful(lambda: program, one(), changes=[change])


def test_replaced_method_of_a_base_class_misses(monkeypatch):
    class Between(Affine):
        pass

    class Lowest(Between):
        def forward(self, x):
            return super().forward(x) + 1

    def patched(self, x):
        return x - self.scale

    by_inheritance = lambda p: monkeypatch.setattr(Affine, "forward", patched)
    between = lambda p: monkeypatch.setattr(Between, "forward", lambda self, x: x, raising=False)
    check_stateful(lambda: Lowest(2.0), one(), changes=[by_inheritance, between])


def test_method_added_to_an_instance_misses():
    def change(p):
        p.forward = lambda x: x - 3

    check_stateful(lambda: Affine(2.0), one(), changes=[change])


def test_replaced_global_function_misses(monkeypatch):
    def program(x):
        return double(x)

    change = lambda p: monkeypatch.setitem(globals(), "double", lambda x: x * 7)
    check_stateful(lambda: program, one(), changes=[change])


def test_replaced_code_of_a_function_misses():
    def make():
        def inner(x):
            return x + 1

        def program(x):
            return inner(x)

        program.inner = inner
        return program

    def other(x):
        return x + 2

    def change(p):
        p.inner.__code__ = other.__code__

    check_stateful(make, one(), changes=[change])


def test_replaced_code_of_the_compiled_function_misses():
    def make():
        def program(x):
            return x + 1

        return program

    def other(x):
        return x + 2

    def change(p):
        p.__code__ = other.__code__

    check_stateful(make, one(), changes=[change])


def test_changed_global_value_misses(monkeypatch):
    def program(x):
        return double(x)

    check_stateful(
        lambda: program, one(), changes=[lambda p: monkeypatch.setitem(globals(), "SCALE", 3.0)]
    )


def test_global_that_shadows_a_builtin_misses(monkeypatch):
    def program(x, values):
        return x * len(values)

    change = lambda p: monkeypatch.setitem(globals(), "len", lambda v: 10)
    check_stateful(lambda: program, lambda: (tensor(1), [1, 2]), changes=[change])


def test_replaced_module_attribute_misses(monkeypatch):
    def program(x):
        return functools.helper(x)

    monkeypatch.setattr(functools, "helper", lambda x: x + 1, raising=False)
    change = lambda p: monkeypatch.setattr(functools, "helper", lambda x: x + 2)
    check_stateful(lambda: program, one(), changes=[change])


def test_replaced_torch_function_misses(monkeypatch):
    def program(x):
        return torch.relu(x)

    original = torch.relu
    change = lambda p: monkeypatch.setattr(torch, "relu", lambda x: original(x) + 1)
    check_stateful(lambda: program, one(), changes=[change])


def test_partials_are_followed():
    def inner(a, b, c=1):
        return a * b + c

    def make():
        part = functools.partial(inner, b=2.0)
        outer = functools.partial(part, c=3.0)

        def program(x):
            return outer(x)

        return program

    check_stateful(make, one())


def test_partials_as_arguments_are_guarded():
    def inner(a, b):
        return a * b

    def program(f, x):
        return f(x)

    check(
        program,
        lambda: (functools.partial(inner, b=2.0), tensor(1, 2)),
        other=[lambda: (functools.partial(inner, b=3.0), tensor(1, 2))],
    )


def test_partials_are_compiled():
    def inner(values, x):
        return x * values["scale"]

    check_stateful(
        lambda: functools.partial(inner, {"scale": 2}),
        one(),
        changes=[lambda p: p.args[0].update(scale=3)],
    )


def test_lambdas_as_arguments_are_guarded():
    def program(f, x):
        return f(x)

    def make(n):
        return lambda: ((lambda x: x * n), tensor(1, 2))

    check(program, make(2), other=[make(3)])


def test_callbacks_of_builtins_are_followed():
    limit = [0.0]

    def program(xs, scale):
        scaled = list(map(lambda t: t * scale, xs))
        kept = list(filter(lambda t: t.dim() > limit[0], scaled))
        order = sorted(range(len(kept)), key=lambda i: -kept[i].shape[0])
        first = min(order, key=lambda i: kept[i].numel())
        total = functools.reduce(lambda a, b: a.sum() + b.sum(), [kept[i] for i in order])
        return total, kept[first], order, sum(t.sum() for t in kept), any(map(callable, kept))

    check(
        program,
        lambda: ([tensor(1, 2), tensor(3), tensor(1, 2, 3)], 2),
        other=[
            lambda: ([tensor(1, 2), tensor(3), tensor(1, 2, 3)], 3),
            lambda: ([tensor(1, 2), tensor(3)], 2),
            lambda: ([tensor(1, 2), tensor(3, 4, 5), tensor(1)], 2),
        ],
    )


def test_tensors_are_sorted_by_a_key():
    def program(xs):
        return sorted(xs, key=lambda t: -t.shape[0]), min(xs, key=len)

    check(
        program,
        lambda: ([tensor(1, 2), tensor(3), tensor(1, 2, 3)],),
        other=[lambda: ([tensor(1), tensor(3, 4), tensor(1, 2, 3)],)],
    )


PAIRS = {
    "first": lambda pairs: [t * 2 for _, t in sorted(pairs, key=operator.itemgetter(0))],
    "size": lambda pairs: max((t for _, t in pairs), key=torch.Tensor.numel),
    "arguments": lambda pairs: min(pairs[0][1], pairs[1][1], key=len),
    "in place": lambda pairs: pairs.sort(key=lambda pair: pair[1].shape) or pairs[0],
}


@pytest.mark.parametrize("name", PAIRS)
def test_containers_of_tensors_are_sorted_by_a_key(name):
    check(
        PAIRS[name],
        lambda: ([(2, tensor(1, 2)), (1, tensor(3)), (0, tensor(4, 5, 6))],),
        other=[lambda: ([(0, tensor(1)), (1, tensor(3, 4)), (2, tensor(4, 5, 6))],)],
    )


def test_tensors_are_sorted_by_a_key_that_depends_on_data():
    value = lambda *items: lambda: ([tensor(i) for i in items],)
    for key in (lambda t: t.item(), lambda t: t.sum(), lambda t: (t.numel(), t)):
        check_results(lambda: lambda ts: sorted(ts, key=key), value(3, 1, 2), value(1, 3, 2))  # noqa: B023


def test_order_of_tensors_by_value_is_not_recorded():
    def program(xs):
        return sorted(xs, key=lambda t: t), max(xs, key=lambda t: t * 2)

    check_results(
        lambda: program,
        lambda: ([tensor(2), tensor(3), tensor(1)],),
        lambda: ([tensor(1), tensor(2), tensor(3)],),
    )


def test_getters_and_callers_of_operator_are_followed():
    def program(a, items):
        get = operator.attrgetter("scale")
        return operator.itemgetter(1)(items) * get(a) + operator.methodcaller("forward", items[0])(
            a
        )

    check_results(
        lambda: program,
        lambda: (Affine(2.0), [tensor(1), tensor(2)]),
        lambda: (Affine(3.0), [tensor(1), tensor(2)]),
    )


def test_sort_key_from_outside_is_guarded():
    def program(x, rows):
        order = sorted(rows, key=operator.itemgetter("rank"))
        return x * order[0]["weight"]

    check(
        program,
        lambda: (tensor(1, 2), [{"rank": 2, "weight": 5}, {"rank": 1, "weight": 7}]),
        other=[
            lambda: (tensor(1, 2), [{"rank": 0, "weight": 5}, {"rank": 1, "weight": 7}]),
            lambda: (tensor(1, 2), [{"rank": 2, "weight": 5}, {"rank": 1, "weight": 8}]),
        ],
    )


def test_decorated_functions_are_followed():
    def scaled(by):
        def decorate(f):
            @functools.wraps(f)
            def wrapper(*args, **kwargs):
                return f(*args, **kwargs) * by

            return wrapper

        return decorate

    def make():
        @scaled(3.0)
        def inner(x):
            return x + 1

        def program(x):
            @scaled(2.0)
            def local(x):
                return inner(x) - 1

            return local(x)

        program.inner = inner
        return program

    def change(p):
        p.inner.__closure__[0].cell_contents = 5.0

    check_stateful(make, one(), changes=[change])


def test_cached_functions_are_recorded():
    @functools.lru_cache
    def table(n):
        return [n * 2.0]

    def program(x, n):
        return x * table(n)[0]

    check(program, lambda: (tensor(1), 3), other=[lambda: (tensor(1), 4)])


class Counter:
    def __init__(self, value):
        self.value = value


ENTRIES = {
    "instances": [Counter(k) for k in range(4)],
    "tuples": [(k, [k]) for k in range(4)],
    "lists": [[k] for k in range(4)],
    "tensors": [torch.full((2,), float(k)) for k in range(4)],
}


@pytest.mark.parametrize("numbers", [(2, 3, 1, 1, 2), (1, 2, 1, 3), (1, 1, 2, 2)])
@pytest.mark.parametrize("kind", ENTRIES)
def test_argument_that_is_an_entry_of_a_cache_may_be_another_object_later(kind, numbers):
    def make():
        @functools.lru_cache
        def entry(n):
            return ENTRIES[kind][n]

        def program(x, given):
            return x * 2, given, entry(1), given is entry(1)

        return program

    twins = Twins(make)
    for n in numbers:
        twins.call(lambda n=n: (tensor(1), ENTRIES[kind][n]))
    assert magpy.cache_info(twins.compiled).hits


@pytest.mark.parametrize("numbers", [(2, 3, 1, 1, 2), (1, 2, 1, 3), (1, 1, 2, 2)])
def test_writes_to_an_argument_that_is_an_entry_of_a_cache_are_read_there(numbers):
    def make():
        entry = functools.lru_cache(ENTRIES["instances"].__getitem__)

        def program(x, given):
            given.value += 1
            found = entry(1).value
            given.value -= 1
            return x * found

        return program

    twins = Twins(make)
    for n in numbers:
        twins.call(lambda n=n: (tensor(1), ENTRIES["instances"][n]))


def test_caches_hold_the_entries_of_eager_mode_for_varying_numbers():
    """A guard queries a cache last: a record for another number must not fill it."""

    def make():
        @functools.lru_cache(maxsize=2)
        def doubled(n):
            return n * 2.0

        def program(x, n):
            return x * doubled(n)

        program.info = doubled.cache_info
        return program

    twins = Twins(make)
    for n in (1, 2, 0, 1, 2, 0, 1, 1):
        twins.call(lambda n=n: (tensor(1), n))
        assert twins.target.info() == twins.eager.info()
    assert magpy.cache_info(twins.compiled).hits == 6


def test_caches_count_and_forget_as_if_each_lookup_were_made():
    """A cache forgets the entry that was looked up first: 1 was looked up after 2."""

    def make():
        made = []

        @functools.lru_cache(maxsize=2)
        def doubled(n):
            made.append(n)
            return n * 2.0

        def program(x, a, b, c):
            return x * doubled(a) + doubled(b) + doubled(c)

        program.state = lambda: (list(made), doubled.cache_info())
        return program

    twins = Twins(make)
    for numbers in [(1, 2, 1)] * 3 + [(3, 3, 3), (1, 1, 1)]:
        twins.call(lambda numbers=numbers: (tensor(1), *numbers))
        assert twins.target.state() == twins.eager.state()
    assert magpy.cache_info(twins.compiled).hits == 3


def test_cleared_cache_of_a_function_misses():
    def make():
        factor = 2.0

        @functools.lru_cache
        def scaled(n):
            return n * factor

        @functools.lru_cache
        def table(n):
            return torch.arange(n) * factor

        def program(x):
            return x * scaled(3) + table(3)

        def set_factor(value, clear):
            nonlocal factor
            factor = value
            if clear:
                scaled.cache_clear()
                table.cache_clear()

        program.set_factor = set_factor
        return program

    twins = check_stateful(make, one(1, 2, 3), changes=[lambda p: p.set_factor(5.0, True)])
    twins.change(lambda p: p.set_factor(7.0, False))
    twins.call(one(1, 2, 3), hit=True, why="the cache still has its old entry")


def test_cleared_cache_of_a_method_misses():
    class Table:
        def __init__(self):
            self.factor = 2.0

        @functools.lru_cache  # noqa: B019
        def scaled(self, n):
            return n * self.factor

        def __call__(self, x):
            return x * self.scaled(3)

    def change(table):
        table.factor = 5.0
        Table.scaled.cache_clear()

    table = Table()
    fast = magpy.compile(table, backend="eager")
    for _ in range(2):
        for _ in range(2):
            assert_same(fast(tensor(1)), table(tensor(1)))
        change(table)


def test_singledispatch_follows_the_implementation_of_the_type():
    def make():
        @functools.singledispatch
        def kind(x):
            return 1.0

        @kind.register
        def _(x: int):
            return 2.0

        def program(x, n):
            return x * kind(n)

        program.kind = kind
        return program

    twins = check_stateful(
        make,
        lambda: (tensor(1), 3),
        other=[lambda: (tensor(1), "a")],
        changes=[lambda p: p.kind.register(int, lambda x: 5.0)],
        max_recordings=2,  # the first call of a kind fills the dispatcher's cache
    )
    twins.change(lambda p: p.kind.register(str, lambda x: 7.0))
    twins.call(lambda: (tensor(1), "a"), why="a kind that is registered later")


def test_singledispatch_of_methods_follows_the_implementation_of_the_type():
    class Kinds:
        @functools.singledispatchmethod
        def kind(self, n, x):
            return x

        @kind.register
        def _(self, n: int, x):
            return x * n

    kinds = Kinds()
    calls = [lambda: (tensor(1), 3), lambda: (tensor(1), "a"), lambda: (tensor(1), 4)]
    if hasattr(Kinds.__dict__["kind"], "_method_cache"):
        # Python 3.13 looks the method up by a weak reference to the object, which no guard can do.
        check_results(lambda: lambda x, n: kinds.kind(n, x), *calls, *calls)
    else:
        check(lambda x, n: kinds.kind(n, x), calls[0], other=calls[1:])


def test_compiled_native_function_guards_its_arguments():
    check(math.sqrt, lambda: (4.0,), other=[lambda: (9.0,)])
    check(operator.mul, lambda: (tensor(1, 2), 3), other=[lambda: (tensor(1, 2), 4)])
    check(sorted, lambda: ([3, 1],), other=[lambda: ([5, 4],), lambda: ([3, 1, 2],)])


def test_receiver_of_a_bound_native_method_is_guarded():
    def make():
        log, table = [], {"scale": 2.0}
        push, get = log.append, table.get

        def program(x):
            push("called")
            return x * get("scale")

        program.log, program.table = log, table
        return program

    check_stateful(make, one(), changes=[lambda p: p.table.update(scale=3.0)])


def test_class_statement_inside_is_recorded():
    def program(x, n):
        class Local:
            factor = n

            def scale(self, x):
                return x * self.factor

        return Local().scale(x)

    check(program, lambda: (tensor(1, 2), 3), other=[lambda: (tensor(1, 2), 4)])


def test_class_created_by_type_is_recorded():
    def program(x, n):
        cls = type("Made", (Affine,), {"extra": n})
        return cls(2.0)(x) * cls.extra

    check(program, lambda: (tensor(1, 2), 3), other=[lambda: (tensor(1, 2), 4)])


def test_recursive_functions_are_followed():
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    check(power, lambda: (tensor(1, 2), 3), other=[lambda: (tensor(1, 2), 4)])


def test_import_inside_is_recorded():
    def program(x):
        import math
        from operator import mul

        return mul(x, math.pi)

    check_stateful(lambda: program, one())


def test_changed_imported_name_misses(monkeypatch):
    import tests.programs as module

    monkeypatch.setattr(module, "factor", 2.0, raising=False)

    def program(x):
        from tests.programs import factor

        return x * factor

    change = lambda p: monkeypatch.setattr(module, "factor", 3.0)
    check_stateful(lambda: program, one(), changes=[change])


def test_attributes_read_by_name_are_guarded():
    def program(a, name, x):
        if hasattr(a, "missing"):
            x = x + 100
        return x * getattr(a, name) + getattr(a, "absent", 3)

    def other():
        a = Affine(2.0)
        a.missing = 1
        return a, "scale", tensor(1)

    def another():
        a = Affine(2.0)
        a.absent = 1
        return a, "scale", tensor(1)

    check(
        program,
        lambda: (Affine(2.0), "scale", tensor(1)),
        other=[other, another, lambda: (Affine(2.0), "size", tensor(1))],
    )


def test_nested_compiled_functions_are_one_record():
    def program(x):
        return COMPILED(x) + 1

    twins = Twins(lambda: program)
    twins.call(one(), hit=False)
    twins.call(one(), hit=True)
    assert magpy.cache_info(twins.compiled).graphs == 1


def test_function_reads_the_globals_of_its_module():
    make = load("import torch\nFACTOR = 2.0\ndef program(x):\n    return x * FACTOR\n")

    def change(p):
        p.__globals__["FACTOR"] = 3.0

    check_stateful(make, one(), changes=[change])


def test_program_of_many_calls_has_gradients():
    def layer(x, w):
        return torch.relu(x @ w)

    def program(x, ws):
        for w in ws:
            x = layer(x, w)
        return x

    check(
        program,
        lambda: (matrix(2, 3), [matrix(3, 3, grad=True), matrix(3, 2)]),
        other=[lambda: (matrix(2, 3), [matrix(3, 3)])],
        backward=True,
    )


def test_weak_sets_remove_dead_elements_without_a_split():
    class Key:
        pass

    known = weakref.WeakSet()

    def program(x):
        key = Key()
        known.add(key)
        del key
        return x + 1

    kept = Key()
    known.add(kept)
    waiting = [Key() for _ in range(3)]
    for key in waiting:
        known.add(key)
    del key

    def forgetful(x):
        waiting.clear()
        return x + 1

    check_results(lambda: program, one())
    check_results(lambda: forgetful, one())
    assert not magpy.explain(forgetful, torch.ones(2)).split_points


@typing.runtime_checkable
class _Sized(typing.Protocol):
    def __len__(self) -> int: ...


def test_protocol_checks_of_instances_do_not_split():
    class Own(list):
        pass

    def program(x, items):
        return x * 2 if isinstance(items, _Sized) else x

    check(program, lambda: (*one()(), Own()))
    assert not magpy.explain(program, torch.ones(2), Own()).split_points


def test_first_import_of_a_module_is_recorded():
    def program(x):
        import this_module_is_new

        return x * this_module_is_new.factor

    source = "import torch\nloads = globals().get('loads', 0) + 1\nfactor = torch.ones(2).sum()\n"
    loader = _Loader(source)
    sys.meta_path.append(loader)
    try:
        fast = magpy.compile(program, backend="eager", fullgraph=True)
        for _ in range(3):
            assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
        assert magpy.cache_info(fast).hits == 2
        assert sys.modules["this_module_is_new"].loads == 1
    finally:
        sys.meta_path.remove(loader)
        sys.modules.pop("this_module_is_new", None)


def test_frames_entered_after_an_import_that_raises_are_followed(monkeypatch):
    """``None`` in ``sys.modules`` blocks an import, which raises in the instruction itself."""
    monkeypatch.setitem(sys.modules, "this_module_is_blocked", None)

    def program(x, n):
        try:
            import this_module_is_blocked  # noqa: F401
        except ImportError:
            x = x + 1
        return (lambda y: y * n)(x)

    fast = magpy.compile(program, backend="eager", fullgraph=True)
    for n in (1, 1, 2, 3):
        assert torch.equal(fast(torch.ones(3), n), torch.full((3,), 2.0 * n))
    assert magpy.cache_info(fast)[:4] == (2, 2, 1, 1)


class _Loader:
    """Meta path finder and loader of one module from source text."""

    def __init__(self, source):
        self.source = source

    def find_spec(self, name, path=None, target=None):
        if name == "this_module_is_new":
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(self.source, module.__dict__)


def test_failing_import_is_caught():
    def program(x):
        try:
            import there_is_no_such_module  # noqa: F401
        except ImportError:
            return x + 1
        return x

    check_results(lambda: program, one(), one())


class _NeverCopied:
    def __init__(self):
        self.parts = [1, 2]


def test_caches_that_python_fills_while_copying_are_no_effects():
    class Fresh(_NeverCopied):
        pass

    kept = Fresh()

    def program(x):
        copied = copy.deepcopy(kept)
        copied.parts.append(3)
        return x * len(copied.parts), copied

    compiled = magpy.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        result, copied = compiled(tensor(1.0))
        assert result.item() == 3 and copied is not kept and copied.parts == [1, 2, 3]
    assert magpy.cache_info(compiled).hits == 1
    kept.parts.append(0)
    assert compiled(tensor(1.0))[0].item() == 4


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def times(self, x):
        return x * self.factor


def test_receiver_of_an_external_bound_method_is_guarded():
    def program(method, x):
        return method(x)

    makes = [lambda f=f: (Scaled(f).times, tensor(1, 2)) for f in (2, 3)]
    check(program, makes[0], other=[makes[1]])


def test_receiver_of_a_bound_method_in_a_container_is_guarded():
    def program(methods, x):
        for method in methods:
            x = method(x)
        return x

    makes = [lambda f=f: ([Scaled(2).times, Scaled(f).times], tensor(1, 2)) for f in (2, 3)]
    check(program, makes[0], other=[makes[1]])
