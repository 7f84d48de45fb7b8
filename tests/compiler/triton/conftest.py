"""On the CPU, kernels of these tests are printed in Triton and interpreted."""

import sys

import pytest

from magpy_like.compiler.runtime import triton_launch
from tests.compiler import test_programs
from tests.compiler.triton import interpreter


@pytest.fixture
def printed(monkeypatch, device):
    """Kernels go through the Triton printer, whatever the device."""
    module = sys.modules["magpy_like.compiler.compile_fx"]
    if device.type == "cuda":
        monkeypatch.setattr(test_programs, "X", test_programs.X.to(device))
    else:
        monkeypatch.setitem(module.PRINTERS, "cpu", module.PRINTERS["cuda"])
        monkeypatch.setattr(triton_launch, "load_many", interpreter.load_many)
