"""The default device of compiler tests: with ``--device cuda``, test functions and modules create
their tensors on the GPU.

Tests of C++ kernels and of CPU-only features always run on the CPU: files named ``test_cpp_*``,
those in ``ON_CPU``, and tests marked ``cpu``.
"""

import pytest
import torch
from torch._dynamo import guards, utils

ON_CPU = {
    "test_fallbacks.py",
    "test_channels_last.py",
    "test_pattern_rewrites.py",
    "test_narrow_products.py",
    "test_huge_pages.py",
    "test_matrix_products.py",
    "test_backward_streams.py",
}


def _is_cpu_only(path):
    return path.name in ON_CPU or path.name.startswith("test_cpp_")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Sets the default device for the import of test modules, which create shared tensors."""
    device = collector.config.getoption("--device")
    if device == "cpu" or _is_cpu_only(collector.path):
        return (yield)
    torch.set_default_device(device)
    try:
        return (yield)
    finally:
        torch.set_default_device(None)


@pytest.fixture(autouse=True, scope="session")
def _no_dynamo_log():
    """Disables Dynamo's log of each graph, for which it flushes the processor's caches, times
    guards and serializes settings: a fifth of the compile time of small graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "profile_guard_manager", lambda *args: 0.0)
        patch.setattr(utils, "_scrubbed_inductor_config_for_logging", lambda: None)
        yield


@pytest.fixture(autouse=True)
def _default_device(device, request, monkeypatch):
    on_cpu = _is_cpu_only(request.path) or request.node.get_closest_marker("cpu")
    if device.type == "cpu" or on_cpu:
        for name, value in [*vars(request.module).items()]:  # shared with its other tests
            if isinstance(value, torch.Tensor | list | tuple) and device.type != "cpu":
                moved = torch.utils._pytree.tree_map_only(
                    torch.Tensor, lambda t: t.detach().cpu().requires_grad_(t.requires_grad), value
                )
                monkeypatch.setattr(request.module, name, moved)
        yield
        return
    # Not as a context manager: Dynamo applies only the default device to captured code.
    torch.set_default_device(device)
    yield
    torch.set_default_device(None)
