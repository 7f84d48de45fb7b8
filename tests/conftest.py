"""Options, settings and fixtures of all tests."""

import contextlib
import gc
import logging
import os
import signal
from collections.abc import Iterator

import pytest
import torch

import magpy_like as magpy
from magpy_like.compiler import compiler_errors
from tests.seeding import seed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="the device of tensors in tests that use the `device` fixture",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Each worker process has one core; by default each would start one thread per core.
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
    _disable_torch_trace()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's job in the background ignores it


def _disable_torch_trace() -> None:
    """Torch logs each graph and each step of a capture if its trace logger has a handler, and
    pytest adds handlers to all loggers that do not propagate to the root."""
    traces = logging.getLogger("torch.__trace")
    traces.propagate = True
    for handler in [*traces.handlers]:
        traces.removeHandler(handler)


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> Iterator[torch.device]:
    device = torch.device(pytestconfig.getoption("--device"))
    if device.type == "cuda":
        torch.cuda.init()  # before the first seed
    # With TF32, cuDNN chooses between algorithms that differ by far more than rounding.
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    with exact if device.type == "cuda" else contextlib.nullcontext():
        yield device


@pytest.fixture(autouse=True, scope="module")
def _freeze_objects() -> None:
    """Speeds up the garbage collections of tests: frozen objects, such as the loaded modules, are
    not traversed."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed(0)


@pytest.fixture(autouse=True)
def _forget_warnings() -> None:
    """Warnings appear once per process; forgets those of earlier tests."""
    compiler_errors._warned.clear()


@pytest.fixture
def reset_magpy() -> Iterator[None]:
    """For tests that count objects or records: separates them from other tests."""
    magpy.reset()
    yield
    magpy.reset()
