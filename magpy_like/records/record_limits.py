"""The limits of one compiled function: how many records it keeps, and when it generalises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magpy_like.config import config


@dataclass(frozen=True)
class Limits:
    """``record_limit`` and ``generalise_after`` of one compiled function: see ``Config``."""

    records: int
    generalise_after: int

    @classmethod
    def of(cls, options: dict[str, Any] | None) -> tuple[Limits, dict[str, Any] | None]:
        """The limits among the options of ``compile``, and the options for the backend.

        Raises:
            ValueError: a limit is not a positive int.
        """
        rest = dict(options or {})
        limits = {
            "records": rest.pop("record_limit", config.record_limit),
            "generalise_after": rest.pop("generalise_after", config.generalise_after),
        }
        for name, value in limits.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a positive int, not {value!r}")
        return cls(**limits), rest or None
