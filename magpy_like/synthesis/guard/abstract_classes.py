"""Subclass tests by abstract classes, whose negative results change when a class is registered.

`abc` counts all registrations in the process, and any import may add some: imports of a compiler do
while it compiles the first graph. So a changed counter only means that the tests are repeated, as
native code does them. A class that is a subclass once remains one.
"""

from __future__ import annotations

import _abc
import abc
from collections.abc import Iterable


class StillDenied:
    """A check that classes are still no subclasses of abstract ones.

    Args:
        pairs: an abstract class, and a class that is not a subclass of it, each.
    """

    def __init__(self, pairs: Iterable[tuple[type, type]]) -> None:
        self._pairs = tuple(pairs)
        self._token = abc.get_cache_token()

    def __call__(self) -> bool:
        token = abc.get_cache_token()
        if token == self._token:
            return True
        try:
            if any(_abc._abc_subclasscheck(abstract, cls) for abstract, cls in self._pairs):
                return False
        except Exception:  # from a class's own hook: the program itself raises it
            return False
        self._token = token
        return True
