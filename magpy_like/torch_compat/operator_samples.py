"""Sample inputs of operators, from torch's own tests; importing this module takes seconds."""

from __future__ import annotations

from torch.testing._internal.common_methods_invocations import op_db

__all__ = ["op_db"]
