"""The limits of one compiled function: how many records it keeps, and when it generalises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magpy_like.arguments import POSITIVE
from magpy_like.compile_modes import LIMITS
from magpy_like.config import config
from magpy_like.errors import ArgumentError


@dataclass(frozen=True)
class Limits:
    """``record_limit`` and ``generalise_after`` of one compiled function: see ``Config``."""

    records: int
    generalise_after: int

    @classmethod
    def of(cls, options: dict[str, Any] | None) -> tuple[Limits, dict[str, Any] | None]:
        """The limits among the options of ``compile``, and the options for the backend.

        Raises:
            ArgumentError: a limit is not a positive int.
        """
        rest = dict(options or {})
        defaults = config.record_limit, config.generalise_after
        limits = [rest.pop(name, own) for name, own in zip(LIMITS, defaults, strict=True)]
        for name, value in zip(LIMITS, limits, strict=True):
            if not POSITIVE.admits(value):
                argument = f"options[{name!r}]"
                raise ArgumentError("compile", argument, value, f"takes {POSITIVE.words}")
        return cls(*limits), rest or None
