"""``tensor.data = value``: the tensor keeps its place in autograd's graph."""

import pytest
import torch
from torch import nn

import magpy_like as magpy


def replaced(x):
    x.data = x.data * 2
    return x.sin()


def replaced_without_gradients(x):
    before = x * 3
    with torch.no_grad():
        x.data = x * 2
        unrecorded = x * 2
    return x.sin() + before, unrecorded


class Clamped(nn.Module):
    """Keeps its weights in a range, as in training of quantised networks."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0) - 1)

    def forward(self, x):
        with torch.no_grad():
            self.weight.data = self.weight.clamp(-0.5, 1)
        return x * self.weight


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("function", [replaced, replaced_without_gradients])
def test_gradients_flow_to_what_the_tensor_was_computed_from(function, backend):
    fast, seen = magpy.compile(function, backend=backend), []
    for call in (function, fast, fast):
        leaf = torch.linspace(-1, 1, 4, requires_grad=True)
        results = call(leaf * 1)
        results = results if isinstance(results, tuple) else (results,)
        results[0].sum().backward()
        seen.append((leaf.grad, *(result.detach() for result in results)))
        assert [result.requires_grad for result in results] == [True, False][: len(results)]
    torch.testing.assert_close(seen[1:], seen[:1] * 2)
    assert magpy.cache_info(fast).hits == 1


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_replaced_weights_are_trained(backend):
    seen = []
    for wrap in (lambda model: model, lambda model: magpy.compile(model, backend=backend)):
        call = wrap(model := Clamped())
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(4):
            optimizer.zero_grad()
            call(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        seen.append(model.weight.detach().clone())
    torch.testing.assert_close(*seen)


def written_after(x):
    x.data = x.data * 2
    x.add_(1)
    return x * 3


def written_before(x):
    x.add_(1)
    x.data = x.data * 2
    return x * 3


def written_through_the_value(x):
    value = x.detach() * 2
    x.data = value
    value.add_(1)
    return x * 3


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("function", [written_after, written_before, written_through_the_value])
def test_writes_are_counted_and_recorded_by_autograd(function, backend):
    fast, seen = magpy.compile(function, backend=backend), []
    for call in (function, fast, fast):
        leaf = torch.linspace(-1, 1, 4, requires_grad=True)
        x = leaf * 1
        result = call(x)
        (result * x).sum().backward()
        seen.append((leaf.grad, result.detach(), x.detach(), torch.tensor(x._version)))
    torch.testing.assert_close(seen[1:], seen[:1] * 2)


def kept_view(state):
    def function(x):
        state.data = state.data * 2
        return x + 1, state.detach()

    return function


def kept_value(state):
    def function(x):
        value = state.data * 2
        state.data = value
        return x + 1, value

    return function


@pytest.mark.parametrize("make", [kept_view, kept_value])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_kept_tensor_shares_the_version_counter_of_the_one_it_is_a_view_of(make, requires_grad):
    seen = []
    for compiled in (False, True):
        state = torch.arange(3.0).requires_grad_(requires_grad)
        function = make(state)
        call = magpy.compile(function, backend="eager") if compiled else function
        _, *kept = call(torch.ones(3)), call(torch.ones(3))[1]
        with torch.no_grad():
            state.mul_(3)
        seen.append([(state._version, kept[0]._version), kept[0]])
    torch.testing.assert_close(*seen)


def of_a_tensor_with_gradients(x):
    x.data = (x * 2).detach()
    result = x.pow(2)
    x.add_(1)
    return result


STATE = torch.ones(4)


def of_a_tensor_without_gradients(x):
    STATE.data = STATE * 2
    result = x * STATE
    STATE.add_(1)
    return result


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("program", [of_a_tensor_with_gradients, of_a_tensor_without_gradients])
def test_write_to_a_saved_tensor_with_replaced_data_is_refused_in_the_backward_pass(
    program, backend
):
    fast = magpy.compile(program, backend=backend)
    for _ in range(3):
        result = fast(torch.ones(4, requires_grad=True) * 1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def through_another_dtype(weight, x):
    weight.data = weight.data.bfloat16()
    weight.data = weight.data.double()
    (weight * x).sum().backward()


def another_dtype(weight, x):
    weight.data = weight.data.bfloat16()
    (weight * x).sum().backward()


def another_dtype_without_gradients(weight, x):
    weight.data = weight.data.bfloat16()
    with torch.no_grad():
        return weight * 2 + x


def another_dtype_after_the_use(weight, x):
    result = weight * x
    weight.data = weight.data.bfloat16()
    result.sum().backward()


def two_dtypes_in_use(weight, x):
    result = (weight * x).sum()
    weight.data = weight.data.float()
    result = result + (weight * x).sum()
    weight.data = weight.data.double()
    (result + (weight * x).sum()).backward()


def inner_gradient_by_another_dtype(weight, x):
    weight.data = weight.data.bfloat16()
    return torch.autograd.grad((weight * x).sum(), weight)[0]


def fewer_elements(weight, x):
    weight.data = weight.data[:2].clone()
    (weight * x).sum().backward()


def intermediate_tensor_of_another_dtype(weight, x):
    scaled = weight * 3
    scaled.data = scaled.data.float()
    scaled.data = scaled.data.double()
    (scaled * x).sum().backward()


def module_of_another_dtype_and_back(weight, x):
    layer = nn.Module()
    layer.weight = weight
    layer.bfloat16()
    layer.double()
    (layer.weight * x).sum().backward()


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(
    "program",
    [
        through_another_dtype,
        another_dtype,
        another_dtype_without_gradients,
        another_dtype_after_the_use,
        two_dtypes_in_use,
        inner_gradient_by_another_dtype,
        fewer_elements,
        intermediate_tensor_of_another_dtype,
        module_of_another_dtype_and_back,
    ],
)
def test_gradients_have_the_form_that_the_tensor_has_at_its_use(program, backend):
    fast, seen = magpy.compile(program, backend=backend), []
    for call in (program, fast, fast, fast):
        weight = nn.Parameter(torch.arange(1, 4, dtype=torch.double) / 7)
        result = call(weight, torch.tensor(1 / 3, dtype=torch.double))
        seen.append((weight.detach(), weight.grad, result))
    torch.testing.assert_close(seen[1:], seen[:1] * 3, rtol=0, atol=0)
    assert magpy.cache_info(fast).hits == 2


def used_before(weight, x):
    loss = (weight * x).sum()
    weight.data = weight.data * 3
    return torch.autograd.grad(loss + (weight * x).sum(), weight)


def used_between(weight, x):
    weight.data = weight.data * 2
    loss = (weight * x).sum()
    weight.data = weight.data * 3
    return torch.autograd.grad(loss + (weight * x).sum(), weight)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("program", [used_before, used_between])
def test_inner_gradients_count_uses_before_the_data_is_set(program, backend):
    fast, seen = magpy.compile(program, backend=backend), []
    for call in (program, fast, fast):
        seen.append(call(nn.Parameter(torch.arange(3.0)), torch.ones(3)))
    torch.testing.assert_close(seen[1:], seen[:1] * 2)


class Doubled(torch.autograd.Function):
    """Doubles a tensor in place, or through a view of it."""

    @staticmethod
    def forward(ctx, x, through_view):
        ctx.mark_dirty(x)
        (x.view(-1) if through_view else x).mul_(2)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def written_inside_a_custom_function(x):
    x.data = x.detach() * 2
    Doubled.apply(x, False)
    return x


def view_written_inside_a_custom_function(x):
    x.data = x.detach() * 2
    Doubled.apply(x, True)
    return x


def write_after_a_branch(x):
    x.data = x.detach() * 2
    y = x
    if x.sum() > 0:
        y = x.relu()
    print(end="")  # splits the program
    y.add_(1)
    return y


def result_of_a_branch(x):
    x.data = x.detach() * 2
    return x if x.sum() > 0 else x.relu()


def view_after_a_branch(x):
    x.data = x.detach() * 2
    y = x.detach()
    if x.sum() > 0:
        y = x.relu()
    print(end="")
    y.add_(1)
    return y


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(
    "program",
    [
        result_of_a_branch, view_after_a_branch,
        view_written_inside_a_custom_function, write_after_a_branch,
        written_inside_a_custom_function,
    ],
)  # fmt: skip
def test_tensor_keeps_its_identity_and_version(program, backend):
    fast = magpy.compile(program, backend=backend)
    for sign in (1, -1, 1, -1):
        x, y = torch.full((2, 2), sign)[1:].float(), torch.full((2, 2), sign)[1:].float()
        expected, found = program(x), fast(y)
        assert (found is y) == (expected is x)
        assert (y._version, found._version) == (x._version, expected._version)
        assert torch.equal(y, x)
        assert torch.equal(found, expected)
