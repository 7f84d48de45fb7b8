"""Checkpointed functions: part of the operator graph, and recomputed in the backward pass."""

import contextlib
import copy
import functools
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import magpy_like as magpy
from magpy_like.compiler.compiler_errors import MagpyWarning
from tests.compare import assert_same
from tests.memory import peak_bytes
from tests.programs import Twins

BACKENDS = ["magpy", "eager", "aot_eager"]


REENTRANT = False


def checkpointed(function, *args, **kwargs):
    return checkpoint(function, *args, use_reentrant=REENTRANT, **kwargs)


@pytest.fixture(params=[False, True], ids=["", "reentrant"])
def both_checkpoint_kinds(request, monkeypatch):
    """Runs a test with both kinds of checkpoint.

    A reentrant checkpoint computes gradients only if one of its arguments requires them.
    """
    monkeypatch.setitem(globals(), "REENTRANT", request.param)


class Block(nn.Module):
    def __init__(self, *more):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 12), nn.GELU(), *more, nn.Linear(12, 6))
        self.outer = nn.Linear(6, 6)

    def forward(self, x):
        return self.outer(x + checkpointed(self.inner, x)).sin()


class WritesBuffer(nn.Module):
    """Writes to a buffer before or after the last tensor that is saved for the backward pass."""

    def __init__(self, after):
        super().__init__()
        self.after = after
        self.register_buffer("seen", torch.zeros(()))
        self.weight = nn.Parameter(torch.full((6,), 0.5))

    def inner(self, x):
        if not self.after:
            self.seen.add_(1)
        y = (x * self.weight).exp()
        if self.after:
            self.seen.add_(1)
        return y

    def forward(self, x):
        return checkpointed(self.inner, x).cos()


class BatchNormed(nn.Module):
    """Batch norms whose results are, or are not, the last saved tensors."""

    def __init__(self, *layers):
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x):
        return checkpointed(self.inner, x.sin()).cos()


class CalledTwice(nn.Module):
    """One checkpointed function called twice, which has a checkpointed function inside."""

    def __init__(self):
        super().__init__()
        self.inner = Block()

    def forward(self, x):
        x = checkpointed(self.inner, x)
        return checkpointed(self.inner, x + 1)


class WithKeywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def inner(self, x, y, *, scale, mask=None):
        return self.first(x).tanh() * scale, None, {"sum": self.second(y).exp() + mask}

    def forward(self, x):
        if REENTRANT:  # accepts no keywords
            inner = functools.partial(self.inner, scale=2.0, mask=x > 0)
            a, nothing, b = checkpointed(inner, x, x * 2)
        else:
            a, nothing, b = checkpointed(self.inner, x, x * 2, scale=2.0, mask=x > 0)
        assert nothing is None
        return a + b["sum"]


MODELS = {
    "plain": Block,
    "dropout": lambda: Block(nn.Dropout(0.5)),
    "batch norm": lambda: Block(nn.BatchNorm1d(12)),
    "two batch norms": lambda: Block(nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.BatchNorm1d(12)),
    "batch norm last": lambda: BatchNormed(nn.Linear(6, 6), nn.BatchNorm1d(6)),
    "batch norm before a layer that saves nothing": lambda: BatchNormed(
        nn.BatchNorm1d(6), nn.Flatten()
    ),
    "without affine": lambda: BatchNormed(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 6)),
    "cumulative": lambda: BatchNormed(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 6)),
    "writes before": lambda: WritesBuffer(after=False),
    "writes after": lambda: WritesBuffer(after=True),
    "twice": CalledTwice,
    "keywords": WithKeywords,
}


def ones(rows):
    return torch.ones(rows, 6, requires_grad=True)


def gradients_and_state(module, x):
    gradients = [p.grad for p in module.parameters()]
    return x.grad, gradients, [*module.buffers()], torch.get_rng_state()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_checkpointed_models_match_eager(name, backend, both_checkpoint_kinds):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    twin = copy.deepcopy(model)
    run = magpy.compile(model, backend=backend)
    for step, backwards in enumerate((1, 1, 0, 2, 1)):
        x = torch.randn(8, 6, dtype=torch.float64)
        seen = []
        for module, call in ((model, run), (twin, twin)):
            torch.manual_seed(step)
            argument = x.clone().requires_grad_()
            result = call(argument)
            for _ in range(backwards):
                result.sum().backward(retain_graph=True)
            seen.append((result, *gradients_and_state(module, argument)))
        assert_same(*seen)
    assert magpy.cache_info(run).hits >= 2


def test_backward_passes_may_follow_later_calls(both_checkpoint_kinds):
    """A batch norm then updates the statistics that the earlier calls have left."""
    torch.manual_seed(0)
    model = Block(nn.BatchNorm1d(12)).double()
    twin = copy.deepcopy(model)
    run = magpy.compile(model)
    for x in torch.randn(3, 2, 8, 6, dtype=torch.float64, requires_grad=True):
        for call in (run, twin):
            first, second = call(x[0]), call(x[1])
            first.sum().backward()
            second.sum().backward()
        assert_same([*model.buffers()], [*twin.buffers()])
    assert [p.grad for p in model.parameters()]


@pytest.mark.parametrize("name", [name for name in MODELS if "dropout" not in name])
def test_each_pass_of_higher_gradients_recomputes_functions(name):
    """Once, however often it uses the function: a batch norm then updates its statistics again."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    twin = copy.deepcopy(model)
    run = magpy.compile(model)
    for step in range(4):
        start = torch.randn(8, 6, dtype=torch.float64)
        seen = []
        for module, call in ((model, run), (twin, twin)):
            x = start.clone().requires_grad_()
            states = [state_of(module, x, call(x))]
            gradient = states[0][0]
            for order in range(3 if step % 2 else 2):
                (gradient,) = torch.autograd.grad(
                    (gradient**3).sum(), x, create_graph=True, allow_unused=True
                )
                states.append(state_of(module, x, gradient))
            gradient.sum().backward(retain_graph=True)
            states.append(state_of(module, x, gradient))
            gradient.sum().backward()
            seen.append([*states, state_of(module, x, gradient)])
        for compiled, eager in zip(*seen, strict=True):
            torch.testing.assert_close(compiled, eager)
    assert magpy.cache_info(run).hits >= 2


def state_of(module, x, value):
    return value, [b.clone() for b in module.buffers()], copy.copy(x.grad)


def test_function_without_a_gradient_is_not_recomputed():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Block(nn.BatchNorm1d(12)), Block(nn.BatchNorm1d(12))

        def forward(self, x):
            return self.first(x), self.second(x)

    torch.manual_seed(0)
    model = Model().double()
    twin = copy.deepcopy(model)
    run = magpy.compile(model)
    for step in range(4):
        x = torch.randn(8, 6, dtype=torch.float64)
        for call in (run, twin):
            call(x)[step % 2].sum().backward()
        assert_same([*model.buffers()], [*twin.buffers()])
    for step in range(4):
        for module, call in ((model, run), (twin, twin)):
            first, second = call(x)
            weight = [module.first.outer.weight, module.second.inner[0].weight][step % 2]
            torch.autograd.grad((first + second).sum(), weight)
        assert_same([*model.buffers()], [*twin.buffers()])


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointed_functions_share_one_graph(backend, both_checkpoint_kinds):
    model = nn.Sequential(Block(), Block(nn.Dropout(0.5)))
    if not REENTRANT:  # nested checkpoints are not followed if one of them is reentrant
        model.append(CalledTwice())
    run = magpy.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        run(ones(8)).sum().backward()
    info = magpy.cache_info(run)
    assert (info.hits, info.misses, info.records) == (2, 1, 1)
    (graph,) = magpy.explain(model, ones(8)).graphs
    assert checkpoint not in {node.target for node in graph.graph.nodes}


def has_one_backward_node(result):
    """True if one compiled backward pass leads from a result to the parameters."""
    preceding = result.grad_fn.next_functions
    return {node.name() for node, _ in preceding if node} == {"torch::autograd::AccumulateGrad"}


def test_one_compiled_backward_pass_covers_checkpointed_functions():
    inner, first = nn.Linear(6, 6), nn.Linear(6, 6)
    under = functools.partial(checkpoint, use_reentrant=False)
    run = magpy.compile(lambda x: under(inner, first(x).requires_grad_(True)).exp())
    run(torch.ones(2, 6))
    assert has_one_backward_node(run(torch.ones(2, 6)))


def test_recomputed_tensors_are_not_saved(both_checkpoint_kinds):
    def make():
        wide = [nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(8)]
        return nn.ModuleList(wide)

    layers = make()

    def forward(x, through):
        for layer in layers:
            x = x + through(layer, x)
        return x.sum()

    run = magpy.compile(lambda x: forward(x, checkpointed))
    x = torch.randn(256, 64, requires_grad=True)
    calls = [
        lambda: run(x).backward(),
        lambda: forward(x, checkpointed).backward(),
        lambda: forward(x, lambda layer, x: layer(x)).backward(),
    ]
    for call in calls:
        call()
    compiled, eager, without = map(peak_bytes, calls)
    assert without > 3 * eager
    assert without > 2 * compiled


def test_python_effects_are_repeated_in_the_recomputation(both_checkpoint_kinds):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.log = 0, []
            self.weight = nn.Parameter(torch.ones(6))

        def inner(self, x, seen):
            self.calls += 1
            self.log.append(len(seen))
            seen.append(1)
            return (x * self.weight).sin()

        def forward(self, x):
            seen = []
            return checkpointed(self.inner, x, seen).cos(), seen

    model = Counts()
    run, twin = magpy.compile(model), copy.deepcopy(model)
    for _ in range(4):
        found = []
        for module, call in ((model, run), (twin, twin)):
            result, seen = call(ones(2))
            result.sum().backward()
            found.append((result, seen, module.calls, module.log, module.weight.grad))
        assert_same(*found)


def test_appended_tensors_are_appended_again_in_the_recomputation(both_checkpoint_kinds):
    weight = torch.ones(6, requires_grad=True)

    def program(x):
        seen = []

        def inner(x):
            y = (x * weight).sin()
            seen.append(y.detach().sum())
            return y

        return checkpointed(inner, x).exp(), seen

    run = magpy.compile(program)
    for _ in range(3):
        found = []
        for call in (run, program):
            result, seen = call(ones(2))
            result.sum().backward()
            found.append((result, seen))
        assert_same(*found)


def test_exceptions_leave_a_checkpointed_function(both_checkpoint_kinds):
    weight = torch.ones(6, requires_grad=True)

    def inner(x, fails):
        if fails:
            raise ValueError("refused")
        return (x * weight).sin()

    def program(x, fails):
        try:
            return checkpointed(inner, x, fails).exp()
        except ValueError as error:
            return x * len(str(error))

    run = magpy.compile(program)
    for fails in (False, True, False, True, True):
        assert_same(run(ones(2), fails), program(ones(2), fails))
    with pytest.raises(RuntimeError, match="must match"):
        run(torch.ones(2, 5), False)


def test_records_distinguish_tensors_by_requires_grad(both_checkpoint_kinds):
    weight = torch.full((6,), 0.5)

    def program(x):
        return checkpointed(lambda y: (y * weight).sin().exp(), x).cos()

    run = magpy.compile(program)
    for needs in ((True, False), (False, False), (False, True), (True, True), (True, False)):
        weight.requires_grad_(needs[1])
        found = []
        for call in (run, program):
            x, weight.grad = torch.ones(2, 6, requires_grad=needs[0]), None
            result = call(x)
            if result.requires_grad:
                result.sum().backward()
            found.append((result, x.grad, weight.grad))
            with torch.no_grad():
                found[-1] += (call(x),)
        assert_same(*found)


def test_recomputation_uses_autocast_of_the_forward_pass(both_checkpoint_kinds):
    model = Block()
    twin = copy.deepcopy(model)
    run = magpy.compile(model)
    for _ in range(3):
        seen = []
        for module, call in ((model, run), (twin, twin)):
            module.zero_grad()
            x = torch.ones(8, 6, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16):
                result = call(x)
            result.float().sum().backward()
            seen.append((result, x.grad, [p.grad for p in module.parameters()]))
        assert_same(*seen, atol=0.05, rtol=0.05)


def test_recomputation_reads_tensors_written_after_the_function(both_checkpoint_kinds):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            y = checkpointed(lambda x: (x * self.weight * self.scale).sin(), x).exp()
            self.scale.add_(1)
            return y

    model = Model()
    run, twin = magpy.compile(model), copy.deepcopy(model)
    for _ in range(3):
        for call in (run, twin):
            call(ones(2)).sum().backward()
        assert_same(model.weight.grad, twin.weight.grad)


def test_one_record_serves_all_sizes(both_checkpoint_kinds):
    model = Block(nn.Dropout(0.5))
    run = magpy.compile(model, dynamic=True)
    for rows in (8, 3, 5):
        seen = []
        for call in (run, model):
            model.zero_grad()
            torch.manual_seed(rows)
            result = call(ones(rows))
            result.sum().backward()
            seen.append((result, [p.grad for p in model.parameters()]))
        assert_same(*seen)
    assert magpy.cache_info(run).hits == 2


@pytest.mark.parametrize("name", MODELS)
def test_models_train_under_a_default_device(name, both_checkpoint_kinds):
    with torch.device("cpu"):
        test_checkpointed_models_match_eager(name, "magpy", None)


def test_functions_under_a_default_device_join_the_surrounding_graph():
    model = Block(nn.BatchNorm1d(12), nn.Dropout(0.5))
    run = magpy.compile(model, fullgraph=True)
    with torch.device("cpu"):
        run(ones(8))
        assert has_one_backward_node(run(ones(8)))


def test_recomputation_uses_the_default_device_of_the_forward_pass(both_checkpoint_kinds):
    def function(x):
        return (x * torch.full((6,), 2.0)).sin()

    run = magpy.compile(lambda x: checkpointed(function, x).exp(), fullgraph=True)
    x = torch.ones(2, 6)
    expected = torch.func.grad(lambda x: function(x).exp().sum())(x)
    for _ in range(3):
        argument = x.clone().requires_grad_()
        with torch.device("cpu"):
            result = run(argument).sum()
        with torch.device("meta"):
            result.backward()
        assert_same(argument.grad, expected)
    assert magpy.cache_info(run).hits == 2


def test_options_without_a_graph_equivalent_run_natively():
    weight = torch.ones(6, requires_grad=True)
    options = [
        {"use_reentrant": True},
        {"use_reentrant": False, "debug": True},
        {"use_reentrant": False, "determinism_check": "none"},
        {"use_reentrant": False, "preserve_rng_state": False},
        {"use_reentrant": False, "early_stop": False},
    ]
    for keywords in options:

        def program(x, keywords=keywords):
            return checkpoint(lambda y: F.dropout((y * weight).sin()), x, **keywords).exp()

        run = magpy.compile(program)
        for _ in range(3):
            found = []
            for call in (run, program):
                torch.manual_seed(0)
                x, weight.grad = torch.ones(2, 6, requires_grad=True), None
                result = call(x)
                result.sum().backward()
                found.append((result, x.grad, weight.grad, torch.get_rng_state()))
            assert_same(*found)


class ReadsAttributes(nn.Module):
    """``inner`` reads attributes that the module has changed before, or that its caller changes."""

    def __init__(self, options):
        super().__init__()
        self.options, self.calls, self.found, self.dtype, self.pair = options, 0, [], None, False

    def inner(self, x):
        y = (x * self.calls + len(self.found)).to(self.dtype)
        return (y, x.sin()) if self.pair else (y,)

    def forward(self, x):
        self.calls += 1
        self.found = [1, 2, 3]
        y, *others = checkpoint(self.inner, x, **self.options)
        self.found = []
        return y, others, torch.ones(3, dtype=y.dtype)


class ChangesAttributes(nn.Module):
    """``inner`` changes attributes that are read after it."""

    def __init__(self, options):
        super().__init__()
        self.options, self.calls, self.found = options, 0, []

    def inner(self, x):
        self.calls += 1
        self.found = [*self.found, 1]
        return x.sin()

    def forward(self, x):
        y = checkpoint(self.inner, x, **self.options)
        return y * self.calls, len(self.found)


OPTIONS = [
    {"use_reentrant": True},
    {"use_reentrant": False},
    {"use_reentrant": False, "determinism_check": "none"},
]


def leaf_inputs():
    return (torch.ones(3, requires_grad=True),)


@pytest.mark.parametrize("options", OPTIONS)
def test_checkpointed_function_reads_attributes_changed_before(options):
    twins = Twins(lambda: ReadsAttributes(options))
    for dtype in (torch.float32, torch.float32, torch.float64, torch.float64):
        twins.change(lambda model, dtype=dtype: setattr(model, "dtype", dtype))
        twins.call(leaf_inputs, backward=True)
    for pair in (True, True, False):
        twins.change(lambda model, pair=pair: setattr(model, "pair", pair))
        twins.call(leaf_inputs, backward=True)


@pytest.mark.parametrize("options", OPTIONS)
def test_program_reads_attributes_changed_by_a_checkpointed_function(options):
    twins = Twins(lambda: ChangesAttributes(options))
    for _ in range(4):
        twins.call(leaf_inputs, backward=True)


def test_batch_norms_join_the_surrounding_graph():
    model = Block(nn.BatchNorm1d(12))
    run = magpy.compile(model)
    run(ones(8))
    assert has_one_backward_node(run(ones(8)))


def test_one_record_serves_batch_norms_of_all_sizes(both_checkpoint_kinds):
    torch.manual_seed(0)
    model = Block(nn.BatchNorm1d(12)).double()
    twin = copy.deepcopy(model)
    run = magpy.compile(model, dynamic=True, fullgraph=True)
    for count in (8, 5, 12, 7):
        x = torch.randn(count, 6, dtype=torch.float64, requires_grad=True)
        for call in (run, twin):
            call(x).sum().backward()
        assert_same([*model.buffers()], [*twin.buffers()])
    assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
    assert magpy.cache_info(run)[:3] == (3, 1, 1)


reentrant = functools.partial(checkpoint, use_reentrant=True)


def _branches_on_requires_grad(x):
    return x.sin() if (x * 2).requires_grad else x.sin() * 1


def _branches_on_gradient_mode(x):
    return x.sin() if torch.is_grad_enabled() else x.sin() * 1


def _disables_gradients(x):
    with torch.no_grad():
        y = x.cos()
    return x.sin() * y


class ReentrantProgram:
    """A program with reentrant checkpoints, and the objects that it refers to."""

    def __init__(self, program):
        self.program = program
        self.weight = nn.Parameter(torch.full((4,), 0.5))
        self.weight.register_hook(lambda gradient: gradient.clamp(max=0.2))
        self.counted = torch.zeros(())

    def __call__(self, x, y):
        return self.program(self, x, y)

    def count(self):
        return self.counted.add_(1).detach().clone()

    def written(self, new, x):
        return reentrant(lambda a: new.add_(1) * self.weight * a, x)


FOLLOWED = {
    "an argument that is not used": lambda own, x, y: reentrant(
        lambda x, y: (x * own.weight).sin(), x.detach(), y
    ),
    "results of which some do not depend on gradients": lambda own, x, y: reentrant(
        lambda x: (x * own.weight, x.detach() * 3, x > 0, x.argmax(), None, 3), x
    ),
    "a view": lambda own, x, y: reentrant(lambda x: x.sin().view(2, 2).t(), x) * 2,
    "an argument twice": lambda own, x, y: reentrant(lambda a, b: a.sin() * b, x, x),
    "an argument in a closure too": lambda own, x, y: reentrant(lambda a: a.sin() * x, x),
    "arguments in a list": lambda own, x, y: reentrant(
        lambda a, found: a.sin() * found[0] * found[1], x, [x.detach().cos(), y]
    ),
    "closure values with gradients": lambda own, x, y: reentrant(
        lambda a: a * own.weight * y.sin(), x * 2
    ),
    "random numbers": lambda own, x, y: (
        reentrant(lambda a: F.dropout(a) * own.weight, x) + torch.rand(4)
    ),
    "a result that is changed": lambda own, x, y: reentrant(lambda a: a.sin(), x).mul_(2),
    "one result of two": lambda own, x, y: reentrant(lambda a: (a * own.weight, a * y), x)[0] * 2,
    "a weight in two functions": lambda own, x, y: reentrant(
        lambda a: a * own.weight, reentrant(lambda a: a * own.weight, x)
    ),
    "numbers of tensors": lambda own, x, y: reentrant(
        lambda a: a * own.weight * functools.reduce(operator.add, a.tolist()), x
    ),
    "a write": lambda own, x, y: reentrant(lambda a: own.count() * a * own.weight, x),
    "a write to a new tensor": lambda own, x, y: own.written(torch.ones(4), x),
}
NATIVE = {
    "is around another": lambda own, x, y: reentrant(
        lambda a: checkpointed(lambda b: own.count() * b.sin(), a * 2) * 3, x
    ),
    "returns its argument": lambda own, x, y: reentrant(lambda a: (a, a * own.weight), x),
    "returns a view of its argument": lambda own, x, y: reentrant(lambda a: a.view(2, 2), x) * 2,
    "returns a list": lambda own, x, y: reentrant(lambda a: [a.sin(), a * own.weight], x),
    "branches on requires_grad": lambda own, x, y: reentrant(_branches_on_requires_grad, x),
    "branches on the gradient mode": lambda own, x, y: reentrant(_branches_on_gradient_mode, x),
    "disables gradients": lambda own, x, y: reentrant(_disables_gradients, x),
    "is under another": lambda own, x, y: checkpointed(
        lambda a: reentrant(lambda b: b.sin() * own.weight, a * 2), x
    ),
    "no argument requires gradients": lambda own, x, y: (
        reentrant(lambda a: a * own.weight, x.detach()),
        x * 2,
    ),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FOLLOWED | NATIVE)
def test_reentrant_checkpoints_match_eager(name, backend, recwarn):
    twins = Twins(lambda: ReentrantProgram((FOLLOWED | NATIVE)[name]), backend=backend)
    for factor in (1.0, 2.0, 3.0, -4.0):

        def inputs(factor=factor):
            x = factor * torch.arange(1.0, 5.0)
            return x.requires_grad_(), torch.full((4,), 0.2, requires_grad=True)

        twins.call(inputs, backward=True)
    info = magpy.cache_info(twins.compiled)
    assert info.hits >= 2
    assert (info.records == 1) is (name in FOLLOWED)
    assert not [warning for warning in recwarn if warning.category is MagpyWarning]


def test_gradient_mode_is_restored_after_a_reentrant_checkpoint_raises():
    def fails(x):
        raise ValueError("refused")

    def program(x):
        with contextlib.suppress(ValueError):
            reentrant(fails, x)
        return x.sin()

    run = magpy.compile(program)
    for _ in range(3):
        x = torch.ones(3, requires_grad=True)
        assert_same(run(x), program(x))
        assert torch.is_grad_enabled()


def test_recomputation_draws_the_same_random_numbers(device, both_checkpoint_kinds):
    run = magpy.compile(lambda x: checkpointed(lambda x: F.dropout(x) * 3, x))
    for _ in range(4):
        x = torch.arange(1.0, 100.0, device=device).requires_grad_()
        result = run(x)
        torch.rand(7, device=device)
        result.sum().backward()
        assert_same(x.grad * x.detach(), result.detach())
        assert 0 < x.grad.count_nonzero() < 99
    assert magpy.cache_info(run).hits == 3


class DrawsRandomNumbers:
    """Draws from a generator of its own, in the forward pass and in the recomputation."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.ones(3))

    def __call__(self, x):
        draw = lambda y: (y * self.weight).sin() * torch.rand(3, generator=self.generator)
        return checkpointed(draw, x).exp()


class ReadsStatistics(nn.Module):
    """Reads the running statistics that its batch norm writes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        x = torch.stack([x, x * 2, x.sin()])
        return checkpointed(lambda y: self.norm(y) * self.norm.running_mean.sum(), x).exp()


class ReadsCounter(nn.Module):
    """One checkpointed function reads a counter that a later one increments."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.ones(()))
        self.weight = nn.Parameter(torch.ones(3))

    def second(self, x):
        self.count.add_(1)
        return (x * self.weight).exp()

    def forward(self, x):
        x = checkpointed(lambda y: (y * self.weight * self.count).sin(), x)
        return checkpointed(self.second, x)


class VaryingNumber(nn.Module):
    """A number attribute of its batch norm varies between calls."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        self.norm.eps += 0.1
        return checkpointed(lambda y: self.norm(torch.stack([y, y * 2])).sin().exp(), x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [DrawsRandomNumbers, ReadsStatistics, ReadsCounter, VaryingNumber])
def test_recomputation_reads_the_state_of_eager_mode(make, backend, both_checkpoint_kinds, recwarn):
    twins = Twins(make, backend=backend)
    for _ in range(4):
        twins.call(leaf_inputs, backward=True)
    assert magpy.cache_info(twins.compiled).hits >= 2
    assert not [warning for warning in recwarn if warning.category is MagpyWarning]


def _enables_gradients(x):
    torch.set_grad_enabled(True)
    return x * 2


UNRECORDED_RESULTS = {
    "the argument": lambda x: x,
    "the argument, written to": lambda x: x.mul_(2),
    "in a tuple": lambda x: (x, x.sin()),
    "in a list": lambda x: [x],
    "with gradients enabled": _enables_gradients,
}


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", UNRECORDED_RESULTS.values(), ids=UNRECORDED_RESULTS)
def test_results_of_reentrant_checkpoints_without_gradients(function, requires_grad, backend):
    """torch returns detached views of arguments, and restores the mode after the function."""

    def program(x):
        with torch.no_grad():
            result = reentrant(function, x)
            return result, x * 2

    def observe(call):
        x = torch.arange(3.0, requires_grad=requires_grad) * 1
        result, doubled = call(x)
        memory = x.untyped_storage().data_ptr()
        found = result if isinstance(result, tuple | list) else [result]
        described = [(t, t is x, t.untyped_storage().data_ptr() == memory) for t in found]
        return type(result), x._version, doubled, described

    run = magpy.compile(program, backend=backend)
    for _ in range(3):
        assert_same(observe(run), observe(program))
    info = magpy.cache_info(run)
    assert info.hits + info.uncompiled == 2
