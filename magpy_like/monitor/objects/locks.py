"""Locks that no other thread can wait for: they leave no trace if released before the region ends.

Acquiring or releasing an external lock splits the program: another thread may wait for it, and
change meanwhile what the program reads. A new lock belongs to the region alone, and a lock that
only prevents a cache from being filled twice hides nothing from a guard.
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
    """True if ``with manager`` in ``code`` acquires such a lock, which is noted then."""
    if not is_instance(manager, _LOCKS):
        return False
    if not rec.variables.is_new_object(manager) and code not in _FILLS_A_CACHE:
        return False
    rec.effects.uncontended_locks.append(manager)
    return True


def release_uncontended(rec: Recording, operation: Any, args: tuple[Any, ...]) -> bool:
    """True if ``operation`` releases a lock that was noted."""
    if operation not in _LEAVE or not any(
        held is args[0] for held in rec.effects.uncontended_locks
    ):
        return False
    rec.effects.uncontended_locks.remove(args[0])
    return True


def holds_any(rec: Recording) -> bool:
    """True if the program holds a noted lock. One that was released by an exception is still
    noted."""
    return any(map(_is_held, rec.effects.uncontended_locks))


def _is_held(lock: Any) -> bool:
    return bool(lock.locked() if is_instance(lock, _thread.LockType) else lock._is_owned())
