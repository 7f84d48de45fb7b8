"""Regions of compiled calls in a profile."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from magpy_like.compiler.runtime import profiled_launchers
from magpy_like.graph_operators.profiled_graphs import show_empty
from magpy_like.synthesis.record import Record
from magpy_like.torch_compat.profiler import is_profiled, region

if TYPE_CHECKING:
    from magpy_like.records.dispatcher import Dispatcher


def run_in_region(dispatcher: Dispatcher, record: Record, found: tuple[Any, ...]) -> Any:
    """The mock's result for a match. A profiler records this thread: it sees a region of the call,
    and the graphs and kernels in it."""
    profiled_launchers.show_all()
    with region(f"magpy: {dispatcher.name} (record {record.number})"):
        show_empty(record.regions)
        return record.mock(*found)


def recording_region(name: str) -> contextlib.AbstractContextManager[Any]:
    """The region of a call that a new record is made of, if a profiler records this thread."""
    return region(f"magpy: {name} (new record)") if is_profiled() else contextlib.nullcontext()
