"""CompiledModule: a module whose calls run by records, and otherwise the wrapped module itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from magpy_like.monitor.calls import compiled_callees
from magpy_like.records.interface import make_dispatcher


class CompiledModule(nn.Module):
    """Wraps a module: calls run by records; attributes, hooks and parameters are the module's.

    ``_orig_mod`` is the wrapped module, as with ``torch.compile``. Copies and pickles are compiled
    anew with the same settings.
    """

    def __init__(self, module: nn.Module, dispatcher: Any) -> None:
        self.__dict__["_orig_mod"] = module
        self.__dict__["_magpy"] = dispatcher

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_magpy"].call(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_orig_mod"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_orig_mod"], name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._orig_mod), "_orig_mod"})

    def __len__(self) -> int:
        return len(cast(Any, self._orig_mod))

    def __getitem__(self, index: Any) -> Any:
        return cast(Any, self._orig_mod)[index]

    def __iter__(self) -> Any:
        return iter(cast(Any, self._orig_mod))

    def __contains__(self, key: Any) -> bool:
        return key in cast(Any, self._orig_mod)

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __repr__(self) -> str:
        return repr(self._orig_mod)

    @property
    def forward(self) -> Callable[..., Any]:
        return self._orig_mod.forward

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return _rebuild(copy.deepcopy(self._orig_mod, memo), _settings(self._magpy))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._orig_mod, _settings(self._magpy))


compiled_callees.register_wrapper(CompiledModule, "_orig_mod")


def _settings(dispatcher: Any) -> dict[str, Any]:
    """The arguments of ``compile`` that the dispatcher was created with."""
    names = ("fullgraph", "dynamic", "backend", "mode", "options")
    return {name: getattr(dispatcher, name) for name in names}


def _rebuild(module: nn.Module, settings: dict[str, Any]) -> CompiledModule:
    return CompiledModule(module, make_dispatcher(module, **settings))
