"""``torch.utils.checkpoint`` in the steps that its functions take."""

from __future__ import annotations

import torch.utils.checkpoint
from torch.utils.checkpoint import (
    _checkpoint_without_reentrant_generator as checkpoint_without_reentrant,
)
from torch.utils.checkpoint import _infer_device_type as device_type_of_arguments

__all__ = ["checkpoint_without_reentrant", "device_type_of_arguments", "has_global_options"]

# `checkpoint_without_reentrant` is a generator: it yields where the checkpointed function runs. Its
# local `new_frame` lists the saved tensors. `device_type_of_arguments` names the kind of device
# whose random state a reentrant checkpoint keeps.

_GLOBAL_OPTIONS = ("_enable_checkpoint_early_stop", "_checkpoint_debug_enabled")


def has_global_options() -> bool:
    """True inside a context that sets options of all checkpoints, such as
    ``set_checkpoint_early_stop``."""
    return any(getattr(torch.utils.checkpoint, name, None) is not None for name in _GLOBAL_OPTIONS)
