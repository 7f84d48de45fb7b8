"""Rounds that put something into attributes, elements and shared variables hand it on, as they do
what is in local variables; and what they append to lists of objects is gathered."""

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
    """What stays from call to call."""

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


def made_first(state, x):
    state.h, found = None, []
    for t in range(x.shape[0]):
        state.h = x[t] if state.h is None else state.h * 0.5 + x[t]
        found.append(state.h)
    return torch.stack(found)


def in_a_method(state, x):
    state.h = x[0] * 0
    return torch.stack([state.update(y) for y in x])


def by_a_property(state, x):
    state.h = x[0]
    for y in x:
        state.scaled = state.scaled * 0.5 + y
    return state.scaled


def by_name(state, x):
    state.h = x[0]
    for y in x:
        setattr(state, "h", getattr(state, "h") * 0.5 + y)  # noqa: B009, B010
    return state.h


def elements_of_a_dictionary(state, x):
    for t in range(x.shape[0]):
        h = state.named["h"].detach() * 0.5 + x[t]
        state.named["h"], state.named["c"] = h, state.named.get("c").detach() + h
    return state.named["c"]


def own_dictionary(state, x):
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


def a_tuple(state, x):
    state.h = (x[0], (x[0] * 2, 1))
    for y in x:
        h, (c, n) = state.h
        state.h = (h * 0.5 + y, (c + h, n + 1))
    return state.h


def asks_a_set(state, x):
    state.h = state.h.detach()
    for y in x:
        state.names.add("h")
        state.names.discard("c")
        state.h = torch.tanh(state.h + y)
    return state.h


def asks_for_what_it_has_put_there(state, x):
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


def takes_out_of_a_set(state, x):
    state.h = state.h.detach()
    for y in x:
        state.h = torch.tanh(state.h + y) * len(state.names)
        state.names.discard("h")
    return state.h


def one_tuple_twice(state, x):
    n = 0
    for y in x:
        n += 2
        same = state.last = (y * 2, n)
    return state.last, same, same is state.last


def handed_from_one_to_the_other(state, x):
    state.h, state.last = x[0], x[0] * 2
    for y in x:
        state.h, state.last = state.last, state.h + y
    return state.h, state.last


def what_was_there(state, x):
    own, y = {"last": x[0]}, x[0] * 3
    for t in range(x.shape[0]):
        state.h = own["last"] = y
        y = y + x[t]
    return own, state.h, y


def only_written(state, x):
    h = x[0] * 0
    for y in x:
        h = torch.tanh(h + y)
        state.last = x * h  # of another size than at the call before
    return h * 2


def counted(state, x):
    h, state.steps = x[0], 0
    for _ in range(x.shape[0]):
        h = h * 0.5 + x[state.steps]
        state.steps += 1
    return h, state.steps


def counted_on(state, x):
    for y in x:
        state.steps += 2
    return y * state.steps


def slots(state, x):
    own = Slots(x[0])
    for y in x:
        own.h = own.h * 0.5 + y
    return own.h


def set_in_python(state, x):
    own = Halving()
    own.h = x[0]
    for y in x:
        own.h = own.h + y
    return own.h


def variable_of_a_closure(state, x):
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


def kept_results(state, x):
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


def one_list_twice(state, x):
    found = state.last = [x[0]]
    for y in x:
        found.append(y * 2)
        state.last.append(y * 3)
    return found


PROGRAMS = [
    asks_a_set, asks_for_what_it_has_put_there,
    attribute, made_first, in_a_method, by_a_property, by_name, elements_of_a_dictionary,
    own_dictionary, elements_of_a_list, a_tuple, handed_from_one_to_the_other, what_was_there,
    only_written, counted, counted_on, slots, set_in_python, variable_of_a_closure, counting_while,
    dropout, kept_results, lists_in_containers, one_list_twice,
]  # fmt: skip


def removed_and_put_there(state, x):
    own = {"h": x[0], "c": x[0] * 2}
    for y in x:
        own["h"] = own.pop("h") * 0.5 + y
    return own


def looked_through(state, x):
    for y in x:
        state.named["h"] = torch.stack([*state.named.values()]).sum(0).detach() * 0.5 + y
    return state.named


def by_the_dictionary(state, x):
    for y in x:
        state.h = vars(state)["h"].detach() * 0.5 + y
    return state.h * 2


def which_it_is(state, x):
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


def left_early(state, x):
    state.h = x[0] * 0
    for y in x:
        state.h = state.h + y
        if state.h.sum() > 2:
            break
    return state.h


def on_one_side(state, x):
    state.h = x[0] * 0
    for y in x:
        if y.sum() > 0:
            state.h = state.h + y
    return state.h


def failing_late(state, x):
    state.h = x[0] * 0
    for t in range(x.shape[0] + (x.shape[0] < 4)):
        state.h = state.h + x[t]
    return state.h


def taken_out_of_a_list(state, x):
    state.last, state.named = [x[0]], [x[0]]
    for y in x:
        state.last.append(state.last.pop() + y)
        state.named.clear()
        state.named.append(y)
    return state.last


def elements_of_a_list_that_grows(state, x):
    state.last = [x[0]]
    for y in x:
        state.last[0] = state.last[0] + y
        state.last.append(y * 2)
    return state.last, torch.stack(state.last)


def length_of_a_list_that_grows(state, x):
    state.last = [x[0]]
    for y in x:
        state.last.append(y * len(state.last))
    return state.last


def a_list_that_stays(state, x):
    for y in x:
        state.states.append(y.detach() * 2)
    return len(state.states)


OTHERS = [
    adds_to_a_set, takes_out_of_a_set,
    one_tuple_twice, removed_and_put_there, looked_through, by_the_dictionary, which_it_is,
    taken_out_of_a_list, elements_of_a_list_that_grows, length_of_a_list_that_grows,
    a_list_that_stays,
    changed_in_place, left_early, on_one_side, failing_late,
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
    """Runs both for several numbers of rounds; gives the compiled one, and its state."""
    fast = magpy.compile(program, backend="eager", options={"record_limit": 20})
    mine, theirs = State(), State()
    for size in SIZES:
        assert_same(outcome(fast, mine, size), outcome(program, theirs, size))
    return fast, mine


@pytest.mark.parametrize("program", PROGRAMS)
def test_state_in_objects_is_handed_on_by_an_operator(program):
    fast, state = compare(program)
    report = magpy.explain(fast, state, torch.ones(8, 3))
    assert not report.split_points
    assert any(node.target is for_loop for graph in report.graphs for node in graph.graph.nodes)


@pytest.mark.parametrize("program", OTHERS)
def test_state_in_objects_is_what_it_is_in_eager_mode(program):
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


def test_a_module_that_keeps_its_state_is_one_operator():
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
    assert magpy.cache_info(fast) == (2, 2, 1, 1)


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
    def __init__(self, begins_anew):
        super().__init__()
        self.linear, self.begins_anew = nn.Linear(3, 3), begins_anew
        self.neurons = nn.ModuleList([Neuron(True), Neuron(False)])

    def forward(self, x):
        for neuron in self.neurons if self.begins_anew else ():
            neuron.membrane = torch.zeros_like(x[0])
        found = []
        for y in x:
            for neuron in self.neurons:
                y = neuron(self.linear(y))
            found.append(y)
        return torch.stack(found)


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("begins_anew", [False, True])
def test_buffers_of_modules_are_handed_on(begins_anew, trains):
    seed(0)
    mine, theirs = Spiking(begins_anew), Spiking(begins_anew)
    theirs.load_state_dict(mine.state_dict())
    fast = magpy.compile(mine, backend="eager", fullgraph=True)

    def check(size):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(size))
        found = []
        for run, module in ((fast, mine), (theirs, theirs)):
            with torch.set_grad_enabled(trains):
                result = run(x)
            if trains:
                result.square().sum().backward()
            found.append((result, dict(module.named_buffers()), list(module.state_dict())))
            found[-1] += ([p.grad for p in module.parameters()],)
            for neuron in module.neurons:
                neuron.membrane = neuron.membrane.detach().clone()
        assert_same(*found)

    for size in (5, 7, 9, 6, 12):
        check(size)
    assert magpy.cache_info(fast) == (3, 2, 1, 1)
    for module in (mine, theirs):
        module.neurons[0].register_buffer("membrane", torch.ones(3), persistent=False)
    check(8)
    assert magpy.cache_info(fast).misses == 3
