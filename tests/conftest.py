"""Options and settings of every test run."""

import contextlib
import gc
import logging
import os
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
        help="where the tests that take the `device` fixture put their tensors",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Each worker process gets one core; by default every one of them would start a thread per core.
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
    _write_no_traces()


def _write_no_traces() -> None:
    """Torch writes each graph and each step of capturing it down as soon as anybody listens, and
    pytest listens to all loggers that hand nothing on to the root."""
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
def _few_objects() -> None:
    """Collections, which many tests ask for, look through all objects that there are: here through
    those of a file's tests, and not through what is loaded."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed(0)


@pytest.fixture(autouse=True)
def _unwarned() -> None:
    """A warning comes once in a process, so a test that waits for it must not depend on others."""
    compiler_errors._warned.clear()


@pytest.fixture
def forget_everything() -> Iterator[None]:
    """For tests that look at what is left of earlier calls: neither leaves records to the other."""
    magpy.reset()
    yield
    magpy.reset()
