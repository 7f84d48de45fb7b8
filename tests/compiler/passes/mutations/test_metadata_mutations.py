"""In-place changes of an argument's dimensions: gradients, dimensions and versions are eager's."""

import pytest
import torch

import magpy_like as magpy
from tests.compiler.programs import seeded


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
