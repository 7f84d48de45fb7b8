"""What is done in the backward pass of a program's own tensors: it sees eager mode's gradients."""

import warnings
import weakref

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same
from tests.seeding import seed

INFORM = print  # what splits a program


class Net(nn.Module):
    """A layer, a function of it, another layer; ``heard`` is what hooks were given."""

    def __init__(self, forward, prepare=lambda net: None):
        super().__init__()
        seed(0)
        self.before, self.act, self.behind = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
        self.in_place = nn.ReLU(inplace=True)
        self.heard, self.calls, self.kept, self._forward = [], 0, None, forward
        prepare(self)

    def hear(self, *given):
        found = [g for g in given if not isinstance(g, nn.Module)]
        self.heard.append(
            [
                [None if g is None else g.clone() for g in (g if isinstance(g, tuple) else (g,))]
                for g in found
            ]
        )

    def forward(self, x):
        return self._forward(self, x)


def called(net, call, i):
    """All that can be seen of one call and the backward pass from its result."""
    seed(i)
    x = (torch.rand(2, 4) + 0.1).requires_grad_(i % 2 == 1)
    net.zero_grad()
    net.heard.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(x)
        error = None
        try:
            result.sin().sum().backward()
        except ZeroDivisionError as raised:
            error = str(raised)
    grads = [p.grad for p in net.parameters()]
    kept = None if net.kept is None else net.kept.grad
    said = [str(warning.message) for warning in caught]
    return result, x.grad, grads, list(net.heard), kept, said, error


def check(forward, prepare=lambda net: None, *, backend="aot_eager", whole=True, hits=2):
    eager, net = Net(forward, prepare), Net(forward, prepare)
    fast = magpy.compile(net, backend=backend, fullgraph=whole)
    for i in (0, 1, 2, 3):
        expected, actual = called(eager, eager, i), called(net, fast, i)
        assert_same(actual, expected)
    assert magpy.cache_info(fast).hits >= hits


def plain(net, x):
    return net.behind(net.act(net.before(x)))


def in_place(net, x):
    return net.behind(net.in_place(net.before(x)))


def used_before_a_write(net, x):
    h = net.before(x)
    other = (h * 2).sin()  # a compiled part would keep what comes cheaper: h
    return net.behind(net.in_place(h)) * other


MODULES = {
    "a function": (plain, lambda net: net.act),
    "a layer": (plain, lambda net: net.before),
    "the whole": (plain, lambda net: net),
    "a layer whose result is written to": (in_place, lambda net: net.before),
    "a function in place": (in_place, lambda net: net.in_place),
    "one in place of what is used before": (used_before_a_write, lambda net: net.in_place),
}
REGISTER = {
    "of old": lambda module, net: module.register_backward_hook(net.hear),
    "full": lambda module, net: module.register_full_backward_hook(net.hear),
    "full, before": lambda module, net: module.register_full_backward_pre_hook(net.hear),
    "of old, replacing": lambda module, net: module.register_backward_hook(
        lambda m, before, behind: tuple(g if g is None else g * 3 for g in before)
    ),
    "full, replacing": lambda module, net: module.register_full_backward_hook(
        lambda m, before, behind: tuple(g if g is None else g * 3 for g in before)
    ),
}


@pytest.mark.parametrize(
    ("module", "register"),
    [
        (module, register)
        for module, (forward, _) in MODULES.items()
        for register in REGISTER
        if forward is plain or not register.startswith("full")  # torch forbids it
    ],
)
def test_hooks_of_modules_see_what_they_see_in_eager_mode(module, register):
    forward, find = MODULES[module]
    check(forward, lambda net: REGISTER[register](find(net), net))


def hook(net, x):
    h = net.before(x)
    h.register_hook(net.hear)
    return net.behind(h) + h


def hook_behind_other_uses(net, x):
    h = net.before(x)
    other = h.exp()
    h.register_hook(lambda g: g * 2)
    return net.behind(h) * other


def hook_that_uses_what_is_made_later(net, x):
    h = net.before(x)
    later = []
    h.register_hook(lambda g: g * later[0])
    later.append(h.detach().exp())
    return net.behind(h)


def hook_on_one_of_several(net, x):
    a, b = net.before(x).chunk(2, -1)
    a.register_hook(net.hear)
    return a * b


def hooks_in_a_loop(net, x):
    for i in range(3):
        x = net.before(x).tanh()
        x.register_hook(lambda g, i=i: net.hear(g * i))
    return x


def hook_on_an_argument(net, x):
    if x.requires_grad:
        x.register_hook(lambda g: g * 2)
    return net.before(x * 2)


def hook_that_raises(net, x):
    h = net.before(x)
    h.register_hook(lambda g: 1 / 0)
    return h * 2


def removed_hooks(net, x):
    h = net.before(x)
    with h.register_hook(net.hear):
        other = h * 2
    h.register_hook(lambda g: g * 5).remove()
    return other


def kept_gradient(net, x):
    h = net.before(x)
    h.retain_grad()
    net.kept = h
    return net.behind(h) * h


def hook_on_a_node(net, x):
    h = net.before(x).relu()
    h.grad_fn.register_hook(net.hear)
    h.grad_fn.register_prehook(lambda grads: tuple(g * 2 for g in grads))
    return net.behind(h)


def hook_on_a_node_of_a_view(net, x):
    h = net.before(x).sin()
    view = h.view(2, 2, 2)[0]
    view.mul_(2)
    view.grad_fn.register_hook(net.hear)
    h.grad_fn.register_hook(net.hear)
    return h.sum(0) + view.sum()


def hook_on_a_node_of_what_was_written_to_elsewhere(net, x):
    h = net.before(x).sin()
    h[0].mul_(2)
    h.grad_fn.register_hook(net.hear)
    return net.behind(h)


def hook_behind_a_branch(net, x):
    h = net.before(x)
    h = h.sin() if h.sum() > 0 else h * 2
    h.grad_fn.register_hook(net.hear)
    return net.behind(h)


def way_by_name(net, x):
    h = net.before(x)
    if h.grad_fn.name() == "AddmmBackward0" and "Addmm" in type(h.grad_fn).__name__:
        h = h * 3
    return h


WHOLE = [
    hook, hook_behind_other_uses, hook_that_uses_what_is_made_later, hook_on_one_of_several,
    hooks_in_a_loop, hook_on_an_argument, hook_that_raises, removed_hooks, kept_gradient,
    hook_on_a_node, hook_on_a_node_of_a_view, hook_on_a_node_of_what_was_written_to_elsewhere,
    hook_behind_a_branch, way_by_name,
]  # fmt: skip


@pytest.mark.parametrize("forward", WHOLE)
def test_hooks_of_tensors_and_nodes_are_part_of_a_record(forward):
    check(forward)


def hook_and_a_change(net, x):
    h = net.before(x)
    h.register_hook(net.hear)
    h.mul_(2)
    return net.behind(h)


def hook_and_gradients_inside(net, x):
    h = net.before(x)
    h.register_hook(lambda g: g * 2)
    (g,) = torch.autograd.grad(h.square().sum(), net.before.weight, create_graph=True)
    return net.behind(h) + g.sum()


def hook_that_removes_itself(net, x):
    h = net.before(x)
    handle = h.register_hook(lambda g: (net.hear(g), handle.remove())[1])
    return net.behind(h)


def node_behind_a_node(net, x):
    h = net.before(x).relu()
    h.grad_fn.next_functions[0][0].register_hook(net.hear)
    return net.behind(h)


def graph_walked_through(net, x):
    h = net.before(x).relu().sin()
    node, count = h.grad_fn, 0
    while node is not None:
        node = node.next_functions[0][0] if node.next_functions else None
        count += 1
    return h * count


def hook_on_one_side(net, x):
    h = net.before(x)
    if h.sum() > net.calls - 20 * (net.calls == 0):
        h.register_hook(net.hear)
    else:
        h = h * 2
    net.calls = {0: -20, -20: 20, 20: -20}[net.calls]
    return net.behind(h)


def node_behind_a_split(net, x):
    h = net.before(x) * 2
    INFORM(end="")
    h.grad_fn.register_hook(net.hear)
    return net.behind(h)


def tensor_behind_a_split(net, x):
    h = net.before(x) * 2
    other = h.sin()
    INFORM(end="")
    h.register_hook(net.hear)
    return net.behind(h) + other


def hook_before_a_split(net, x):
    h = net.before(x)
    handle = h.register_hook(net.hear)
    h.register_hook(lambda g: g * 2)
    INFORM(end="")
    handle.remove()
    return net.behind(h)


SPLITS = [
    hook_on_one_side, hook_and_a_change, hook_and_gradients_inside, hook_that_removes_itself,
    node_behind_a_node, graph_walked_through, node_behind_a_split, tensor_behind_a_split,
    hook_before_a_split,
]  # fmt: skip


@pytest.mark.parametrize("forward", SPLITS)
def test_what_a_record_cannot_do_is_right_all_the_same(forward):
    check(forward, whole=False, hits=0)


def test_a_module_with_a_hook_of_old_behind_a_split_sees_eager_modes_gradients():
    def forward(net, x):
        h = net.before(x)
        INFORM(end="")
        return net.behind(net.act(h))

    # Dynamo, once it is used, keeps such a table; these functions stay with their classes anyway.
    table = weakref.WeakKeyDictionary({nn.ReLU.forward: "seen"})
    check(forward, lambda net: net.act.register_backward_hook(net.hear), whole=False, hits=1)
    assert nn.ReLU.forward in table


def test_only_the_operator_that_a_hook_is_about_is_kept_from_the_backend():
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    def forward(net, x):
        h = net.before(x).exp()
        h.register_hook(net.hear)
        return net.behind(h).sin()

    check(forward, backend=backend)
    seen = [str(getattr(target, "__name__", target)) for graph in graphs[:2] for target in graph]
    assert seen == ["linear", "linear", "sin"]


def test_a_graph_with_a_hook_is_not_that_of_a_call_without():
    def forward(net, x):
        net.calls += 1
        h = net.before(x)
        net.h = h
        if net.calls > 2:
            h.register_hook(net.hear)
        return net.behind(h)

    check(forward, hits=0)


def test_a_hook_for_all_modules_is_heard():
    nets = {}

    def prepare(net):
        nets.update(dict.fromkeys(net.modules(), net))

    handle = nn.modules.module.register_module_full_backward_hook(
        lambda module, before, behind: nets[module].hear(before, behind)
    )
    try:
        check(plain, prepare)
    finally:
        handle.remove()


def test_an_argument_that_has_a_node_of_its_own_needs_a_record_of_its_own():
    """A hook of old warns by whether the module's argument comes right before its result."""
    layer = nn.ReLU()
    layer.register_backward_hook(lambda module, before, behind: None)
    fast = magpy.compile(layer, backend="eager")
    leaf = torch.ones(3, requires_grad=True)
    for x in (leaf, leaf, leaf * 2, leaf, leaf * 3):
        said = []
        for call in (layer, fast):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(x)
            said.append([str(warning.message) for warning in caught])
        assert said[0] == said[1]
    assert magpy.cache_info(fast).hits >= 1


def test_other_ways_from_node_to_node_need_records_of_their_own():
    def program(x, y):
        z = x * y
        return z * len({node for node, _ in z.grad_fn.next_functions})

    fast = magpy.compile(program, backend="eager")
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    for x, y in ((a, b), (a, b), (a, a), (a * 2, b * 2), (a * b).expand(2, 3).unbind(), (a, b)):
        assert_same(fast(x, y), program(x, y))
    assert magpy.cache_info(fast).hits >= 1


def test_a_call_that_has_registered_a_hook_is_not_begun_anew():
    def program(x):
        x.register_hook(lambda g: heard.append(g))
        if torch.compiler.is_compiling():
            raise RuntimeError("compiled")
        return x * 2

    heard = []
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="compiled"):
        magpy.compile(program, backend="eager")(x)
    (x * 2).sum().backward()
    assert len(heard) == 1
