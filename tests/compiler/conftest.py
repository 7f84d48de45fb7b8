"""With ``--device cuda``, the tensors that tests make are made there: in functions and in modules.

What is about kernels in C++, or about what only the CPU does, runs on the CPU whatever the option
says: files named ``test_cpp_*``, those of ``ON_CPU``, and tests marked ``cpu``.
"""

import pytest
import torch

ON_CPU = {
    "test_bad_input.py",
    "test_layout.py",
    "test_narrow_products.py",
    "test_pages.py",
    "test_products.py",
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


@pytest.fixture(autouse=True)
def _default_device(device, request, monkeypatch):
    on_cpu = _is_about_cpu(request.path) or request.node.get_closest_marker("cpu")
    if device.type == "cpu" or on_cpu:
        for name, value in [*vars(request.module).items()]:  # which its other tests share
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                monkeypatch.setattr(request.module, name, value.detach().cpu())
        yield
        return
    # Not as a context: Dynamo follows only the default device into what it captures.
    torch.set_default_device(device)
    yield
    torch.set_default_device(None)
