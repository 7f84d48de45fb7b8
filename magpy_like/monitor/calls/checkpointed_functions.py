"""Functions under ``torch.utils.checkpoint``: what is done natively when one is followed.

The program runs such a function under torch's own checkpoint, by :func:`begin_checkpoint` and
:func:`end_checkpoint`. Its operators are nodes like any others; in the finished graph the nodes of
one function become one node. A function that does more than compute is refused: in the next run the
program splits there.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import (
    CheckpointFunction,
    get_device_states,
    noop_context_fn,
    set_device_states,
)

from magpy_like.monitor.torch_state.default_device import are_all_modes
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.checkpointing import (
    checkpoint_without_reentrant,
    device_type_of_arguments,
    has_global_options,
)

if TYPE_CHECKING:
    from magpy_like.monitor.run import MonitorRun

    Token = tuple[Callable[..., Any], Any]

_refused: dict[bool, weakref.WeakSet[Any]] = {False: weakref.WeakSet(), True: weakref.WeakSet()}
"""Modules and the code of functions that do more than to compute, or more than may be done under a
reentrant checkpoint (true)."""

_PLAIN = {"preserve_rng_state": True, "early_stop": True}
"""The options of a checkpoint whose meaning a graph has, and what they have to be."""
_OTHERS = ("context_fn", "determinism_check", "debug")


def is_checkpoint_followed(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of ``checkpoint`` with these arguments is followed."""
    reentrant = kwargs.get("use_reentrant")
    if not torch.is_grad_enabled() or type(reentrant) is not bool or not args:
        return False
    if any(name in kwargs for name in _OTHERS) or not are_all_modes():
        return False
    if reentrant and not _can_be_reentrant(args, kwargs):
        return False
    if any(kwargs.get(name, value) is not value for name, value in _PLAIN.items()):
        return False
    if has_global_options():
        return False
    found = refusal_key(args[0])
    return found is not None and found not in _refused[reentrant]


def _can_be_reentrant(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch neither warns that no argument takes part in gradients, nor raises an exception
    because of keyword arguments for the function."""
    known = {"use_reentrant", *_PLAIN}
    return kwargs.keys() <= known and any(tensor.requires_grad for tensor in _tensors(args))


def _tensors(args: Iterable[Any]) -> list[torch.Tensor]:
    return [value for value in args if is_instance(value, torch.Tensor)]


def refusal_key(function: Any) -> Any:
    """Whom it says something of that a function does more than to compute; None for nobody."""
    if is_instance(function, functools.partial):
        return refusal_key(function.func)
    if is_instance(function, types.MethodType):
        receiver = function.__self__
        return refusal_key(
            receiver if is_instance(receiver, torch.nn.Module) else function.__func__
        )
    if is_instance(function, torch.nn.Module):
        # What torch's own containers do is what their parts do.
        is_own = not type(function).__module__.startswith("torch.")
        return refusal_key(type(function).forward) if is_own else function
    return function.__code__ if is_instance(function, types.FunctionType) else None


class CheckpointCall:
    """One call of ``checkpoint``, which torch's own generator goes through."""

    reentrant = False

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._owner = refusal_key(function)
        self.tensor_arguments = _tensors(args)
        self._steps: Any = self._go_through(function, args, kwargs)
        next(self._steps)

    def _go_through(self, function: Any, args: Any, kwargs: Any) -> Generator[None, Any, Any]:
        return checkpoint_without_reentrant(
            function, True, noop_context_fn, "default", False, True, *args, **kwargs
        )

    def refuse(self) -> None:
        """The function is not to be followed again."""
        _refused[self.reentrant].add(self._owner)

    def saved_tensor_count(self) -> int:
        """How many tensors were saved for the backward pass, while the function runs."""
        return len(self._steps.gi_frame.f_locals["new_frame"].weak_holders)

    def is_recomputed(self, saved_tensor_count: int) -> bool:
        """Whether the backward pass does again what came when so many tensors were saved."""
        return saved_tensor_count < self.saved_tensor_count()

    def end(self, result: Any) -> Any:
        next(self._steps, None)
        return result

    def fail(self, error: BaseException) -> None:
        self._steps.throw(error)


class _Here(threading.local):
    reentrant = 0
    """How many functions are running under reentrant checkpoints."""


_here = _Here()


@contextlib.contextmanager
def _under_reentrant() -> Iterator[None]:
    _here.reentrant += 1
    try:
        yield
    finally:
        _here.reentrant -= 1


def is_under_reentrant() -> bool:
    """Whether a checkpoint that begins in this thread will be one when a reentrant one around it
    goes backward, although there are no gradients now."""
    return _here.reentrant > 0


class ReentrantCheckpointCall(CheckpointCall):
    """One under ``use_reentrant=True``: the function runs without gradients, and what it has
    returned is the result of torch's own autograd function, which runs it again as a whole."""

    reentrant = True

    def _go_through(self, function: Any, args: Any, kwargs: Any) -> Generator[None, Any, Any]:
        drawn = torch.get_rng_state()
        devices, drawn_there = get_device_states(*args)
        kind = device_type_of_arguments(*args)
        with torch.no_grad(), _under_reentrant():
            returned = [(yield)]

        def run(*args: Any) -> Any:
            return returned.pop() if returned else function(*args)

        with torch.random.fork_rng(devices, device_type=kind):
            # Which the function has found, and is to find again.
            torch.set_rng_state(drawn)
            set_device_states(devices, drawn_there, device_type=kind)
            found = CheckpointFunction.apply(run, True, *args)
        yield found

    def saved_tensor_count(self) -> int:
        return 0

    def is_recomputed(self, saved_tensor_count: int) -> bool:
        return True

    def end(self, result: Any) -> Any:
        return self._steps.send(result)


def begin_checkpoint(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reentrant: bool
) -> CheckpointCall:
    """What ``checkpoint`` does before it calls ``function``."""
    return (ReentrantCheckpointCall if reentrant else CheckpointCall)(function, args, kwargs)


def end_checkpoint(call: CheckpointCall, result: Any) -> Any:
    """What it does behind that, and gives."""
    return call.end(result)


def fail_checkpoint(call: CheckpointCall, error: BaseException) -> None:
    """What it does when the function has raised."""
    call.fail(error)


def _begins(run: MonitorRun, function: Any, args: Any, kwargs: Any, reentrant: bool) -> Token:
    if run.side is not None:
        raise Split(SplitReason.CHECKPOINT, "begins a checkpoint in a branch or loop body")
    if reentrant and run.recording.checkpointed is not None:
        raise Split(SplitReason.CHECKPOINT, "begins a reentrant checkpoint under a checkpoint")
    run.suspended += 1
    return _finish_begin, None


def _finish_begin(run: MonitorRun, _: None, call: CheckpointCall) -> None:
    run.suspended -= 1
    run.account()
    run.enter_checkpoint(call)


def _ends(run: MonitorRun, call: CheckpointCall, result: Any) -> Token:
    run.recording.checkpointed.leave(run.recording, result)
    run.suspended += 1
    return _finish_end, result


def _finish_end(run: MonitorRun, returned: Any, result: Any) -> None:
    run.suspended -= 1
    run.account()
    run.choose_filter()
    if result is not returned:  # another tuple of the same tensors
        run.recording.bear(result)


def _fails(run: MonitorRun, *_: Any) -> Token:
    raise Split(SplitReason.CHECKPOINT, "raises an exception under a checkpoint")


STEPS: dict[Any, Callable[..., Token]] = {
    begin_checkpoint: _begins,
    end_checkpoint: _ends,
    fail_checkpoint: _fails,
}
"""What a monitor makes of the calls that stand in for ``checkpoint``."""
FINISHERS = (_finish_begin, _finish_end)
