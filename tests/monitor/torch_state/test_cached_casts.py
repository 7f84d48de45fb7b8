"""Autocast keeps the casts of weights until its outermost context ends, and uses them after writes
to the weights."""

import pytest
import torch
from torch import nn

import magpy_like as magpy


def autocast(**options):
    return torch.autocast("cpu", torch.bfloat16, **options)


def new_layer():
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    return layer


def halve(layer):
    with torch.no_grad():
        layer.weight.mul_(0.5)


def write_between(layer, x):
    with autocast():
        before = layer(x)
        halve(layer)
        return before, layer(x)


def write_through_a_detached_view_between(layer, x):
    with autocast():
        before = layer(x)
        layer.weight.detach()[0].mul_(0.5)
        return before, x @ layer.weight


def new_data_between(layer, x):
    with autocast():
        before = layer(x)
        layer.weight.data = layer.weight.data * 0.5
        return before, layer(x)


def write_in_nested_context_between(layer, x):
    with autocast():
        before = layer(x)
        with autocast(enabled=False):
            halve(layer)
            exact = layer(x)
        return before, exact, layer(x)


def inner_context_of_another_dtype(layer, x):
    with autocast():
        with torch.autocast("cpu", torch.float16):
            inner = layer.weight @ layer.weight
        return inner, x + 1, layer.weight @ layer.weight


def outer_context_of_another_dtype(layer, x):
    with autocast():
        before = layer.weight @ layer.weight
        with torch.autocast("cpu", torch.float16):
            return before, x + 1, layer.weight @ layer.weight


def step_between(layer, x):
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with autocast():
        layer(x).sum().backward()
        optimizer.step()
        return layer(x)


def split_between(layer, x):
    with autocast():
        before = layer(x)
        torch._dynamo.graph_break()
        halve(layer)
        torch._dynamo.graph_break()
        return before, layer(x)


def each_iteration(layer, x):
    with autocast():
        for _ in range(4):
            x = layer(x)
            halve(layer)
        return x


class Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def inside_a_custom_function(layer, x):
    with autocast():
        before = Project.apply(x, layer.weight)
        halve(layer)
        return before, layer(x)


def run(call, calls=3):
    torch.manual_seed(0)
    layer = new_layer()
    return [call(layer, torch.randn(2, 2)) for _ in range(calls)], layer.weight.detach()


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(
    "program",
    [
        write_between,
        write_through_a_detached_view_between,
        new_data_between,
        write_in_nested_context_between,
        inner_context_of_another_dtype,
        outer_context_of_another_dtype,
        step_between,
        split_between,
        each_iteration,
        inside_a_custom_function,
    ],
)
@pytest.mark.filterwarnings("ignore:.*uses a cast of a weight that autocast has kept")
def test_kept_cast_of_a_changed_weight_is_used_as_in_eager_mode(program, backend):
    fast = magpy.compile(program, backend=backend)
    torch.testing.assert_close(run(fast), run(program))


def write_before(layer, x):
    with autocast():
        halve(layer)
        return layer(x)


def write_after(layer, x):
    with autocast():
        result = layer(x)
        halve(layer)
        return result


def write_between_contexts(layer, x):
    with autocast():
        before = layer(x)
    halve(layer)
    with autocast():
        return before, layer(x)


def write_between_without_cache(layer, x):
    with autocast(cache_enabled=False):
        before = layer(x)
        halve(layer)
        return before, layer(x)


def contexts_of_two_dtypes(layer, x):
    with autocast():
        before = layer(x)
    with torch.autocast("cpu", torch.float16):
        return before, layer(x)


def new_data_from_old_before(layer, x):
    with autocast():
        layer.weight.data = layer.weight.data.clamp(-1, 3)
        return layer(x)


def write_between_without_gradients(layer, x):
    weight = layer.weight.detach().clone()
    with autocast():
        before = x @ weight
        weight.mul_(0.5)
        return before, x @ weight


def write_between_uses_without_cast(layer, x):
    with autocast():
        before = x * layer.weight[0]
        halve(layer)
        return before, x * layer.weight.sum(0), layer(x)


@pytest.mark.parametrize(
    "program",
    [
        write_before,
        write_after,
        write_between_contexts,
        contexts_of_two_dtypes,
        write_between_without_cache,
        new_data_from_old_before,
        write_between_without_gradients,
        write_between_uses_without_cast,
    ],
)
def test_program_that_uses_no_old_cast_is_compiled(program):
    fast = magpy.compile(program, fullgraph=True)
    torch.testing.assert_close(run(fast), run(program), rtol=2e-2, atol=1e-2)
    assert magpy.cache_info(fast).hits == 2


def test_use_of_an_old_cast_is_an_error_with_fullgraph():
    with pytest.raises(
        magpy.FullGraphError, match="uses a cast of a weight that autocast has kept"
    ):
        magpy.compile(write_between, fullgraph=True)(new_layer(), torch.ones(1, 2))


def cast_first_in_a_branch(layer, x):
    with autocast():
        if x.sum() > 0:
            x = layer(x)
        else:
            x = x * 2 @ layer.weight
    x.float().sum().backward()


def cast_first_in_a_loop(layer, x):
    with autocast():
        while x.float().sum().abs() > 0.5:
            x = layer(x) * 0.05
        x = layer(x)
    x.float().sum().backward()


def cast_again_after_a_branch(layer, x):
    with autocast():
        before = x @ layer.weight
        torch.clear_autocast_cache()
        with autocast():
            if before.sum() > 0:
                x = layer(x)
        x = layer(x)
    x.float().sum().backward()


def branch_on_whether_casts_are_kept(layer, x):
    with autocast():
        if x.sum() > 0:
            x = layer(x) if torch.is_autocast_cache_enabled() else x
        x = layer(x)
    x.float().sum().backward()


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(
    "program",
    [
        cast_first_in_a_branch,
        cast_first_in_a_loop,
        cast_again_after_a_branch,
        branch_on_whether_casts_are_kept,
    ],
)
def test_branch_on_fake_tensors_leaves_no_casts(program, backend):
    def gradients(call):
        layer, found = new_layer(), []
        for sign in (1, -1, 1):
            call(layer, sign * torch.tensor([[1.0, 0.5]]))
            found.append(layer.weight.grad)
            layer.weight.grad = None
        return found

    result = gradients(magpy.compile(program, backend=backend))
    torch.testing.assert_close(result, gradients(program), rtol=2e-2, atol=1e-2)
    assert {type(gradient) for gradient in result} == {torch.Tensor}


@pytest.mark.filterwarnings("ignore:.*uses a cast of a weight that autocast has kept")
def test_use_of_an_old_cast_from_a_branch_is_noticed():
    def program(layer, x):
        with autocast():
            if x.sum() > 0:
                x = layer(x)
            halve(layer)
            return layer(x)

    fast = magpy.compile(program)
    x = torch.ones(1, 2)
    torch.testing.assert_close(run_on(fast, x), run_on(program, x))


def run_on(call, x):
    layer = new_layer()
    return [call(layer, x) for _ in range(3)]
