"""Generators, comprehensions, exceptions, context managers, ``match`` and closures."""

import contextlib
import itertools
import sys

import pytest
import torch

import magpy_like as magpy
from tests.programs import Twins, check, check_results, check_stateful, matrix, one, tensor


def test_generators_exhausted_inside_are_followed():
    def pieces(x, n):
        for i in range(n):
            received = yield x * i
            assert received is None

    def program(x, n):
        return sum(pieces(x, n)), list(pieces(x, 2)), [*pieces(x, 1)], tuple(pieces(x, 1))

    check(program, lambda: (tensor(1, 2), 3), other=[lambda: (tensor(1, 2), 4)])


def test_generators_delegate_receive_and_return_values():
    def inner(x):
        received = yield x
        yield x * received
        return x + 1

    def outer(x):
        result = yield from inner(x)
        yield result

    def program(x, factor):
        steps = outer(x)
        first = next(steps)
        second = steps.send(factor)
        third = next(steps)
        rest = next(steps, None)
        return first, second, third, rest

    check(program, lambda: (tensor(1, 2), 3), other=[lambda: (tensor(1, 2), 4)])


def test_generator_expressions_over_external_values_are_guarded():
    def program(x, weights):
        return sum(x * w for w in weights if w > 1)

    check(
        program,
        lambda: (tensor(1, 2), [1, 2, 3]),
        other=[lambda: (tensor(1, 2), [1, 2, 4]), lambda: (tensor(1, 2), [1, 2])],
    )


def test_closed_generator_runs_its_finally():
    def make():
        ended = []

        def steps(x):
            try:
                yield x
                yield x + 1
            finally:
                ended.append("ended")

        def program(x):
            it = steps(x)
            first = next(it)
            it.close()
            return first, len(ended) > 0

        return program

    check_results(make, one())


def test_generators_may_be_arguments():
    def program(xs):
        return sum(xs)

    check_results(lambda: program, lambda: ((tensor(i) for i in range(3)),))
    check_results(lambda: program, lambda: (iter([tensor(1), tensor(2)]),))


def test_suspended_generator_may_be_returned():
    def program(x):
        def steps():
            yield x
            yield x + 1

        it = steps()
        return next(it), it

    twins = Twins(lambda: program)
    for _ in range(3):
        first, rest = twins.compiled(tensor(1, 2))
        assert torch.equal(next(rest), tensor(2, 3))
        assert list(rest) == []


def test_comprehensions_of_every_kind_are_followed():
    def program(x, names):
        listed = [x * i for i, _ in enumerate(names)]
        table = {name: x + i for i, name in enumerate(names)}
        sizes = {len(name) for name in names}
        nested = [[y.sum() for y in (x, x + 1)] for _ in range(2)]
        return listed, table, sizes, nested

    check(program, lambda: (tensor(1, 2), ["a", "bb"]), other=[lambda: (tensor(1, 2), ["a", "bc"])])


def test_loops_with_else_break_and_continue_are_followed():
    def program(x, values):
        for v in values:
            if v == 2:
                continue
            if v > 4:
                break
            x = x * v
        else:
            x = x + 100
        n = 0
        while n < len(values):
            n += 1
            x = x - n
        return x

    check(
        program,
        lambda: (tensor(1, 2), [1, 2, 3]),
        other=[lambda: (tensor(1, 2), [1, 2, 5]), lambda: (tensor(1, 2), (1, 2, 3))],
    )


def test_unpacking_reads_all_elements():
    def program(pair, rest, x):
        (a, b), [c, *d, e] = pair, rest
        first, *more = x
        return a * first + b * c, d, e, more

    check(
        program,
        lambda: ((1, 2), [3, 4, 5, 6], [tensor(1), tensor(2), tensor(3)]),
        other=[
            lambda: ((1, 3), [3, 4, 5, 6], [tensor(1), tensor(2), tensor(3)]),
            lambda: ((1, 2), [3, 4, 6], [tensor(1), tensor(2), tensor(3)]),
            lambda: ((1, 2), [3, 4, 5, 6], [tensor(1), tensor(2)]),
        ],
    )


def test_iteration_over_a_tensor_yields_rows():
    def program(m):
        return [row * i for i, row in enumerate(m)], len(m)

    check(program, lambda: (matrix(2, 3),), other=[lambda: (matrix(3, 3),)])


def test_iterators_of_the_standard_library_are_guarded():
    def program(xs, names):
        out = {}
        for i, (x, name) in enumerate(zip(xs, names)):
            out[name] = x + i
        for x in reversed(xs):
            out["last"] = x
            break
        pairs = list(itertools.product(names, [1, 2]))
        chained = list(itertools.chain(xs, [xs[0]]))
        return out, pairs, chained, list(itertools.islice(itertools.count(3), 2))

    check(
        program,
        lambda: ([tensor(1), tensor(2)], ["a", "b"]),
        other=[lambda: ([tensor(1), tensor(2)], ["a", "c"]), lambda: ([tensor(1)], ["a", "b"])],
    )


# --- exceptions ---------------------------------------------------------------------------------


class Refused(ValueError):
    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


def test_exceptions_are_caught_inside():
    def program(x, table, key):
        try:
            factor = table[key]
        except KeyError as error:
            factor = len(error.args[0])
        return x * factor

    check(
        program,
        lambda: (tensor(1, 2), {"a": 2}, "bcd"),
        other=[lambda: (tensor(1, 2), {"bcd": 5}, "bcd"), lambda: (tensor(1, 2), {"a": 2}, "a")],
    )


def test_exceptions_are_caught_in_an_outer_frame():
    def refuse(limit, n):
        if n > limit:
            raise Refused("too big", n)
        return n

    def program(x, n):
        try:
            return x * refuse(3, n)
        except (TypeError, Refused) as error:
            return x + error.code
        finally:
            x = x * 2

    check(program, lambda: (tensor(1, 2), 5), other=[lambda: (tensor(1, 2), 2)])


def test_exceptions_of_tensor_operators_are_caught():
    def program(x, y):
        try:
            return x @ y
        except RuntimeError:
            return x.sum()

    check_results(
        lambda: program, lambda: (matrix(2, 3), matrix(2, 3)), lambda: (matrix(2, 3), matrix(3, 2))
    )


def _returns_message(x, i):
    try:
        return x[i]
    except IndexError as error:
        return str(error)


def _appends_in_finally(x, i):
    notes = []
    try:
        try:
            rows = x.index_select(0, i)
        finally:
            notes.append(len(notes))
    except (IndexError, RuntimeError):
        return x + 1, notes
    return rows, notes


def _assigns_elements(x, i):
    x = x.clone()
    try:
        x[i] = 0
    except IndexError:
        x += 1
    return x


def _decomposes_matrix(x, i):
    matrix = torch.diag(i.double() - 2)
    try:
        return torch.linalg.cholesky(matrix)
    except RuntimeError:
        return matrix + 100 * torch.eye(2)


class _SelectRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, i):
        return x[i]

    @staticmethod
    def backward(ctx, gradient):
        return None, None


def _custom_function(x, i):
    try:
        return _SelectRows.apply(x, i)
    except IndexError:
        return x - 1


def _number_as_index(x, i):
    n = i.tolist()[0]
    try:
        return x[n]
    except IndexError:
        return x.sum()


def _number_as_size(x, i):
    try:
        return x.view(int(i[0]), -1)
    except RuntimeError:
        return x


@pytest.mark.parametrize(
    "program",
    [
        _number_as_index,
        _number_as_size,
        _returns_message,
        _appends_in_finally,
        _assigns_elements,
        _decomposes_matrix,
        _custom_function,
    ],
)
def test_data_dependent_exception_is_caught_only_for_its_values(program):
    calls = [
        lambda values=values: (matrix(3, 2), torch.tensor(values))
        for values in ([3, 0], [4, 1], [0, 2], [2, 1], [9, 9])
    ]
    check_results(lambda: program, *calls)


@pytest.mark.parametrize("dynamic", [None, True])
def test_size_dependent_exception_is_caught_only_for_its_sizes(dynamic):
    def program(x):
        try:
            return x @ torch.ones(4, 2)
        except RuntimeError:
            return x.flatten()[:1]

    fast = magpy.compile(program, backend="eager", dynamic=dynamic)
    for rows, columns in [(6, 6), (3, 5), (4, 4), (3, 4), (4, 7), (8, 4), (9, 2)]:
        x = matrix(rows, columns)
        expected, actual = program(x), fast(x)
        assert expected.shape == actual.shape and torch.equal(expected, actual)


def test_call_with_a_data_dependent_exception_is_not_recorded():
    twins = Twins(lambda: _assigns_elements)
    twins.call(lambda: (matrix(3, 2), torch.tensor([3, 0])))
    twins.call(lambda: (matrix(3, 2), torch.tensor([0, 2])))
    twins.call(lambda: (matrix(3, 2), torch.tensor([1, 1])), hit=True)
    twins.call(lambda: (matrix(3, 2), torch.tensor([5, 1])))


def test_size_dependent_exception_is_part_of_the_record():
    def program(x, y):
        try:
            return torch.cat([x, y])
        except RuntimeError:
            return x.sum()

    check(program, lambda: (matrix(2, 3), matrix(2, 2)))


def test_finally_else_and_reraise_are_followed():
    def make():
        order = []

        def attempt(x, fail):
            order.append("try")
            try:
                if fail:
                    raise ValueError("first")
            except ValueError as error:
                order.append("except")
                raise RuntimeError("second") from error
            else:
                order.append("else")
            finally:
                order.append("finally")
            return x

        def program(x, fail):
            try:
                return attempt(x, fail), list(order[-1:])
            except RuntimeError as error:
                return x * 2, str(error.__cause__)

        return program

    twins = check_results(make, lambda: (tensor(1), True), lambda: (tensor(1), False))
    twins.call(lambda: (tensor(1), True))


@pytest.mark.parametrize("error", [ValueError("bad"), KeyError("k"), Refused("no", 3)])
def test_uncaught_exception_matches_eager(error):
    def make():
        seen = []

        def program(x, fail):
            seen.append(len(seen))
            y = x * 2
            if fail:
                raise error
            return y

        return program

    check_results(make, lambda: (tensor(1), True), lambda: (tensor(1), False))


def test_calls_hit_after_an_uncaught_exception():
    def program(x, n):
        return x / n if n else [][1]

    twins = Twins(lambda: program)
    twins.call(lambda: (tensor(1), 0))
    twins.call(lambda: (tensor(1), 2), hit=False)
    twins.call(lambda: (tensor(1), 2), hit=True)
    twins.call(lambda: (tensor(1), 0), hit=False)


def test_assertions_and_exception_groups_are_followed():
    def program(x, n):
        assert n > 0, "positive"
        try:
            raise ExceptionGroup("both", [ValueError(1), TypeError(2)])
        except* ValueError as group:
            x = x + len(group.exceptions)
        except* TypeError:
            x = x * 2
        return x

    check_results(lambda: program, lambda: (tensor(1), 1), lambda: (tensor(1), -1))


def test_handler_reads_its_exception_from_sys():
    import sys

    def program(x):
        try:
            raise ValueError("seen")
        except ValueError:
            kind, value, trace = sys.exc_info()
            return x * len(str(value)), kind is ValueError

    check_results(lambda: program, one())


# --- context managers ---------------------------------------------------------------------------


class Scaled:
    def __init__(self, by):
        self.by, self.depth = by, 0

    def __enter__(self):
        self.depth += 1
        return self.by

    def __exit__(self, kind, value, trace):
        self.depth -= 1
        return kind is ValueError


def test_python_context_managers_are_followed():
    def program(x, by, fail):
        with Scaled(by) as factor, Scaled(1):
            if fail:
                raise ValueError
            return x * factor
        return x

    check(
        program,
        lambda: (tensor(1, 2), 3, False),
        other=[lambda: (tensor(1, 2), 4, False), lambda: (tensor(1, 2), 3, True)],
    )


def test_external_context_manager_is_changed_in_place():
    def make():
        manager = Scaled(2.0)

        def program(x):
            with manager as by:
                x = x * by * manager.depth
            return x

        program.manager = manager
        return program

    check_stateful(make, one(), changes=[lambda p: setattr(p.manager, "by", 4.0)])


def test_context_managers_of_contextlib_are_followed():
    @contextlib.contextmanager
    def scaled(by):
        yield by

    def program(x, by):
        with contextlib.suppress(ZeroDivisionError), scaled(by) as factor:
            x = x * factor
            x = x / (1 // (by - 3))
        with contextlib.nullcontext(5) as five, contextlib.ExitStack() as stack:
            stack.callback(len, "abc")
            x = x + five
        return x

    check_results(lambda: program, lambda: (tensor(1, 2), 3), lambda: (tensor(1, 2), 4))


# --- match --------------------------------------------------------------------------------------


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


def test_match_statements_are_followed():
    def program(t, shape):
        match shape:
            case Point(0, y=0):
                return t
            case Point(x, y):
                return t * x + y
            case {"scale": int(n), **rest}:
                return t * n + len(rest)
            case [a, *others] if len(others) > 1:
                return t * a
            case (a, b):
                return t - b
            case "double" | "twice":
                return t * 2
            case None:
                return -t
            case _:
                return t + 100

    check(
        program,
        lambda: (tensor(1, 2), Point(2, 3)),
        other=[
            lambda: (tensor(1, 2), Point(2, 4)),
            lambda: (tensor(1, 2), Point(0, 0)),
            lambda: (tensor(1, 2), {"scale": 3, "more": 1}),
            lambda: (tensor(1, 2), {"scale": 3}),
            lambda: (tensor(1, 2), [3, 1, 2]),
            lambda: (tensor(1, 2), (3, 1)),
        ],
    )
    check(program, lambda: (tensor(1), "twice"), other=[lambda: (tensor(1), "thrice")])
    check(program, lambda: (tensor(1), None), other=[lambda: (tensor(1), 5)])
    check(
        program,
        lambda: (tensor(1), {"scale": 3, "more": 1}),
        other=[lambda: (tensor(1), {"scale": 3}), lambda: (tensor(1), {"size": 3, "more": 1})],
    )


# --- closures and class bodies --------------------------------------------------------------------


def test_reads_of_closure_variables_are_guarded():
    def make():
        scale, table = 2.0, {"shift": 1}

        def program(x):
            return x * scale + table["shift"]

        program.table = table
        return program

    def rebind(p):
        names = p.__code__.co_freevars
        p.__closure__[names.index("scale")].cell_contents = 3.0

    check_stateful(make, one(), changes=[rebind, lambda p: p.table.update(shift=5)])


def test_nonlocal_variables_are_written():
    def make():
        state, last = 0.0, None

        def program(x):
            nonlocal state, last
            state = 1.5
            last = x * 2
            return last + state

        return program

    check_stateful(make, one(), max_recordings=2)


def test_cells_created_inside_are_followed():
    def program(x, n):
        total = x

        def add(by):
            nonlocal total
            total = total + by
            return total

        results = [add(i) for i in range(n)]
        return results, total

    check(program, lambda: (tensor(1, 2), 3), other=[lambda: (tensor(1, 2), 4)])


def test_counter_in_a_closure_is_incremented():
    def make():
        n = 0

        def program(x):
            nonlocal n
            n += 1
            return x * n

        return program

    check_results(make, one())


def test_coroutine_driven_inside_is_followed():
    async def program(x):
        return x + 1

    def outer(x):
        coroutine = program(x)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value

    check_results(lambda: outer, one())


def test_compiled_coroutine_function_can_be_awaited():
    import asyncio

    import magpy_like as magpy

    async def program(x):
        await asyncio.sleep(0)
        return x + 1

    compiled = magpy.compile(program, backend="eager")
    for _ in range(3):
        assert torch.equal(asyncio.run(compiled(tensor(1, 2))), tensor(2, 3))


def test_conditional_expressions_and_chained_comparisons_are_followed():
    def program(x, a, b):
        y = x * n if (n := a + b) > 3 else x
        return y, 0 < a < b < 10, a and b or None, not b

    check(
        program,
        lambda: (tensor(1, 2), 2, 3),
        other=[lambda: (tensor(1, 2), 1, 1), lambda: (tensor(1, 2), 0, 3)],
    )


def test_locals_are_deleted_and_globals_written():
    from tests.programs import load, namespace

    source = """
import torch
total = 1.0
def program(x):
    global total, last
    y = x * total
    del x
    total = 3.0
    last = y
    return y
"""
    make = load(source)
    twins = Twins(make)
    for _ in range(4):
        twins.call(one())
        from tests.compare import assert_same

        assert_same(namespace(twins.target), namespace(twins.eager))


# --- the exception that is being handled ---------------------------------------------------------


def _exits_several_contexts(x):
    log = []
    with contextlib.ExitStack() as stack:
        factor = stack.enter_context(contextlib.nullcontext(3.0))
        stack.callback(log.append, "called back")
        x = x * factor
    return x, log


def _exits_several_contexts_by_an_exception(x):
    log = []
    with contextlib.suppress(ValueError), contextlib.ExitStack() as stack:
        stack.callback(log.append, "called back")
        stack.push(lambda kind, error, trace: log.append(error.args))
        raise ValueError("inside")
    return x * len(log), log


def _reads_exception_in_its_own_handler(x):
    try:
        raise KeyError("own")
    except KeyError:
        return x, sys.exc_info()[1].args, repr(sys.exception())


@pytest.mark.parametrize(
    "program",
    [
        _exits_several_contexts, _exits_several_contexts_by_an_exception,
        _reads_exception_in_its_own_handler,
    ],
)  # fmt: skip
def test_program_reads_the_exception_it_handles(program):
    check(program, one(), other=[one(1.0)])


def test_program_reads_the_exception_its_caller_handles():
    def program(x):
        return x * 2, sys.exception()

    compiled = magpy.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(tensor(1))[1] is None
    for i in range(3):
        try:
            raise ValueError(i)
        except ValueError as error:
            assert compiled(tensor(1))[1] is error
    assert compiled(tensor(1))[1] is None
    assert magpy.cache_info(compiled).hits == 3
