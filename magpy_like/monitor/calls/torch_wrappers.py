"""Wrappers and controls of torch's own compiler in a program.

``torch.compiler.disable`` and ``torch.compile`` return wrappers. A call of a disabled one is a
split. A compiled one is part of the record, as a function of this package's ``compile`` is. Calls
of torch's controls (:data:`CONTROLS`) are splits: what they change is no part of a record.

All are recognised by the file that their code is in: this module does not import Dynamo, which a
program that has such wrappers has imported.
"""

from __future__ import annotations

import enum
import pathlib
import sys
import types
from typing import Any

import torch

from magpy_like.native.instance_checks import is_instance
from magpy_like.split_reasons import SplitReason

_TORCH = str(pathlib.Path(torch.__file__).parent) + "/"
_DYNAMO = f"{_TORCH}_dynamo/"
_COMPILER = f"{_TORCH}compiler/__init__.py"

ORIGINAL = "_torchdynamo_orig_callable"
"""Attribute of torch's wrapper functions."""
MARKS = (ORIGINAL, "_torchdynamo_wrapper_id")
"""Attributes by which torch finds what is wrapped: the original, and the id of the wrapper, which
tells it from a copy of its attributes."""


class Role(enum.Enum):
    """What a wrapper of torch's means for the program."""

    DISABLED = enum.auto()
    """No compiler may see its calls."""
    COMPILED = enum.auto()
    """``torch.compile`` has compiled it."""
    TORCHS_OWN = enum.auto()
    """Torch hides a function of its own from Dynamo, such as the step of an optimizer."""


def role_of(function: Any) -> Role | None:
    """The role of a wrapper function or module of torch's; None for anything else."""
    if type(function) is types.FunctionType:
        if ORIGINAL not in function.__dict__ or not _is_in(function, _DYNAMO):
            return None  # ``functools.wraps`` copies the attribute to functions of the program
        if "_torchdynamo_disable" not in function.__dict__:
            return Role.COMPILED
        return Role.TORCHS_OWN if _is_torchs_own(function.__dict__[ORIGINAL]) else Role.DISABLED
    if is_optimized_module(function):
        context = function.__dict__.get("dynamo_ctx")
        return Role.DISABLED if type(context).__name__ == "DisableContext" else Role.COMPILED
    return None


def is_optimized_module(value: Any) -> bool:
    """True for a module that ``torch.compile`` or ``torch.compiler.disable`` has returned."""
    kind = type(value)
    return kind.__name__ == "OptimizedModule" and kind.__module__ == "torch._dynamo.eval_frame"


def original_of(function: Any) -> Any:
    """The function or module that one of torch's wrappers wraps."""
    if is_optimized_module(function):
        return function.__dict__["_modules"]["_orig_mod"]
    return function.__dict__[ORIGINAL]


def marks(wrapper: Any, original: Any) -> dict[str, Any]:
    """The :data:`MARKS` of a wrapper of this package.

    ``torch.compiler.disable`` and ``torch.compile`` of the wrapper then wrap the original.
    """
    return dict(zip(MARKS, (original, id(wrapper)), strict=True))


def is_disabled(function: Any) -> bool:
    """True if torch keeps every compiler from the calls of a function, module or method."""
    if type(function) is types.MethodType:
        function = function.__func__
    if is_instance(function, torch.nn.Module) and not is_optimized_module(function):
        function = type(function).__call__
    return role_of(function) is Role.DISABLED


HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Attributes of a module that hold the hooks of its calls."""


def has_own_hooks(module: torch.nn.Module) -> bool:
    """True if hooks are registered on one of torch's wrapper modules itself."""
    return any(module.__dict__[name] for name in HOOKS)


def _is_in(function: types.FunctionType, folder: str) -> bool:
    return function.__code__.co_filename.startswith(folder)


def _is_torchs_own(original: Any) -> bool:
    """True if torch itself has wrapped one of its functions: its name leads to the wrapper.

    A program that wraps a function of torch's leaves the name as it is.
    """
    module = str(getattr(original, "__module__", None))
    if not is_instance(original, types.FunctionType) or not module.startswith("torch."):
        return False
    found: Any = sys.modules.get(module)
    for name in original.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is not original


# --- controls -------------------------------------------------------------------------------------

CONTROLS = {
    **dict.fromkeys(("graph_break", "skip_frame", "step_unsupported"), SplitReason.GRAPH_BREAK),
    **dict.fromkeys(
        (
            "allow_in_graph", "assume_constant_result", "cudagraph_mark_step_begin", "disable",
            "disallow_in_graph", "forbid_in_graph", "load_cache_artifacts", "mark_dynamic",
            "mark_static", "mark_static_address", "mark_unbacked", "maybe_mark_dynamic",
            "nonstrict_trace", "reset", "reset_code_caches", "run", "save_cache_artifacts",
            "set_default_backend", "set_enable_guard_collectives", "set_stance",
            "substitute_in_graph",
        ),
        SplitReason.TORCH_CONTROL,
    ),
}  # fmt: skip
"""The controls of torch's compiler by name, and the reason why their calls split a program."""


def control_reason(function: Any, caller: types.FrameType | None) -> SplitReason | None:
    """The reason why a call of one of torch's controls is a split; None for anything else.

    Torch calls some of them itself, such as ``disable`` at the first call of a function.
    """
    if type(function) is types.FunctionType:
        is_control = _is_in(function, _DYNAMO) or _is_in(function, _COMPILER)
    else:
        is_control = is_instance(function, type) and function.__module__.startswith("torch._dynamo")
    if not is_control or (caller is not None and caller.f_code.co_filename.startswith(_TORCH)):
        return None
    return CONTROLS.get(function.__name__)


def is_compiling_of_dynamo(function: Any) -> bool:
    """True for ``torch._dynamo.is_compiling``, which returns ``torch.compiler.is_compiling()``."""
    return (
        type(function) is types.FunctionType
        and function.__name__ == "is_compiling"
        and _is_in(function, _DYNAMO)
    )
