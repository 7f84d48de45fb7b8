"""With ``--device cuda``, the tensors that tests make are made there: in functions and in modules.

What is about kernels in C++, or about what only the CPU does, runs on the CPU whatever the option
says: files named ``test_cpp_*``, those of ``ON_CPU``, and tests marked ``cpu``.
"""

import pytest
import torch
from torch._dynamo import guards, utils

ON_CPU = {
    "test_fallbacks.py",
    "test_current_gpu.py",
    "test_channels_last.py",
    "test_narrow_products.py",
    "test_huge_pages.py",
    "test_matrix_products.py",
    "test_backward_streams.py",
}


def _is_about_cpu(path):
    return path.name in ON_CPU or path.name.startswith("test_cpp_")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Modules are imported here, and make the tensors that their tests share."""
    device = collector.config.getoption("--device")
    if device == "cpu" or _is_about_cpu(collector.path):
        return (yield)
    torch.set_default_device(device)
    try:
        return (yield)
    finally:
        torch.set_default_device(None)


@pytest.fixture(autouse=True, scope="session")
def _no_figures():
    """For its log, Dynamo empties the processor's caches and times guards, and writes settings
    down, with each graph: a fifth of what small ones take to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "profile_guard_manager", lambda *args: 0.0)
        patch.setattr(utils, "_scrubbed_inductor_config_for_logging", lambda: None)
        yield


@pytest.fixture(autouse=True)
def _default_device(device, request, monkeypatch):
    on_cpu = _is_about_cpu(request.path) or request.node.get_closest_marker("cpu")
    if device.type == "cpu" or on_cpu:
        for name, value in [*vars(request.module).items()]:  # which its other tests share
            if isinstance(value, torch.Tensor | list | tuple) and device.type != "cpu":
                there = torch.utils._pytree.tree_map_only(
                    torch.Tensor, lambda t: t.detach().cpu(), value
                )
                monkeypatch.setattr(request.module, name, there)
        yield
        return
    # Not as a context: Dynamo follows only the default device into what it captures.
    torch.set_default_device(device)
    yield
    torch.set_default_device(None)
