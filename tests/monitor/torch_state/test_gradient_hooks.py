"""Hooks on modules, tensors and autograd nodes: they receive the gradients of eager mode."""

import warnings
import weakref

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same
from tests.seeding import seed

SPLIT = print  # a call that splits the program


class Net(nn.Module):
    """A layer, an activation, another layer; ``received`` logs the gradients that hooks receive."""

    def __init__(self, forward, prepare=lambda net: None):
        super().__init__()
        seed(0)
        self.before, self.act, self.after = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
        self.in_place = nn.ReLU(inplace=True)
        self.received, self.calls, self.kept, self._forward = [], 0, None, forward
        prepare(self)

    def receive(self, *arguments):
        found = [g for g in arguments if not isinstance(g, nn.Module)]
        self.received.append(
            [
                [None if g is None else g.clone() for g in (g if isinstance(g, tuple) else (g,))]
                for g in found
            ]
        )

    def forward(self, x):
        return self._forward(self, x)


def run_backward(net, call, i):
    """Result, gradients, logs, warnings and error of one call and its backward pass."""
    seed(i)
    x = (torch.rand(2, 4) + 0.1).requires_grad_(i % 2 == 1)
    net.zero_grad()
    net.received.clear()
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
    own = [w for w in caught if not issubclass(w.category, magpy.MagpyWarning)]
    messages = [str(warning.message) for warning in own]
    return result, x.grad, grads, list(net.received), kept, messages, error


def check(forward, prepare=lambda net: None, *, backend="aot_eager", whole=True, hits=2):
    eager, net = Net(forward, prepare), Net(forward, prepare)
    fast = magpy.compile(net, backend=backend, fullgraph=whole)
    for i in (0, 1, 2, 3):
        expected, actual = run_backward(eager, eager, i), run_backward(net, fast, i)
        assert_same(actual, expected)
    info = magpy.cache_info(
        fast
    )  # graphs whose autograd nodes are exposed run operator by operator
    assert info.hits + info.uncompiled >= hits


def plain(net, x):
    return net.after(net.act(net.before(x)))


def in_place(net, x):
    return net.after(net.in_place(net.before(x)))


def used_before_a_write(net, x):
    h = net.before(x)
    other = (h * 2).sin()  # a compiled graph would save h instead of h * 2
    return net.after(net.in_place(h)) * other


MODULES = {
    "an activation": (plain, lambda net: net.act),
    "a layer": (plain, lambda net: net.before),
    "the whole": (plain, lambda net: net),
    "a layer whose result is written to": (in_place, lambda net: net.before),
    "an activation in place": (in_place, lambda net: net.in_place),
    "an activation in place on a value used before": (
        used_before_a_write,
        lambda net: net.in_place,
    ),
}
REGISTER = {
    "legacy": lambda module, net: module.register_backward_hook(net.receive),
    "full": lambda module, net: module.register_full_backward_hook(net.receive),
    "full, before": lambda module, net: module.register_full_backward_pre_hook(net.receive),
    "legacy, replacing": lambda module, net: module.register_backward_hook(
        lambda m, before, after: tuple(g if g is None else g * 3 for g in before)
    ),
    "full, replacing": lambda module, net: module.register_full_backward_hook(
        lambda m, before, after: tuple(g if g is None else g * 3 for g in before)
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
def test_module_hooks_receive_gradients_of_eager_mode(module, register):
    forward, find = MODULES[module]
    check(forward, lambda net: REGISTER[register](find(net), net))


def hook(net, x):
    h = net.before(x)
    h.register_hook(net.receive)
    return net.after(h) + h


def hook_after_other_uses(net, x):
    h = net.before(x)
    other = h.exp()
    h.register_hook(lambda g: g * 2)
    return net.after(h) * other


def hook_that_reads_a_later_value(net, x):
    h = net.before(x)
    later = []
    h.register_hook(lambda g: g * later[0])
    later.append(h.detach().exp())
    return net.after(h)


def hook_on_one_of_several(net, x):
    a, b = net.before(x).chunk(2, -1)
    a.register_hook(net.receive)
    return a * b


def hooks_in_a_loop(net, x):
    for i in range(3):
        x = net.before(x).tanh()
        x.register_hook(lambda g, i=i: net.receive(g * i))
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
    with h.register_hook(net.receive):
        other = h * 2
    h.register_hook(lambda g: g * 5).remove()
    return other


def kept_gradient(net, x):
    h = net.before(x)
    h.retain_grad()
    net.kept = h
    return net.after(h) * h


def hook_on_a_node(net, x):
    h = net.before(x).relu()
    h.grad_fn.register_hook(net.receive)
    h.grad_fn.register_prehook(lambda grads: tuple(g * 2 for g in grads))
    return net.after(h)


def hook_on_a_node_of_a_view(net, x):
    h = net.before(x).sin()
    view = h.view(2, 2, 2)[0]
    view.mul_(2)
    view.grad_fn.register_hook(net.receive)
    h.grad_fn.register_hook(net.receive)
    return h.sum(0) + view.sum()


def hook_on_a_node_of_a_written_base(net, x):
    h = net.before(x).sin()
    h[0].mul_(2)
    h.grad_fn.register_hook(net.receive)
    return net.after(h)


def hook_after_a_branch(net, x):
    h = net.before(x)
    h = h.sin() if h.sum() > 0 else h * 2
    h.grad_fn.register_hook(net.receive)
    return net.after(h)


def control_flow_by_node_name(net, x):
    h = net.before(x)
    if h.grad_fn.name() == "AddmmBackward0" and "Addmm" in type(h.grad_fn).__name__:
        h = h * 3
    return h


WHOLE = [
    hook, hook_after_other_uses, hook_that_reads_a_later_value, hook_on_one_of_several,
    hooks_in_a_loop, hook_on_an_argument, hook_that_raises, removed_hooks, kept_gradient,
    hook_on_a_node, hook_on_a_node_of_a_view, hook_on_a_node_of_a_written_base,
    hook_after_a_branch, control_flow_by_node_name,
]  # fmt: skip


@pytest.mark.parametrize("forward", WHOLE)
def test_hooks_of_tensors_and_nodes_are_recorded(forward):
    check(forward)


def hook_and_a_write(net, x):
    h = net.before(x)
    h.register_hook(net.receive)
    h.mul_(2)
    return net.after(h)


def hook_and_gradients_inside(net, x):
    h = net.before(x)
    h.register_hook(lambda g: g * 2)
    (g,) = torch.autograd.grad(h.square().sum(), net.before.weight, create_graph=True)
    return net.after(h) + g.sum()


def hook_that_removes_itself(net, x):
    h = net.before(x)
    handle = h.register_hook(lambda g: (net.receive(g), handle.remove())[1])
    return net.after(h)


def hook_on_a_preceding_node(net, x):
    h = net.before(x).relu()
    h.grad_fn.next_functions[0][0].register_hook(net.receive)
    return net.after(h)


def graph_traversed(net, x):
    h = net.before(x).relu().sin()
    node, count = h.grad_fn, 0
    while node is not None:
        node = node.next_functions[0][0] if node.next_functions else None
        count += 1
    return h * count


def hook_in_one_branch(net, x):
    h = net.before(x)
    if h.sum() > net.calls - 20 * (net.calls == 0):
        h.register_hook(net.receive)
    else:
        h = h * 2
    net.calls = {0: -20, -20: 20, 20: -20}[net.calls]
    return net.after(h)


def node_hook_after_a_split(net, x):
    h = net.before(x) * 2
    SPLIT(end="")
    h.grad_fn.register_hook(net.receive)
    return net.after(h)


def tensor_hook_after_a_split(net, x):
    h = net.before(x) * 2
    other = h.sin()
    SPLIT(end="")
    h.register_hook(net.receive)
    return net.after(h) + other


def hook_before_a_split(net, x):
    h = net.before(x)
    handle = h.register_hook(net.receive)
    h.register_hook(lambda g: g * 2)
    SPLIT(end="")
    handle.remove()
    return net.after(h)


SPLITS = [
    hook_in_one_branch, hook_and_a_write, hook_and_gradients_inside, hook_that_removes_itself,
    hook_on_a_preceding_node, graph_traversed, node_hook_after_a_split, tensor_hook_after_a_split,
    hook_before_a_split,
]  # fmt: skip


@pytest.mark.parametrize("forward", SPLITS)
def test_unsupported_uses_of_hooks_match_eager(forward):
    check(forward, whole=False, hits=0)


def test_legacy_hook_after_a_split_receives_gradients_of_eager_mode():
    def forward(net, x):
        h = net.before(x)
        SPLIT(end="")
        return net.after(net.act(h))

    # Dynamo, once used, keeps such a table; the functions live as long as their classes anyway.
    table = weakref.WeakKeyDictionary({nn.ReLU.forward: "seen"})
    check(forward, lambda net: net.act.register_backward_hook(net.receive), whole=False, hits=1)
    assert nn.ReLU.forward in table


def test_only_hooked_operators_are_excluded_from_the_backend():
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    def forward(net, x):
        h = net.before(x).exp()
        h.register_hook(net.receive)
        return net.after(h).sin()

    check(forward, backend=backend)
    seen = [str(getattr(target, "__name__", target)) for graph in graphs[:2] for target in graph]
    assert seen == ["linear", "linear", "sin"]


def test_hooked_graph_is_not_shared_with_calls_without_hook():
    def forward(net, x):
        net.calls += 1
        h = net.before(x)
        net.h = h
        if net.calls > 2:
            h.register_hook(net.receive)
        return net.after(h)

    check(forward, hits=0)


def test_global_module_hook_receives_gradients():
    nets = {}

    def prepare(net):
        nets.update(dict.fromkeys(net.modules(), net))

    handle = nn.modules.module.register_module_full_backward_hook(
        lambda module, before, after: nets[module].receive(before, after)
    )
    try:
        check(plain, prepare)
    finally:
        handle.remove()


def test_leaf_and_computed_arguments_have_separate_records():
    """A legacy hook warns unless the module's argument directly precedes its result."""
    layer = nn.ReLU()
    layer.register_backward_hook(lambda module, before, after: None)
    fast = magpy.compile(layer, backend="eager")
    leaf = torch.ones(3, requires_grad=True)
    for x in (leaf, leaf, leaf * 2, leaf, leaf * 3):
        messages = []
        for call in (layer, fast):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(x)
            messages.append([str(warning.message) for warning in caught])
        assert messages[0] == messages[1]
    assert magpy.cache_info(fast).hits >= 1


def test_other_edges_between_nodes_have_separate_records():
    def program(x, y):
        z = x * y
        return z * len({node for node, _ in z.grad_fn.next_functions})

    fast = magpy.compile(program, backend="eager")
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    for x, y in ((a, b), (a, b), (a, a), (a * 2, b * 2), (a * b).expand(2, 3).unbind(), (a, b)):
        assert_same(fast(x, y), program(x, y))
    assert magpy.cache_info(fast).hits >= 1


def test_call_is_not_restarted_after_it_has_registered_a_hook():
    def program(x):
        x.register_hook(lambda g: received.append(g))
        if torch.compiler.is_compiling():
            raise RuntimeError("compiled")
        return x * 2

    received = []
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="compiled"):
        magpy.compile(program, backend="eager")(x)
    (x * 2).sum().backward()
    assert len(received) == 1


@pytest.mark.parametrize("register", ["retain_grad", "register_hook"])
@pytest.mark.parametrize("computed", [False, True])
def test_hook_of_a_tensor_that_is_detached_later(register, computed):
    def program(x):
        h = x * 2 if computed else x
        handle = h.retain_grad() if register == "retain_grad" else h.register_hook(abs)
        h.detach_()
        return h, handle is None

    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        expected, found = (call(torch.ones(2, requires_grad=True) * 1) for call in (program, fast))
        assert found[1] == expected[1]
        assert found[0].requires_grad == expected[0].requires_grad
        assert found[0].retains_grad == expected[0].retains_grad
        assert bool(found[0]._backward_hooks) == bool(expected[0]._backward_hooks)
