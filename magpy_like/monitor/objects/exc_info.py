"""The exception that is being handled: ``sys.exc_info()``, ``raise``, and contexts of exceptions.

The program raises its own exceptions again at every call. An exception that its caller was handling
belongs to that one call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import UnguardableRead
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.recording import Recording

    Token = tuple[Callable[..., Any], Any]

QUERIES = (sys.exc_info, sys.exception)


def begin_query(context: Context) -> Token:
    """Begin a query of the exception that is being handled."""
    return _finish, None


def _finish(context: Context, _: None, result: Any) -> None:
    error = result[1] if is_instance(result, tuple) else result
    if error is None:
        rely_on_none_outside(context.recording)
    elif error is context.recording.state.handled_outside:
        raise UnguardableRead(
            SplitReason.EXCEPTION_STATE, "reads the exception that its caller is handling"
        )
    elif is_instance(result, tuple) and context.recording.variables.node(error) is not None:
        raise UnguardableRead(
            SplitReason.EXCEPTION_STATE, "reads the traceback of an external exception"
        )


def rely_on_none_outside(rec: Recording) -> None:
    """Note that the program depends on its caller handling no exception.

    Raises:
        UnguardableRead: the caller handles one.
    """
    if rec.state.handled_outside is not None:
        raise UnguardableRead(
            SplitReason.EXCEPTION_STATE, "depends on the exception that its caller is handling"
        )
    rec.state.queries.append((sys.exception, (), {}, None))
