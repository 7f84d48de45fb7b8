"""Text formatted from lifted numbers, and parts of it: lifted too, so that logs add no guard."""

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


def sliced(text: str, start: Any, stop: Any, step: Any) -> str:
    """``text[start:stop:step]``."""
    return text[start:stop:step]
