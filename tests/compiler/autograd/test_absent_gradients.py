"""Gradients where not all results were used are eager's: values, None, draws, and the memory."""

import functools
import itertools

import pytest
import torch

import magpy_like as magpy
from magpy_like.compiler.autograd import absent_gradients
from tests.compiler.programs import compiled
from tests.memory import peak_bytes


def leaves(*sizes):
    generator = torch.Generator("cpu").manual_seed(0)
    made = (torch.randn(size, generator=generator, device="cpu") for size in sizes)
    return [leaf.div(2).to(torch.get_default_device()).requires_grad_() for leaf in made]


def gradients(call, used, given, **how):
    """Of the sum of the results of ``used`` places; each one counts differently."""
    results = call(*given)
    total = sum((results[k] * (k + 1)).sum() for k in used)
    return torch.autograd.grad(total, given, allow_unused=True, **how)


def subsets(count):
    return [used for n in range(1, count + 1) for used in itertools.combinations(range(count), n)]


def same_for_each(function, given, **how):
    """Whichever results are used, by turns."""
    fast = compiled(function)
    for used in subsets(len(function(*given))):
        actual, expected = (gradients(call, used, given, **how) for call in (fast, function))
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_only_unused_results_are_made_of_has_no_gradient(used, dynamic):
    def function(x, y, w, v):
        shared = x @ w
        return shared.tanh(), (shared * y).sum(), y.exp() * v

    def gradients(call):
        leaves = [
            torch.full(size, 0.5, requires_grad=True) for size in ((3, 4), (3, 4), (4, 4), (4,))
        ]
        results = call(*leaves)
        sum(results[k].sum() for k in used).backward()
        return [leaf.grad for leaf in leaves]

    torch.testing.assert_close(gradients(compiled(function, dynamic=dynamic)), gradients(function))


def test_results_used_one_after_the_other_have_each_their_gradients():
    def function(x, y):
        return x.exp(), y.exp()

    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    first, second = compiled(function)(x, y)
    first.sum().backward(retain_graph=True)
    assert y.grad is None
    second.sum().backward()
    torch.testing.assert_close(y.grad, y.exp())
    torch.testing.assert_close(x.grad, x.exp())


def test_views_and_changed_arguments_among_the_results():
    def function(x, y):
        product = x @ y
        return product.t(), product.exp().view(-1), y.sin(), x.view(-1)

    same_for_each(function, leaves((3, 3), (3, 3)))

    def changing(x, y):
        x = x * 1
        x.add_(y.sin())
        return x.exp(), x, y * 2

    same_for_each(changing, leaves((3, 3), (3, 3)))


def test_an_infinity_behind_an_unused_result_stays_there():
    """The gradient of a root at 0: times zero it is not a number."""
    x = torch.zeros(4, requires_grad=True)
    torch.testing.assert_close(
        gradients(compiled(lambda x: (x.sqrt(), x * 2)), (1,), [x]), (torch.full_like(x, 4),)
    )

    def parts(x):
        root, other = x.chunk(2)
        return root.sqrt(), other.exp()

    (found,) = gradients(compiled(parts), (1,), [x])
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 2.0, 2.0]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_whose_sizes_vary(dynamic):
    """The gradient of the whole has zeros where a part has none."""

    def function(x, y):
        first, second = (x @ y).split([2, y.shape[1] - 2], 1)
        return first.exp(), second.sin(), x.sum(0) * 2

    fast = magpy.compile(function, dynamic=dynamic)
    for size in (5, 7, 4):
        for used in subsets(3):
            given = leaves((size, size), (size, size))
            actual, expected = (gradients(call, used, given) for call in (fast, function))
            torch.testing.assert_close(actual, expected)


class _Noisy(torch.autograd.Function):
    """One result; its gradient is more than the one that comes in times something."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.rand(grad.shape, device=grad.device) + torch.rand_like(grad) + 1


class _Two(torch.autograd.Function):
    """Two results; the gradient of each is taken for zeros where there is none."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, one, other):
        return one * 2 + (other + 1) * 3


def _noisy(x, y):
    return _Noisy.apply(x * y).exp(), y * x


def _two(x, y):
    one, other = _Two.apply(x * y)
    return one.exp(), other.sin(), y * 2


@pytest.mark.parametrize("function", [_noisy, _two])
@pytest.mark.parametrize("compiler", [magpy.compile, compiled])
def test_a_function_of_ones_own_is_asked_where_eager_asks_it(function, compiler):
    fast = compiler(function)
    given = leaves((3,), (3,))
    for used in subsets(2 if function is _noisy else 3) * 2:
        seen = []
        for call in (fast, function):
            torch.manual_seed(3)
            seen.append((gradients(call, used, given), torch.rand(2)))
        torch.testing.assert_close(*seen)


@pytest.mark.parametrize("compiler", [magpy.compile, compiled])
def test_a_function_of_ones_own_before_what_is_compiled_is_asked_where_eager_asks_it(compiler):
    """Autograd calls what has made an argument whether or not a gradient comes of it."""

    def function(one, other, y):
        return one.exp(), y * 2, other.detach() + y

    fast = compiler(function)
    given = leaves((3,), (3,))
    for used in subsets(3) * 2:
        seen = []
        for call in (fast, function):
            torch.manual_seed(3)

            def whole(x, y, call=call):
                return call(_Noisy.apply(x * y) * 2, _Two.apply(x)[1], y)

            seen.append((gradients(whole, used, given), torch.rand(2)))
        torch.testing.assert_close(*seen)


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return None


def test_what_comes_in_may_be_nothing_at_all():
    fast = compiled(lambda x: (x.exp(), x.sin()))
    (x,) = leaves((3,))
    sum(_NoGradient.apply(result).sum() for result in fast(x)).backward()
    assert x.grad is None


def test_each_of_many_sets_of_results():
    def function(*xs):
        return [x.exp() * xs[0] for x in xs]

    assert len(subsets(4)) > absent_gradients.MAX_BACKWARD_VARIANTS
    same_for_each(function, leaves(*[(3,)] * 4))


def test_gradients_that_are_to_have_gradients_are_themselves_eagers():
    same_for_each(lambda x, y: (x * y, y.sin()), leaves((3,), (3,)), create_graph=True)


def test_an_unused_result_takes_no_memory(device):
    def one(x, w):
        return (x @ w).tanh()

    def both(x, w):
        return (x @ w).tanh(), (x @ w).exp()

    def backward(call):
        result = call(*given)
        result = result if isinstance(result, torch.Tensor) else result[0]
        pass_through = functools.partial(torch.autograd.grad, result.sum(), given)
        return peak_bytes(pass_through, device)

    given = leaves((300, 300), (300, 300))
    calls = compiled(one), compiled(both)
    for _ in range(2):
        alone, beside = map(backward, calls)
    assert beside <= alone
