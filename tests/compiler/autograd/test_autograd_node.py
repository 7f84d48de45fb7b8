"""The autograd node of a compiled graph: low overhead, equal to eager in all autograd features."""

import sys
import weakref

import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import magpy_like as magpy
from magpy_like.compiler import compile_fx
from magpy_like.compiler.autograd.conjugate_gradients import resolve_conj_and_neg
from tests.compiler.programs import compiled, seeded


def traced(function, *inputs):
    """``function``, captured without Dynamo and compiled."""
    return compile_fx(fx.symbolic_trace(function), inputs, options={"strict": True})


def leaf(*size, seed=0):
    return seeded(*size, seed=seed).requires_grad_()


def scaled(x, w):
    return (x.exp() * w).tanh()


def python_functions(call):
    """The file names of the Python functions that a call runs."""
    files = []
    sys.setprofile(lambda frame, event, _: event == "call" and files.append(frame.f_code))
    try:
        call()
    finally:
        sys.setprofile(None)
    return [code.co_filename for code in files]


def test_call_and_backward_pass_run_no_aot_autograd_code():
    x, w = leaf(3), leaf(3, seed=1)
    fast = traced(scaled, x, w)
    fast(x, w).sum().backward()
    ran = python_functions(lambda: fast(x, w).backward(torch.ones(3)))
    assert not [file for file in ran if "_functorch" in file]


def test_mutating_graph_runs_no_aot_autograd_code_and_bumps_versions_once():
    def normed(x, mean, var):
        return torch.nn.functional.batch_norm(x, mean, var, training=True).mul(mean + 0)

    def counting(x, steps):
        steps.add_(1)
        return x.sin()

    x, steps = leaf(4, 3), torch.zeros((), dtype=torch.int64)
    fast = traced(counting, x, steps)
    fast(x, steps)
    version = steps._version
    ran = python_functions(lambda: fast(x, steps))
    assert not [file for file in ran if "_functorch" in file]
    assert steps == 2
    assert steps._version == version + 1
    eager_statistics = torch.zeros(3), torch.ones(3)
    statistics = torch.zeros(3), torch.ones(3)
    actual = traced(normed, x, *statistics)(x, *statistics)
    expected = normed(x, *eager_statistics)
    torch.testing.assert_close([actual, *statistics], [expected, *eager_statistics])


def test_backward_graph_may_be_retained():
    x, w = leaf(3), leaf(3, seed=1)
    fast = traced(scaled, x, w)
    fast(x, w).sum().backward()
    found = []
    for call in (scaled, fast):
        x.grad = None
        result = call(x, w)
        for keep in (True, True, False):
            result.sum().backward(retain_graph=keep)
        found.append(x.grad)
    torch.testing.assert_close(*found)
    with pytest.raises(RuntimeError, match="second time"):
        result.sum().backward()


def test_backward_graph_of_a_program_that_changes_its_argument_may_be_retained():
    def program(x, w):
        x.mul_(2)
        return ((x @ w).sin() @ w).exp(), x

    w, results = leaf(3, 3).detach(), []
    for call in (program, magpy.compile(program)):
        found = []
        for keeps in ([False], [False], [False], [True, True, False]):
            x = leaf(3, 3)
            result = call(x * 1, w)[0].sum()
            for keep in keeps:
                result.backward(retain_graph=keep)
            found.append(x.grad)
        results.append(found)
    torch.testing.assert_close(*results)


def test_double_backward_and_batched_gradients_equal_eager():
    x, w = leaf(3, 3), leaf(3, 3, seed=1)
    hooked = []
    x.register_hook(hooked.append)
    found = []
    for call in (scaled, traced(scaled, x, w)):
        (slope,) = torch.autograd.grad(call(x, w).sum(), [x], create_graph=True)
        both = torch.autograd.grad(slope.square().sum(), [x, w])
        many = torch.eye(9).view(9, 3, 3)
        rows = torch.autograd.grad(call(x, w), [x, w], many, is_grads_batched=True)
        found.append((slope, *both, *rows, len(hooked)))
        hooked.clear()
    torch.testing.assert_close(*found)


def normed(x, w, state):
    """Updates statistics, whose old values decide nothing else."""
    mean, var = state[0], state[1]
    return torch.nn.functional.batch_norm(scaled(x, w), mean, var, training=True).tanh()


def counting(x, w, state):
    y = scaled(x, w)
    with torch.no_grad():
        state.mul_(0.5).add_(y.mean())
    return y


PENALISED = {
    "dropout": lambda x, w, state: torch.dropout(scaled(x, w), 0.5, True),
    "several draws": lambda x, w, state: (scaled(x, w) * torch.rand(3)).tanh() + torch.randn(3, 3),
    "batch norm": normed,
    "state": counting,
    "old state": lambda x, w, state: scaled(x, w) * state.add_(1)[0],
    "dropout after batch norm": lambda x, w, state: torch.dropout(normed(x, w, state), 0.5, True),
    "under autocast": lambda x, w, state: (scaled(x, w) @ w).tanh(),
}


@pytest.mark.parametrize("name", PENALISED)
def test_gradient_penalty_of_a_program_with_draws_state_or_casts_equals_eager(name):
    autocast = name == "under autocast"

    def steps(call):
        state, found = torch.zeros(2, 3), []
        torch.manual_seed(0)
        for k in range(3):
            x, w = leaf(3, 3, seed=k), leaf(3, 3, seed=5)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = call(x, w, state).square().sum()
            (slope,) = torch.autograd.grad(loss, [x], create_graph=True)
            torch.rand(2)  # between the call and the second run
            slope.norm().backward()
            found += [slope.detach(), x.grad, w.grad, state.clone(), torch.rand(2)]
        return found

    fast = magpy.compile(PENALISED[name])
    tolerance = 0.05 if autocast else 1e-5
    torch.testing.assert_close(steps(fast), steps(PENALISED[name]), rtol=tolerance, atol=tolerance)
    assert magpy.cache_info(fast).hits >= 2


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0].tanh()


class Recurring(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer(4, 4, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


class Resizing(nn.Module):
    """Bicubic, and by nearest pixels."""

    def forward(self, x):
        x = nn.functional.interpolate(x[None].tanh(), size=(5, 6), mode="bicubic")
        return nn.functional.interpolate(x.exp(), size=(3, 4), mode="nearest")


class LookingUp(nn.Module):
    """The gradients of its table are sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 4, sparse=True)

    def forward(self, x):
        return (self.table(torch.tensor([0, 1, 1, 2, 0])) * x).tanh()


TWICE_DIFFERENTIATED = {
    "attention": Attending,
    "GRU": lambda: Recurring(nn.GRU),
    "LSTM": lambda: Recurring(nn.LSTM),
    "RNN": lambda: Recurring(nn.RNN),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
    "resized": Resizing,
    "sparse gradients": LookingUp,
}


@pytest.mark.cpu  # cuDNN's recurrent layers have no second derivative
@pytest.mark.parametrize("name", TWICE_DIFFERENTIATED)
def test_gradient_penalty_through_operators_of_the_compilers_own_equals_eager(name):
    def steps(compile):
        torch.manual_seed(0)
        module = compile(TWICE_DIFFERENTIATED[name]())
        found = []
        for k in range(3):
            x = leaf(2, 5, 4, seed=k)
            module.zero_grad()
            (slope,) = torch.autograd.grad(module(x).square().sum(), [x], create_graph=True)
            (slope.norm() - 1).square().backward()
            found += [slope.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]
        return found

    torch.testing.assert_close(steps(magpy.compile), steps(lambda m: m), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("program", "make_input"),
    [
        (lambda x, w, other: scaled(x, w), lambda x: x * 2),
        (lambda x, w, other: scaled(x, w) + other.sum(), lambda x: x),
        (lambda x, w, other: scaled(x, w) * other.add_(1).mean(), lambda x: x),
        (lambda x, w, other: (scaled(x, w), x.t()), lambda x: x),
    ],
    ids=["freed input", "mutated input", "large old value used", "with a view"],
)
def test_unsupported_double_backward_raises(program, make_input):
    x, w, other = leaf(3, 3), leaf(3, 3, seed=1), torch.ones(300, 300)
    result = traced(program, make_input(x), w, other)(make_input(x), w, other)
    result = result if isinstance(result, torch.Tensor) else result[0]
    other.add_(1)
    (gradient,) = torch.autograd.grad(result.sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(gradient.sum(), [x, w], allow_unused=True)


@pytest.mark.parametrize("compile", [compiled, lambda function: traced(function, *two_leaves())])
@pytest.mark.parametrize(
    "form",
    [
        lambda g: g.t().contiguous().t(),
        lambda g: g[:1, :1].expand(3, 3),
        lambda g: torch._neg_view(g),
        torch.nn.Parameter,
        lambda g: g.as_subclass(type("Named", (torch.Tensor,), {})),
        lambda g: g.double().to_sparse().float(),
    ],
    ids=["transposed", "expanded", "negative", "parameter", "subclass", "sparse"],
)
def test_incoming_gradients_of_any_form_are_accepted(form, compile):
    x, w = two_leaves()
    upstream = form(leaf(3, 3, seed=2).detach())
    actual = torch.autograd.grad(compile(scaled)(x, w), [x, w], upstream)
    dense = upstream.to_dense() if upstream.layout is not torch.strided else upstream
    expected = torch.autograd.grad(scaled(x, w), [x, w], dense)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("program", [lambda x, w: x.clone(), lambda x, w: x + w])
@pytest.mark.parametrize("form", [lambda g: g, lambda g: g.t(), lambda g: g[:1, :1].expand(3, 3)])
def test_incoming_gradient_that_is_passed_on_is_returned_itself(form, program):
    upstream = form(leaf(3, 3, seed=2).detach())
    fast = traced(program, *two_leaves())
    for function in (program, fast, fast):
        x, w = two_leaves()
        found = torch.autograd.grad(function(x, w), [x, w], upstream, allow_unused=True)
        assert all(gradient is upstream for gradient in found if gradient is not None)
        result = function(x, w)
        for _ in range(2):
            result.backward(upstream, retain_graph=True)
        torch.testing.assert_close(x.grad, 2 * upstream)
        assert x.grad.is_contiguous()


def two_leaves():
    return leaf(3, 3), leaf(3, 3, seed=1)


def test_incoming_conjugate_gradients_are_resolved():
    def program(x):
        return torch.view_as_complex(x.sin())

    x = leaf(3, 2)
    upstream = torch.view_as_complex(leaf(3, 2, seed=1).detach()).conj()
    actual = torch.autograd.grad(compile_fx(fx.symbolic_trace(program), [x])(x), [x], upstream)
    torch.testing.assert_close(actual, torch.autograd.grad(program(x), [x], upstream))


class SecondGradientOnly(torch.autograd.Function):
    """Passes a gradient to its second argument only."""

    @staticmethod
    def forward(ctx, x, y):
        return x * 1, y * 1

    @staticmethod
    def backward(ctx, x, y):
        return None, y


def test_absent_gradient_of_the_only_result_is_propagated():
    x, w = leaf(3), leaf(3, seed=1)
    other = leaf(3, seed=2)
    parts = SecondGradientOnly.apply(traced(scaled, x, w)(x, w), other)
    found = torch.autograd.grad(sum(parts).sum(), [x, w, other], allow_unused=True)
    assert found[:2] == (None, None)


def test_nodes_before_an_input_without_gradient_do_not_run():
    def program(x, y):
        return x.detach() * y

    x, y = leaf(3), leaf(3, seed=1)
    fast = traced(program, x.exp(), y)
    earlier = x.exp()
    fast(earlier, y).sum().backward()
    assert x.grad is None
    earlier.sum().backward()  # its node is not freed
    torch.testing.assert_close(x.grad, x.exp())


def _view_without_node(x):
    """A view that requires gradients, and that autograd has no node for."""
    with torch.no_grad():
        return x[:]


UNREACHED = {
    "used by no result": lambda x, y, w: (x * 3 + (w > 0), y * 2)[1],
    "of two results": lambda x, y, w: (x * 3 * (w > 0), y * 2),
    "only detached": lambda x, y, w: y * x.detach() + w.detach(),
    "under no_grad": lambda x, y, w: y * 2 + _view_without_node(x * w),
    "with a changed argument": lambda x, y, w: (w.detach().add_(1), y * x)[1],
}


@pytest.mark.parametrize("nodeless", [(0,), (1,), (2,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("program", UNREACHED.values(), ids=list(UNREACHED))
def test_inputs_that_require_gradients_may_have_no_node(program, nodeless):
    """A view made under ``no_grad`` requires gradients, and no node of autograd's graph follows."""

    def gradients(call):
        leaves = [leaf(3, seed=k) for k in range(3)]
        inputs = [source * 1 for source in leaves]
        arguments = [_view_without_node(t) if k in nodeless else t for k, t in enumerate(inputs)]
        results = call(*arguments)
        results = results if isinstance(results, tuple) else (results,)
        sum([t.sum() for t in (*results, *inputs)]).backward()
        return [source.grad for source in leaves]

    fast = magpy.compile(lambda *inputs: program(*inputs))
    for _ in range(3):
        torch.testing.assert_close(gradients(fast), gradients(program))


def test_custom_function_before_an_input_without_a_gradient_does_not_run_beside_nodeless_ones():
    ran = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            ran.append(g)
            return g * 2

    def program(a, x, y):
        return x * 2, y * a

    sources = [leaf(3, seed=k) for k in range(3)]
    nodeless = _view_without_node(sources[0] * 1)
    fast = traced(program, nodeless, sources[1].exp(), sources[2].exp())
    first, _ = fast(nodeless, sources[1].exp(), Noted.apply(sources[2]))
    first.sum().backward()
    assert not ran
    _, second = fast(nodeless, sources[1].exp(), Noted.apply(sources[2]))
    second.sum().backward()
    assert len(ran) == 1


@pytest.mark.parametrize("alias", [torch.Tensor.detach, lambda view: view.data])
def test_view_of_a_leaf_is_changed_without_gradients(alias):
    """Autograd admits no write to the view itself."""

    def program(view, w):
        before = view * 3 + w
        alias(view)[:2].mul_(2)
        return before

    def outcome(call):
        source, w = leaf(4), leaf(4, seed=1)
        view = source.view(4)
        result = call(view, w)
        (result.sum() + (view * view).sum()).backward()
        return result, source, source.grad, w.grad

    fast = magpy.compile(lambda view, w: program(view, w))
    for _ in range(3):
        torch.testing.assert_close(outcome(fast), outcome(program))


def test_detached_results_do_not_require_gradients():
    def program(x):
        return x.sin(), x.argmax(), x.detach().cos()

    x = leaf(3)
    actual, expected = traced(program, x)(x), program(x)
    assert [t.requires_grad for t in actual] == [t.requires_grad for t in expected]
    torch.testing.assert_close(actual, expected)
    actual[0].sum().backward()
    torch.testing.assert_close(x.grad, x.cos())


def test_mutation_of_saved_tensor_before_backward_raises():
    x, w = leaf(3), leaf(3, seed=1)
    other = w.detach().clone().requires_grad_()
    result = traced(scaled, x, other)(x, other)
    with torch.no_grad():
        other.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


class Stashed(torch.autograd.Function):
    """Saves one tensor with ``save_for_backward``, and one on the context, unversioned."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        ctx.w = w
        return x * w

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.w, g * x


def test_tensors_saved_on_the_context_are_restored_in_order():
    x, w = leaf(3), leaf(3, seed=1)
    actual, expected = (
        torch.autograd.grad(call(x, w).sum(), [x, w])
        for call in (compiled(Stashed.apply), Stashed.apply)
    )
    torch.testing.assert_close(actual, expected)


def test_varying_sizes_reach_the_backward_pass():
    def program(x, w):
        return (x @ w).mean(0) * x.shape[0], x.flip(0).cumsum(0)

    w = leaf(4, 4)
    fast = magpy.compile(program, dynamic=True)
    for rows in (3, 5, 8):
        x = leaf(rows, 4, seed=rows)
        actual, expected = (
            torch.autograd.grad(sum(t.sin().sum() for t in call(x, w)), [x, w])
            for call in (fast, program)
        )
        torch.testing.assert_close(actual, expected)
    assert magpy.cache_info(fast).hits == 2


def test_graph_traced_under_autocast_has_all_casts():
    def program(x, w):
        with torch.autocast("cpu", enabled=False):
            product = x @ w
        return product, x @ w

    x, w = leaf(4, 4), leaf(4, 4, seed=1)
    fast = magpy.compile(program)
    for call in (fast, fast, program):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results = call(x, w)
            gradients = torch.autograd.grad(results[0].sum(), [x, w])
        if call is fast:
            actual = results, gradients
    torch.testing.assert_close(actual[0], results)
    torch.testing.assert_close(actual[1], gradients, rtol=1e-2, atol=1e-2)


def test_graph_that_enables_gradients_has_them_under_no_grad():
    def program(x):
        with torch.enable_grad():
            return x.sin()

    x = leaf(3)
    fast = magpy.compile(program)
    with torch.no_grad():
        fast(x)
        result = fast(x)
    assert magpy.cache_info(fast).hits == 1
    torch.testing.assert_close(torch.autograd.grad(result.sum(), [x])[0], x.cos())


@pytest.fixture
def deterministic_algorithms():
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("in_program", [False, True])
def test_deterministic_algorithms_may_be_switched_between_passes(
    in_program, deterministic_algorithms
):
    def program(x, w):
        loss = (x * w).cumsum(0).sum()
        if in_program:
            loss.backward()
        return loss

    fast = magpy.compile(program)
    for forward in (False, False, True, True, False):
        for backward in {forward} if in_program else (forward, not forward):
            leaves = [[leaf(3), leaf(3, seed=1)] for _ in "ab"]
            for function, of in zip((program, fast), leaves, strict=True):
                deterministic_algorithms(forward)
                loss = function(*of)
                deterministic_algorithms(backward)
                if not in_program:
                    loss.backward()
            for actual, expected in zip(leaves[1], leaves[0], strict=True):
                torch.testing.assert_close(actual.grad, expected.grad)


def test_hooks_receive_and_replace_gradients():
    x, w = leaf(3), leaf(3, seed=1)
    fast = traced(scaled, x, w)
    found = []
    for call in (fast, scaled):
        result = call(x, w)
        result.register_hook(lambda g: g * 3)
        seen = []
        if call is fast:
            result.grad_fn.register_prehook(lambda grads: seen.append(grads[0]))
        found.append(torch.autograd.grad(result.sum(), [x, w]))
        if call is fast:
            torch.testing.assert_close(seen, [torch.full((3,), 3.0)])
    torch.testing.assert_close(*found)


def test_compiled_autograd_traces_the_backward_pass():
    from torch._dynamo.compiled_autograd import _enable

    x, w = leaf(3), leaf(3, seed=1)
    fast = traced(scaled, x, w)
    result = fast(x, w)
    with _enable(lambda graph: graph):
        result.sum().backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(scaled(x, w).sum(), [x])[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_graph_compiles_at_its_first_call(reentrant):
    def program(x, w):
        return (torch.tanh(x @ w) * x.sum(1, keepdim=True)).softmax(1)

    fast, found = compiled(program), []
    for call in (program, fast):
        x, w = leaf(4, 4), leaf(4, 4, seed=1)
        checkpoint(call, x, w, use_reentrant=reentrant).pow(2).sum().backward()
        found.append([x.grad, w.grad])
    torch.testing.assert_close(*found)


def test_saved_tensor_hooks_see_no_fake_tensors_and_keep_the_fast_node():
    x, w = leaf(3), leaf(3, seed=1)
    seen = []

    def pack(tensor):
        seen.append(type(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fast = traced(scaled, x, w)
        assert not seen
        fast(x, w).sum().backward()
    assert set(seen) <= {torch.Tensor, torch.nn.Parameter}
    ran = python_functions(lambda: fast(x, w).backward(torch.ones(3)))
    assert not [file for file in ran if "_functorch" in file]


def test_incoming_gradients_are_released_during_the_backward_pass():
    def backward(args):
        held = weakref.ref(args[0])
        args.clear()
        return held()

    (node,) = fx.symbolic_trace(lambda tangents: None).graph.find_nodes(op="placeholder")
    assert resolve_conj_and_neg(backward, [node])([torch.ones(2)]) is None
