"""Locks that leave no trace when they are released before the region ends.

Another thread may wait for a lock from outside, and may change what the program reads until it has
the lock: taking it, and giving it back, splits the program. A lock that the region has made is its
own, and one that only keeps a cache from being filled twice hides nothing from a guard.
"""

from __future__ import annotations

import _thread
import functools
import types
from typing import Any

from magpy_like.monitor.recording import Recording
from magpy_like.native.instance_checks import is_instance

_LOCKS = (_thread.LockType, _thread.RLock)
_LEAVE = {_thread.LockType.__exit__, _thread.RLock.__exit__}
_FILLS_A_CACHE = {functools.cached_property.__get__.__code__}


def acquire_uncontended(rec: Recording, manager: Any, code: types.CodeType) -> bool:
    """``with manager`` in ``code``: whether it is such a lock, which is remembered then."""
    if not is_instance(manager, _LOCKS):
        return False
    if not rec.variables.is_new_object(manager) and code not in _FILLS_A_CACHE:
        return False
    rec.effects.uncontended_locks.append(manager)
    return True


def release_uncontended(rec: Recording, operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether ``operation`` gives back a lock that was taken so."""
    if operation not in _LEAVE or not any(
        held is args[0] for held in rec.effects.uncontended_locks
    ):
        return False
    rec.effects.uncontended_locks.remove(args[0])
    return True


def holds_any(rec: Recording) -> bool:
    """Whether the program holds a lock that was taken so. One that an exception has made it give
    back is remembered still."""
    return any(map(_is_held, rec.effects.uncontended_locks))


def _is_held(lock: Any) -> bool:
    return bool(lock.locked() if is_instance(lock, _thread.LockType) else lock._is_owned())
