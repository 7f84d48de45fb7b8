"""Compares a program of a library's user with the same program with compiled parts."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import magpy_like as magpy
from tests.compare import assert_same
from tests.seeding import seed

LOGGERS = ("", "accelerate", "diffusers", "lightning", "lightning_utilities", "pytorch_lightning",
           "peft", "transformers")  # fmt: skip
"""Loggers that do not all propagate to the root."""
Wrap = Callable[..., Any]


def assert_as_eager(program: Callable[[Wrap], Any], *, hits: int = 1, **tolerances: Any) -> Any:
    """The program gives the same with compiled parts, whose calls hit, and no other message.

    Args:
        program: called with a function that it applies to each part to compile; its result holds
            all that is compared.
        hits: at least so many of each part.
        tolerances: ``rtol`` and ``atol`` of the comparison.

    Returns:
        The result with compiled parts.
    """
    compiled: list[Any] = []

    def compile_part(target: Any, **settings: Any) -> Any:
        compiled.append(magpy.compile(target, **settings))
        return compiled[-1]

    actual = assert_same_runs(
        program, lambda target, **settings: target, compile_part, **tolerances
    )
    assert compiled, "the program compiles nothing"
    infos = [magpy.cache_info(part) for part in compiled]
    assert all(info.hits >= hits for info in infos), infos
    return actual


def assert_same_runs(
    program: Callable[[Any], Any], eager: Any, compiled: Any, **tolerances: Any
) -> Any:
    """The program gives the same for either argument, and no other message for the second."""
    magpy.reset()
    expected, usual = _run(program, eager)
    actual, messages = _run(program, compiled)
    assert_same(actual, expected, **tolerances)
    news = [message for message in messages if message not in usual]
    assert news == [], "\n".join(news)
    return actual


def _run(program: Callable[[Any], Any], argument: Any) -> tuple[Any, list[str]]:
    seed(0)
    with _messages() as messages:
        return program(argument), messages


@contextlib.contextmanager
def _messages() -> Iterator[list[str]]:
    """Collects warnings, and what is logged as one."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(f"{record.name}: {record.getMessage()}")  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
    finally:
        found += [f"{entry.category.__name__}: {entry.message}" for entry in caught]
        for logger in loggers:
            logger.removeHandler(handler)
