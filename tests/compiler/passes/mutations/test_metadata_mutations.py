"""In-place changes of an argument's dimensions: gradients, dimensions and versions are eager's."""

import pytest
import torch

import magpy_like as magpy
from tests.compiler.programs import Grown, seeded


def transposed_twice(x):
    before = x * 2
    x.t_().t_()
    return before * x


def used_between(x):
    before = x * 2
    between = x.t_() + before
    x.transpose_(0, 1)
    return between.sin() * x


def used_before_only(x):
    before = x.exp()
    x.t_().t_()
    return before


def unsqueezed_and_squeezed(x):
    before = x * 2
    x.unsqueeze_(0).squeeze_(0)
    return before * x


def squeezed_without_effect(x):
    before = x * 2
    x.squeeze_(1)
    return before * x


def strided_without_effect(x):
    before = x * 2
    x.as_strided_((4, 4), (4, 1))
    return before * x


def returned(x):
    before = x * 2
    x.t_().t_()
    return before * x, x


def transposed(x):
    before = x * 2
    x.t_()
    return before * x


def detached(x):
    before = x * 2
    x.detach_()
    return before * x


def transposed_without_gradients(x):
    made = x * x
    with torch.no_grad():
        made.t_()
    return made.sin()


def restored_without_gradients(x):
    with torch.no_grad():
        x.t_()
    made = x * torch.arange(4.0)
    with torch.no_grad():
        x.t_()
    return made


RESTORED = (
    transposed_twice, used_between, used_before_only, unsqueezed_and_squeezed,
    squeezed_without_effect, returned,
)  # fmt: skip
OTHERS = (
    strided_without_effect, transposed, detached, transposed_without_gradients,
    restored_without_gradients,
)  # fmt: skip


def observe(call):
    """The gradient, and the argument and results after the call."""
    leaf = seeded(4, 4).requires_grad_()
    x = leaf * 1
    results = call(x)
    results = results if isinstance(results, tuple) else (results,)
    is_argument = [result is x for result in results]
    sum(result.sum() for result in results).backward()
    states = [(t.shape, t.stride(), t.requires_grad, t._version) for t in (x, *results)]
    return leaf.grad, (states, is_argument)


@pytest.mark.parametrize("function", [*RESTORED, *OTHERS])
@pytest.mark.filterwarnings("ignore:.*runs operator by operator")
def test_gradients_include_uses_before_the_change(function):
    fast = magpy.compile(function)
    expected, states = observe(function)
    for _ in range(2):
        gradient, found = observe(fast)
        torch.testing.assert_close(gradient, expected)
        assert found == states


@pytest.mark.parametrize("function", RESTORED)
def test_restored_argument_is_compiled(function):
    fast = magpy.compile(function)
    for _ in range(2):
        observe(fast)
    info = magpy.cache_info(fast)
    assert (info.hits, info.uncompiled) == (1, 0)


@pytest.mark.parametrize("function", RESTORED)
def test_restored_argument_counts_each_change_without_gradients(function):
    fast = magpy.compile(function)
    versions = []
    for call in (function, fast, fast):
        x = seeded(4, 4)
        call(x)
        versions.append(x._version)
    assert versions[1:] == versions[:1] * 2


def test_squeezed_dimension_of_varying_size():
    def function(x):
        before = x * 2
        x.squeeze_(1)
        return before.exp().sum() * x.sum()

    fast = magpy.compile(function)
    for columns in (4, 5, 6, 1, 7):
        gradients = []
        for call in (function, fast):
            leaf = seeded(3, columns).requires_grad_()
            x = leaf * 1
            call(x).backward()
            gradients.append(leaf.grad)
        torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:.*runs operator by operator")
def test_leaf_is_transposed_without_gradients():
    def function(x):
        with torch.no_grad():
            x.t_()
        return x * 2

    fast = magpy.compile(function)
    for call in (function, fast, fast):
        x = seeded(4, 4).requires_grad_()
        call(x).sum().backward()
        assert (x.stride(), x.grad.shape) == ((1, 4), (4, 4))


def detached_and_restored(x):
    x.detach_()
    x.unsqueeze_(0).squeeze_(0)
    return x * 2


def detached_between_changes(x):
    x.t_()
    torch.detach_(x)
    x.t_()
    x.detach_()
    return x * 2, x


@pytest.mark.parametrize("function", [detached_and_restored, detached_between_changes, detached])
def test_changes_of_an_argument_without_gradients_are_counted(function):
    fast = magpy.compile(function)
    for _ in range(3):
        tensors = seeded(4, 4), seeded(4, 4)
        torch.testing.assert_close(fast(tensors[0]), function(tensors[1]))
        assert tensors[0]._version == tensors[1]._version
    assert magpy.cache_info(fast).hits == 2


VIEWS = {
    "view": lambda x: x.view(-1),
    "slice": lambda x: x[1:],
    "view of a view": lambda x: x.view(-1)[1:],
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
    "alias": lambda x: x[:],
}
CHANGES_OF_VIEWS = {
    "unsqueezed": lambda view, x: view.unsqueeze_(0),
    "restored": lambda view, x: view.unsqueeze_(0).squeeze_(0),
    "twice": lambda view, x: view.unsqueeze_(0).unsqueeze_(-1),
    "strided": lambda view, x: view.as_strided_((2,), (1,)),
    "written to": lambda view, x: view.unsqueeze_(0).mul_(2),
    "base written to": lambda view, x: (view.unsqueeze_(0), x.add_(1)),
    "another view": lambda view, x: (view.unsqueeze_(0), x.view(-1).unsqueeze_(0)),
}


@pytest.mark.parametrize("returns_view", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("change", CHANGES_OF_VIEWS)
@pytest.mark.parametrize("view", VIEWS)
def test_changes_of_views_of_arguments_are_those_of_eager_mode(
    view, change, requires_grad, returns_view
):
    make, apply = VIEWS[view], CHANGES_OF_VIEWS[change]

    def program(x):
        seen = make(x)
        apply(seen, x)
        return (x * 2, seen) if returns_view else x * 2

    fast = magpy.compile(program)
    for _ in range(3):
        seen = []
        for call in (program, fast):
            x = torch.arange(4.0, requires_grad=requires_grad) * 1
            result = call(x)
            tensors = [x, *result] if returns_view else [x, result]
            seen.append(
                [
                    (t.shape, t.stride(), t._version, t._is_view(), t.requires_grad, t.tolist())
                    for t in tensors
                ]
            )
        assert seen[0] == seen[1]


def test_detach_of_an_argument_raises_where_it_is_a_view():
    """A record of a tensor that owns its memory does not admit a view unseen."""

    def program(x):
        x.detach_()
        return x * 2

    fast = magpy.compile(program)
    for _ in range(2):
        x = torch.ones(4)
        assert torch.equal(fast(x), x * 2)
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        fast(torch.ones(5)[1:])


def sizes_before(x):
    sizes = x.shape
    x.t_()
    return sizes


def sizes_before_and_after(x):
    rows, stride = x.shape[0], x.stride(0)
    x.t_()
    return rows, stride, x.shape, rows * 2 + int(x.sum() > 3), x * rows


def sizes_before_other_data(x):
    rows = x.shape[0]
    x.data = torch.ones(rows + 1, 2)
    return rows, rows + 1


@pytest.mark.parametrize(
    "function", [sizes_before, sizes_before_and_after, sizes_before_other_data]
)
def test_sizes_that_a_program_reads_before_it_changes_them_are_those_of_entry(function):
    fast = magpy.compile(function)
    for size in ((4, 1), (6, 1), (4, 3), (5, 3), (1, 7), (1, 9)):
        x, twin = torch.ones(size), torch.ones(size)
        assert str(fast(x)) == str(function(twin))
        assert (x.shape, x.stride()) == (twin.shape, twin.stride())


def test_restored_dimensions_of_size_one_stay_those_of_the_argument():
    """The run's own tensors without data have passed the first of the changes only."""

    def program(x, number):
        x.unsqueeze_(0).squeeze_(0)
        (x + number).sum()
        return x * 1

    fast = magpy.compile(program)
    for size, number in ((5, 0), (1, 1), (1, 1), (1, 2)):
        x = torch.ones(size)
        assert fast(x, number).shape == x.shape == (size,)


class WrittenThroughView(Grown):
    @staticmethod
    def forward(ctx, x):
        x.detach().mul_(2)
        return x * 1


class Unsqueezed(Grown):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.unsqueeze_(0)


class SqueezedAndWritten(Grown):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.squeeze_().mul_(2)


@torch.library.custom_op("metadata_mutations::double", mutates_args=("x",))
def double(x: torch.Tensor) -> None:
    x.mul_(2)


@double.register_fake
def _(x):
    return None


def standardized(x):
    torch.nn.functional.batch_norm(torch.ones(3, 3), x.view(-1), torch.ones(3), training=True)


CHANGES = {
    "squeeze_": lambda x: x.squeeze_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "t_": lambda x: x.t_(),
    "restored": lambda x: x.unsqueeze_(0).squeeze_(0),
}


@pytest.mark.parametrize("first", ["write", "change"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    "write",
    [
        Grown.apply, WrittenThroughView.apply, Unsqueezed.apply, SqueezedAndWritten.apply,
        double, standardized,
    ],
    ids=["custom", "through view", "unsqueezed", "squeezed and written", "operator", "running"],
)  # fmt: skip
def test_changes_beside_writes_inside_operators_are_those_of_eager_mode(write, change, first):
    def program(x):
        for step in (write, change) if first == "write" else (change, write):
            step(x)
        return x.sum(), x * 2

    def observe(call):
        x = torch.arange(3.0)[None]
        try:
            results = call(x)
        except RuntimeError as error:  # `t_` of three dimensions
            results = (type(error),)
        return str([*results, x, x._version, tuple(x.shape), x.is_contiguous()])

    fast, expected = magpy.compile(program), observe(program)
    assert [observe(fast) for _ in range(3)] == [expected] * 3
