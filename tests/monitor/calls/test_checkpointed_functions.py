"""Functions under `torch.utils.checkpoint` are part of a graph, and run again going backward."""

import contextlib
import copy
import functools

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


def under_checkpoint(function, *args, **kwargs):
    return checkpoint(function, *args, use_reentrant=REENTRANT, **kwargs)


@pytest.fixture(params=[False, True], ids=["", "reentrant"])
def each_kind(request, monkeypatch):
    """For both kinds of checkpoint; under a reentrant one, arguments have to take part in gradients
    for anything to do so."""
    monkeypatch.setitem(globals(), "REENTRANT", request.param)


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
        if REENTRANT:  # takes none
            inner = functools.partial(self.inner, scale=2.0, mask=x > 0)
            a, nothing, b = under_checkpoint(inner, x, x * 2)
        else:
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


def ones(rows):
    return torch.ones(rows, 6, requires_grad=True)


def state_of(module, x):
    gradients = [p.grad for p in module.parameters()]
    return x.grad, gradients, [*module.buffers()], torch.get_rng_state()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_models_do_what_they_do_in_eager_mode(name, backend, each_kind):
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


def test_calls_come_before_earlier_ones_go_backward(each_kind):
    """A batch norm counts on from what it holds then."""
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
def test_one_graph_holds_all_functions(backend, each_kind):
    model = nn.Sequential(Block(), Block(nn.Dropout(0.5)))
    if not REENTRANT:  # functions under both are not followed
        model.append(Twice())
    run = magpy.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        run(ones(8)).sum().backward()
    info = magpy.cache_info(run)
    assert (info.hits, info.misses, info.records) == (2, 1, 1)
    (graph,) = magpy.explain(model, ones(8)).graphs
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


def test_what_is_computed_again_is_not_kept(each_kind):
    def make():
        wide = [nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(8)]
        return nn.ModuleList(wide)

    layers = make()

    def forward(x, through):
        for layer in layers:
            x = x + through(layer, x)
        return x.sum()

    run = magpy.compile(lambda x: forward(x, under_checkpoint))
    x = torch.randn(256, 64, requires_grad=True)
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


def test_what_a_function_does_in_python_is_done_again(each_kind):
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
            result, seen = call(ones(2))
            result.sum().backward()
            found.append((result, seen, module.calls, module.log, module.weight.grad))
        assert_same(*found)


def test_what_a_list_from_outside_the_function_has_is_put_there_again(each_kind):
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
            result, seen = call(ones(2))
            result.sum().backward()
            found.append((result, seen))
        assert_same(*found)


def test_exceptions_come_out_of_a_function(each_kind):
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
        assert_same(run(ones(2), fails), program(ones(2), fails))
    with pytest.raises(RuntimeError, match="must match"):
        run(torch.ones(2, 5), False)


def test_records_tell_tensors_by_whether_gradients_are_taken(each_kind):
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


def test_functions_under_autocast(each_kind):
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


def test_a_function_finds_what_was_changed_behind_it(each_kind):
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
            call(ones(2)).sum().backward()
        assert_same(model.weight.grad, twin.weight.grad)


def test_one_record_is_for_all_sizes(each_kind):
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
def test_models_train_under_a_default_device(name, each_kind):
    with torch.device("cpu"):
        test_models_do_what_they_do_in_eager_mode(name, "magpy", None)


def test_functions_under_a_default_device_are_compiled_with_what_is_around_them():
    model = Block(nn.BatchNorm1d(12), nn.Dropout(0.5))
    run = magpy.compile(model, fullgraph=True)
    with torch.device("cpu"):
        run(ones(8))
        assert goes_backward_at_once(run(ones(8)))


def test_what_is_made_again_is_made_on_the_default_device_of_the_call_going_backward(each_kind):
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


class Mutations(nn.Module):
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
    twins = Twins(lambda: Mutations(options))
    for _ in range(4):
        twins.call(leaf, backward=True)


def test_batch_norms_are_compiled_with_what_is_around_them():
    model = Block(nn.BatchNorm1d(12))
    run = magpy.compile(model)
    run(ones(8))
    assert goes_backward_at_once(run(ones(8)))


def test_batch_norms_of_all_sizes_have_one_record(each_kind):
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


def _asks(x):
    return x.sin() if (x * 2).requires_grad else x.sin() * 1


def _asks_for_mode(x):
    return x.sin() if torch.is_grad_enabled() else x.sin() * 1


def _switches(x):
    with torch.no_grad():
        y = x.cos()
    return x.sin() * y


class Parts:
    """A program with reentrant checkpoints, and what it refers to."""

    def __init__(self, program):
        self.program = program
        self.weight = nn.Parameter(torch.full((4,), 0.5))
        self.weight.register_hook(lambda gradient: gradient.clamp(max=0.2))
        self.counted = torch.zeros(())

    def __call__(self, x, y):
        return self.program(self, x, y)

    def count(self):
        return self.counted.add_(1).detach().clone()

    def written(self, made, x):
        return reentrant(lambda a: made.add_(1) * self.weight * a, x)


FOLLOWED = {
    "an argument that is not used": lambda own, x, y: reentrant(
        lambda x, y: (x * own.weight).sin(), x.detach(), y
    ),
    "results of which some do not depend on gradients": lambda own, x, y: reentrant(
        lambda x: (x * own.weight, x.detach() * 3, x > 0, x.argmax(), None, 3), x
    ),
    "a view": lambda own, x, y: reentrant(lambda x: x.sin().view(2, 2).t(), x) * 2,
    "an argument twice": lambda own, x, y: reentrant(lambda a, b: a.sin() * b, x, x),
    "an argument that is found, too": lambda own, x, y: reentrant(lambda a: a.sin() * x, x),
    "arguments in a list": lambda own, x, y: reentrant(
        lambda a, found: a.sin() * found[0] * found[1], x, [x.detach().cos(), y]
    ),
    "values made of gradients": lambda own, x, y: reentrant(
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
        lambda a: a * own.weight * sum(a.tolist()), x
    ),
    "a write": lambda own, x, y: reentrant(lambda a: own.count() * a * own.weight, x),
    "a write to what the program has made": lambda own, x, y: own.written(torch.ones(4), x),
}
NATIVE = {
    "is around another": lambda own, x, y: reentrant(
        lambda a: under_checkpoint(lambda b: own.count() * b.sin(), a * 2) * 3, x
    ),
    "gives its argument": lambda own, x, y: reentrant(lambda a: (a, a * own.weight), x),
    "gives a view of its argument": lambda own, x, y: reentrant(lambda a: a.view(2, 2), x) * 2,
    "gives a list": lambda own, x, y: reentrant(lambda a: [a.sin(), a * own.weight], x),
    "asks what takes part in gradients": lambda own, x, y: reentrant(_asks, x),
    "asks whether there are gradients": lambda own, x, y: reentrant(_asks_for_mode, x),
    "switches gradients off": lambda own, x, y: reentrant(_switches, x),
    "is under another": lambda own, x, y: under_checkpoint(
        lambda a: reentrant(lambda b: b.sin() * own.weight, a * 2), x
    ),
    "no argument takes part in gradients": lambda own, x, y: (
        reentrant(lambda a: a * own.weight, x.detach()),
        x * 2,
    ),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FOLLOWED | NATIVE)
def test_reentrant_checkpoints_do_what_they_do_in_eager_mode(name, backend, recwarn):
    twins = Twins(lambda: Parts((FOLLOWED | NATIVE)[name]), backend=backend)
    for factor in (1.0, 2.0, 3.0, -4.0):

        def inputs(factor=factor):
            x = factor * torch.arange(1.0, 5.0)
            return x.requires_grad_(), torch.full((4,), 0.2, requires_grad=True)

        twins.call(inputs, backward=True)
    info = magpy.cache_info(twins.compiled)
    assert info.hits >= 2
    assert (info.records == 1) is (name in FOLLOWED)
    assert not [warning for warning in recwarn if warning.category is MagpyWarning]


def test_the_mode_is_what_it_was_when_a_reentrant_checkpoint_has_raised():
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


def test_what_is_drawn_again_is_what_was_drawn(device, each_kind):
    run = magpy.compile(lambda x: under_checkpoint(lambda x: F.dropout(x) * 3, x))
    for _ in range(4):
        x = torch.arange(1.0, 100.0, device=device).requires_grad_()
        result = run(x)
        torch.rand(7, device=device)
        result.sum().backward()
        assert_same(x.grad * x.detach(), result.detach())
        assert 0 < x.grad.count_nonzero() < 99
    assert magpy.cache_info(run).hits == 3


class Drawing:
    """Draws from a generator of its own, now and when it is computed again."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.ones(3))

    def __call__(self, x):
        draw = lambda y: (y * self.weight).sin() * torch.rand(3, generator=self.generator)
        return under_checkpoint(draw, x).exp()


class Reading(nn.Module):
    """Reads the statistics that its own batch norm writes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        x = torch.stack([x, x * 2, x.sin()])
        return under_checkpoint(lambda y: self.norm(y) * self.norm.running_mean.sum(), x).exp()


class Counting(nn.Module):
    """One function reads what a later one counts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.ones(()))
        self.weight = nn.Parameter(torch.ones(3))

    def second(self, x):
        self.count.add_(1)
        return (x * self.weight).exp()

    def forward(self, x):
        x = under_checkpoint(lambda y: (y * self.weight * self.count).sin(), x)
        return under_checkpoint(self.second, x)


class Varying(nn.Module):
    """A number of its batch norm varies."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        self.norm.eps += 0.1
        return under_checkpoint(lambda y: self.norm(torch.stack([y, y * 2])).sin().exp(), x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [Drawing, Reading, Counting, Varying])
def test_what_is_computed_again_finds_what_it_finds_in_eager_mode(
    make, backend, each_kind, recwarn
):
    twins = Twins(make, backend=backend)
    for _ in range(4):
        twins.call(leaf, backward=True)
    assert magpy.cache_info(twins.compiled).hits >= 2
    assert not [warning for warning in recwarn if warning.category is MagpyWarning]
