"""Text formatted from lifted numbers: it is lifted too, so that logging it adds no guard."""

from __future__ import annotations

from typing import Any


def formatted(value: Any, conversion: int, specification: str) -> str:
    """The result of FORMAT_VALUE."""
    converted = _CONVERSIONS[conversion](value) if conversion else value
    return format(converted, specification)


_CONVERSIONS = (str, str, repr, ascii)


def joined(*texts: str) -> str:
    """The result of BUILD_STRING."""
    return "".join(texts)


def percent(form: str, *values: Any) -> str:
    """``form % values`` with one value or several."""
    return form % values
