"""Writes that autograd does not record, as nodes of a captured graph."""

import copy

import torch
from torch import fx
from torch.nn import functional as F

from magpy_like.compiler import compile_fx
from magpy_like.compiler.passes.mutations.detached_writes import (
    disable_gradients_of_detached_writes,
)


def write_in_every_form(x):
    d = x.detach()
    d.mul_(2)
    F.relu(d, inplace=True)
    torch.add(d, 1, out=d)
    torch.ops.aten.sub_.Tensor(d, 3)
    return x * d


def test_rewritten_graph_has_source_that_computes_the_same():
    gm = fx.symbolic_trace(write_in_every_form)
    disable_gradients_of_detached_writes(gm)
    assert gm.code.count("write_unrecorded") >= 4
    for graph in (gm, copy.deepcopy(gm)):  # a copy is printed anew
        x, twin = torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0])
        torch.testing.assert_close(graph(x), write_in_every_form(twin))
        torch.testing.assert_close(x, twin)


def test_write_to_a_detached_tensor_leaves_its_source_a_leaf():
    gm = fx.symbolic_trace(write_in_every_form)
    disable_gradients_of_detached_writes(gm)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    gm(x).sum().backward()
    assert x.is_leaf and x.grad.tolist() == [0.0, 2.0]


def test_methods_that_every_object_has_are_no_operators():
    """Under a default device, Dynamo captures ``x == 0.5`` as the method ``__eq__``."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_method("__eq__", (x, 0.5)), graph.call_method("detach", (x,))))
    captured = fx.GraphModule(torch.nn.Module(), graph)
    fast = compile_fx(captured, [torch.ones(2)], options={"strict": True})
    equal, alias = fast(x := torch.tensor([0.5, 1.0]))
    assert equal.tolist() == [True, False] and alias.data_ptr() == x.data_ptr()
