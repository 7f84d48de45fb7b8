"""With ``--device cuda``, the tensors that tests make are made there."""

import pytest


@pytest.fixture(autouse=True)
def _default_device(device):
    if device.type == "cpu":
        yield
        return
    with device:
        yield
