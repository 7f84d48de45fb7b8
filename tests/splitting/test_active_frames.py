"""A program that splits inside each of Python's constructs and is resumed by a record."""

import contextlib
import itertools
import linecache
import sys
import traceback
import warnings

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.splitting.constructs import CONSTRUCTS, NATIVE, program

LOG = []
_NUMBERS = itertools.count()


def effect(value):
    """A dynamic function."""
    LOG.append(value)
    return len(LOG)


def refuse(value):
    """A dynamic function that raises."""
    LOG.append(value)
    raise ValueError("refused")


def load(text, **further):
    names = {
        "effect": magpy.disable(effect),
        "refuse": magpy.disable(refuse),
        "__name__": "program",
    }
    names.update(further)
    name = f"<construct {next(_NUMBERS)}>"
    exec(compile(text, name, "exec"), names)
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    return names["program"]


def outcome(run, x):
    LOG.clear()
    result = run(x)
    return result, list(LOG), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


def compare(*names):
    """Compares three calls with eager mode; returns the number of hits."""
    text = program(*names)
    eager, fast = load(text), magpy.compile(load(text), backend="eager")
    for i in range(3):
        x = torch.full((2,), 1.0 + i)
        assert_same(outcome(fast, x.clone()), outcome(eager, x.clone()))
    assert magpy.cache_info(fast).records > 0 or names[-1] in NATIVE
    return magpy.cache_info(fast).hits


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_record_resumes_inside_a_construct(name):
    assert compare(name) == 2


READS = "x = x + 1\nchange()\nx = x * 2 if KINDS[0] == 'double' else x - 1"


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_change_by_a_dynamic_function_inside_a_construct_must_miss(name):
    kinds = ["double"]
    now = ["double"]

    def change():
        kinds[0] = now[0]

    text = program(name, splitting=READS)
    names = {"change": magpy.disable(change), "KINDS": kinds}
    eager, fast = load(text, **names), magpy.compile(load(text, **names), backend="eager")
    missed = []
    for now[0] in ("double", "double", "single", "single", "other", "other"):
        before = magpy.cache_info(fast).misses
        x = torch.full((2,), 3.0)
        assert_same(outcome(fast, x.clone()), outcome(eager, x.clone()))
        missed.append(magpy.cache_info(fast).misses > before)
    assert missed == [True, False, True, False, True, False]


OUTSIDE = ("callee", "for", "with a generator", "with autocast", "except as", "finally, raising")


@pytest.mark.full
@pytest.mark.parametrize("outer", CONSTRUCTS)
def test_nested_constructs_equal_eager(outer):
    for inner in CONSTRUCTS:
        compare(outer, inner)


@pytest.mark.parametrize("outer", OUTSIDE)
@pytest.mark.parametrize("inner", ("callee", "except as", "with autocast", "over enumerate"))
def test_record_resumes_inside_nested_constructs(outer, inner):
    assert compare(outer, inner) == 2


@pytest.mark.parametrize("name", NATIVE)
def test_active_generator_or_native_code_runs_natively(name):
    assert compare(name) == 0


@magpy.disable
def maybe(kind):
    LOG.append(kind)
    if kind == 1:
        raise ValueError("one")
    if kind == 2:
        raise KeyError("two")
    if kind == 3:
        raise OSError(2, "three", "file")


@magpy.disable
def show():
    """Logs all that a handler could: exceptions, causes and contexts with their lines."""
    error = sys.exception()
    while error is not None:
        entries = traceback.extract_tb(error.__traceback__)
        own = [(f.name, f.lineno, f.colno) for f in entries if f.filename == __file__]
        LOG.append((type(error).__name__, str(error), getattr(error, "name", None), own))
        error = error.__cause__ or error.__context__


def raised_by_a_dynamic_function(x, kind):
    try:
        x = x + 1
        maybe(kind)
        x = x * 2
    except ValueError as error:
        show()
        x = x * 3
        effect(str(error))
    except (KeyError, OSError) as error:
        x = x * 5
        show()
        raise RuntimeError("new") from error
    finally:
        x = x - 1
        opaque("finally")
    return x * 2


def propagated_through_frames(x, kind):
    try:
        return raised_by_a_dynamic_function(x, kind)
    except RuntimeError as error:
        show()
        opaque(repr(error.__cause__))
        return x * 7


def raised_by_the_program(x, kind):
    try:
        if kind == 1:
            raise ValueError("a")
        if kind == 2:
            raise ValueError("b")
        x = x + {}["k"]
    except (ValueError, KeyError):
        x = x * 2
        show()
        try:
            x = x.missing
        except AttributeError:
            show()
            x = x * 2
            opaque("inner")
        show()
    show()
    return x


def created_before_the_split(x, kind):
    error = ValueError("outer")
    try:
        try:
            maybe(kind)
            raise error
        except ValueError as caught:
            x = x + 1
            show()
            caught.note = "n"
            raise KeyError("second")
    except KeyError as last:
        show()
        opaque(str(last.__context__))
        return x * 2


def raised_in_a_loop(x, kind):
    with contextlib.suppress(ValueError):
        maybe(kind)
        opaque("not raised")
    for i in range(3):
        try:
            maybe(kind if i == 1 else 0)
            x = x * 2
        except ValueError:
            show()
            x = x + 5
            continue
        else:
            opaque("else")
        finally:
            x = x * 2
    return x


opaque = magpy.disable(effect)
HANDLING = [
    raised_by_a_dynamic_function,
    propagated_through_frames,
    raised_by_the_program,
    created_before_the_split,
    raised_in_a_loop,
]


def outcome_of_handling(run, x, kind, around):
    """The outcome of a call, made while the caller handles an exception or not."""
    LOG.clear()

    def call():
        try:
            result = run(x.clone(), kind)
        except Exception as error:
            entries = [(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
            links = repr(error.__cause__), repr(error.__context__)
            result = type(error), str(error), entries[-1], links
        return result, list(LOG)

    if not around:
        return call()
    try:
        raise TypeError("the caller's")
    except TypeError:
        return call()


@pytest.mark.parametrize("function", HANDLING, ids=lambda function: function.__name__)
def test_exception_reaches_its_handler_with_cause_context_and_lines(function):
    fast = magpy.compile(function, backend="eager")
    for repetition in range(3):
        for around in (False, True):
            for kind in range(4):
                x = torch.full((2,), float(kind + repetition))
                mine = outcome_of_handling(fast, x, kind, around)
                assert_same(mine, outcome_of_handling(function, x, kind, around))
    assert magpy.cache_info(fast).hits >= 5


def test_exception_of_another_class_must_miss():
    def caught(x, kind):
        try:
            maybe(kind)
        except LookupError:
            return x + 1
        except Exception:
            return x - 1
        return x

    fast = magpy.compile(caught, backend="eager")
    x = torch.ones(2)
    for kind in (1, 2, 3, 0, 2, 1, 3):
        assert_same(
            outcome_of_handling(fast, x, kind, False), outcome_of_handling(caught, x, kind, False)
        )
    assert magpy.cache_info(fast).hits == 3


def test_program_that_always_raises_becomes_eager():
    def cleaned_up(x):
        try:
            refused(1)
        finally:
            x = x + 1
            opaque("finally")

    refused = magpy.disable(refuse)
    fast = magpy.compile(cleaned_up, backend="eager")
    for _ in range(6):
        with pytest.raises(ValueError, match="refused"):
            fast(torch.ones(2))
    dispatcher = magpy.api._dispatcher(fast)
    assert any(d.is_eager for d in dispatcher.program.dispatchers.values())


def test_autocast_and_its_nesting_depth_are_restored():
    layer = torch.nn.Linear(2, 2)

    def cast(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
            opaque(torch.is_autocast_enabled("cpu"))
            y = layer(y)
        return y

    def deeper(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cast(x) + layer(x)

    warnings.filterwarnings("error", message="magpy_like")
    for backend, function in (("eager", cast), ("eager", deeper), ("aot_eager", cast)):
        fast = magpy.compile(function, backend=backend)
        for _ in range(3):
            with torch.no_grad():
                layer.weight.add_(1.0)  # invalidates the cache of cast weights
            x = torch.ones(2, 2)
            assert_same(fast(x), function(x))
            assert torch.autocast_increment_nesting() == 1
            torch.autocast_decrement_nesting()
        assert magpy.cache_info(fast)[:2] == (2, 1)


def test_autocast_is_disabled_where_an_operator_raises():
    def chosen(x, index):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x[index] @ x

    fast = magpy.compile(chosen, backend="eager")
    x = torch.ones(2, 2)
    for index in ([0, 1], [1, 0]):
        assert_same(fast(x, torch.tensor(index)), chosen(x, torch.tensor(index)))
    with pytest.raises(IndexError):
        fast(x, torch.tensor([0, 5]))
    assert not torch.is_autocast_enabled("cpu")
    assert magpy.cache_info(fast)[:2] == (2, 1)
