"""Generators that wait in ``yield from``: their effects after an exception that the program throws
into them are repeated."""

import contextlib

import pytest

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import tensor

log = []


def _handles():
    try:
        yield 1
    except ValueError as error:
        log.append(str(error))
        return 9


def _cleans_up():
    try:
        yield 1
    finally:
        log.append("cleaned up")


def _receives():
    while (value := (yield)) is not None:
        log.append(value)
    return 7


def _reraises():
    try:
        yield 1
    except ValueError:
        log.append("inner")
        raise KeyError("key") from None


class _Iterator:
    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def throw(self, *_):
        log.append("thrown")
        raise StopIteration(11)


def _delegates(make):
    def generator():
        try:
            while True:
                log.append((yield from make()))
                yield "next"
        except KeyError:
            log.append("outer")
            yield "handled"
        finally:
            log.append("left")

    return generator


def _thrown(make):
    def program(x):
        generator = make()
        next(generator)
        return x * 2, generator.throw(ValueError("thrown")), next(generator, None)

    return program


def _thrown_until_it_ends(x):
    def outer():
        for i in range(2):
            log.append((i, (yield from _handles())))

    generator = outer()
    next(generator)
    generator.throw(ValueError("first"))
    try:
        generator.throw(ValueError("second"))
    except StopIteration:
        log.append("ended")
    return x * 2


def _closed(x):
    generator = _delegates(_cleans_up)()
    next(generator)
    generator.close()
    return x * 2


def _sent(x):
    generator = _delegates(_receives)()
    next(generator)
    generator.send(1)
    return x * 2, generator.send(None)


@contextlib.contextmanager
def _manager():
    log.append((yield from _handles()))


def _in_a_context_manager(x):
    with _manager():
        raise ValueError("raised")
    return x * 2


PROGRAMS = {
    "inner one handles it": _thrown(_delegates(_handles)),
    "innermost of three handles it": _thrown(_delegates(_delegates(_handles))),
    "inner one raises another": _thrown(_delegates(_reraises)),
    "iterator in Python ends": _thrown(_delegates(_Iterator)),
    "until it ends": _thrown_until_it_ends,
    "context manager": _in_a_context_manager,
    "closed": _closed,
    "sent": _sent,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_effects_of_a_generator_that_delegates_are_repeated(name):
    program = PROGRAMS[name]
    compiled = magpy.compile(program, backend="eager")
    for n in range(4):
        found = []
        for function in (program, compiled):
            log.clear()
            found.append((function(tensor(n)), [*log]))
        assert_same(found[1], found[0])
