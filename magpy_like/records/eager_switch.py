"""The permanent switch of a compiled function to eager execution, and its reason."""

from __future__ import annotations

from magpy_like.config import config


class EagerSwitch:
    """Counts runs without a record, and turns eager execution on."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """The reason why the function runs eagerly from now on; None if it does not."""
        self._unrecorded = 0

    def __bool__(self) -> bool:
        return self.reason is not None

    def turn_on(self, reason: str) -> None:
        """Run eagerly from now on."""
        self.reason = reason

    def note_unrecorded(self, reason: str) -> bool:
        """A monitor run ended without a record; too many turn eager execution on.

        Returns True if this one did.
        """
        self._unrecorded += 1
        if self or self._unrecorded < config.split_limit:
            return False
        self.reason = reason
        return True
