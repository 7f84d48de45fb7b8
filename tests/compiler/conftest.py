"""With ``--device cuda``, the tensors that tests make are made there."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _default_device(device):
    if device.type == "cpu":
        yield
        return
    # Not as a context: Dynamo follows only the default device into what it captures.
    torch.set_default_device(device)
    yield
    torch.set_default_device(None)
