"""An ``isinstance`` that runs no code of the program's.

Python's own asks an object that is not of the class for its ``__class__`` too, which a property or
a ``__getattribute__`` may compute, with effects, or wrongly: a proxy may claim to be a dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builtins import isinstance as isinstance
else:
    pass
