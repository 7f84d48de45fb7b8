"""Large results are allocated on huge pages, small ones by torch's allocator."""

import os
import re
import subprocess
import sys

import pytest
import torch

from magpy_like.compiler.codegen.launcher import COMMON
from magpy_like.compiler.runtime import huge_pages
from tests.compiler.programs import same

ROWS = huge_pages.MIN_HUGE_PAGE_BYTES // 4 // 1024  # of 1024 floats


def uses_huge_pages(tensor):
    """True if huge pages were requested for the middle of the tensor's memory."""
    address = tensor.data_ptr() + tensor.nbytes // 2
    flags = ""
    with open("/proc/self/smaps") as maps:
        inside = False
        for line in maps:
            if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = int(found[1], 16) <= address < int(found[2], 16)
            elif inside and line.startswith("VmFlags:"):
                flags = line
    return "hg" in flags.split()


@pytest.mark.parametrize("size", [(ROWS, 1024), (ROWS + 1, 1024), (3, ROWS, 512)])
def test_large_tensor_requests_huge_pages(size):
    stride = torch.empty(size, device="meta").stride()
    actual = huge_pages.empty_large(size, stride, torch.float32)
    assert (tuple(actual.shape), actual.stride(), actual.dtype) == (size, stride, torch.float32)
    assert actual.untyped_storage().nbytes() == actual.nbytes
    assert uses_huge_pages(actual) == os.path.exists("/sys/kernel/mm/transparent_hugepage")


def test_small_tensor_requests_no_huge_pages(monkeypatch):
    """Checks the requests themselves: reused memory keeps the advice of an earlier large tensor."""
    requests = []
    monkeypatch.setattr(
        huge_pages, "_advise", lambda: lambda *arguments: requests.append(arguments)
    )
    tensors = [
        huge_pages.empty_large((n, 1024), (1024, 1), torch.float32) for n in (ROWS // 2, ROWS)
    ]
    ((start, size, _),) = requests
    assert (
        tensors[1].data_ptr()
        <= start
        < start + size
        <= tensors[1].data_ptr() + huge_pages.MIN_HUGE_PAGE_BYTES
    )


def test_large_results_of_kernels_use_huge_pages(monkeypatch):
    allocated = []
    empty = huge_pages.empty_large
    monkeypatch.setitem(
        COMMON, "empty_large", lambda *a: allocated.append(empty(*a)) or allocated[-1]
    )
    same(lambda x: (x * 2, x[:2] * 2), torch.ones(ROWS, 1024))
    assert [tuple(t.shape) for t in allocated] == [(ROWS, 1024)]


PAGE_FAULTS = """
import resource
import torch
from magpy_like.compiler import compile_fx

graph = torch.fx.symbolic_trace(lambda x: (x + 1).tanh())
compile_fx(graph, [torch.ones(8)])(torch.ones(8))


def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(1 << 21) for _ in range(5)]  # 8 MiB each
    del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


print([faults() for _ in range(12)][-1])
"""


def test_freed_memory_is_reused_without_page_faults():
    """Of the rounds, the last counts: glibc's aligned blocks find their places in the first few."""
    done = subprocess.run(
        [sys.executable, "-c", PAGE_FAULTS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 2048  # of the 10240 pages
