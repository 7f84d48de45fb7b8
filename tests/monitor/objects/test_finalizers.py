"""What runs when an object dies is part of the program: destructors, callbacks, `finally`."""

import gc
import weakref

import pytest

import magpy_like as magpy
from tests.programs import Twins, check_stateful, one, tensor


class Noted:
    """Leaves a note in a list when it dies."""

    def __init__(self, log, note=1):
        self.log, self.note = log, note

    def __del__(self):
        self.log.append(self.note)


def _unfinished(log):
    try:
        yield 1.0
    finally:
        log.append("finished")


def _generator_dropped(x, log):
    steps = _unfinished(log)
    next(steps)
    del steps
    return x * len(log)


def _deleted(x, log):
    noted = Noted(log, x + 1)
    del noted
    return x * len(log)


def _left_at_the_end(x, log):
    noted = Noted(log, x * 2)
    return x * noted.note


def _left_by_a_function(x, log):
    def inner():
        noted = Noted(log)
        return noted.note

    return x * inner() * len(log)


def _argument_only(x, log):
    return x * (id(Noted(log)) > 0) * len(log)


def _replaced(x, log):
    noted = Noted(log, "first")
    noted = Noted(log, "second")
    return x * len(log), noted.note


def _left_by_an_exception(x, log):
    def inner():
        noted = Noted(log)
        raise ValueError(noted.note)

    try:
        inner()
    except ValueError as error:
        x = x * error.args[0]
    return x * len(log)


def _weak_reference_called_back(x, log):
    noted = Noted([])
    reference = weakref.ref(noted, lambda _: log.append("gone"))
    del noted
    return x * len(log), reference() is None


def _tensor_work(x, log):
    class Works:
        def __del__(self):
            log.append(x.exp())

    Works()
    return x + log[-1]


@pytest.mark.parametrize(
    "program",
    [
        _generator_dropped, _deleted, _left_at_the_end, _left_by_a_function, _argument_only,
        _replaced, _left_by_an_exception, _weak_reference_called_back, _tensor_work,
    ],
)  # fmt: skip
def test_what_an_object_leaves_when_it_dies(program):
    def make():
        log = []
        made = lambda x: program(x, log)
        made.log = log
        return made

    twins = Twins(make)
    for i in range(4):
        twins.call(one(1.0, 2.0 + i), why=f"call {i}")


def test_a_destructor_that_depends_on_nothing_is_part_of_the_record():
    def make():
        log = []
        made = lambda x: _left_at_the_end(x, log)
        made.log = log
        return made

    check_stateful(make, one(), other=[one(1.0)])


def test_a_split_keeps_no_object_of_the_program_alive():
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


def test_a_recorded_call_keeps_no_frame_alive():
    class Box:
        scale = 2.0

    died = []

    def program(x):
        box = Box()
        weakref.finalize(box, died.append, 1)
        return x * box.scale

    compiled = magpy.compile(program, backend="eager")
    gc.disable()
    try:
        for i in range(3):
            compiled(tensor(1))
            assert len(died) == i + 1
    finally:
        gc.enable()


def test_a_split_inside_a_handler_keeps_no_frame_alive():
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
