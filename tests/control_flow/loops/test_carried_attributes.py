"""Loop-carried attributes, elements and closure cells; appends to lists of objects."""

import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.graph_operators.control_operators import for_loop
from tests.compare import assert_same
from tests.seeding import seed

WEIGHT = torch.linspace(-1, 1, 9).reshape(3, 3)
SIZES = (5, 7, 2, 4)


class State:
    """An object that persists between calls."""

    def __init__(self):
        self.h, self.last, self.steps = torch.zeros(3), None, 0
        self.states = [torch.zeros(3), torch.ones(3)]
        self.named = {"h": torch.zeros(3), "c": torch.ones(3)}
        self.names = {"h"}

    @property
    def scaled(self):
        return self.h * 2

    @scaled.setter
    def scaled(self, value):
        self.h = value / 2

    def update(self, y):
        self.h = torch.tanh(self.h @ WEIGHT + y)
        return self.h * 2


class Slots:
    __slots__ = ("h",)

    def __init__(self, h):
        self.h = h


class Halving:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value / 2)


def attribute(state, x):
    state.h = state.h.detach()
    for t in range(x.shape[0]):
        state.h = torch.tanh(state.h @ WEIGHT + x[t])
    return state.h * 2


def created_in_the_first_iteration(state, x):
    state.h, found = None, []
    for t in range(x.shape[0]):
        state.h = x[t] if state.h is None else state.h * 0.5 + x[t]
        found.append(state.h)
    return torch.stack(found)


def assigned_in_a_method(state, x):
    state.h = x[0] * 0
    return torch.stack([state.update(y) for y in x])


def property_attribute(state, x):
    state.h = x[0]
    for y in x:
        state.scaled = state.scaled * 0.5 + y
    return state.scaled


def by_getattr_and_setattr(state, x):
    state.h = x[0]
    for y in x:
        setattr(state, "h", getattr(state, "h") * 0.5 + y)  # noqa: B009, B010
    return state.h


def elements_of_a_dictionary(state, x):
    for t in range(x.shape[0]):
        h = state.named["h"].detach() * 0.5 + x[t]
        state.named["h"], state.named["c"] = h, state.named.get("c").detach() + h
    return state.named["c"]


def new_dictionary(state, x):
    found = {"h": x[0], "c": x[0] * 0}
    for t in range(x.shape[0]):
        for key in found:
            found[key] = found[key] * 0.5 + x[t]
    return found


def elements_of_a_list(state, x):
    for y in x:
        for i in range(2):
            state.states[i] = y = torch.tanh(state.states[i].detach() + y)
    return y * 2, state.states[-1]


def tuple_attribute(state, x):
    state.h = (x[0], (x[0] * 2, 1))
    for y in x:
        h, (c, n) = state.h
        state.h = (h * 0.5 + y, (c + h, n + 1))
    return state.h


def queries_a_set(state, x):
    state.h = state.h.detach()
    for y in x:
        state.names.add("h")
        state.names.discard("c")
        state.h = torch.tanh(state.h + y)
    return state.h


def queries_its_own_entry(state, x):
    state.named["h"] = x[0] * 0
    for y in x:
        if "h" in state.named:
            state.named["h"] = torch.tanh(state.named["h"] + y)
    return state.named["h"]


def adds_to_a_set(state, x):
    state.h = state.h.detach()
    for y in x:
        state.names.add("c")
        state.h = torch.tanh(state.h + y)
    return len(state.names)


def removes_from_a_set(state, x):
    state.h = state.h.detach()
    for y in x:
        state.h = torch.tanh(state.h + y) * len(state.names)
        state.names.discard("h")
    return state.h


def tuple_in_two_locations(state, x):
    n = 0
    for y in x:
        n += 2
        same = state.last = (y * 2, n)
    return state.last, same, same is state.last


def swapped_attributes(state, x):
    state.h, state.last = x[0], x[0] * 2
    for y in x:
        state.h, state.last = state.last, state.h + y
    return state.h, state.last


def previous_iterations_value(state, x):
    own, y = {"last": x[0]}, x[0] * 3
    for t in range(x.shape[0]):
        state.h = own["last"] = y
        y = y + x[t]
    return own, state.h, y


def only_written(state, x):
    h = x[0] * 0
    for y in x:
        h = torch.tanh(h + y)
        state.last = x * h  # its size differs from the previous call's
    return h * 2


def counter_reset_at_each_call(state, x):
    h, state.steps = x[0], 0
    for _ in range(x.shape[0]):
        h = h * 0.5 + x[state.steps]
        state.steps += 1
    return h, state.steps


def counter_kept_between_calls(state, x):
    for y in x:
        state.steps += 2
    return y * state.steps


def slot_attribute(state, x):
    own = Slots(x[0])
    for y in x:
        own.h = own.h * 0.5 + y
    return own.h


def custom_setattr(state, x):
    own = Halving()
    own.h = x[0]
    for y in x:
        own.h = own.h + y
    return own.h


def closure_variable(state, x):
    h, n = x[0], 0

    def step(y):
        nonlocal h, n
        h, n = torch.tanh(h @ WEIGHT + y), n + 1

    for y in x:
        step(y)
    return h, n


def counting_while(state, x):
    state.h, t = x[0] * 0, 0
    while t < x.shape[0]:
        state.h = torch.tanh(state.h @ WEIGHT + x[t])
        t += 1
    return state.h


def dropout(state, x):
    state.h = x[0] * 0
    for y in x:
        state.h = torch.dropout(state.h + y, 0.5, True)
    return state.h


def appends_to_an_attribute(state, x):
    state.h, state.last = x[0] * 0, []
    for y in x:
        state.last.append(state.update(y))
    return torch.stack(state.last)


def lists_in_containers(state, x):
    named, both = {"a": [], "b": [x[0]]}, ([], [])
    for y in x:
        for key in named:
            named[key].append(y * 2)
        both[0].append(y)
        both[1].extend([y * 3, y * 4])
    return named, both, torch.stack(named["a"])


def list_under_two_names(state, x):
    found = state.last = [x[0]]
    for y in x:
        found.append(y * 2)
        state.last.append(y * 3)
    return found


PROGRAMS = [
    queries_a_set, queries_its_own_entry, attribute, created_in_the_first_iteration,
    assigned_in_a_method, property_attribute, by_getattr_and_setattr, elements_of_a_dictionary,
    new_dictionary, elements_of_a_list, tuple_attribute, swapped_attributes,
    previous_iterations_value, only_written, counter_reset_at_each_call, counter_kept_between_calls,
    slot_attribute, custom_setattr, closure_variable, counting_while, dropout,
    appends_to_an_attribute, lists_in_containers, list_under_two_names,
]  # fmt: skip


def popped_and_reinserted(state, x):
    own = {"h": x[0], "c": x[0] * 2}
    for y in x:
        own["h"] = own.pop("h") * 0.5 + y
    return own


def iterates_over_the_dictionary(state, x):
    for y in x:
        state.named["h"] = torch.stack([*state.named.values()]).sum(0).detach() * 0.5 + y
    return state.named


def read_through_vars(state, x):
    for y in x:
        state.h = vars(state)["h"].detach() * 0.5 + y
    return state.h * 2


def compares_identity(state, x):
    state.h = h = x[0] * 2
    same = 0
    for y in x:
        same += state.h is h
        state.h = state.h * 0.5 + y
    return state.h, same


def changed_in_place(state, x):
    for y in x:
        state.h.add_(y.detach())
        state.last = state.h
    return state.h * 2, state.last is state.h


def exits_early(state, x):
    state.h = x[0] * 0
    for y in x:
        state.h = state.h + y
        if state.h.sum() > 2:
            break
    return state.h


def assigned_on_one_branch(state, x):
    state.h = x[0] * 0
    for y in x:
        if y.sum() > 0:
            state.h = state.h + y
    return state.h


def raises_in_the_last_iteration(state, x):
    state.h = x[0] * 0
    for t in range(x.shape[0] + (x.shape[0] < 4)):
        state.h = state.h + x[t]
    return state.h


def pops_from_a_list(state, x):
    state.last, state.named = [x[0]], [x[0]]
    for y in x:
        state.last.append(state.last.pop() + y)
        state.named.clear()
        state.named.append(y)
    return state.last


def element_of_a_growing_list(state, x):
    state.last = [x[0]]
    for y in x:
        state.last[0] = state.last[0] + y
        state.last.append(y * 2)
    return state.last, torch.stack(state.last)


def length_of_a_growing_list(state, x):
    state.last = [x[0]]
    for y in x:
        state.last.append(y * len(state.last))
    return state.last


def list_kept_between_calls(state, x):
    for y in x:
        state.states.append(y.detach() * 2)
    return len(state.states)


OTHERS = [
    adds_to_a_set, removes_from_a_set, tuple_in_two_locations, popped_and_reinserted,
    iterates_over_the_dictionary, read_through_vars, compares_identity, pops_from_a_list,
    element_of_a_growing_list, length_of_a_growing_list, list_kept_between_calls, changed_in_place,
    exits_early, assigned_on_one_branch, raises_in_the_last_iteration,
]  # fmt: skip


def outcome(run, state, size):
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(size)).requires_grad_()
    seed(0)
    try:
        result = run(state, x)
        tensors = torch.utils._pytree.tree_leaves(result)
        losses = [t.sum() for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
        if losses:
            sum(losses).backward()
    except (IndexError, RuntimeError) as error:
        result = type(error), str(error)
    return result, x.grad, dict(vars(state)), torch.random.get_rng_state()


def compare(program):
    """Compares several trip counts with eager mode; returns the compiled program and its state."""
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    mine, theirs = State(), State()
    for size in SIZES:
        assert_same(outcome(fast, mine, size), outcome(program, theirs, size))
    return fast, mine


@pytest.mark.parametrize("program", PROGRAMS)
def test_state_in_objects_is_carried_by_one_operator(program):
    fast, state = compare(program)
    report = magpy.explain(fast, state, torch.ones(8, 3))
    assert not report.split_points
    assert any(node.target is for_loop for graph in report.graphs for node in graph.graph.nodes)


@pytest.mark.parametrize("program", OTHERS)
def test_state_in_objects_equals_eagers(program):
    compare(program)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 3)
        self.state = None

    def forward(self, x):
        self.state = x.new_zeros(1, 3), x.new_zeros(1, 3)
        found = []
        for y in x:
            self.state = self.cell(y[None], self.state)
            found.append(self.state[0])
        return torch.cat(found)


def test_module_that_keeps_its_state_is_one_operator():
    seed(0)
    mine, theirs = Recurrent(), Recurrent()
    theirs.load_state_dict(mine.state_dict())
    fast = magpy.compile(mine, backend="eager")
    for size in (5, 7, 9, 6):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(size))
        found = []
        for run, module in ((fast, mine), (theirs, theirs)):
            module.zero_grad()
            run(x).square().sum().backward()
            found.append((module.state, [p.grad for p in module.parameters()]))
        assert_same(*found)
    assert magpy.cache_info(fast)[:4] == (2, 2, 1, 1)


class Neuron(nn.Module):
    def __init__(self, persistent):
        super().__init__()
        self.register_buffer("membrane", torch.zeros(3), persistent=persistent)

    def forward(self, x):
        self.membrane = torch.sigmoid(self.membrane * 0.9 + x)
        spikes = (self.membrane > 0.5).float()
        self.membrane = self.membrane - spikes * 0.5
        return spikes + self.membrane


class Spiking(nn.Module):
    def __init__(self, resets):
        super().__init__()
        self.linear, self.resets = nn.Linear(3, 3), resets
        self.neurons = nn.ModuleList([Neuron(True), Neuron(False)])

    def forward(self, x):
        for neuron in self.neurons if self.resets else ():
            neuron.membrane = torch.zeros_like(x[0])
        found = []
        for y in x:
            for neuron in self.neurons:
                y = neuron(self.linear(y))
            found.append(y)
        return torch.stack(found)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("resets", [False, True])
def test_buffers_of_modules_are_carried(resets, training):
    seed(0)
    mine, theirs = Spiking(resets), Spiking(resets)
    theirs.load_state_dict(mine.state_dict())
    fast = magpy.compile(mine, backend="eager", fullgraph=True)

    def check(size):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(size))
        found = []
        for run, module in ((fast, mine), (theirs, theirs)):
            with torch.set_grad_enabled(training):
                result = run(x)
            if training:
                result.square().sum().backward()
            found.append((result, dict(module.named_buffers()), list(module.state_dict())))
            found[-1] += ([p.grad for p in module.parameters()],)
            for neuron in module.neurons:
                neuron.membrane = neuron.membrane.detach().clone()
        assert_same(*found)

    for size in (5, 7, 9, 6, 12):
        check(size)
    assert magpy.cache_info(fast)[:4] == (3, 2, 1, 1)
    for module in (mine, theirs):
        module.neurons[0].register_buffer("membrane", torch.ones(3), persistent=False)
    check(8)
    assert magpy.cache_info(fast).misses == 3
