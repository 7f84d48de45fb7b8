"""Version counters after a compiled call are those of eager mode."""

import pytest
import torch

import magpy_like as magpy
from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.version_counters import (
    count_further_writes,
    find_further_writes,
    find_result_versions,
)

W = torch.linspace(0.5, 2, 3).requires_grad_()


def written_twice(x):
    x.add_(x)
    x.uniform_()
    return x * 2


def written_through_views(x):
    x[0].add_(1)
    x[1:].mul_(2)
    return x + 1


def written_then_saved(x):
    x.mul_(2).add_(1)
    return x * W


def written_and_returned_in_part(x):
    x.add_(1)
    return x.detach(), x[1:]


def result_written(x):
    y = x * W
    y.add_(1)
    y.sigmoid_()  # saved for the backward pass
    return y


def parts_of_a_result(x):
    y = x * W
    y.mul_(2)
    y.exp_()
    return y[1:], y[:2], y.sin()


def both(x):
    x.mul_(2)
    x.exp_()
    y = x * W
    y.add_(1)
    return y


def filled_by_out(x):
    y = torch.empty(3)
    torch.exp(x.detach(), out=y)
    return y.add_(1), y.sin()


def drawn(x):
    return torch.randn(3), torch.randint(0, 5, (x.shape[0],)), torch.linspace(0, 1, 3)


PROGRAMS = [
    written_twice, written_through_views, written_then_saved, written_and_returned_in_part,
    result_written, parts_of_a_result, both, filled_by_out, drawn,
]  # fmt: skip


def plain(leaf):
    return leaf.detach().clone()


def non_leaf(leaf):
    return leaf * 1


def column(leaf):
    return torch.stack([leaf * 1, leaf * 2], 1)[:, 0]


def versions(program, make_argument, *, gradients):
    """The versions of argument, its base and results, and the gradients."""
    leaf = torch.linspace(-1, 1, 3).requires_grad_()
    x = make_argument(leaf)
    W.grad, before = None, x._version
    with torch.set_grad_enabled(gradients):
        results = program(x)
    results = (results,) if isinstance(results, torch.Tensor) else results
    counts = [x._version - before, *(r._version - before * r._is_view() for r in results)]
    if x._base is not None:
        assert x._base._version == x._version
    found = [r for r in results if r.requires_grad]
    if found:
        sum(r.sum() for r in found).backward()
    return counts, [None if t.grad is None else t.grad.tolist() for t in (leaf, W)]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("make_argument", [plain, non_leaf, column])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_writes_are_counted_as_in_eager_mode(backend, program, make_argument, gradients):
    fast = magpy.compile(program, backend=backend)
    for _ in range(3):  # the backward pass does not mistake a counted write for a later one
        torch.manual_seed(0)
        counts, expected = versions(program, make_argument, gradients=gradients)
        torch.manual_seed(0)
        found, actual = versions(fast, make_argument, gradients=gradients)
        assert found == counts
        for a, b in zip(actual, expected, strict=True):
            assert (a is None) == (b is None)
            assert a is None or a == pytest.approx(b, rel=1e-4)
    assert magpy.cache_info(fast).hits


def test_program_reads_the_versions_that_it_has_counted():
    def program(x):
        y = x * 2
        y.add_(1)
        x.add_(1).mul_(2)
        part = y[1:]
        y.mul_(2)
        return y._version, part._version, x._version

    fast = magpy.compile(program)
    for _ in range(3):
        assert fast(torch.ones(3)) == program(torch.ones(3)) == (2, 2, 2)


def test_arguments_with_one_counter_count_each_write_once():
    def program(x, y):
        x.add_(1)
        y.mul_(2)
        x.sin_()
        return x + y

    fast = magpy.compile(program)
    base = torch.ones(6)
    for make in (lambda: (base, base), lambda: (base[:3], base[3:]), lambda: (base, base.detach())):
        for _ in range(2):
            x, y = make()
            before = base._version
            fast(x, y)
            assert x._version == y._version == base._version == before + 3


def detached_in_branch(x):
    if x.sum() > 0:
        x.detach().mul_(2)
    return x.sum()


def window_in_branch(x):
    part = x[1:]
    if x.sum() > 0:
        part.mul_(2)
    return x.sum() + part.sum()


def copy_or_window(x):
    part = x[1:] if x.sum() > 0 else x[1:] * 2
    part.mul_(2)
    return x.sum() + part.sum()


@pytest.mark.parametrize("program", [detached_in_branch, window_in_branch, copy_or_window])
def test_writes_in_parts_to_shared_memory_are_counted(program):
    fast = magpy.compile(program)
    for sign in (1, 1, 1, -1, 1, -1):
        x, twin = torch.full((4,), float(sign)), torch.full((4,), float(sign))
        torch.testing.assert_close(fast(x), program(twin))
        torch.testing.assert_close(x, twin)
        assert x._version == twin._version
    assert magpy.cache_info(fast).hits


def test_eager_errors_for_later_writes_to_saved_values_stay():
    fast = magpy.compile(result_written)
    for _ in range(3):
        y = fast(torch.ones(3))
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_raising_graph_leaves_the_versions_as_they_were():
    class Failed(Exception):
        pass

    def fail(x):
        raise Failed

    x = torch.ones(3)
    with pytest.raises(Failed):
        count_further_writes(fail, [(0, 2)])(x)
    assert x._version == 0


def test_tensors_that_are_written_once_need_no_counting():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return compile_fx(gm, inputs)

    @magpy.compile(backend=backend)
    def program(x, y):
        y.add_(x)
        return x.relu()

    program(torch.ones(3), torch.ones(3))
    assert not find_further_writes(graphs[0]) and not find_result_versions(graphs[0])


def test_inference_tensors_are_written_without_counting():
    fast = magpy.compile(both)
    for _ in range(3):
        with torch.inference_mode():
            x, twin = torch.ones(3), torch.ones(3)
            torch.testing.assert_close(fast(x), both(twin))
            torch.testing.assert_close(x, twin)


def test_program_reads_a_version_between_its_writes():
    def program(x, log):
        x.add_(1)
        log.append(x._version)
        x.add_(1).mul_(1)
        return x

    fast = magpy.compile(program)
    for _ in range(3):
        log = []
        assert fast(torch.ones(3), log)._version == 3 and log == [1]
