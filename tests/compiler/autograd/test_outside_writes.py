"""The program may write to arguments and results after a graph's forward pass, as in eager mode."""

import pytest
import torch
from torch.nn import functional as F

import magpy_like as magpy
from tests.compiler.programs import compiled, seeded


def gradient(function, x, write):
    """The gradient of ``x``, with ``write`` between the forward and the backward pass."""
    leaf = x.clone().requires_grad_()
    argument = leaf * 1
    results = function(argument)
    with torch.no_grad():
        write(argument, results)
    (sum(result.sum() for result in results) + argument.sum()).backward()
    return leaf.grad


def write_to_argument(argument, results):
    argument.add_(1)


def write_to_result(argument, results):
    results[0].add_(1)


NO_FORMULA_READS_THE_ARGUMENT = {
    "pointwise": lambda x: [(x * 3).cos()],
    "reduction": lambda x: [(x[..., None] * torch.ones(3)).std()],
    "normalisation": lambda x: [F.layer_norm(x + 1, (4,)).relu()],
    "view": lambda x: [(x.t() * 2).sin()],
    "part": lambda x: [(part * 2).sin() for part in x.split(2)],
    "two uses": lambda x: [(x + 1).sin() * (x - 1).cos()],
}
NO_FORMULA_READS_THE_RESULT = {
    "pointwise": lambda x: [m := x + 1, (m * 3).cos()],
    "view": lambda x: [m := (x + 1).t(), (m[1:] * 2).sin()],
}


@pytest.mark.parametrize(
    ("function", "write"),
    [
        *(pytest.param(f, write_to_argument, id=f"argument-{name}")
          for name, f in NO_FORMULA_READS_THE_ARGUMENT.items()),
        *(pytest.param(f, write_to_result, id=f"result-{name}")
          for name, f in NO_FORMULA_READS_THE_RESULT.items()),
    ],
)  # fmt: skip
def test_what_no_formula_reads_may_be_written_to(function, write):
    x, call = seeded(4, 4), compiled(function)
    for _ in range(2):
        torch.testing.assert_close(gradient(call, x, write), gradient(function, x, write))


@pytest.mark.parametrize(
    ("function", "write"),
    [(lambda x: [x.sin()], write_to_argument), (lambda x: [m := x.exp(), m + 1], write_to_result),
     (lambda x: [m := x + 1, m.sin()], write_to_result)],
    ids=["argument", "own result", "result"],
)  # fmt: skip
def test_writes_to_what_a_formula_reads_are_refused(function, write):
    x, call = seeded(4, 4), compiled(function)
    for run in (function, call, call):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(run, x, write)


def outcome(function, size, write, used):
    """The gradients of two leaves by the results whose numbers are ``used``, or None if refused."""
    leaves = [torch.linspace(1, 2, size).requires_grad_() for _ in range(2)]
    arguments = [leaf * 1 for leaf in leaves]
    results = function(*arguments)
    [*arguments, *results][write].detach().mul_(2)
    try:
        sum(results[k].sum() for k in used).backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return None
    return [leaf.grad for leaf in leaves]


SEVERAL_RESULTS = {
    "one formula reads an argument": lambda x, a: (x * 2, x.sin() * a),
    "each reads another argument": lambda x, a: (x.sin(), a.cos()),
    "results are read": lambda x, a: (x.exp(), a.tanh() * x),
    "values are shared": lambda x, a: ((y := x * a).sin(), x.exp() * a, y + x),
    "an argument is modified": lambda x, a: (x.mul_(2), a.sin(), x + a.exp()),
    "a modified argument is returned as a view": lambda x, a: (a.mul_(3).t(), a + 1, x.exp()),
    "a view of an argument is returned": lambda x, a: (x[1:], x.sin() * a, a.tanh()),
    "results share memory": lambda x, a: ((y := x.exp() * a)[1:], y[:2], a.cos(), x * 2),
    "sizes are saved": lambda x, a: (x.sum().expand(2, 2) * 3, (x * a)[1:].tanh()),
}


@pytest.mark.cpu  # a replayed CUDA graph returns copies of results, and keeps what it saves
@pytest.mark.parametrize("function", SEVERAL_RESULTS.values(), ids=SEVERAL_RESULTS.keys())
def test_writes_are_refused_for_the_gradients_that_need_the_tensor(function):
    call, seen = magpy.compile(function), set()
    for size in (3, 3, 4, 5):
        count = len(function(torch.ones(size), torch.ones(size)))
        numbers = range(count)
        for used in (*((k,) for k in numbers), tuple(numbers)):
            for write in range(count + 2):
                expected = outcome(function, size, write, used)
                found = outcome(call, size, write, used)
                assert (found is None) == (expected is None)
                torch.testing.assert_close(found or [], expected or [])
                seen.add(expected is None)
    assert seen == {True, False} and magpy.cache_info(call).hits


def test_freed_tensors_are_refused_for_the_gradient_of_one_result():
    call = magpy.compile(lambda x, a: (x.cos(), x.sin() * a))
    for _ in range(3):
        first, _ = call(torch.ones(3, requires_grad=True) * 1, torch.ones(3))
        first.sum().backward(retain_graph=True)
        first.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            first.sum().backward()


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_the_program_overwrites_what_only_other_gradients_need(splits, used):
    """The graph modifies an argument, and only the gradient of the product needs ``state``."""
    state = torch.ones(3)

    def function(x, a):
        x.mul_(0.5)
        product, power = x * state, a.exp()
        if splits:
            torch._dynamo.graph_break()
        state.mul_(2)
        return x, product, power

    def outcome(call):
        state.fill_(1.5)
        x, a = (torch.full((2, 3), 0.5, requires_grad=True) for _ in range(2))
        results = call(x * 1, a * 1)
        try:
            sum(results[k].sum() for k in used).backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            return None
        return x.grad, a.grad

    call = magpy.compile(function)
    for _ in range(3):
        found, expected = outcome(call), outcome(function)
        assert (found is None) == (expected is None) == (1 in used)
        torch.testing.assert_close(found, expected)


def written_state(x, state, w):
    state.sub_(w)
    return x * x


@pytest.mark.parametrize(
    "function",
    [lambda x, s, w: s - w, lambda x, s, w: (s - w, x.sin() * x), written_state],
    ids=["nothing is saved", "another result needs what is saved", "the state is written to"],
)
def test_second_backward_pass_is_admitted_where_it_needs_nothing_that_is_freed(function):
    """The state of each call leads to the graphs of all earlier calls."""
    call, found = magpy.compile(function), []
    for run in (function, call):
        w, state = torch.ones(3, requires_grad=True), torch.zeros(3)
        for _ in range(5):
            result = run(torch.ones(3, requires_grad=True), state, w)
            if function is not written_state:
                state = result[0] if isinstance(result, tuple) else result
            state.square().sum().backward()
        found.append(w.grad)
    torch.testing.assert_close(*found)
    assert magpy.cache_info(call).hits


def test_second_backward_pass_is_refused_where_it_needs_freed_tensors():
    call = magpy.compile(lambda x: x.sin() * x)
    for _ in range(3):
        result = call(torch.ones(3, requires_grad=True))
        result.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            result.sum().backward()
