"""Scatters that write an input: in place where nothing reads the old contents later.

On a CPU they are switched on for these tests; programs then still compute what eager mode does.
"""

import copy

import pytest
import torch
from torch import fx

import magpy_like as magpy
from magpy_like.compiler import kernel_build
from magpy_like.compiler.lowering import scatters_in_place
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.runtime import captured_graph_cache
from tests.compare import assert_same


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(scatters_in_place, "DEVICES", {"cpu", "cuda"})
    for cache in (kernel_build, captured_graph_cache):  # its keys do not know of this switch
        monkeypatch.setattr(cache, "key", lambda *_: None)


@pytest.fixture
def found(monkeypatch):
    """The number of scatters in place of each lowered graph."""
    counts = []
    initialise = Graph.__init__

    def counting(self, gm: fx.GraphModule, **options):
        initialise(self, gm, **options)
        counts.append(len(self.scatters_in_place))

    monkeypatch.setattr(Graph, "__init__", counting)
    return counts


def arguments(step=0):
    """A cache, rows, and their positions, on the default device."""
    return (
        torch.arange(12.0).reshape(4, 3) + step,
        torch.arange(6.0).reshape(2, 3) + 10,
        torch.tensor([2, 0]),
    )


def attention(cache, x, at):
    cache.index_copy_(0, at, x)
    return cache.sum(0) + x


def chain(cache, x, at):
    cache.index_copy_(0, at, x)
    y = cache.relu()
    cache.index_add_(0, at, y[:2])
    return y.sum(), cache * 2


def by_subscript(cache, x, at):
    cache[at] = x * 2
    return cache.mean()


def accumulated(cache, x, at):
    cache.index_put_((at,), x, accumulate=True)
    return cache.exp()


def read_before(cache, x, at):
    before = cache * 3
    cache.index_copy_(0, at, x)
    return before + cache


def source_from_the_cache(cache, x, at):
    cache.index_copy_(0, at, cache[1:3] + x)
    return cache.sum(1)


def view_read_before(cache, x, at):
    top = cache[0].exp()
    cache.scatter_(0, at[:, None].expand(2, 3), x)
    return top, cache[1:].sum()


IN_PLACE = {
    attention: 1, chain: 2, by_subscript: 1, accumulated: 1, read_before: 1,
    source_from_the_cache: 1, view_read_before: 1,
}  # fmt: skip


def old_contents_read_later(cache, x, at):
    old = cache.clone()
    new = cache.index_copy(0, at, x)
    cache.copy_(new)
    return old + new


def functional_result_returned(cache, x, at):
    new = cache.index_copy(0, at, x)
    cache.copy_(new)
    new.add_(1)
    return new


def two_writes(cache, x, at):
    cache.index_copy_(0, at, x)
    y = cache.sum()
    cache.mul_(2)
    return y


def of_a_new_tensor(cache, x, at):
    return (cache + 1).index_copy_(0, at, x)


@pytest.mark.parametrize("program", IN_PLACE)
def test_rows_are_stored_in_the_input(found, program):
    check(program)
    assert found == [IN_PLACE[program]]


@pytest.mark.parametrize(
    "program", [old_contents_read_later, functional_result_returned, two_writes, of_a_new_tensor]
)
def test_old_contents_and_results_stay_apart(program):
    check(program)


def check(program):
    fast = magpy.compile(program, options={"strict": True})
    with torch.no_grad():
        for step in range(3):
            args = arguments(step)
            twins = copy.deepcopy(args)
            assert_same(fast(*args), program(*twins))
            assert_same(args, twins)


def test_other_layouts_of_the_cache(found):
    fast = magpy.compile(attention, options={"strict": True})
    _, x, at = arguments()
    with torch.no_grad():
        for _ in range(2):
            base = torch.arange(24.0).reshape(3, 8)
            twin = base.clone()
            assert_same(fast(base.t()[::2], x, at), attention(twin.t()[::2], x, at))
            assert_same(base, twin)
    assert found == [1]


def test_gradients_of_rows_that_are_stored():
    def program(cache, x, at):
        cache.index_copy_(0, at, x)
        return (cache * cache).sum()

    fast = magpy.compile(program, options={"strict": True})
    for _ in range(3):
        gradients = []
        for run in (fast, program):
            _, x, at = arguments()
            run(torch.ones(4, 3), x.requires_grad_(), at).backward()
            gradients.append(x.grad)
        assert_same(*gradients)


def test_on_a_cpu_nothing_is_stored_in_place(found, monkeypatch):
    monkeypatch.setattr(scatters_in_place, "DEVICES", frozenset({"cuda"}))
    fast = magpy.compile(attention, options={"strict": True})
    with torch.no_grad(), torch.device("cpu"):
        for _ in range(2):
            fast(*arguments())
    assert found == [0]


def test_a_returned_view_keeps_the_rows_out_of_the_input_after_a_pass_replaced_its_base():
    aten, graph = torch.ops.aten, fx.Graph()
    cache, x, at = (graph.placeholder(name) for name in ("cache", "x", "at"))
    new = graph.call_function(aten.index_copy.default, (cache, 0, at, x))
    view = graph.call_function(aten.view.default, (new, [-1]))
    graph.call_function(aten.copy_.default, (cache, new))
    graph.output((view,))
    values = (*arguments(), torch.zeros(4, 3), torch.zeros(12))  # the view has another storage
    for node, value in zip((cache, x, at, new, view), values, strict=True):
        node.meta["val"] = value
    assert not scatters_in_place.find_scatters_in_place(graph)
