"""Backward passes with absent gradients: values, None, random draws and memory equal eager's."""

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


def gradients(call, used, inputs, **options):
    """The gradients of a weighted sum of the results with the indices ``used``."""
    results = call(*inputs)
    total = sum((results[k] * (k + 1)).sum() for k in used)
    return torch.autograd.grad(total, inputs, allow_unused=True, **options)


def subsets(count):
    return [used for n in range(1, count + 1) for used in itertools.combinations(range(count), n)]


def assert_same_for_each_subset(function, inputs, **options):
    """Compares the gradients with eager's for every nonempty set of used results."""
    fast = compiled(function)
    for used in subsets(len(function(*inputs))):
        actual, expected = (gradients(call, used, inputs, **options) for call in (fast, function))
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_of_unused_results_only_have_no_gradient(used, dynamic):
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


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    "overwrite",
    [lambda y, x: y.copy_(x), lambda y, x: y.zero_(), lambda y, x: y.fill_(2.0).mul_(x)],
    ids=["copy", "zeros", "product"],
)
def test_overwritten_argument_has_no_gradient_unless_its_new_value_has(used, overwrite):
    def function(x, y):
        overwrite(y, x)
        return x.exp(), y

    def gradients(call):
        leaves = [torch.full((3, 4), 0.5, requires_grad=True) for _ in range(2)]
        results = call(*(leaf * 1 for leaf in leaves))
        sum(results[k].sum() for k in used if results[k].requires_grad).backward()
        return [leaf.grad for leaf in leaves]

    torch.testing.assert_close(gradients(compiled(function)), gradients(function))


def _modifies_both(x, y):
    x.mul_(2)
    y[0] = 1


def _modifies_views(x, y):
    x.t().mul_(2)
    y[1:].add_(x[1:])


def _modifies_both_and_returns_a_constant(x, y):
    x.exp_()
    y.sin_()
    return torch.ones(3)


@pytest.mark.parametrize("detaches", [False, True])
@pytest.mark.parametrize("is_view", [False, True])
@pytest.mark.parametrize(
    "function", [_modifies_both, _modifies_views, _modifies_both_and_returns_a_constant]
)
def test_modified_argument_has_no_gradient_unless_it_is_used(function, is_view, detaches):
    """No result of the call leads to its node in autograd's graph."""

    def gradients(call, used):
        leaves = [torch.full((3, 4), 0.5, requires_grad=True) for _ in range(2)]
        arguments = [(leaf * 1)[1:] if is_view else leaf * 1 for leaf in leaves]
        call(*arguments)
        for k, argument in enumerate(arguments):
            if detaches and not is_view and k not in used:
                argument.detach_()
        sum(arguments[k].sum() for k in used).backward()
        return [leaf.grad for leaf in leaves]

    fast = magpy.compile(function)
    for used in subsets(2) * 2:
        torch.testing.assert_close(gradients(fast, used), gradients(function, used))
    assert magpy.cache_info(fast).hits


@pytest.mark.parametrize("function", [_modifies_both, lambda x, y: y.mul_(x.detach())])
def test_function_before_modified_arguments_is_skipped_if_no_gradient_reaches_it(function):
    def gradients(call, used):
        (x, y) = leaves((3, 4), (3, 4))
        torch.manual_seed(3)
        arguments = [_Noisy.apply(x), _Noisy.apply(y) * 1]
        call(*arguments)
        total = sum(arguments[k].sum() for k in used)
        return torch.autograd.grad(total, [x, y], allow_unused=True), torch.rand(2)

    fast = magpy.compile(function)
    for used in subsets(2) * 2:
        torch.testing.assert_close(gradients(fast, used), gradients(function, used))


@pytest.mark.parametrize("function", [lambda x: x.mul_(2), lambda x: (x.exp_(), None)[1]])
def test_modified_argument_passes_an_absent_gradient_on(function):
    fast = magpy.compile(function)
    for _ in range(3):
        (x,) = leaves((3,))
        fast(argument := x * 1)
        _NoGradient.apply(argument).sum().backward()
        assert x.grad is None


def test_each_result_has_its_gradients_in_successive_backward_passes():
    def function(x, y):
        return x.exp(), y.exp()

    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    first, second = compiled(function)(x, y)
    first.sum().backward(retain_graph=True)
    assert y.grad is None
    second.sum().backward()
    torch.testing.assert_close(y.grad, y.exp())
    torch.testing.assert_close(x.grad, x.exp())


def test_unused_views_and_mutated_arguments_have_no_gradient():
    def function(x, y):
        product = x @ y
        return product.t(), product.exp().view(-1), y.sin(), x.view(-1)

    assert_same_for_each_subset(function, leaves((3, 3), (3, 3)))

    def changing(x, y):
        x = x * 1
        x.add_(y.sin())
        return x.exp(), x, y * 2

    assert_same_for_each_subset(changing, leaves((3, 3), (3, 3)))


def test_infinite_gradient_of_unused_result_does_not_become_nan():
    """The gradient of a square root at 0 is infinite; times zero it is NaN."""
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
def test_unused_parts_of_varying_size_have_zero_gradients(dynamic):
    """The gradient of the whole tensor has zeros where a part has no gradient."""

    def function(x, y):
        first, second = (x @ y).split([2, y.shape[1] - 2], 1)
        return first.exp(), second.sin(), x.sum(0) * 2

    fast = magpy.compile(function, dynamic=dynamic)
    for size in (5, 7, 4):
        for used in subsets(3):
            inputs = leaves((size, size), (size, size))
            actual, expected = (gradients(call, used, inputs) for call in (fast, function))
            torch.testing.assert_close(actual, expected)


class _Noisy(torch.autograd.Function):
    """One result; its gradient is random and not a multiple of the incoming gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.rand(grad.shape, device=grad.device) + torch.rand_like(grad) + 1


class _TwoResults(torch.autograd.Function):
    """Two results; an absent gradient of either arrives as zeros."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, one, other):
        return one * 2 + (other + 1) * 3


def _noisy(x, y):
    return _Noisy.apply(x * y).exp(), y * x


def _two_results(x, y):
    one, other = _TwoResults.apply(x * y)
    return one.exp(), other.sin(), y * 2


@pytest.mark.parametrize("function", [_noisy, _two_results])
@pytest.mark.parametrize("compiler", [magpy.compile, compiled])
def test_custom_function_runs_backward_when_eager_runs_it(function, compiler):
    fast = compiler(function)
    inputs = leaves((3,), (3,))
    for used in subsets(2 if function is _noisy else 3) * 2:
        seen = []
        for call in (fast, function):
            torch.manual_seed(3)
            seen.append((gradients(call, used, inputs), torch.rand(2)))
        torch.testing.assert_close(*seen)


@pytest.mark.parametrize("compiler", [magpy.compile, compiled])
def test_custom_function_before_the_graph_runs_backward_when_eager_runs_it(compiler):
    """Autograd runs the node of an argument whether or not it receives a gradient."""

    def function(one, other, y):
        return one.exp(), y * 2, other.detach() + y

    fast = compiler(function)
    inputs = leaves((3,), (3,))
    for used in subsets(3) * 2:
        seen = []
        for call in (fast, function):
            torch.manual_seed(3)

            def whole(x, y, call=call):
                return call(_Noisy.apply(x * y) * 2, _TwoResults.apply(x)[1], y)

            seen.append((gradients(whole, used, inputs), torch.rand(2)))
        torch.testing.assert_close(*seen)


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return None


def test_all_incoming_gradients_may_be_absent():
    fast = compiled(lambda x: (x.exp(), x.sin()))
    (x,) = leaves((3,))
    sum(_NoGradient.apply(result).sum() for result in fast(x)).backward()
    assert x.grad is None


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.filterwarnings("ignore:.*no input gets one:magpy_like.MagpyWarning")
def test_results_require_a_gradient_although_a_custom_function_passes_none_on(is_leaf):
    fast = magpy.compile(lambda x: _NoGradient.apply(x) + 1)
    for _ in range(3):
        (leaf,) = leaves((3,))
        result = fast(leaf if is_leaf else leaf.sin())
        assert result.requires_grad
        result.sum().backward()
        assert leaf.grad is None


def test_gradients_equal_eager_beyond_the_variant_limit():
    def function(*xs):
        return [x.exp() * xs[0] for x in xs]

    assert len(subsets(4)) > absent_gradients.MAX_BACKWARD_VARIANTS
    assert_same_for_each_subset(function, leaves(*[(3,)] * 4))


def test_gradients_with_create_graph_equal_eager():
    assert_same_for_each_subset(
        lambda x, y: (x * y, y.sin()), leaves((3,), (3,)), create_graph=True
    )


def test_unused_result_takes_no_memory(device):
    def one(x, w):
        return (x @ w).tanh()

    def both(x, w):
        return (x @ w).tanh(), (x @ w).exp()

    def backward(call):
        result = call(*inputs)
        result = result if isinstance(result, torch.Tensor) else result[0]
        pass_through = functools.partial(torch.autograd.grad, result.sum(), inputs)
        return peak_bytes(pass_through, device)

    inputs = leaves((300, 300), (300, 300))
    calls = compiled(one), compiled(both)
    for _ in range(2):
        alone, beside = map(backward, calls)
    assert beside <= alone


@pytest.mark.parametrize("first_is_leaf", [True, False])
def test_backward_pass_leaves_the_functions_of_an_input_without_gradient_alone(first_is_leaf):
    weight = torch.ones(3, requires_grad=True)
    fast = magpy.compile(lambda x: x.detach() * 2 + weight)
    for is_leaf in (first_is_leaf, not first_is_leaf, False):
        leaf = torch.ones(3, requires_grad=True)
        x = leaf if is_leaf else leaf.exp()
        fast(x).sum().backward()
        assert leaf.grad is None
        (x * 2).sum().backward()
        torch.testing.assert_close(leaf.grad, torch.full((3,), 2.0) if is_leaf else 2 * leaf.exp())


@torch.library.custom_op("absent_gradients::parts", mutates_args=())
def _parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[x > 0], x[x <= 0]


@_parts.register_fake
def _(x):
    size = torch.library.get_ctx().new_dynamic_size
    return x.new_empty(size()), x.new_empty(size())


def _save_input(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradient_of_parts(ctx, one, other):
    (x,) = ctx.saved_tensors
    return (x > 0) * (one.sum() + 1) + (x <= 0) * (other.sum() + 2)


_parts.register_autograd(_gradient_of_parts, setup_context=_save_input)


RAN = []


@torch.library.custom_op("absent_gradients::logged", mutates_args=())
def _logged(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _log_gradient(ctx, gradient):
    RAN.append(1)
    return gradient + 1


_logged.register_fake(torch.empty_like)
_logged.register_autograd(_log_gradient)


def test_operator_that_runs_as_it_is_runs_backward_when_eager_runs_it():
    def function(x):
        return _logged(x * 2).exp(), x.sin()

    fast = magpy.compile(function)
    inputs = leaves((3,))
    for used in subsets(2) * 2:
        seen = []
        for call in (fast, function):
            RAN.clear()
            seen.append((gradients(call, used, inputs), torch.tensor(len(RAN))))
        torch.testing.assert_close(*seen)


def _whole_and_selected(x):
    return x, x[[0, 1]], x[x > 0.1]


def _selected_and_its_sum(x):
    y = x * 2
    selected, rest = y[y > 0], y[y < 1]
    return selected, rest, selected.sum(), y


def _joined(x):
    y = x * 2
    z = torch.cat([y[y > 0], y[y < 1], y])
    return z, z.sum(), z.exp(), y[:2]


def _products_of_selected(x):
    one, other = x[x > 0], x[x < 0.5]
    product = torch.outer(one, other)
    return product, one, other, product.t().reshape(-1)


def _rows_of_nonzero(x):
    index = (x > 0).nonzero()[:, 0]
    return x[index], torch.stack([x[index], x[index] * 2], 1).unbind(1)[1], x.exp()


def _operator_with_parts(x):
    one, other = _parts(x * 2)
    return one, other.exp(), x.sin()


@pytest.mark.parametrize(
    "function",
    [
        _whole_and_selected, _selected_and_its_sum, _joined, _products_of_selected,
        _rows_of_nonzero, _operator_with_parts,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:magpy compiler. a graph runs through ATen")
def test_unused_results_of_data_dependent_sizes_leave_other_gradients_alone(function):
    """The symbol in the size of such a gradient may be no input of the backward pass."""
    call = magpy.compile(function, backend="magpy")
    inputs = leaves((7,))
    for used in subsets(len(function(*inputs))):
        actual, expected = (gradients(c, used, inputs) for c in (call, function))
        torch.testing.assert_close(actual, expected)
