"""A compiled function that is not faster says so once: its line, the reason and the remedy."""

import sys
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import magpy_like as magpy
from magpy_like.config import config
from tests.compare import assert_same
from tests.programs import matrix, tensor


def reports_of(fast, calls, *, raises=()):
    """The reports of these calls; all warnings of the family."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for args in calls:
            try:
                fast(*args)
            except raises:
                pass
    return [w for w in caught if issubclass(w.category, magpy.MagpyWarning)]


def line_of(program, offset=0):
    return program.__code__.co_firstlineno + offset


def check(report, lineno, *parts):
    """A report has the position as its own, and in its text with the reason and the remedy."""
    assert report.filename == __file__ and report.lineno == lineno
    for part in (f"{__file__}:{lineno}", "To mend it", *parts):
        assert part in str(report.message)


def halves(x):
    while x.sum() > 1:
        yield x
        x = x / 2


def consumes_a_generator(x):
    y = x * 2
    return list(halves(y))


def test_program_that_splits_where_no_segment_ends():
    fast = magpy.compile(consumes_a_generator, backend="eager")
    (report,) = reports_of(fast, [(tensor(1, k),) for k in range(8)])
    check(report, line_of(halves, 1), "consumes_a_generator", "eagerly", "torch.where")
    assert magpy.cache_info(fast).native == 8 - config.split_limit


def test_program_with_too_many_records():
    def named(x, name):
        return x * len(name)

    fast = magpy.compile(named, backend="eager", options={"record_limit": 2})
    (report,) = reports_of(fast, [(tensor(1), "a" * n) for n in range(6)])
    check(report, line_of(named), "named", "2 records did not match", "args[1]", "record_limit")
    assert magpy.cache_info(fast)[:3] == (0, 2, 2) and magpy.cache_info(fast).native == 4


def test_long_values_are_cut():
    fast = magpy.compile(
        lambda x, name: x * len(name), backend="eager", options={"record_limit": 2}
    )
    (report,) = reports_of(fast, [(tensor(1), "a" * 1000 * n) for n in range(1, 5)])
    assert "aaa…" in str(report.message) and len(str(report.message)) < 600


@magpy.disable
def opaque(names):
    return names.pop()


def test_values_of_a_later_segment_have_the_names_of_the_program():
    def result(x, names):
        return x * len(opaque(names))

    def variable(x, names):
        name = opaque(names)
        opaque([1])
        return x * len(name)

    def captured(x, names):
        name = opaque(names)
        opaque([1])
        return (lambda: x * len(name))()

    expected = {result: "a result in line", variable: "not name ==", captured: "not name"}
    for program, words in expected.items():
        fast = magpy.compile(program, backend="eager", options={"record_limit": 2})
        calls = [(tensor(1), ["a" * n]) for n in range(1, 7)]
        texts = [str(report.message) for report in reports_of(fast, calls)]
        assert any(words in text for text in texts), texts


def test_objects_that_each_call_makes_are_to_be_kept():
    fast = magpy.compile(lambda x, layer: layer(x), backend="eager", options={"record_limit": 2})
    (report,) = reports_of(fast, [(matrix(), nn.Linear(3, 3)) for _ in range(5)])
    assert "is the same Linear" in str(report.message)
    assert "To mend it: keep the object between calls" in str(report.message)


def test_generated_function_is_reported_where_the_program_calls_it():
    names = {}
    exec("def generated(x, name): return x * len(name)", names)
    fast = magpy.compile(names["generated"], backend="eager", options={"record_limit": 2})
    (report,) = reports_of(fast, [(tensor(1), "a" * n) for n in range(6)])
    assert report.filename == __file__ and "generated" in str(report.message)


def test_program_that_observes_its_frames():
    def observes(x):
        sys.settrace(sys.gettrace())
        return x + 1

    (report,) = reports_of(magpy.compile(observes, backend="eager"), [(tensor(1),)] * 3)
    assert "trace or profile function" in str(report.message)
    assert "observes" in str(report.message) and report.filename == __file__


def test_module_that_is_exported():
    fast = magpy.compile(nn.Linear(3, 3), backend="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", magpy.MagpyWarning)
        exported = torch.export.export(fast, (matrix(),)).module()
    torch.testing.assert_close(exported(matrix()), fast(matrix()))
    texts = [str(each.message) for each in caught if each.category is magpy.MagpyWarning]
    assert texts and all("torch.export traces each operator" in text for text in texts)


def test_program_that_never_hits():
    def raising(x):
        raise KeyError(1)

    def outer(x, mode):
        return x * len(mode)

    calls = config.misses_before_report + 3
    fast = magpy.compile(raising, backend="eager")
    (report,) = reports_of(fast, [(tensor(1),)] * calls, raises=KeyError)
    check(report, line_of(raising), f"{config.misses_before_report} calls", "raised an exception")
    assert magpy.cache_info(fast).misses == calls

    fast = magpy.compile(outer, backend="eager", options={"record_limit": 100})
    (report,) = reports_of(fast, [(tensor(1), "a" * n) for n in range(calls)])
    check(report, line_of(outer), "not args[1] ==", "tensor or a number")


def test_program_whose_continuation_never_hits():
    def program(x, box):
        y = x * 2
        print(end="")
        return y * len(box[0])

    def boxes():
        for n in range(config.misses_before_report + 3):
            yield tensor(1), [type(f"K{n}", (list,), {})([1])]

    fast = magpy.compile(program, backend="eager", options={"record_limit": 100})
    (report,) = reports_of(fast, boxes())
    check(report, line_of(program), "never found a record", " is K")
    assert magpy.cache_info(fast).hits == 0 and fast._magpy_dispatcher.hits > 0


def test_program_that_hits_once_is_not_reported():
    fast = magpy.compile(lambda x, mode: x * len(mode), options={"record_limit": 100})
    calls = [(tensor(1), "a" * (n - n % 2)) for n in range(2 * config.misses_before_report)]
    assert reports_of(fast, calls) == []


def fails(graph, inputs):
    raise RuntimeError("first line\nsecond line")


@pytest.mark.parametrize(
    ("backend", "reason"),
    [(fails, "RuntimeError: first line ("), ("magpy", "_to_sparse")],
    ids=["failing", "magpy"],
)
def test_graph_that_runs_operator_by_operator(backend, reason):
    def sparse(x):
        x = x + 1
        return x.to_sparse()

    fast = magpy.compile(sparse, backend=backend)
    (report,) = reports_of(fast, [(matrix(),)] * 3)
    check(report, report.lineno, "sparse", "operator by operator", reason)
    assert report.lineno - line_of(sparse) in (1, 2)
    info = magpy.cache_info(fast)
    assert (info.hits, info.graphs, info.uncompiled) == (0, 1, 2)


def test_each_function_is_reported():
    def first(x):
        return x.to_sparse()

    def second(x):
        return x.to_sparse()

    for program in (first, second):
        (report,) = reports_of(magpy.compile(program), [(matrix(),)] * 2)
        check(report, line_of(program, 1), program.__name__)


class Observes(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda f, x: torch.vmap(f)(x), "torch.func"),
        (lambda f, x: torch.func.jvp(f, (x,), (x,)), "forward-mode AD"),
        (
            lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False),
            "torch.utils.checkpoint",
        ),
    ],
    ids=["vmap", "jvp", "checkpoint"],
)
def test_call_in_which_others_see_the_operators(call, reason):
    def program(x):
        return x.sin() * 2

    fast, x = magpy.compile(program, backend="eager"), matrix().requires_grad_()
    (report,) = reports_of(lambda: assert_same(call(fast, x), call(program, x)), [()] * 3)
    check(report, line_of(program), "natively", reason)
    assert magpy.cache_info(fast).native == 3


def test_call_under_a_dispatch_mode():
    fast = magpy.compile(lambda x: x.sin() * 2, backend="eager")
    with Observes():
        (report,) = reports_of(fast, [(matrix(),)] * 2)
    assert "__torch_dispatch__" in str(report.message)


def test_report_on_code_of_torch_has_the_line_of_the_call():
    fast = magpy.compile(nn.Linear(3, 3), backend="eager")
    with Observes():
        (report,) = reports_of(lambda: fast(matrix()), [()])  # this line
    with open(__file__) as file:
        assert "# this line" in file.readlines()[report.lineno - 1]


def test_program_that_is_fast_is_not_reported():
    fast = magpy.compile(lambda x: x.sin() * 2)
    assert reports_of(fast, [(matrix(),)] * 3) == []
    assert magpy.cache_info(fast) == (2, 1, 1, 1, 0, 0)


def test_filter_that_raises_leaves_the_function_usable():
    fast = magpy.compile(lambda x: x.to_sparse())
    with warnings.catch_warnings():
        warnings.simplefilter("error", magpy.MagpyWarning)
        with pytest.raises(magpy.MagpyWarning):
            fast(matrix())
        for _ in range(2):
            assert_same(fast(matrix()).to_dense(), matrix())
    info = magpy.cache_info(fast)
    assert (info.uncompiled, info.misses) == (2, 1)


def test_reports_come_again_after_a_reset():
    fast = magpy.compile(lambda x: x.to_sparse())
    for _ in range(2):
        assert len(reports_of(fast, [(matrix(),)] * 2)) == 1
        magpy.reset(fast)


# --- counters -------------------------------------------------------------------------------------


def test_calls_without_a_graph_are_hits():
    """Nothing of them is left to compile."""
    fast = magpy.compile(lambda x: x.shape, backend="eager")
    for _ in range(3):
        fast(matrix())
    assert magpy.cache_info(fast) == (2, 1, 1, 0, 0, 0)


def test_call_of_several_segments_hits_if_one_has_a_compiled_graph(capsys):
    def with_a_graph(x):
        print("one")
        return x * 2

    def graph_first(x):
        y = x * 2
        print("one")
        return y

    def without(x):
        print("one")
        return x.shape

    def compiles_products(graph, inputs):
        if "mul" in graph.code:
            return graph
        raise RuntimeError("no product")

    def sum_and_product(x):
        y = x + 1
        print("one")
        return y * 2

    def sum_first(x):
        y = x + 1
        print("one")
        return y.shape

    def sum_last(x):
        print("one")
        return x + 1

    cases = {
        "eager": [with_a_graph, graph_first, without],
        compiles_products: [with_a_graph, graph_first, without, sum_and_product],
        fails: [without],
    }
    for backend, programs in cases.items():
        for program in programs:
            assert counts_of(program, backend) == (2, 0)
    for program in (with_a_graph, graph_first, sum_and_product, sum_first, sum_last):
        assert counts_of(program, fails) == (0, 2)


def counts_of(program, backend):
    """Hits and uncompiled calls of three calls."""
    fast = magpy.compile(program, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", magpy.MagpyWarning)
        for _ in range(3):
            fast(matrix())
    info = magpy.cache_info(fast)
    return info.hits, info.uncompiled


def test_reset_forgets_all_counters():
    fast = magpy.compile(lambda x, y: x.to_sparse() if y else x.shape)
    for y in (True, True, False, False):
        fast(matrix(), y)
    with torch.compiler.set_stance("force_eager"):
        fast(matrix(), True)
    assert magpy.cache_info(fast) == (1, 2, 2, 1, 1, 1)
    magpy.reset(fast)
    assert magpy.cache_info(fast) == (0, 0, 0, 0, 0, 0)


# --- torch's internal messages --------------------------------------------------------------------


def raises_unbacked(graph, inputs):
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    bool(ShapeEnv().create_unbacked_symint() > 3)


def test_error_of_torchs_tracing_is_told_in_words():
    fast = magpy.compile(lambda x: x * 2, backend=raises_unbacked)
    (report,) = reports_of(fast, [(matrix(),)])
    text = str(report.message)
    assert "depends on the data of a tensor" in text
    assert "u0" not in text and "GuardOnDataDependent" not in text


def test_line_of_a_graph_is_that_of_the_operator_that_cannot_be_traced():
    def program(x):
        y = torch.masked_select(x, x > 0)
        z = y * 2
        return torch.nn.functional.max_pool1d(z[None, None], 2)

    fast = magpy.compile(program)
    (report,) = reports_of(fast, [(matrix() + 1,)] * 2)
    check(report, line_of(program, 3), "depends on the data of a tensor", "operator by operator")
