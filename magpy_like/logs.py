"""Log topics, printed to stderr if ``MAGPY_LOGS`` lists them (comma-separated).

Each topic is a logger of the standard library: silent unless ``MAGPY_LOGS`` lists the topic or the
program configures the logger.
"""

from __future__ import annotations

import logging
import os
import warnings

# Topic to logger name: the package or module that it is about. No logger is an ancestor of another,
# whose level and handler the descendant would inherit.
TOPICS = {
    "guards": "magpy_like.synthesis.guard",
    "graph": "magpy_like.monitor.operator_graph",
    "records": "magpy_like.records",
    "splits": "magpy_like.splitting",
    "monitor": "magpy_like.monitor.run",
    "fusion": "magpy_like.compiler.scheduling.fusion",
    "output_code": "magpy_like.compiler.codegen",
}


def topic(name: str) -> logging.Logger:
    """Returns the logger of a topic.

    Raises:
        KeyError: ``TOPICS`` has no such topic.
    """
    return logging.getLogger(TOPICS[name])


def configure(wanted: str) -> None:
    """Prints exactly the topics in ``wanted``, written as in ``MAGPY_LOGS``, to stderr.

    Warns about words that are not topics.
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
