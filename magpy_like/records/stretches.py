"""Records of programs that split: a stretch, the dynamic instruction, and what follows.

The record of a stretch ends in the state of the program's open frames. A call runs the stretch's
mock, then the dynamic instruction natively, and hands the frames on to the dispatcher of the
continuation, which has records of its own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from magpy_like.dynamic.continuation import Raised, run_chain, step
from magpy_like.dynamic.layout import Layout, NoLayout, lay_out
from magpy_like.dynamic.splitting import Continuation, open_frames, stands_for
from magpy_like.monitor.run import MonitorRun
from magpy_like.monitor.split import Split
from magpy_like.synthesis.record import Record


class StretchCut:
    """Makes the record of a stretch while the program stands at the split: a monitor's ``Cut``."""

    def __init__(self, target: Any, make: Callable[[MonitorRun, Any], Record]) -> None:
        self._continues = isinstance(target, Continuation)
        self.iterated: Sequence[int] = target.iterated if self._continues else ()
        self._make = make
        self.record: Record | None = None
        self.reason = ""
        """Why there is no record although the program has split."""

    def begins(self, function: Any) -> bool:
        return not self._continues or stands_for(function) is not function

    def stands_for(self, function: Any) -> Any:
        return stands_for(function)

    def at_split(
        self, run: MonitorRun, frame: types.FrameType, handled: BaseException | None
    ) -> None:
        try:
            if run.root_frame is None:
                raise NoLayout("the program has not begun")
            run.read_rest()
            states = open_frames(frame, run.root_frame, run.steps, handled)
            layout, values = lay_out(states, lambda it: run.recording.node(it) is not None)
            with _not_compiling():
                record = self._make(run, tuple(values))
        except (NoLayout, Split) as reason:
            self.reason = str(reason)
        else:
            record.layout = layout
            self.record = record


class _not_compiling:
    """A backend runs in the middle of the monitored program, but is no part of it."""

    def __enter__(self) -> None:
        self._before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = False

    def __exit__(self, *_: object) -> None:
        torch.compiler._is_compiling_flag = self._before


class Stretches:
    """The continuations of one compiled function, by where they go on."""

    def __init__(self, make: Callable[[Continuation], Any]) -> None:
        self._make = make
        self.dispatchers: dict[Layout, Any] = {}

    def go_on(self, layout: Layout, values: Sequence[Any]) -> Any:
        """From the state at a split to the program's end."""
        states = layout.build(values)
        outcome = step(states[0])
        if isinstance(outcome, Raised):
            return run_chain(states, outcome.exception)
        states[0] = outcome
        # The iterators of the state were made for it; what the instruction gave may be anybody's.
        given = {id(outcome.stack[-1])} if outcome.stack else set()
        try:
            after, values = lay_out(states, lambda iterator: id(iterator) in given)
        except NoLayout:
            return run_chain(states)
        del states, outcome
        dispatcher = self.dispatchers.get(after)
        if dispatcher is None:
            dispatcher = self.dispatchers[after] = self._make(Continuation(after))
        return dispatcher.call(tuple(values), {})
