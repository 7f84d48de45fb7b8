"""Training steps with the backward pass and an optimizer of torch inside, compared with eager mode.

Whatever happens to model and optimizer between two steps, both equal eager's, bit by bit.
"""

import copy
import types

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy

STEPS = 6


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def clipped(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=False)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss.detach(), norm.item()


def accumulated(model, optimizer, x, y):
    optimizer.zero_grad()
    total = 0
    for rows, targets in zip(x.chunk(2), y.chunk(2), strict=True):
        loss = F.mse_loss(model(rows), targets) / 2
        loss.backward()
        total = total + loss.detach()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
    return total


def with_autograd_grad(model, optimizer, x, y):
    parameters = list(model.parameters())
    loss = F.mse_loss(model(x), y)
    gradients = torch.autograd.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return loss.item()


def with_a_closure(model, optimizer, x, y):
    def evaluated():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    return optimizer.step(evaluated).detach()


STEP_FUNCTIONS = [step, clipped, accumulated, with_autograd_grad, with_a_closure]

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD with Nesterov momentum": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
}


def new_model(seed=0):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    return torch.nn.Sequential(*layers)


def batches(count):
    generator = torch.Generator().manual_seed(1)
    shapes = (6, 4), (6, 2)
    return [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(count)]


def final_state(model, optimizer):
    """Parameters, gradients and the optimizer's state, as numbers."""
    parameters = list(model.parameters())
    gradients = [None if p.grad is None else p.grad.tolist() for p in parameters]
    state = optimizer.state_dict()
    state_by_parameter = {
        at: {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in found.items()}
        for at, found in state["state"].items()
    }
    return [p.tolist() for p in parameters], gradients, state_by_parameter, state["param_groups"]


def run(call, make, between=lambda model, optimizer, i: None, steps=STEPS):
    """The result of each step and the state after it."""
    model = new_model()
    optimizer, outcomes = make(model.parameters()), []
    for i, (x, y) in enumerate(batches(steps)):
        between(model, optimizer, i)
        result = call(model, optimizer, x, y)
        outcomes.append((str(result), final_state(model, optimizer)))
    return outcomes


def check(program, make, between=lambda model, optimizer, i: None, steps=STEPS):
    """Asserts that all steps equal eager's; returns the number of hits."""
    fast = magpy.compile(program, backend="eager")
    found, expected = run(fast, make, between, steps), run(program, make, between, steps)
    for i, (ours, eagers) in enumerate(zip(found, expected, strict=True)):
        assert ours == eagers, f"step {i}"
    return magpy.cache_info(fast).hits


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_hit_from_the_third_call_on(name):
    assert check(step, OPTIMIZERS[name]) == STEPS - 2


@pytest.mark.parametrize("program", STEP_FUNCTIONS)
@pytest.mark.parametrize("name", ["SGD with momentum", "Adam"])
def test_each_step_function_equals_eager(program, name):
    assert check(program, OPTIMIZERS[name]) >= STEPS - 2


def advance(optimizer):
    optimizer.step()


def test_compiled_steps_equal_eagers_up_to_rounding():
    fast = magpy.compile(advance, options={"strict": True})
    pairs = []
    for call in (fast, advance):
        model = new_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for x, y in batches(4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            call(optimizer)
        pairs.append([parameter.detach() for parameter in model.parameters()])
    torch.testing.assert_close(*pairs)
    assert magpy.cache_info(fast).hits == 2


def load_state(model, optimizer, i):
    if i == 3:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    elif i == 4:
        model.load_state_dict(new_model(seed=2).state_dict())


def freeze_a_layer(model, optimizer, i):
    model[0].weight.requires_grad_(i not in (3, 4))


def add_a_layer(model, optimizer, i):
    if i == 3:
        torch.manual_seed(3)
        model.append(torch.nn.Linear(2, 2))
        optimizer.add_param_group({"params": list(model[3].parameters()), "lr": 0.05})


def lower_the_rate(model, optimizer, i):
    optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)


def set_weight_decay(model, optimizer, i):
    optimizer.param_groups[0]["weight_decay"] = 0.0 if i < 3 else 0.3


def clear_the_state(model, optimizer, i):
    if i == 3:
        optimizer.state.clear()
    elif i == 4:
        del optimizer.state[model[0].bias]


def change_the_step_counter(model, optimizer, i):
    for state in optimizer.state.values():
        if i == 3 and "step" in state:
            state["step"].fill_(100.0)


def register_a_hook(model, optimizer, i):
    if i == 3:
        halve = lambda *_: model[0].weight.data.mul_(0.5)  # noqa: E731
        optimizer.register_step_post_hook(halve)


def swap_states(model, optimizer, i):
    """Exchanges the optimizer states of two parameters of the same form."""
    if i == 3:
        model.append(torch.nn.Linear(2, 2))
        model.append(torch.nn.Linear(2, 2))
        more = [*model[3].parameters(), *model[4].parameters()]
        torch.nn.init.eye_(more[0])
        torch.nn.init.eye_(more[2])
        for bias in more[1::2]:
            torch.nn.init.zeros_(bias)
        optimizer.add_param_group({"params": more})
    elif i == 6:
        one, other = model[3].weight, model[4].weight
        state = optimizer.state
        state[one], state[other] = state[other], state[one]


CHANGES = [
    load_state,
    freeze_a_layer,
    add_a_layer,
    lower_the_rate,
    set_weight_decay,
    clear_the_state,
    change_the_step_counter,
    register_a_hook,
    swap_states,
]


@pytest.mark.parametrize("between", CHANGES)
@pytest.mark.parametrize("name", ["SGD with momentum", "Adam"])
def test_changes_between_steps_must_miss(between, name):
    assert check(step, OPTIMIZERS[name], between, steps=8) >= 1


@pytest.mark.parametrize("name", ["Adam", "SGD, fused"])
def test_gradient_scaler_checks_gradients_for_infinities(name):
    """With infinities, the step is skipped and the scale is halved."""

    def scaled(call):
        model = new_model()
        optimizer, outcomes = OPTIMIZERS[name](model.parameters()), []
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        for i, (x, y) in enumerate(batches(12)):
            if i in (4, 5, 9):
                x[0] = torch.inf
            result = call(model, optimizer, scaler, x, y)
            outcomes.append((str(result), final_state(model, optimizer), scaler.state_dict()))
        return outcomes

    def program(model, optimizer, scaler, x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), scaler.get_scale()

    fast = magpy.compile(program, backend="eager")
    for i, (ours, eagers) in enumerate(zip(scaled(fast), scaled(program), strict=True)):
        assert str(ours) == str(eagers), f"step {i}"
    assert magpy.cache_info(fast).hits >= 2


def test_two_optimizers_alternate():
    def alternating(call):
        models = [new_model(), new_model(seed=1)]
        optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
        outcomes = []
        for i, (x, y) in enumerate(batches(8)):
            result = call(models[i % 2], optimizers[i % 2], x, y)
            outcomes.append((str(result), *map(final_state, models, optimizers)))
        return outcomes

    fast = magpy.compile(step, backend="eager")
    assert alternating(fast) == alternating(step)
    assert magpy.cache_info(fast).hits > 0


def test_compiled_optimizer_step_serves_any_optimizer_of_the_same_form():
    """The parameters are no fixed objects then: access paths to their states go through each of
    them."""

    fast = magpy.compile(advance, backend="eager", fullgraph=True)
    for seed in range(4):
        pairs = []
        for call in (fast, advance):
            model = new_model(seed)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for x, y in batches(4):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                call(optimizer)
            pairs.append(final_state(model, optimizer))
        assert pairs[0] == pairs[1]
    assert magpy.cache_info(fast).misses == 2


@pytest.mark.parametrize("inside", [True, False])
def test_learning_rate_changed_by_a_scheduler_is_lifted(inside):
    def scheduled(model, optimizer, scheduler, x, y):
        loss = step(model, optimizer, x, y)
        if inside:
            scheduler.step()
        return loss

    def rates(call):
        model = new_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        outcomes = []
        for x, y in batches(8):
            result = call(model, optimizer, scheduler, x, y)
            if not inside:
                scheduler.step()
            state = {k: v for k, v in scheduler.state_dict().items() if k != "_get_lr_called_step"}
            outcomes.append((str(result), final_state(model, optimizer), str(state)))
        return outcomes

    fast = magpy.compile(scheduled, backend="eager")
    assert rates(fast) == rates(scheduled)
    assert magpy.cache_info(fast).hits >= 5


def test_compiled_optimizer_raises_eagers_assertions():
    """Torch's optimizers check less where ``is_compiling`` is true."""

    def program(optimizer):
        optimizer.step()

    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.Adam([weight], capturable=True)
    for call in (program, magpy.compile(program, backend="eager")):
        with pytest.raises(AssertionError, match="capturable"):
            call(optimizer)


@pytest.mark.filterwarnings("ignore::magpy_like.MagpyWarning")
def test_optimizers_round_as_in_eager_mode_where_the_program_continues_natively():
    """A module call with hooks has read ``is_compiling`` before."""

    def program(model, optimizer, kept, x):
        model.weight.data = model.weight.data * 0.9
        loss = model(x).abs().mean()
        kept.view = model.weight.view(-1)  # no segment ends after that
        loss.backward()
        optimizer.step()

    results = []
    for call in (program, magpy.compile(program, backend="eager")):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4).double()
        model.register_forward_pre_hook(lambda _, args: (args[0] * 0.5,))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(2):
            call(model, optimizer, types.SimpleNamespace(), torch.ones(3, 4).double())
        results.append(model.weight.detach())
    assert torch.equal(*results)


def test_profiler_label_is_recorded_once_at_every_call():
    def program(x):
        with torch.autograd.profiler.record_function("outer"):
            x = x * 2
            magpy.disable(seen.append)(x.sum())
            return x + 1

    seen = []
    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        with torch.autograd.profiler.profile() as profile:
            assert torch.equal(fast(torch.ones(2)), torch.full((2,), 3.0))
        labels = [event for event in profile.function_events if event.name == "outer"]
        assert len(labels) == 1
    assert len(seen) == 3 and magpy.cache_info(fast).hits == 2


def test_optimizer_step_skips_the_query_for_device_capture(monkeypatch):
    """On a GPU the program would split there, and the result has no effect."""
    queries = []
    query = torch.accelerator.current_accelerator
    monkeypatch.setattr(
        torch.accelerator,
        "current_accelerator",
        lambda *a, **k: queries.append(1) or query(*a, **k),
    )
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    fast = magpy.compile(advance, backend="eager", fullgraph=True)
    for _ in range(3):
        weight.grad = torch.ones(2)
        fast(optimizer)
    assert not queries and magpy.cache_info(fast).hits == 1
