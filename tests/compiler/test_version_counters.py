"""Version counters after a compiled call are those of eager mode."""

import itertools

import pytest
import torch

import magpy_like as magpy
from magpy_like.compiler import writes_of_parts
from magpy_like.compiler.compile_fx import compile_fx
from magpy_like.compiler.version_counters import (
    count_further_writes,
    find_further_writes,
    find_result_versions,
    set_result_versions,
)
from magpy_like.graph_operators.node_metadata import INPUT_WRITES
from magpy_like.torch_compat import pytree
from tests.compiler.programs import Reversed

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


class ReadsValue(torch.autograd.Function):
    """Runs as it is recorded, between the parts."""

    @staticmethod
    def forward(ctx, x):
        return x * 0.5 if float(x.detach().sum()) < 100 else x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


class WritesTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1).mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def written_around_a_branch(x):
    y = x + W
    y.add_(1).mul_(2)
    y = y * 2 if x.sum() > 5 else y * 3
    y.add_(1)
    y[1:].mul_(2)
    x.mul_(2).add_(1)
    return y, y[:2], x * W


def written_through_data_around_a_branch(x):
    x[x > 0] = 1
    y = x * W if x.sum() > 5 else x + W
    x.data.add_(1)
    return y


def written_in_a_loop(x):
    y = x + W
    while y.sum() < 100:
        y = y * 2
        y.add_(2)
        y[1:].mul_(1.5)
    return y, y.sin()


def written_around_an_operator_as_is(x):
    y = ReadsValue.apply(x + W)
    y = y + 1
    y.add_(1).mul_(2)
    x.exp_()
    x.mul_(2)
    return y, y[1:]


def written_under_no_grad(x):
    with torch.no_grad():
        x.mul_(2).add_(1)
        view = x[1:]  # the graph is cut: a view without gradients
    y = x * W
    y.add_(1)
    return view, y


def written_in_what_may_be_views(x):
    y = x * W if x.sum() > 5 else x + W
    y.reshape(3).add_(1)
    y.contiguous().mul_(2)
    y[::2].contiguous().add_(1)  # a copy
    x.detach().exp_()
    x.detach().mul_(2)
    return y, y.sin()


def written_by_a_custom_function(x):
    y = x * 2 if x.sum() > 5 else x * 3
    z = y * W
    return WritesTwice.apply(z), y


PROGRAMS = [
    written_twice, written_through_views, written_then_saved, written_and_returned_in_part,
    result_written, parts_of_a_result, both, filled_by_out, drawn,
    written_around_a_branch, written_through_data_around_a_branch, written_in_a_loop,
    written_around_an_operator_as_is, written_under_no_grad, written_in_what_may_be_views,
    written_by_a_custom_function,
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


def test_parts_count_writes_to_memory_that_inputs_share():
    def program(x, y):
        z = y * 2 if y.sum() > 100 else y * 3
        x.add_(1)
        return y + z

    def program_of_several(x, y):
        z = program(x, y)
        y.mul_(2)
        x.sin_()
        return z + y

    makers = [
        lambda base: (base, base),
        lambda base: (base[:3], base[3:]),
        lambda base: (base, base[:]),
        lambda base: (base, base.detach()),
        lambda base: (base, base.data),
    ]
    for each, make in itertools.product([program, program_of_several], makers):
        fast = magpy.compile(each)
        for _ in range(3):
            found = []
            for run in (each, fast):
                tensors = make(torch.ones(6))
                run(*tensors)
                found.append([tensor._version for tensor in tensors])
            assert found[0] == found[1]


def test_part_counts_writes_through_a_detached_view_of_another_part():
    def program(x):
        y = x * 2
        for k in (int(y.sum().item() > 1), 1):
            if bool((y > 0).all()):
                continue
            y.detach().mul_(2)
        return y

    fast = magpy.compile(program)
    for _ in range(3):
        assert fast(torch.tensor([-2.0, 4, 6]))._version == 2


def data_of_the_view(x, y):
    y.data.add_(1)


def data_of_the_base(x, y):
    x.data.add_(1)


def data_and_view(x, y):
    y.data.mul_(3)
    y.detach().add_(1)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("write", [data_of_the_view, data_of_the_base, data_and_view])
def test_part_leaves_uncounted_what_eager_mode_does(write, gradients):
    """A custom function that returns a view is a part of its own."""

    def program(x):
        x = x * 2
        y = Reversed.apply(x)
        write(x, y)
        return x, y

    fast, leaf = magpy.compile(program), torch.ones(3, requires_grad=gradients)
    expected = [tensor._version for tensor in program(leaf)]
    for _ in range(3):
        assert [tensor._version for tensor in fast(leaf)] == expected


def saved_by_a_part(x):
    y = x * 2 if x.sum() > 5 else x * W
    y.add_(1)
    return y.sigmoid_()


def saved_after_a_loop(x):
    y = x * W
    while y.sum() < 100:
        y = y * 2
    y.add_(1)
    return y.sigmoid_()


def saved_after_no_grad(x):
    with torch.no_grad():
        x.mul_(2).add_(1)
        view = x[1:]  # the graph is cut: a view without gradients
    y = x * W
    y.add_(1)
    return y.sigmoid_(), view


def saved_argument(x):
    y = x * 2 if x.sum() > 5 else x * 3
    x.mul_(2).add_(1)
    return x * W + y


LATER_WRITES = [lambda x, y: None, lambda x, y: x.add_(1), lambda x, y: y.detach().add_(1)]


@pytest.mark.cpu  # a replayed CUDA graph returns copies of results, and keeps what it saves
@pytest.mark.parametrize(
    "program",
    [result_written, saved_by_a_part, saved_after_a_loop, saved_after_no_grad, saved_argument],
)
def test_eager_errors_for_later_writes_to_saved_values_stay(program):
    fast = magpy.compile(program)
    for _ in range(3):
        found = []
        for run in (program, fast):
            found.append([])
            for write in LATER_WRITES:
                y = run(x := torch.ones(3))
                y = y[0] if isinstance(y, tuple) else y
                write(x, y)
                found[-1].append(raises_when_differentiated(y))
        assert found[0] == found[1] and sorted(set(found[0])) == [False, True]
    assert magpy.cache_info(fast).hits


def raises_when_differentiated(y):
    try:
        y.sum().backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return False


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


def test_unused_result_of_an_operator_that_may_raise_changes_no_versions():
    def program(x):
        torch.linalg.cholesky(torch.eye(3) * x.exp().sum())
        y = x * 2
        y.add_(1).mul_(2)
        return y, y[1:]

    fast = magpy.compile(program)
    for _ in range(2):
        assert [y._version for y in fast(torch.ones(3))] == [2, 2]
    assert not magpy.cache_info(fast).uncompiled


def test_part_counts_for_inputs_of_any_size():
    def program(x, n):
        pieces = [x[i : i + 1] for i in range(n)]
        y = torch.cat(pieces) if x.sum() > 100 else torch.cat(pieces) + 1
        y.add_(1).mul_(2)
        return y

    fast = magpy.compile(program)
    x = torch.ones(9)
    for n in (2, 3, 5, 7):
        for _ in range(2):
            assert fast(x, n)._version == program(x, n)._version == 2


def test_notes_are_made_before_any_backend_receives_a_part():
    noted = []

    def backend(gm, inputs):
        output = gm.graph.output_node()
        noted.append((find_further_writes(gm), find_result_versions(gm)))
        return compile_fx(gm, inputs)

    @magpy.compile(backend=backend)
    def program(x, y):
        z = y * 2 if y.sum() > 5 else y * 3
        x.add_(1).mul_(2)
        z = z + x
        z[1:].add_(1)
        return z

    for _ in range(2):
        z = program(x := torch.ones(3), torch.ones(3))
    assert x._version == 2 and z._version == 1
    assert noted[-1] == ([(0, 1)], [(0, 1)])


def test_part_with_one_write_to_an_input_is_not_run_without_data(monkeypatch):
    def fail(*args):
        raise AssertionError

    monkeypatch.setattr(writes_of_parts, "_count", fail)

    @magpy.compile
    def program(x, y):
        z = y * 2 if y.sum() > 5 else y * 3
        return x.add_(z)

    x = torch.ones(3)
    program(x, torch.ones(3))
    assert program(x, torch.ones(3))._version == 2


def test_counting_leaves_tensors_and_random_numbers_alone():
    buffer = torch.zeros(3)

    class Module(torch.nn.Module):
        def forward(self, x):
            return x.uniform_().add_(1)

    gm = torch.fx.symbolic_trace(Module())
    state = torch.random.get_rng_state()
    writes_of_parts.note_writes(gm, [buffer])
    assert find_further_writes(gm) == [(0, 1)]
    assert buffer._version == 0 and not buffer.any()
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("size", [(2, 0), (0,), (0, 3), (3, 3)])
@pytest.mark.parametrize("gradients", [True, False])
def test_writes_to_no_elements_are_counted(size, gradients):
    def program(x, y):
        x.mul_(2)
        y.mul_(2)
        y.add_(1)
        y[:0].add_(1)
        return y * 2

    fast = magpy.compile(program)
    for _ in range(3):
        found = []
        for run in (program, fast):
            x, y = (torch.ones(size, requires_grad=gradients) * 1 for _ in range(2))
            found.append((run(x, y)._version, x._version, y._version))
        assert found[0] == found[1] == (0, 1, 3)
    assert magpy.cache_info(fast).hits


def data_of_an_argument(x):
    data = x.data
    x.mul_(1)
    data.add_(1).mul_(2)
    return x.detach(), data, x.data


def part_of_data(x):
    part = x.data[1:]
    x.mul_(2)
    x.mul_(2)
    part.add_(1)
    return part, x.data.view(-1)


def data_of_a_result(x):
    y = (x * W).exp()
    data = y.data
    data.add_(1).mul_(2)
    return y, data, data[1:]


def data_in_a_part(x):
    y = x * W if x.sum() > 5 else x * 3
    data = y.data
    y.mul_(1)
    data.add_(1).mul_(2)
    return y, data


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    "program", [data_of_an_argument, part_of_data, data_of_a_result, data_in_a_part]
)
def test_data_of_a_tensor_has_a_counter_of_its_own(program, gradients):
    fast = magpy.compile(program)
    for _ in range(3):
        found = []
        for run in (program, fast):
            x = torch.ones(3, requires_grad=gradients) * 1
            found.append([t._version for t in (x, *run(x))])
        assert found[0] == found[1]
    assert magpy.cache_info(fast).hits


@pytest.mark.parametrize("absent", [(), (0,), (1,), (0, 1)])
def test_absent_results_get_no_version(absent):
    results = [None if k in absent else torch.ones(3) for k in range(2)]
    assert set_result_versions(lambda: results, [(0, 1), (1, 2)])() is results
    found = [None if t is None else t._version for t in results]
    assert found == [None if k in absent else k + 1 for k in range(2)]


@pytest.mark.filterwarnings("ignore:magpy_like")
def test_created_results_of_a_graph_that_runs_operator_by_operator_are_unwritten():
    def program(x):
        rows, columns = x.shape
        created = torch.full((2,), rows + columns), torch.zeros(rows), torch.arange(rows)
        return *created, torch.ones(rows).add_(1), x.repeat(max(1, int(x.abs().sum())), 1)

    fast = magpy.compile(program)
    for rows, value in ((4, 2.0), (4, 2.0), (5, 3.0), (6, 1.0), (6, 1.0)):
        x = torch.full((rows, 1), value)
        results = zip(program(x), fast(x), strict=True)
        for expected, actual in results:
            assert torch.equal(actual, expected)
            assert actual._version == expected._version


NEW_TENSORS = {
    "another dtype": lambda x: x.to(torch.float64).unsqueeze_(0),
    "a copy": lambda x: x.contiguous().unsqueeze_(0),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5).squeeze_(),
    "the same dtype": lambda x: x.to(torch.float32).unsqueeze_(0),
}


@pytest.mark.parametrize("kind", NEW_TENSORS)
def test_changed_dimensions_of_what_may_be_a_new_tensor_count_as_in_eager_mode(kind):
    program = NEW_TENSORS[kind]
    fast = magpy.compile(program)
    for _ in range(3):
        x, expected = torch.ones(5, 2)[:, 0], torch.ones(5, 2)[:, 0]
        fast(x), program(expected)
        assert x._version == expected._version


@pytest.mark.parametrize("change", [lambda x: x.squeeze_(), lambda x: x.mul_(2)])
def test_single_write_of_a_part_is_counted(change):
    def program(x, y):
        z = y * 2 if y.sum() > 5 else y * 3
        change(x)
        return z + x

    fast = magpy.compile(program)
    for value in (1.0, 3.0, 1.0, 3.0):
        fast(x := torch.ones(3), torch.full((3,), value))
        assert x._version == 1


def written_lists(x, y):
    torch._foreach_add_([y, x], 0.5)
    torch._foreach_mul_([x, y], [2.0, 3.0])
    return x * W.sum(), y


def written_list_after_a_write(x, y):
    x[x > 0.5] = 1
    torch._foreach_add_([y, x], 0.5)
    return x + y


def written_lists_of_views(x, y):
    torch._foreach_exp_([x[:1], y, x[1:]])
    torch._foreach_add_([y[:1], y[1:], x.detach()], 1)
    return x.sin(), y[1:]


def written_list_of_overlapping_tensors(x, y):
    torch._foreach_add_([x, y, x, y[1:]], 1)
    x.mul_(2)
    return x * 2, y


def written_lists_of_results(x, y):
    z, u = x * 2, y * W.sum()
    torch._foreach_add_([z, u, u[:1]], [x, y, y[:1]], alpha=2)
    torch._foreach_sigmoid_([u])
    return z, u, z[1:], u.detach()


def lists_as_out(x, y):
    z, u = torch.empty(len(x)), torch.empty(len(x))
    torch.unbind_copy(torch.stack([x, y]).detach(), out=[z, u])
    torch.split_copy(z, 1, out=[*u.split(1)])
    return z, u.mul_(2)


class WritesList(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        torch._foreach_add_([x, y], 1)
        torch._foreach_mul_([x], 2)
        ctx.mark_dirty(x, y)
        return x, y

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * 2, gradients[1]


def written_list_of_a_custom_function(x, y):
    return WritesList.apply(x * W.sum(), y * 2)


@pytest.mark.cpu  # some kernels of a GPU count fewer writes
@pytest.mark.filterwarnings("ignore:magpy_like")
@pytest.mark.parametrize("place", ["after a branch", "in a branch", "before a branch", "alone"])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    "write",
    [
        written_lists, written_list_after_a_write, written_lists_of_views,
        written_list_of_overlapping_tensors, written_lists_of_results, lists_as_out,
        written_list_of_a_custom_function,
    ],
)  # fmt: skip
def test_writes_to_the_tensors_of_a_list_are_counted(write, gradients, place):
    def program(x, y):
        if place == "alone":
            return write(x, y)
        if place == "before a branch":
            results = write(x, y)
            return results, (x * 2 if x.sum() > 5 else x * 3)
        if place == "after a branch":
            z = x * 2 if x.sum() > 5 else x * 3
            return write(x, y), z
        return write(x, y) if x.sum() > 5 else (x * 2, y)

    fast = magpy.compile(program)
    for size, value in itertools.product((3, 3, 4, 5), (1.0, 3.0)):
        counts, values = zip(
            *(run_on_two(run, size, value, gradients) for run in (program, fast)), strict=True
        )
        assert counts[0] == counts[1]
        torch.testing.assert_close(*values)


def run_on_two(program, size, value, gradients):
    """The versions of two arguments and of the results, and the values of all."""
    x, y = (torch.full((size,), value, requires_grad=gradients) * 1 for _ in range(2))
    with torch.set_grad_enabled(gradients):
        found = [x, y, *pytree.tree_leaves(program(x, y))]
    return [t._version for t in found], found


@torch.library.custom_op("tests_versions::double", mutates_args=["tensors"])
def double(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.numpy()[:] *= 2


@double.register_fake
def _(tensors):
    pass


def descend(tensors):
    torch._fused_sgd_(
        tensors, [torch.ones(3), torch.ones(3)], [], lr=0.1, momentum=0, dampening=0,
        weight_decay=0, nesterov=False, maximize=False, is_first_step=True,
    )  # fmt: skip


def scan(tensors):
    scanned = torch.ops.higher_order.associative_scan(lambda a, b: (a + b,), [tensors[0]], ())
    torch._foreach_copy_(tensors, [*scanned, tensors[0]])


@pytest.mark.cpu  # some kernels of a GPU count fewer writes
@pytest.mark.parametrize(
    "write",
    [
        torch._foreach_zero_,
        lambda tensors: torch._foreach_pow_(tensors, [1, 2]),
        lambda tensors: torch._foreach_copy_(tensors, tensors[::-1]),
        lambda tensors: torch.unbind_copy(torch.ones(2, 3), out=tensors),
        lambda tensors: torch.ops.aten._foreach_abs.out(tensors, out=tensors),
        torch.ops.tests_versions.double.default,  # counted before its kernel runs
        descend,  # a kernel that counts no write
        scan,
    ],
)
def test_part_counts_the_writes_of_an_operator_on_a_list_as_its_kernel_does(write):
    tensors = [torch.ones(3), torch.ones(3)]
    graph = torch.fx.Graph()
    nodes = [graph.placeholder("x"), graph.placeholder("y")]
    graph.call_function(write, (nodes,))
    graph.output(())
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    writes_of_parts.note_writes(gm, tensors)
    assert [tensor._version for tensor in tensors] == [0, 0]
    write(tensors)
    counts = [node.meta.get(INPUT_WRITES, 0) for node in nodes]
    assert counts == [tensor._version for tensor in tensors]


WRITES_TO_CONVERSIONS = {
    "transposed copy": lambda x: x.t().contiguous().t().mul_(2),
    "copy or view": lambda x: x.t().reshape(-1).add_(1),
    "argument": lambda x: x.contiguous().add_(1),
    "window": lambda x: x.reshape(-1).add_(1),
}
CHANGES_OF_DIMENSIONS = {
    "view": lambda x: x.view(-1).unsqueeze_(0),
    "detached": lambda x: x.detach().t_(),
    "restored view": lambda x: x[1:].transpose_(0, 1).swapaxes_(0, 1),
    "result": lambda x: (x * 2).t_(),
}


@pytest.mark.filterwarnings("ignore:magpy_like")
@pytest.mark.parametrize("place", ["alone", "after a branch", "in a branch"])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("write", WRITES_TO_CONVERSIONS)
@pytest.mark.parametrize("change", CHANGES_OF_DIMENSIONS)
def test_changed_dimensions_of_views_count_beside_writes_to_conversions(
    change, write, gradients, place
):
    """A conversion is a copy for some sizes and strides, and for others the argument's memory."""

    def apply(x):
        with torch.no_grad():
            CHANGES_OF_DIMENSIONS[change](x)
        WRITES_TO_CONVERSIONS[write](x)

    def program(x, flag):
        if place == "after a branch":
            flag = flag * 2 if flag.sum() > 0 else flag * 3
        if place != "in a branch" or flag.sum() > 0:
            apply(x)
        return flag * 2, x * 1

    fast = magpy.compile(program)
    for size, sign in (((4, 3), 1), ((4, 3), 1), ((1, 3), 1), ((3, 3), -1), ((4, 1), 1)):
        counts = []
        for run in (program, fast):
            x = torch.ones(size, requires_grad=gradients) * 1
            results = run(x, torch.full((2,), float(sign)))
            counts.append([t._version for t in (x, *results)])
        assert counts[0] == counts[1]


@pytest.mark.parametrize("size", [(4, 3), (3, 3), (1, 3)])
def test_part_that_restores_dimensions_counts_each_change(size):
    def program(x, flag):
        flag = flag * 2 if flag.sum() > 0 else flag * 3
        x.t_().t_()
        x.unsqueeze_(0).squeeze_(0)
        return flag, x * 2

    fast = magpy.compile(program)
    for _ in range(3):
        x, expected = torch.ones(size), torch.ones(size)
        fast(x, torch.ones(2)), program(expected, torch.ones(2))
        assert (x._version, x.shape) == (expected._version, expected.shape)


def test_write_to_elements_that_the_run_without_data_does_not_see_is_a_change():
    """A part whose counted writes are not all known to change dimensions only."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_method("unsqueeze_", (graph.call_method("detach", (x,)), 0))
    graph.call_function(torch.autograd.graph.increment_version, (x,))
    graph.output(())
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    writes_of_parts.note_writes(gm, [torch.ones(3)])
    assert find_further_writes(gm) == [(0, 1)]
