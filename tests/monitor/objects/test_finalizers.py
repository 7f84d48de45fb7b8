"""Finalizers: destructors, weak reference callbacks and `finally` blocks of dropped generators."""

import gc
import weakref

import pytest

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import Twins, check_stateful, one, tensor


class AppendsWhenDestroyed:
    """Appends a note to a list when it is destroyed."""

    def __init__(self, log, note=1):
        self.log, self.note = log, note

    def __del__(self):
        self.log.append(self.note)


def _generator_with_finally(log):
    try:
        yield 1.0
    finally:
        log.append("finished")


def _drops_generator(x, log):
    steps = _generator_with_finally(log)
    next(steps)
    del steps
    return x * len(log)


def _deletes_local(x, log):
    noted = AppendsWhenDestroyed(log, x + 1)
    del noted
    return x * len(log)


def _drops_at_return(x, log):
    noted = AppendsWhenDestroyed(log, x * 2)
    return x * noted.note


def _drops_at_return_of_inner_function(x, log):
    def inner():
        noted = AppendsWhenDestroyed(log)
        return noted.note

    return x * inner() * len(log)


def _drops_argument(x, log):
    return x * (id(AppendsWhenDestroyed(log)) > 0) * len(log)


def _rebinds_local(x, log):
    noted = AppendsWhenDestroyed(log, "first")
    noted = AppendsWhenDestroyed(log, "second")
    return x * len(log), noted.note


def _drops_by_exception(x, log):
    def inner():
        noted = AppendsWhenDestroyed(log)
        raise ValueError(noted.note)

    try:
        inner()
    except ValueError as error:
        x = x * error.args[0]
    return x * len(log)


def _has_weak_reference_callback(x, log):
    noted = AppendsWhenDestroyed([])
    reference = weakref.ref(noted, lambda _: log.append("gone"))
    del noted
    return x * len(log), reference() is None


def _computes_in_destructor(x, log):
    class Works:
        def __del__(self):
            log.append(x.exp())

    Works()
    return x + log[-1]


@pytest.mark.parametrize(
    "program",
    [
        _drops_generator, _deletes_local, _drops_at_return, _drops_at_return_of_inner_function,
        _drops_argument, _rebinds_local, _drops_by_exception, _has_weak_reference_callback,
        _computes_in_destructor,
    ],
)  # fmt: skip
def test_finalizers_run_where_the_program_drops_the_object(program):
    def make():
        log = []
        target = lambda x: program(x, log)
        target.log = log
        return target

    twins = Twins(make)
    for i in range(4):
        twins.call(one(1.0, 2.0 + i), why=f"call {i}")


def test_destructor_at_return_is_part_of_the_record():
    def make():
        log = []
        target = lambda x: _drops_at_return(x, log)
        target.log = log
        return target

    check_stateful(make, one(), other=[one(1.0)])


def test_split_keeps_no_object_alive():
    class Box:
        scale = 2.0

    def make():
        kept = {"box": Box()}
        reference = weakref.ref(kept["box"])

        def program(x):
            box = reference()
            return x * box.scale if box is not None else x

        return program, kept, reference

    program, kept, reference = make()
    compiled = magpy.compile(program, backend="eager")
    gc.disable()
    try:
        for _ in range(3):
            assert compiled(tensor(1)).item() == 2
        kept.clear()
        assert reference() is None
        assert compiled(tensor(1)).item() == 1
    finally:
        gc.enable()


def test_recorded_call_keeps_no_frame_alive():
    class Box:
        scale = 2.0

    finalized = []

    def program(x):
        box = Box()
        weakref.finalize(box, finalized.append, 1)
        return x * box.scale

    compiled = magpy.compile(program, backend="eager")
    gc.disable()
    try:
        for i in range(3):
            compiled(tensor(1))
            assert len(finalized) == i + 1
    finally:
        gc.enable()


def test_split_inside_a_handler_keeps_no_frame_alive():
    opaque = magpy.disable(lambda: None)

    def program(x):
        try:
            {}["missing"]
        except KeyError:
            opaque()
        return x * 2

    compiled = magpy.compile(program, backend="eager")
    gc.disable()
    try:
        for _ in range(3):
            x = tensor(1)
            reference = weakref.ref(x)
            compiled(x)
            del x
            assert reference() is None
    finally:
        gc.enable()
    assert magpy.cache_info(compiled).hits == 2


class _Owner:
    """Knows its part, which knows its owner by a weak proxy, as trainers and loops do."""

    def __init__(self, callback=None):
        self.part = _Part()
        self.part.owner = weakref.proxy(self, callback) if callback else weakref.proxy(self)


class _Part:
    pass


def _drops_an_object_with_a_proxy_that_calls_back(x, log):
    owner = _Owner(lambda proxy: log.append("dropped"))
    log.append(float(x.sum()))
    del owner
    return x * len(log)


def _size_in_bytes(x, owner):
    return x.untyped_storage().nbytes()  # the program splits here


def _splits_where_a_caller_holds_an_object_with_a_proxy(x, log):
    owner = _Owner()
    log.append(_size_in_bytes(x, owner))
    return x * len(log)


@pytest.mark.parametrize(
    "program",
    [
        _drops_an_object_with_a_proxy_that_calls_back,
        _splits_where_a_caller_holds_an_object_with_a_proxy,
    ],
    ids=lambda program: program.__name__,
)
def test_weak_proxies_of_objects_are_known(program):
    """Proxies answer all reads by their referent, whose class has no ``__callback__``."""
    compiled, logs = magpy.compile(program, backend="eager"), ([], [])
    for _ in range(3):
        x = tensor(1.0, 2.0)
        assert_same(compiled(x, logs[0]), program(x, logs[1]))
        gc.collect()
        assert logs[0] == logs[1]


_owners = {}


@magpy.disable
def _drop_owners():
    _owners.clear()


def _calls_a_method(x, user, alive):
    y = user.strategy.step(x + 1)
    return y * 3, alive()


def _reads_an_attribute(x, user, alive):
    weights = user.strategy.weights
    return x * weights[0], alive()


def _drops_the_owner_meanwhile(x, user, alive):
    y = user.strategy.step_and_drop(x + 1)
    return y * 3, alive()


def _drops_the_owner_later(x, user, alive):
    y = user.strategy.step(x + 1)
    _drop_owners()
    return y * 3, alive()


def _holds_a_method(x, user, alive):
    step = user.strategy.step
    _drop_owners()
    y = step(x), alive()
    del step
    return y, alive()


@pytest.mark.parametrize("has_destructor", [False, True])
@pytest.mark.parametrize(
    "program",
    [_calls_a_method, _reads_an_attribute, _drops_the_owner_meanwhile, _drops_the_owner_later,
     _holds_a_method],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_object_reached_by_a_weak_proxy_dies_as_in_eager_mode(program, has_destructor):
    """As an object of a trainer, which its parts reach by weak proxies only."""
    log = []

    class Strategy:
        def __init__(self):
            self.weights = [2.0]

        def step(self, x):
            return x * self.weights[0]

        def step_and_drop(self, x):
            _drop_owners()
            return self.step(x)

    if has_destructor:
        Strategy.__del__ = lambda self: log.append("destroyed")
    found = []
    compiled = magpy.compile(program, backend="eager")
    for run in (program, compiled):
        log.clear()
        for i in range(4):
            strategy = _owners["strategy"] = Strategy()
            reference = weakref.ref(strategy)
            user = _Part()
            user.strategy = weakref.proxy(strategy)
            del strategy

            def is_alive(reference=reference):
                log.append("asked")
                return reference() is not None

            log.append(run(tensor(1.0, float(i)), user, magpy.disable(is_alive)))
            _owners.clear()
        found.append(log.copy())
    assert_same(found[1], found[0])
    if program is not _holds_a_method:
        assert magpy.cache_info(compiled).native == 0
