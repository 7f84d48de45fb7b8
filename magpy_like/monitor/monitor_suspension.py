"""Suspension of the monitor: while native code runs Python code that it does not follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

Finish = tuple[Callable[..., Any], Any]
"""The handler of an instruction's result, and its payload: a `Token` other than None."""


class Suspension:
    """Nested suspensions of the monitor; as a context manager it adds one."""

    def __init__(self) -> None:
        self.depth = 0
        """Frames entered while this is positive are not followed. The native monitor adds to it
        during a garbage collection: the finalizers that it runs are no part of the program."""

    def enter(self) -> None:
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def until(self, finish: Callable[..., Any], payload: Any) -> Finish:
        """Suspend the monitor until the instruction has run; ``finish`` then handles its result.

        An instruction that raises ends the suspension as well: see `unwrap`.
        """
        self.depth += 1
        return finish_suspended, (finish, payload)

    def unwrap(self, finish: Callable[..., Any], payload: Any) -> Finish:
        """End the suspension of an instruction that raised; return the finish it was to have."""
        if finish is not finish_suspended:
            return finish, payload
        self.depth -= 1
        suspended: Finish = payload
        return suspended


def finish_suspended(context: Context, token: Finish, result: Any) -> Any:
    """End the suspension, and handle the result."""
    context.suspension.depth -= 1
    finish, payload = token
    return finish(context, payload, result)


def payload_of(token: Finish) -> Any:
    """The payload of a token, whether or not its instruction suspends the monitor."""
    finish, payload = token
    return payload[1] if finish is finish_suspended else payload
