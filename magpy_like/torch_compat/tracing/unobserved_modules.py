"""Modules of the compiler, which the program's global hooks on modules must not see.

Torch calls such hooks (``torch.nn.modules.module.register_module_…_hook``) for every module that is
called, and for every module, parameter and buffer that is registered. These modules fill their own
tables and call ``forward`` themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.fx import _lazy_graph_module as lazy_graph_module

__all__ = [
    "UnobservedGraphModule",
    "UnobservedLazyGraphModule",
    "UnobservedModule",
    "lazy_graph_module",
]

# `lazy_graph_module._get_graph_module_cls` chooses the class of the graph modules that torch makes.

_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class UnobservedModule(nn.Module):
    """A module that no global hook sees."""

    def __setattr__(self, name: str, value: Any) -> None:
        table = _table_of(self, name, value)
        if table is None:
            super().__setattr__(name, value)
            return
        own = self.__dict__
        own.pop(name, None)
        for other in _TABLES:
            if other != table:
                own[other].pop(name, None)
        own[table][name] = value

    def register_buffer(
        self, name: str, tensor: torch.Tensor | None, persistent: bool = True
    ) -> None:
        """``nn.Module.register_buffer`` without its hooks."""
        self._buffers[name] = tensor
        unsaved = self._non_persistent_buffers_set
        (unsaved.discard if persistent else unsaved.add)(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(map(vars(self).get, _HOOKS)):  # a user's backend may have hooked the graph
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)


class UnobservedGraphModule(UnobservedModule, fx.GraphModule):
    """A graph module that no global hook sees."""


class UnobservedLazyGraphModule(UnobservedModule, lazy_graph_module._LazyGraphModule):
    """One whose Python source is written when it is first called."""


def _table_of(module: nn.Module, name: str, value: Any) -> str | None:
    """The table of a module that a value belongs in as an attribute; None for its ``__dict__``."""
    if isinstance(value, nn.Parameter):
        return "_parameters"
    if isinstance(value, nn.Module):
        return "_modules"
    is_buffer = name in vars(module).get("_buffers", ()) or isinstance(value, nn.Buffer)
    return "_buffers" if is_buffer and isinstance(value, torch.Tensor) else None
