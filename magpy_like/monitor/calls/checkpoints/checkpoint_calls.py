"""Functions under ``torch.utils.checkpoint`` that the monitor follows: the native part.

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
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]

_refused: dict[bool, weakref.WeakSet[Any]] = {False: weakref.WeakSet(), True: weakref.WeakSet()}
"""Refused functions, as modules or code, by whether the checkpoint is reentrant."""

_SUPPORTED_OPTIONS = {"preserve_rng_state": True, "early_stop": True}
"""The options of a checkpoint that a graph supports, and the supported value."""
_UNSUPPORTED_OPTIONS = ("context_fn", "determinism_check", "debug")


def is_checkpoint_followed(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if the monitor follows a call of ``checkpoint`` with these arguments."""
    reentrant = kwargs.get("use_reentrant")
    if not torch.is_grad_enabled() or type(reentrant) is not bool or not args:
        return False
    if any(name in kwargs for name in _UNSUPPORTED_OPTIONS) or not are_all_modes():
        return False
    if reentrant and not _can_be_reentrant(args, kwargs):
        return False
    if any(kwargs.get(name, value) is not value for name, value in _SUPPORTED_OPTIONS.items()):
        return False
    if has_global_options():
        return False
    key = refusal_key(args[0])
    return key is not None and key not in _refused[reentrant]


def _can_be_reentrant(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if a reentrant checkpoint accepts the arguments.

    Torch warns if no argument requires gradients, and raises for keyword arguments of the function.
    """
    supported = {"use_reentrant", *_SUPPORTED_OPTIONS}
    return kwargs.keys() <= supported and any(tensor.requires_grad for tensor in _tensors(args))


def _tensors(args: Iterable[Any]) -> list[torch.Tensor]:
    return [value for value in args if is_instance(value, torch.Tensor)]


def refusal_key(function: Any) -> Any:
    """The object under which the refusal of a function is remembered; None if there is none.

    It is a module, or the code of a function, so that all functions with this code share it.
    """
    if is_instance(function, functools.partial):
        return refusal_key(function.func)
    if is_instance(function, types.MethodType):
        receiver = function.__self__
        return refusal_key(
            receiver if is_instance(receiver, torch.nn.Module) else function.__func__
        )
    if is_instance(function, torch.nn.Module):
        # Torch's own containers only call their parts.
        is_own = not type(function).__module__.startswith("torch.")
        return refusal_key(type(function).forward) if is_own else function
    return function.__code__ if is_instance(function, types.FunctionType) else None


class CheckpointCall:
    """One call of ``checkpoint``, performed by torch's own generator."""

    reentrant = False

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._owner = refusal_key(function)
        self.tensor_arguments = _tensors(args)
        self._generator: Any = self._perform(function, args, kwargs)
        next(self._generator)

    def _perform(self, function: Any, args: Any, kwargs: Any) -> Generator[None, Any, Any]:
        return checkpoint_without_reentrant(
            function, True, noop_context_fn, "default", False, True, *args, **kwargs
        )

    def refuse(self) -> None:
        """Stop following the function."""
        _refused[self.reentrant].add(self._owner)

    def saved_tensor_count(self) -> int:
        """The number of tensors that the running function has saved for the backward pass."""
        return len(self._generator.gi_frame.f_locals["new_frame"].weak_holders)

    def is_recomputed(self, saved_tensor_count: int) -> bool:
        """True if the backward pass recomputes an operator that ran after so many saved tensors."""
        return saved_tensor_count < self.saved_tensor_count()

    def end(self, result: Any) -> Any:
        next(self._generator, None)
        return result

    def fail(self, error: BaseException) -> None:
        self._generator.throw(error)


class _ThreadState(threading.local):
    reentrant = 0
    """The number of functions running under reentrant checkpoints in this thread."""


_thread_state = _ThreadState()


@contextlib.contextmanager
def _under_reentrant() -> Iterator[None]:
    _thread_state.reentrant += 1
    try:
        yield
    finally:
        _thread_state.reentrant -= 1


def is_under_reentrant() -> bool:
    """True if a reentrant checkpoint is running in this thread.

    A checkpoint inside it does nothing now, without gradients, but will in the backward pass.
    """
    return _thread_state.reentrant > 0


class ReentrantCheckpointCall(CheckpointCall):
    """One call with ``use_reentrant=True``.

    The function runs without gradients. Its result is passed through torch's own autograd
    function, whose backward pass runs the function again as a whole.
    """

    reentrant = True

    def _perform(self, function: Any, args: Any, kwargs: Any) -> Generator[None, Any, Any]:
        cpu_state = torch.get_rng_state()
        devices, device_states = get_device_states(*args)
        kind = device_type_of_arguments(*args)
        with torch.no_grad(), _under_reentrant():
            returned = [(yield)]

        def run(*args: Any) -> Any:
            return returned.pop() if returned else function(*args)

        with torch.random.fork_rng(devices, device_type=kind):
            # The random states at the beginning of the function, which its second run needs.
            torch.set_rng_state(cpu_state)
            set_device_states(devices, device_states, device_type=kind)
            result = CheckpointFunction.apply(run, True, *args)
        yield result

    def saved_tensor_count(self) -> int:
        return 0

    def is_recomputed(self, saved_tensor_count: int) -> bool:
        return True

    def end(self, result: Any) -> Any:
        return self._generator.send(result)


def begin_checkpoint(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reentrant: bool
) -> CheckpointCall:
    """Perform ``checkpoint`` up to the call of ``function``."""
    return (ReentrantCheckpointCall if reentrant else CheckpointCall)(function, args, kwargs)


def end_checkpoint(call: CheckpointCall, result: Any) -> Any:
    """Perform ``checkpoint`` after the call; returns its result."""
    return call.end(result)


def fail_checkpoint(call: CheckpointCall, error: BaseException) -> None:
    """Perform ``checkpoint`` after an exception in the function."""
    call.fail(error)


def _begins(context: Context, function: Any, args: Any, kwargs: Any, reentrant: bool) -> Token:
    if context.isolation.branch_run is not None:
        raise Split(SplitReason.CHECKPOINT, "begins a checkpoint in a branch or loop body")
    if reentrant and context.recording.checkpointed is not None:
        raise Split(SplitReason.CHECKPOINT, "begins a reentrant checkpoint under a checkpoint")
    return context.suspension.until(_finish_begin, None)


def _finish_begin(context: Context, _: None, call: CheckpointCall) -> None:
    context.account()
    context.isolation.enter_checkpoint(call)


def _ends(context: Context, call: CheckpointCall, result: Any) -> Token:
    checkpointed = context.recording.checkpointed
    assert checkpointed is not None
    checkpointed.leave(context.recording, result)
    return context.suspension.until(_finish_end, result)


def _finish_end(context: Context, returned: Any, result: Any) -> None:
    context.account()
    context.isolation.update_filter()
    if result is not returned:  # a new tuple of the same tensors
        context.recording.variables.add_new(result)


def _fails(context: Context, *_: Any) -> Token:
    raise Split(SplitReason.CHECKPOINT, "raises an exception under a checkpoint")


STEPS: dict[Any, Callable[..., Token]] = {
    begin_checkpoint: _begins,
    end_checkpoint: _ends,
    fail_checkpoint: _fails,
}
"""The monitor's rules for the functions that replace ``checkpoint``."""
