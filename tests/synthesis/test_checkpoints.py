"""Functions under `torch.utils.checkpoint` are part of a graph, and run again going backward."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import magpy_like as magpy
from tests.compare import assert_same
from tests.memory import peak_bytes
from tests.programs import Twins

BACKENDS = ["magpy", "eager", "aot_eager"]


def under_checkpoint(function, *args, **kwargs):
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


class Block(nn.Module):
    def __init__(self, *more):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 12), nn.GELU(), *more, nn.Linear(12, 6))
        self.outer = nn.Linear(6, 6)

    def forward(self, x):
        return self.outer(x + under_checkpoint(self.inner, x)).sin()


class Writes(nn.Module):
    """What it writes comes before, or behind, the last tensor that is saved."""

    def __init__(self, behind):
        super().__init__()
        self.behind = behind
        self.register_buffer("seen", torch.zeros(()))
        self.weight = nn.Parameter(torch.full((6,), 0.5))

    def inner(self, x):
        if not self.behind:
            self.seen.add_(1)
        y = (x * self.weight).exp()
        if self.behind:
            self.seen.add_(1)
        return y

    def forward(self, x):
        return under_checkpoint(self.inner, x).cos()


class Averages(nn.Module):
    """Batch norms whose results are saved last, or not."""

    def __init__(self, *layers):
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x):
        return under_checkpoint(self.inner, x.sin()).cos()


class Twice(nn.Module):
    """One function at two places, and one under a checkpoint under another."""

    def __init__(self):
        super().__init__()
        self.inner = Block()

    def forward(self, x):
        x = under_checkpoint(self.inner, x)
        return under_checkpoint(self.inner, x + 1)


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def inner(self, x, y, *, scale, mask=None):
        return self.first(x).tanh() * scale, None, {"sum": self.second(y).exp() + mask}

    def forward(self, x):
        a, nothing, b = under_checkpoint(self.inner, x, x * 2, scale=2.0, mask=x > 0)
        assert nothing is None
        return a + b["sum"]


MODELS = {
    "plain": Block,
    "dropout": lambda: Block(nn.Dropout(0.5)),
    "batch norm": lambda: Block(nn.BatchNorm1d(12)),
    "two batch norms": lambda: Block(nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.BatchNorm1d(12)),
    "batch norm last": lambda: Averages(nn.Linear(6, 6), nn.BatchNorm1d(6)),
    "batch norm before what saves nothing": lambda: Averages(nn.BatchNorm1d(6), nn.Flatten()),
    "without affine": lambda: Averages(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 6)),
    "cumulative": lambda: Averages(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 6)),
    "writes before": lambda: Writes(behind=False),
    "writes behind": lambda: Writes(behind=True),
    "twice": Twice,
    "keywords": Keywords,
}


def state_of(module, x):
    gradients = [p.grad for p in module.parameters()]
    return x.grad, gradients, [*module.buffers()], torch.get_rng_state()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_models_do_what_they_do_in_eager_mode(name, backend):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    twin = copy.deepcopy(model)
    run = magpy.compile(model, backend=backend)
    for step, backwards in enumerate((1, 1, 0, 2, 1)):
        x = torch.randn(8, 6, dtype=torch.float64)
        seen = []
        for module, call in ((model, run), (twin, twin)):
            torch.manual_seed(step)
            given = x.clone().requires_grad_()
            result = call(given)
            for _ in range(backwards):
                result.sum().backward(retain_graph=True)
            seen.append((result, *state_of(module, given)))
        assert_same(*seen)
    assert magpy.cache_info(run).hits >= 2


def test_calls_come_before_earlier_ones_go_backward():
    """A batch norm counts on from what it holds then."""
    torch.manual_seed(0)
    model = Block(nn.BatchNorm1d(12)).double()
    twin = copy.deepcopy(model)
    run = magpy.compile(model)
    for x in torch.randn(3, 2, 8, 6, dtype=torch.float64):
        for call in (run, twin):
            first, second = call(x[0]), call(x[1])
            first.sum().backward()
            second.sum().backward()
        assert_same([*model.buffers()], [*twin.buffers()])
    assert [p.grad for p in model.parameters()]


def test_a_function_that_no_gradient_reaches_does_not_run_again():
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
            wanted = [module.first.outer.weight, module.second.inner[0].weight][step % 2]
            torch.autograd.grad((first + second).sum(), wanted)
        assert_same([*model.buffers()], [*twin.buffers()])


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_holds_all_functions(backend):
    model = nn.Sequential(Block(), Block(nn.Dropout(0.5)), Twice())
    run = magpy.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        run(torch.randn(8, 6)).sum().backward()
    info = magpy.cache_info(run)
    assert (info.hits, info.misses, info.records) == (2, 1, 1)
    (graph,) = magpy.explain(model, torch.randn(8, 6)).graphs
    assert checkpoint not in {node.target for node in graph.graph.nodes}


def goes_backward_at_once(result):
    """Whether nothing but parameters lies behind the pass that leads back from a result."""
    behind = result.grad_fn.next_functions
    return {node.name() for node, _ in behind if node} == {"torch::autograd::AccumulateGrad"}


def test_one_compiled_pass_goes_backward_through_functions():
    inner, first = nn.Linear(6, 6), nn.Linear(6, 6)
    under = functools.partial(checkpoint, use_reentrant=False)
    run = magpy.compile(lambda x: under(inner, first(x).requires_grad_(True)).exp())
    run(torch.ones(2, 6))
    assert goes_backward_at_once(run(torch.ones(2, 6)))


def test_what_is_computed_again_is_not_kept():
    def make():
        wide = [nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(8)]
        return nn.ModuleList(wide)

    layers = make()

    def forward(x, through):
        for layer in layers:
            x = x + through(layer, x)
        return x.sum()

    run = magpy.compile(lambda x: forward(x, under_checkpoint))
    x = torch.randn(256, 64)
    calls = [
        lambda: run(x).backward(),
        lambda: forward(x, under_checkpoint).backward(),
        lambda: forward(x, lambda layer, x: layer(x)).backward(),
    ]
    for call in calls:
        call()
    compiled, eager, without = map(peak_bytes, calls)
    assert without > 3 * eager
    assert without > 2 * compiled


def test_what_a_function_does_in_python_is_done_again():
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
            return under_checkpoint(self.inner, x, seen).cos(), seen

    model = Counts()
    run, twin = magpy.compile(model), copy.deepcopy(model)
    for _ in range(4):
        found = []
        for module, call in ((model, run), (twin, twin)):
            result, seen = call(torch.ones(2, 6))
            result.sum().backward()
            found.append((result, seen, module.calls, module.log, module.weight.grad))
        assert_same(*found)


def test_what_a_list_from_outside_the_function_has_is_put_there_again():
    weight = torch.ones(6, requires_grad=True)

    def program(x):
        seen = []

        def inner(x):
            y = (x * weight).sin()
            seen.append(y.detach().sum())
            return y

        return under_checkpoint(inner, x).exp(), seen

    run = magpy.compile(program)
    for _ in range(3):
        found = []
        for call in (run, program):
            result, seen = call(torch.ones(2, 6))
            result.sum().backward()
            found.append((result, seen))
        assert_same(*found)


def test_exceptions_come_out_of_a_function():
    weight = torch.ones(6, requires_grad=True)

    def inner(x, fails):
        if fails:
            raise ValueError("refused")
        return (x * weight).sin()

    def program(x, fails):
        try:
            return under_checkpoint(inner, x, fails).exp()
        except ValueError as error:
            return x * len(str(error))

    run = magpy.compile(program)
    for fails in (False, True, False, True, True):
        assert_same(run(torch.ones(2, 6), fails), program(torch.ones(2, 6), fails))
    with pytest.raises(RuntimeError, match="must match"):
        run(torch.ones(2, 5), False)


def test_records_tell_tensors_by_whether_gradients_are_taken():
    weight = torch.full((6,), 0.5)

    def program(x):
        return under_checkpoint(lambda y: (y * weight).sin().exp(), x).cos()

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


def test_functions_under_autocast():
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


def test_a_function_finds_what_was_changed_behind_it():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            y = under_checkpoint(lambda x: (x * self.weight * self.scale).sin(), x).exp()
            self.scale.add_(1)
            return y

    model = Model()
    run, twin = magpy.compile(model), copy.deepcopy(model)
    for _ in range(3):
        for call in (run, twin):
            call(torch.ones(2, 6)).sum().backward()
        assert_same(model.weight.grad, twin.weight.grad)


def test_one_record_is_for_all_sizes():
    model = Block(nn.Dropout(0.5))
    run = magpy.compile(model, dynamic=True)
    for rows in (8, 3, 5):
        seen = []
        for call in (run, model):
            model.zero_grad()
            torch.manual_seed(rows)
            result = call(torch.ones(rows, 6))
            result.sum().backward()
            seen.append((result, [p.grad for p in model.parameters()]))
        assert_same(*seen)
    assert magpy.cache_info(run).hits == 2


@pytest.mark.parametrize("name", MODELS)
def test_models_train_under_a_default_device(name):
    with torch.device("cpu"):
        test_models_do_what_they_do_in_eager_mode(name, "magpy")


def test_functions_under_a_default_device_are_compiled_with_what_is_around_them():
    model = Block(nn.BatchNorm1d(12), nn.Dropout(0.5))
    run = magpy.compile(model, fullgraph=True)
    with torch.device("cpu"):
        run(torch.randn(8, 6))
        assert goes_backward_at_once(run(torch.randn(8, 6)))


def test_what_a_function_makes_is_made_on_the_default_device_of_the_call_going_backward_too():
    def function(x):
        return (x * torch.full((6,), 2.0)).sin()

    run = magpy.compile(lambda x: under_checkpoint(function, x).exp(), fullgraph=True)
    x = torch.ones(2, 6)
    expected = torch.func.grad(lambda x: function(x).exp().sum())(x)
    for _ in range(3):
        given = x.clone().requires_grad_()
        with torch.device("cpu"):
            result = run(given).sum()
        with torch.device("meta"):
            result.backward()
        assert_same(given.grad, expected)
    assert magpy.cache_info(run).hits == 2


def test_options_without_a_meaning_for_graphs_run_as_they_are():
    weight = torch.ones(6, requires_grad=True)
    options = [
        {"use_reentrant": True},
        {"use_reentrant": False, "debug": True},
        {"use_reentrant": False, "determinism_check": "none"},
        {"use_reentrant": False, "preserve_rng_state": False},
        {"use_reentrant": False, "early_stop": False},
    ]
    for given in options:

        def program(x, given=given):
            return checkpoint(lambda y: F.dropout((y * weight).sin()), x, **given).exp()

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


class Reads(nn.Module):
    """What ``inner`` finds was changed before, or is changed by whoever calls the module."""

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


class Changes(nn.Module):
    """``inner`` changes what is read behind it."""

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


def leaf():
    return (torch.ones(3, requires_grad=True),)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_function_finds_what_the_program_has_changed_before(options):
    twins = Twins(lambda: Reads(options))
    for dtype in (torch.float32, torch.float32, torch.float64, torch.float64):
        twins.change(lambda model, dtype=dtype: setattr(model, "dtype", dtype))
        twins.call(leaf, backward=True)
    for pair in (True, True, False):
        twins.change(lambda model, pair=pair: setattr(model, "pair", pair))
        twins.call(leaf, backward=True)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_program_finds_what_a_function_has_changed(options):
    twins = Twins(lambda: Changes(options))
    for _ in range(4):
        twins.call(leaf, backward=True)


def test_batch_norms_are_compiled_with_what_is_around_them():
    model = Block(nn.BatchNorm1d(12))
    run = magpy.compile(model)
    run(torch.randn(8, 6))
    assert goes_backward_at_once(run(torch.randn(8, 6)))


def test_batch_norms_of_all_sizes_have_one_record():
    torch.manual_seed(0)
    model = Block(nn.BatchNorm1d(12)).double()
    twin = copy.deepcopy(model)
    run = magpy.compile(model, dynamic=True, fullgraph=True)
    for count in (8, 5, 12, 7):
        x = torch.randn(count, 6, dtype=torch.float64)
        for call in (run, twin):
            call(x).sum().backward()
        assert_same([*model.buffers()], [*twin.buffers()])
    assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
    assert magpy.cache_info(run)[:3] == (3, 1, 1)
