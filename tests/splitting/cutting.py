"""Cut a program at one of its instructions and run the rest of its open frames from there.

A program is the text of a module with a function `main`. It has `log`, a list of what it did, and
`effect(x)`, which logs and gives `x` and raises ValueError the `fails`-th time. The cut happens in
a trace function: the state of all open frames is captured and the rest is run at once, in another
thread, where no exception is being handled. The interrupted run then goes on, unwatched, to the
next `effect`: an exception that ended it at the cut itself, at an instruction that cannot raise,
would leave the interpreter's own state in disorder.
"""

import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from magpy_like.native import frame_stack
from magpy_like.splitting.frame_state import capture, is_restoring
from magpy_like.splitting.pending_instructions import suspend
from magpy_like.splitting.resumption import run_chain
from magpy_like.splitting.single_instruction import (
    CONDITIONAL_JUMPS,
    OPERAND_INSTRUCTIONS,
    Raised,
    execute_instruction,
)

FILE = "<program>"
WORKER = ThreadPoolExecutor(1)


@dataclass
class Outcome:
    """What can be seen of a run from outside."""

    value: str
    exceptions: list
    lines: list
    log: list


class Program:
    def __init__(self, text, fails=None):
        self.code = compile(text, FILE, "exec")
        self.fails = fails

    def start(self):
        log, countdown = [], [self.fails]
        self.over = False

        def effect(value):
            if self.over:
                raise Over
            exception = sys.exception()
            log.append(f"{value!r} {type(exception).__name__}")
            if countdown[0] is not None:
                countdown[0] -= 1
                if countdown[0] < 0:
                    countdown[0] = None
                    raise ValueError(f"failed at {value!r}")
            return value

        names = {"log": log, "effect": effect, "__name__": "program"}
        exec(self.code, names)
        return names["main"], log

    def natively(self):
        run, log = self.start()
        return observe(run, log)

    def cut(self, at, act, run=None, log=None):
        """Run until instruction number `at` and give `act(open frames, log)`; None if it ended.

        Without a number `act` is asked at every instruction, until it gives something. What is run
        is `main`, or what is given.
        """
        if run is None:
            run, log = self.start()
        self.over = False

        def finish(states, log):
            outcome = act(states, log)
            self.over = outcome is not None
            return outcome

        return _cut(run, log, at, finish)


class Over(BaseException):
    """Nothing more is of interest."""


def _cut(run, log, at, act):
    # The frames' operand stacks and offsets before the instruction that each is in.
    before, count, outcome = {}, 0, None

    def trace(frame, event, arg):
        nonlocal count, outcome
        if frame.f_code.co_filename != FILE or outcome is not None:
            return None
        frame.f_trace_opcodes = True
        if event == "return":
            before.pop(frame, None)
        elif event == "opcode":
            before[frame] = frame.f_lasti, frame_stack(frame)
            if not is_restoring(frame.f_code, frame.f_lasti):
                count += 1
                if at in (None, count):
                    outcome = act(active_frames(frame, before), log)
                    if outcome is not None:
                        before.clear()
        return trace

    sys._getframe().f_trace_opcodes = True  # for Python 3.12, before the trace function is set
    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except BaseException:
        pass
    finally:
        sys.settrace(previous)
    return outcome


def active_frames(frame, before):
    states, handled_exception = [], sys.exception()
    while frame is not None and frame.f_code.co_filename == FILE:
        offset, stack = before[frame]
        states.append(capture(frame, stack, offset, handled_exception if not states else None))
        frame = frame.f_back
    return states


def observe(run, log):
    """Runs in a thread of its own, so that no exception is being handled around it."""
    return WORKER.submit(_observe, run, log).result()


def _observe(run, log):
    try:
        value = repr(run())
    except BaseException as raised:
        value, exceptions, lines = None, [], []
        for entry in traceback.extract_tb(raised.__traceback__):
            if entry.filename == FILE:
                lines.append((entry.name, entry.lineno, entry.colno))
        while raised is not None:
            exceptions.append((type(raised).__name__, str(raised)))
            raised = raised.__cause__ or raised.__context__
        return Outcome(value, exceptions, lines, list(log))
    return Outcome(value, [], [], list(log))


def chain_of(states):
    """The chain to run on, or why it cannot be."""
    if states[-1].function.__name__ != "main":
        return "native code lies between main and these frames"
    return suspend(states)


def resume(states, log):
    """Act: run on from the very instruction."""
    chain = chain_of(states)
    if isinstance(chain, str):
        return chain
    return observe(lambda: run_chain(chain), log)


def step_and_resume(states, log):
    """Act: execute that one instruction by itself, then run on from what it gave or raised."""
    chain = chain_of(states)
    if isinstance(chain, str):
        return chain
    name = chain[0].instruction.name
    if name not in OPERAND_INSTRUCTIONS | CONDITIONAL_JUMPS | {"FOR_ITER", "LOAD_METHOD"}:
        return "not a step"

    def run():
        after = execute_instruction(chain[0])
        if isinstance(after, Raised):
            return run_chain(chain, after.exception)
        return run_chain([after, *chain[1:]])

    return observe(run, log)


def every_cut(program, act, stride=1, first=1):
    """(number, what `act` gave) for the instructions of the program, in the order executed."""
    at = first
    while (outcome := program.cut(at, act)) is not None:
        yield at, outcome
        at += stride
