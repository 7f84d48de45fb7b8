"""Asking whether an operator that has raised may succeed for other values."""

import contextlib
import logging

from magpy_like.monitor.operator_graph.failing_operators import _silence

LOG = logging.getLogger("torch._subclasses.fake_tensor")


def test_threads_that_ask_at_once_leave_torchs_logger_as_it_was():
    heard = []
    handler = logging.Handler()
    handler.emit = heard.append
    LOG.addHandler(handler)
    try:
        with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
            one.enter_context(_silence())
            other.enter_context(_silence())
            LOG.error("unheard")
            one.close()
        LOG.error("heard")
    finally:
        LOG.removeHandler(handler)
    assert [record.getMessage() for record in heard] == ["heard"]
    assert not LOG.disabled
