"""``record_function`` in programs: matched calls show it once, around its kernels."""

from collections import Counter

import pytest
import torch
from torch.profiler import record_function

import magpy_like as magpy
from magpy_like.graph_operators import profiled_graphs
from tests.profiles import profiled

X = torch.eye(3) + 0.5


def block(x):
    with record_function("the block", "arguments"):
        x = torch.relu(x * 2)
    return x + 1


def nested(x):
    with record_function("outer"):
        x = x @ x
        with record_function("inner"):
            x = x @ x + 1
        return x @ x


def repeated(x):
    for i in range(3):
        with record_function(f"layer {i}"), record_function("layer"):
            x = torch.tanh(x @ x)
    return x


def side_by_side(x):
    with record_function("first"):
        x = x * 2
    with record_function("second"):
        x = torch.linalg.inv(x + 1)
    with record_function("third"):
        return x * 3


@record_function("a decorator")
def decorated(x):
    return x * 2 @ x


def decorated_twice(x):
    return decorated(decorated(x))


def raising(x):
    for i in range(3):
        try:
            with record_function("try"):
                x = x @ x
                if i:
                    raise ValueError("caught")
        except ValueError:
            x = x + 1
    return x


def returning(x):
    with record_function("around a return"):
        return x @ x


def entered_by_hand(x):
    label = record_function("by hand")
    label.__enter__()
    x = x @ x
    label.__exit__(None, None, None)
    return x + 1


def of_autograd(x):
    with torch.autograd.profiler.record_function("of autograd"):
        return x @ x


def without_operators(x):
    with record_function("no operators"):
        return 3


def with_views_only(x):
    with record_function("views"):
        return x.t()


def beside_unused_code(x):
    with record_function("unused"):
        x.sin()
    return x * 2


def loop_on_a_tensor(x):
    with record_function("outer"):
        for _ in range(40):
            with record_function("step"):
                x = torch.tanh(x @ X)
        return x + 1


PROGRAMS = [
    block, nested, repeated, side_by_side, decorated_twice, raising, returning, entered_by_hand,
    of_autograd, without_operators, with_views_only, beside_unused_code, loop_on_a_tensor,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["magpy", "eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("grad", [False, True])
def test_each_label_occurs_as_often_as_in_eager_mode(program, grad, backend):
    x = X.clone().requires_grad_(grad)
    fast = magpy.compile(program, backend=backend)
    expected, eager = profiled(lambda: program(x))
    _, recorded = profiled(lambda: fast(x))
    results = [fast(x)]
    for _ in range(2):
        result, trace = profiled(lambda: fast(x))
        results.append(result)
        assert trace.labels() == eager.labels()
    assert recorded.labels() >= eager.labels()
    for result in results:
        torch.testing.assert_close(result, expected)
    assert magpy.cache_info(fast)[:3] == (3, 1, 1)


def test_a_region_encloses_the_kernels_of_its_operators():
    fast = magpy.compile(nested)
    fast(X)
    _, trace = profiled(lambda: fast(X))
    assert Counter(trace.inside("outer"))["aten::mm"] == 3
    inside = trace.inside("inner")
    assert inside.count("aten::mm") == 1
    assert [name.partition(" ")[0] for name in inside if "magpy" in name] == ["magpy_add"]


def test_a_kernel_of_several_regions_is_in_each_that_it_begins_or_ends():
    fast = magpy.compile(side_by_side)
    fast(X)
    _, trace = profiled(lambda: fast(X))
    first, last = trace.kernels()
    assert first in trace.inside("first")
    assert "first" in trace.inside("second") and "aten::linalg_inv_ex" in trace.inside("second")
    assert last in trace.inside("third")


@pytest.mark.parametrize("backend", ["magpy", "eager"])
def test_many_labels_may_share_a_kernel(backend):
    def program(x):
        with record_function("all"):
            for i in range(60):
                with record_function(f"layer {i}"):
                    x = x * 0.5 + i
            return x

    fast = magpy.compile(program, backend=backend)
    fast(X)
    result, trace = profiled(lambda: fast(X))
    torch.testing.assert_close(result, program(X))
    assert trace.labels() == {"all": 1, **{f"layer {i}": 1 for i in range(60)}}


def test_the_arguments_of_a_label_reach_the_profiler(monkeypatch):
    fast = magpy.compile(block)
    fast(X)
    seen = []

    class Observed(record_function):
        def __init__(self, name, args=None):
            seen.append((name, args))
            super().__init__(name, args)

    monkeypatch.setattr(profiled_graphs, "record_function", Observed)
    profiled(lambda: fast(X))
    assert seen == [("the block", "arguments")]


def test_a_label_formatted_from_a_varying_number_makes_no_record_of_each():
    def program(x, step):
        with record_function(f"step {step} of layer"):
            return x @ x + step

    fast = magpy.compile(program)
    for step in range(3, 8):
        result, trace = profiled(lambda step=step: fast(X, step))
        torch.testing.assert_close(result, program(X, step))
    assert magpy.cache_info(fast)[:3] == (3, 2, 1)
    assert trace.labels() == {"step # of layer": 1}


def test_a_label_that_the_caller_names_is_the_callers():
    def program(x, name):
        with record_function(name):
            return x @ x

    fast = magpy.compile(program)
    for name in ("a", "b", "a", "b"):
        _, trace = profiled(lambda name=name: fast(X, name))
        assert trace.labels() == {name: 1}
    assert magpy.cache_info(fast).hits == 2


def test_a_label_around_a_split_occurs_once():
    seen = []

    def program(x):
        with record_function("outer"):
            with record_function("before"):
                x = x @ x
            magpy.disable(seen.append)(1)
            with record_function("after"):
                return x @ x

    fast = magpy.compile(program)
    for _ in range(3):
        result, trace = profiled(lambda: fast(X))
        torch.testing.assert_close(result, X @ X @ (X @ X))
        assert trace.labels() == {"outer": 1, "before": 1, "after": 1}
    assert "after" in trace.inside("outer")


@pytest.mark.parametrize("backend", ["magpy", "eager"])
def test_labels_in_and_around_branches_occur_where_the_branch_is_taken(backend):
    def program(x):
        with record_function("whole"):
            x = x * 2
            if x.sum() > 0:
                with record_function("positive"):
                    x = x.sin()
            else:
                with record_function("negative"):
                    x = x.cos()
            return x + 1

    fast = magpy.compile(program, backend=backend)
    for _ in range(4):
        for x, name in ((X, "positive"), (-X, "negative")):
            result, trace = profiled(lambda x=x: fast(x))
            torch.testing.assert_close(result, program(x))
    for x, name in ((X, "positive"), (-X, "negative")):
        _, trace = profiled(lambda x=x: fast(x))
        assert trace.labels() == {"whole": 1, name: 1}


def counted_loop(x):
    with record_function("outer"):
        h = torch.zeros(3)
        for t in range(x.shape[0]):
            with record_function("step"):
                h = torch.tanh(h @ X + x[t])
        h = h * 2
    return h + 1


def loop_on_a_value(x):
    with record_function("outer"):
        while x.sum() < 100:
            with record_function("step"):
                x = x * 2
        return x + 1


@pytest.mark.parametrize("backend", ["magpy", "eager"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [counted_loop, loop_on_a_value], ids=lambda p: p.__name__)
def test_labels_in_loops_that_are_operators_occur_in_each_iteration(program, grad, backend):
    fast = magpy.compile(program, backend=backend)
    for rows in (5, 7, 2):
        fast(torch.ones(rows, 3).requires_grad_(grad))
    misses = magpy.cache_info(fast).misses
    for rows in (4, 6, 3):
        x = torch.ones(rows, 3).requires_grad_(grad)
        result, trace = profiled(lambda x=x: fast(x))
        expected, eager = profiled(lambda x=x: program(x))
        torch.testing.assert_close(result, expected)
        assert trace.labels() == eager.labels()
    assert magpy.cache_info(fast)[:4] == (6 - misses, misses, 1, 1)


def test_programs_with_equal_graphs_keep_their_own_labels():
    def make(name):
        def program(x):
            with record_function(name):
                return x @ x

        return magpy.compile(program)

    programs = {name: make(name) for name in ("one", "other")}
    for fast in programs.values():
        fast(X)
    for name, fast in programs.items():
        assert profiled(lambda fast=fast: fast(X))[1].labels() == {name: 1}


def test_no_label_of_the_forward_pass_is_around_the_backward_pass():
    x = X.clone().requires_grad_()
    fast = magpy.compile(nested)
    fast(x).sum().backward()
    result = fast(x)
    _, trace = profiled(result.sum().backward)
    assert not trace.labels() and trace.starting("magpy: graph")


def test_a_range_of_nvtx_raises_as_in_eager_mode():
    def program(x):
        with torch.cuda.nvtx.range("range"):
            return x * 2

    if torch.version.cuda is None:
        with pytest.raises(RuntimeError, match="NVTX"):
            program(X)
        fast = magpy.compile(program)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="NVTX"):
                fast(X)
