"""Functions under ``torch.utils.checkpoint``: what is done natively when one is followed.

The program runs them under torch's own checkpoint, by :func:`begin` and :func:`end`, and their
operators are nodes like any others; of the finished graph those of one function become one node.
One that does more than to compute is not followed any more: from the next run on it is an operator
that runs as it is.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import noop_context_fn

from magpy_like.monitor.devices import are_all_modes
from magpy_like.monitor.split import Split
from magpy_like.native.kinds import isinstance

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., Any], Any]

_refused: weakref.WeakSet[Any] = weakref.WeakSet()
"""Modules and the code of functions that do more than to compute."""

_PLAIN = {"use_reentrant": False, "preserve_rng_state": True, "early_stop": True}
"""The options of a checkpoint whose meaning a graph has, and what they have to be."""
_OTHERS = ("context_fn", "determinism_check", "debug")


def is_followed(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of ``checkpoint`` with these arguments is followed."""
    if not torch.is_grad_enabled() or "use_reentrant" not in kwargs or not args:
        return False
    if any(name in kwargs for name in _OTHERS) or not are_all_modes():
        return False
    if any(kwargs.get(name, value) is not value for name, value in _PLAIN.items()):
        return False
    set_for_all = ("_enable_checkpoint_early_stop", "_checkpoint_debug_enabled")
    if any(getattr(torch.utils.checkpoint, name, None) is not None for name in set_for_all):
        return False
    found = owner(args[0])
    return found is not None and found not in _refused


def owner(function: Any) -> Any:
    """Whom it says something of that a function does more than to compute; None for nobody."""
    if isinstance(function, functools.partial):
        return owner(function.func)
    if isinstance(function, types.MethodType):
        receiver = function.__self__
        return owner(receiver if isinstance(receiver, torch.nn.Module) else function.__func__)
    if isinstance(function, torch.nn.Module):
        # What torch's own containers do is what their parts do.
        is_own = not type(function).__module__.startswith("torch.")
        return owner(type(function).forward) if is_own else function
    return function.__code__ if isinstance(function, types.FunctionType) else None


class Call:
    """One call of ``checkpoint``, which torch's own generator goes through."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._owner = owner(function)
        self.given = [value for value in args if isinstance(value, torch.Tensor)]
        self.steps = torch.utils.checkpoint._checkpoint_without_reentrant_generator(
            function, True, noop_context_fn, "default", False, True, *args, **kwargs
        )

    def refuse(self) -> None:
        """The function is not to be followed again."""
        _refused.add(self._owner)

    def saved(self) -> int:
        """How many tensors were saved for the backward pass, while the function runs."""
        return len(self.steps.gi_frame.f_locals["new_frame"].weak_holders)


def begin(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """What ``checkpoint`` does before it calls ``function``."""
    found = Call(function, args, kwargs)
    next(found.steps)
    return found


def end(call: Call, result: Any) -> None:
    """What it does behind that."""
    next(call.steps, None)


def fail(call: Call, error: BaseException) -> None:
    """What it does when the function has raised."""
    call.steps.throw(error)


def _begins(run: MonitorRun, *_: Any) -> Token:
    if run.side is not None:
        raise Split("begins a checkpoint beside the program")
    run.suspended += 1
    return _finish_begin, None


def _finish_begin(run: MonitorRun, _: None, call: Call) -> None:
    run.suspended -= 1
    run.account()
    run.enter_checkpoint(call)


def _ends(run: MonitorRun, call: Call, result: Any) -> Token:
    run.recording.checkpointed.leave(run.recording, result)
    run.suspended += 1
    return _finish_end, None


def _finish_end(run: MonitorRun, _: None, result: None) -> None:
    run.suspended -= 1
    run.account()
    run.choose_filter()


def _fails(run: MonitorRun, *_: Any) -> Token:
    raise Split("raises an exception under a checkpoint")


STEPS: dict[Any, Callable[..., Token]] = {begin: _begins, end: _ends, fail: _fails}
"""What a monitor makes of the calls that stand in for ``checkpoint``."""
FINISHERS = (_finish_begin, _finish_end)
