"""Compilation for a GPU on a machine without one, and interpretation of the kernels on the CPU."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from magpy_like.compiler.codegen.common.kernel_plan import Kernel
from magpy_like.compiler.codegen.triton import triton_printer as printer
from magpy_like.compiler.decompositions.decomposition_table import decompositions
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.scheduling.scheduler import Scheduler
from tests.compiler.codegen.triton.interpreter import Interpreted


def traced(function, *shapes, dtype=torch.float32):
    """The ATen graph of ``function`` for CUDA tensors of these shapes."""

    def flat(*args):
        return tuple(pytree.tree_leaves(function(*args)))

    with FakeTensorMode():
        args = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
        return make_fx(flat, decomposition_table=decompositions())(*args)


def lowered(function, *shapes, dtype=torch.float32):
    """The lowered graph of ``function``, in the loop IR."""
    return Graph(traced(function, *shapes, dtype=dtype)).run()


def sources(function, *shapes, dtype=torch.float32):
    """The Triton sources of the kernels of ``function`` for CUDA tensors of these shapes."""
    graph = lowered(function, *shapes, dtype=dtype)
    assert not graph.fallbacks
    found = [step for step in Scheduler(graph).run().steps if isinstance(step, Kernel)]
    for kernel in found:
        printer.adapt_plan(kernel, graph.hint)
    return [printer.print_function(k, graph) for k in found]


def run(source, *tensors):
    """Interprets a kernel on CPU tensors: its inputs, then its outputs."""
    Interpreted(source)(*(t.data_ptr() for t in tensors))
