"""Helpers of the pass tests: ATen graphs, and the comparison of a graph before and after passes."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from magpy_like.compiler import passes
from tests.compare import assert_same
from tests.seeding import seed


def aten_graph(function, *inputs, functional=True, sizes="fake"):
    """The ATen graph of ``function``, with fake tensors in ``meta["val"]``; their sizes are
    symbolic if ``sizes`` is "symbolic"."""
    wrapped = torch.func.functionalize(function) if functional else function
    return make_fx(wrapped, tracing_mode=sizes)(*inputs)


def operator_names(gm):
    """The operators that the graph calls, in order, without overload names."""
    return [
        node.target._opname if isinstance(node.target, torch._ops.OpOverload) else str(node.target)
        for node in gm.graph.nodes
        if node.op == "call_function" and "getitem" not in str(node.target)
    ]


def clones(inputs):
    return [i.detach().clone().requires_grad_(i.requires_grad) for i in inputs]


def optimised_graph(function, *inputs, inference=True, functional=True):
    """The graph of ``function`` after all passes; asserts that its results equal ``function``'s."""
    gm = aten_graph(function, *inputs, functional=functional)
    gm = passes.run(gm, inference=inference)
    compiled_inputs, eager_inputs = clones(inputs), clones(inputs)
    seed(0)
    actual = gm(*compiled_inputs)
    seed(0)
    expected = function(*eager_inputs)
    assert_same((actual, tuple(compiled_inputs)), (expected, tuple(eager_inputs)))
    return gm
