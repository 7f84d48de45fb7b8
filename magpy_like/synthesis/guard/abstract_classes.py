"""What abstract classes answered about others, which changes when a class is registered.

`abc` keeps a counter of all registrations in the process, and any import may add some: a compiler's
own do while it compiles the first graph. So the counter only tells when to ask again. A class that
was once said to be a subclass stays one; others are asked about anew, as native code would do it.
"""

from __future__ import annotations

import _abc
import abc
from collections.abc import Iterable


class StillDenied:
    """Whether abstract classes still deny others.

    Args:
        pairs: an abstract class and one that it has said to be none of its own, each.
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
        except Exception:  # of a class's own hook: the program meets it where it asks
            return False
        self._token = token
        return True
