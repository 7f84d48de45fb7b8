"""Log topics, printed to stderr if ``MAGPY_LOGS`` lists them (comma-separated).

Every topic is an ordinary logger of the standard library, silent unless its name is in
``MAGPY_LOGS`` or the program configures it itself.
"""

from __future__ import annotations

import logging
import os
import warnings

TOPICS = {
    "guards": "magpy_like.synthesis.guards",
    "graph": "magpy_like.monitor.graph",
    "records": "magpy_like.records",
    "splits": "magpy_like.dynamic.splits",
    "monitor": "magpy_like.monitor.run",
    "fusion": "magpy_like.compiler.scheduling.fusion",
    "output_code": "magpy_like.compiler.output_code",
}


def topic(name: str) -> logging.Logger:
    """The logger of one of ``TOPICS``.

    Raises:
        KeyError: there is no such topic.
    """
    return logging.getLogger(TOPICS[name])


def configure(wanted: str) -> None:
    """Print exactly the topics in ``wanted`` to stderr, written as in ``MAGPY_LOGS``.

    Warns about a word that is not a topic.
    """
    words = {word.strip() for word in wanted.split(",")} - {""}
    unknown = sorted(words - TOPICS.keys())
    if unknown:
        warnings.warn(
            f"MAGPY_LOGS: no such topic: {', '.join(unknown)}; there are {', '.join(TOPICS)}",
            stacklevel=2,
        )
    for name in TOPICS:
        logger = topic(name)
        for handler in [h for h in logger.handlers if isinstance(h, _TopicHandler)]:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
        if name in words:
            logger.addHandler(_TopicHandler(name))
            logger.setLevel(logging.DEBUG)
            # Otherwise a program with a configured root logger prints each line twice.
            logger.propagate = False


class _TopicHandler(logging.StreamHandler):
    """Writes to the current ``sys.stderr``, each line headed by its topic."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(f"[{name}] %(message)s"))


if "MAGPY_LOGS" in os.environ:
    configure(os.environ["MAGPY_LOGS"])
