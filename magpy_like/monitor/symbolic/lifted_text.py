"""Text that is made of lifted numbers is lifted with them, on its way to a log or a file."""

from __future__ import annotations

from typing import Any


def formatted(value: Any, conversion: int, specification: str) -> str:
    """What FORMAT_VALUE makes of a value."""
    converted = _CONVERSIONS[conversion](value) if conversion else value
    return format(converted, specification)


_CONVERSIONS = (str, str, repr, ascii)


def joined(*texts: str) -> str:
    """What BUILD_STRING makes of texts."""
    return "".join(texts)


def percent(form: str, *values: Any) -> str:
    """What ``%`` makes of a text and several values, or one."""
    return form % values
