"""Generators that wait in ``yield from`` while the program throws an exception into them.

Up to Python 3.11 the interpreter reports no event when such a generator continues, as the inner one
has handled the exception and returned. So the monitor follows it from the call on.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Token = tuple[Callable[..., Any], Any]

THROW = types.GeneratorType.throw


def follow_waiting(context: Context, generator: Any, token: Token) -> Token:
    """Follow the generators that wait for others during a call of ``throw``.

    They begin with ``generator``; ``token`` is that of the call.
    """
    waiting = []
    while type(generator) is types.GeneratorType and generator.gi_yieldfrom is not None:
        if generator.gi_frame is not None:
            context.follow(generator.gi_frame)
        waiting.append(generator)
        generator = generator.gi_yieldfrom
    return (_finish_throw, (waiting, token)) if waiting else token


def unwrap(context: Context, finish: Callable[..., Any], payload: Any) -> Token:
    """The token of a call that has ended, without that of ``throw``."""
    if finish is not _finish_throw:
        return finish, payload
    waiting: list[Any]
    token: Token
    waiting, token = payload
    for generator in waiting:
        if generator.gi_frame is not None:
            context.unfollow(generator.gi_frame)  # it waits again, or has never continued
    return token


def _finish_throw(context: Context, payload: Any, result: Any) -> Any:
    finish, payload = unwrap(context, _finish_throw, payload)
    return finish(context, payload, result)
