"""Fixtures of the Triton tests: on the CPU, kernels are printed in Triton and interpreted."""

import pytest

from magpy_like.compiler import kernel_build as building
from magpy_like.compiler.codegen.triton import triton_printer
from magpy_like.compiler.lowering.graph_lowering import ATOMIC_DTYPES
from magpy_like.compiler.runtime import triton_launch
from tests.compiler.codegen.triton import interpreter

CPU_ONLY = ("gcd", "lcm")


@pytest.fixture
def printed(monkeypatch, device):
    """Prints kernels in Triton, on any device."""
    if device.type == "cuda":
        # A late import: the module's tensors are created on the device of its collection.
        from tests.compiler import test_programs

        monkeypatch.setattr(test_programs, "X", test_programs.X.to(device))
    else:
        printer = building.Printer(triton_printer.adapt_plan, build)
        monkeypatch.setitem(building.PRINTERS, "cpu", printer)
        monkeypatch.setattr(triton_launch, "load_many", interpreter.load_many)


def build(kernels, graph, kind, trace):
    """Prints kernels with operations that are lowered for the CPU only in C++, others in Triton."""
    cpp = [k for k in kernels if any(map(is_cpu_only, k.nodes()))]
    gpu_kernels = [k for k in kernels if k not in cpp]
    return triton_printer.build(gpu_kernels, graph, kind, trace) | building.build_cpp(
        cpp, graph, kind, trace
    )


def is_cpu_only(node):
    def accumulates(store):
        mode = store.args[3]
        return mode is not None and (mode != "add" or store.dtype not in ATOMIC_DTYPES)

    if any(map(accumulates, node.body.of("store"))):
        return True
    return any(v.op in CPU_ONLY or v.op.startswith("special_") for v in node.body.values)
