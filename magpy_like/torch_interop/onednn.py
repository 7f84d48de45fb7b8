"""oneDNN, torch's library for convolutions, recurrent layers and matrix products on a CPU."""

from __future__ import annotations

import torch


def has_onednn() -> bool:
    """True if torch was built with oneDNN and may use it."""
    return torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
