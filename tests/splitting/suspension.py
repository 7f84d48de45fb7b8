"""Suspension of a program at any of its instructions, and resumption of its active frames.

A program is the text of a module with a function ``main``. It has ``log``, a list of its actions,
and ``effect(x)``, which logs and returns ``x`` and raises ValueError the ``fails``-th time. A trace
function suspends it: the state of all active frames is captured, and the rest runs at once in
another thread, where no exception is being handled. The interrupted run then goes on, untraced, to
the next ``effect``: an exception that ended it at the suspended instruction, which may be one that
cannot raise, would leave the interpreter's own state in disorder.
"""

import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from magpy_like.native import frame_stack
from magpy_like.splitting.continuation_functions import run_chain
from magpy_like.splitting.frame_state import capture, is_restoring
from magpy_like.splitting.native_instruction import (
    CONDITIONAL_JUMPS,
    OPERAND_INSTRUCTIONS,
    Raised,
    execute_instruction,
)
from magpy_like.splitting.pending_instructions import suspend

FILE = "<program>"
WORKER = ThreadPoolExecutor(1)


@dataclass
class Outcome:
    """The observable behaviour of a run."""

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
        self.ended = False

        def effect(value):
            if self.ended:
                raise InterruptedRunEnds
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

    def run_natively(self):
        run, log = self.start()
        return observe(run, log)

    def suspend(self, number, action, run=None, log=None):
        """Runs until instruction ``number`` and returns ``action(frame states, log)``.

        Without a number, calls the action at every instruction until it returns something other
        than None. Returns None if the program ends first. Runs ``run`` if passed, otherwise
        ``main``.
        """
        if run is None:
            run, log = self.start()
        self.ended = False

        def finish(states, log):
            outcome = action(states, log)
            self.ended = outcome is not None
            return outcome

        return _suspend(run, log, number, finish)


class InterruptedRunEnds(BaseException):
    """Ends an interrupted run of which nothing more is of interest."""


def _suspend(run, log, number, action):
    # Operand stack and offset of each frame before the instruction it is executing.
    operands, count, outcome = {}, 0, None

    def trace(frame, event, arg):
        nonlocal count, outcome
        if frame.f_code.co_filename != FILE or outcome is not None:
            return None
        frame.f_trace_opcodes = True
        if event == "return":
            operands.pop(frame, None)
        elif event == "opcode":
            operands[frame] = frame.f_lasti, frame_stack(frame)
            if not is_restoring(frame.f_code, frame.f_lasti):
                count += 1
                if number in (None, count):
                    outcome = action(active_frames(frame, operands), log)
                    if outcome is not None:
                        operands.clear()
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


def active_frames(frame, operands):
    states, handled_exception = [], sys.exception()
    while frame is not None and frame.f_code.co_filename == FILE:
        offset, stack = operands[frame]
        states.append(capture(frame, stack, offset, handled_exception if not states else None))
        frame = frame.f_back
    return states


def observe(run, log):
    """Runs in a thread of its own, in which no exception is being handled."""
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


def frame_chain(states):
    """The frame chain to resume, or the reason why it cannot be suspended."""
    if states[-1].function.__name__ != "main":
        return "native code lies between main and these frames"
    return suspend(states)


def resume(states, log):
    """Action: resumes at the same instruction."""
    chain = frame_chain(states)
    if isinstance(chain, str):
        return chain
    return observe(lambda: run_chain(chain), log)


def step_and_resume(states, log):
    """Action: executes the single instruction by itself, then resumes with its result or
    exception."""
    chain = frame_chain(states)
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


def suspensions(program, action, stride=1, first=1):
    """Yields (number, result of the action) for the instructions of the program, in execution
    order."""
    number = first
    while (outcome := program.suspend(number, action)) is not None:
        yield number, outcome
        number += stride
