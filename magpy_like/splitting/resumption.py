"""Running the rest of open frames: code objects that restore a frame's state and go on from there.

The code that resumes a frame is the frame's own code behind a short prefix. The body stays as it
is, byte for byte, with the same slots, constants, names and line numbers: jumps are relative, so
only the exception table has to be moved. The prefix takes the state out of one extra free variable,
fills slots and operand stack, and jumps to the instruction. An outer frame of a chain gets a prefix
that calls the next inner one from where its own instruction stood, so that the frames are open
inside each other again and an exception finds the handlers, `with` blocks and `finally` clauses
that it would have found.
"""

from __future__ import annotations

import dis
import functools
import inspect
import opcode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import CellType, CodeType, FunctionType
from typing import Any

from magpy_like.bytecode.exception_table import (
    Handler,
    encode_exception_table,
    exception_table,
    handler_of,
)
from magpy_like.bytecode.instruction_stream import (
    Instruction,
    entry_offset,
    instruction_list,
    instructions,
    stack_effect,
)
from magpy_like.bytecode.live_locals import slot_count
from magpy_like.bytecode.operand_kinds import EntryKind, stack_kinds
from magpy_like.native import NULL, call_as_caller
from magpy_like.native.instance_checks import is_instance
from magpy_like.splitting.frame_state import (
    FrameState,
    Origin,
    ResultUse,
    is_resumable,
    move_places,
    origins,
    pushed,
    pushes_two,
    with_current_exceptions,
)
from magpy_like.splitting.pending_instructions import get_attribute

_CACHES: Sequence[int] = opcode._inline_cache_entries  # type: ignore[attr-defined]
_STATE = ".state"  # the extra free variable; no program can have one of this name
_IF_FALSE = next(n for n in ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE") if n in dis.opmap)


@dataclass(frozen=True, slots=True)
class Raised:
    """The instruction raised this."""

    exception: BaseException


def run_chain(states: Sequence[FrameState], raised: BaseException | None = None) -> Any:
    """Run all open frames to their end; innermost first, the outer ones waiting (`suspend`).

    The innermost continues with the instruction at its offset, or with `raised` as if that
    instruction had raised it. Returns what the outermost frame returns, raises what it raises.
    The states are let go as the frames take them over, if nobody else holds them: pass a list
    and it is emptied, so that a tensor lives no longer than in the program.

    Raises ValueError, before anything ran, for a state that `is_resumable` or `suspend` refuses.
    """
    for position, state in enumerate(states):
        if (state.pending is None) != (position == 0):
            raise ValueError(f"{state.where}: only the innermost frame does not wait for another")
    run = resumption(states[0]) if raised is None else raising(states[0], raised)
    for state in states[1:]:
        run = _waiting(state, run)
    if is_instance(states, list):
        states.clear()
        del state
    return call_as_caller(run, ())


def resumption(state: FrameState) -> FunctionType:
    """A function without arguments, to be called once: the rest of the frame, from `state` on."""
    return _function(state, _Ending("resume"), ())


def raising(state: FrameState, exception: BaseException) -> FunctionType:
    """The same, as if the instruction at which the frame is had raised `exception`."""
    return _function(state, _Ending("raise"), (exception,))


def started_generator(state: FrameState) -> FunctionType:
    """A generator function for a frame at a YIELD_VALUE: having yielded once, before anything else,
    its generator goes on as the frame would. The top operand is what it yields first."""
    return _function(state, _Ending("yield"), ())


def _waiting(state: FrameState, callee: Callable[[], Any]) -> FunctionType:
    """The rest of a frame that waits for what `callee` gives."""
    pending = state.pending
    assert pending is not None
    complete = pending.complete
    if is_instance(complete, functools.partial) and complete.func is get_attribute:
        callee, complete = functools.partial(complete, callee), None
    if complete is None:
        return _function(state, _Ending("wait", pending.result_use), (NULL, callee))
    extra = (NULL, complete, NULL, callee)
    return _function(state, _Ending("wait", pending.result_use, completes=True), extra)


def execute_instruction(state: FrameState) -> FrameState | Raised:
    """Execute the one instruction at which the innermost frame is, natively.

    Gives the state after it, or what it raised. The instruction sees the frame's locals, but a
    frame of its own.

    Raises ValueError for an instruction that is not an operation on its operands.
    """
    at, stack = state.instruction, state.stack
    if at.name in CONDITIONAL_JUMPS:
        outcome = _attempt(state.handled_exception, lambda: bool(stack[-1]))
        if is_instance(outcome, Raised):
            return outcome
        assert at.target is not None
        jumps = outcome is ("IF_TRUE" in at.name)
        rest = stack if jumps and at.name.endswith("_OR_POP") else stack[:-1]
        return replace(state, offset=at.target if jumps else at.end, stack=rest)
    if at.name == "FOR_ITER":
        outcome = _attempt(state.handled_exception, lambda: next(stack[-1], NULL))
        if is_instance(outcome, Raised):
            return outcome
        if outcome is NULL:
            return replace(state, offset=at.exhaustion_target, stack=stack[:-1])
        return pushed(state, outcome)
    if at.name == "LOAD_METHOD" or (at.name == "LOAD_ATTR" and pushes_two(at)):
        # A method is pushed as two entries, one of which may be an empty slot; a bound one will do.
        name = state.code.co_names[at.arg if at.name == "LOAD_METHOD" else at.arg >> 1]
        outcome = _attempt(state.handled_exception, lambda: getattr(stack[-1], name))
        return outcome if is_instance(outcome, Raised) else pushed(state, outcome)
    if at.name not in EXECUTABLE_INSTRUCTIONS:
        raise ValueError(f"{state.where}: {at.name} is not an operation on its operands")
    outcome = _attempt(state.handled_exception, _function(state, _Ending("step"), ()))
    if is_instance(outcome, Raised):
        return outcome
    return replace(state, offset=at.end, stack=outcome)


def instruction_code(state: FrameState) -> CodeType:
    """The code that executes the instruction at which a frame is. It takes the bound local
    variables, then the operand stack, top first, out of one more free variable."""
    return _function(state, _Ending("step"), ()).__code__


CONDITIONAL_JUMPS = frozenset(
    name for name in dis.opmap if "JUMP" in name and ("_IF_TRUE" in name or "_IF_FALSE" in name)
)
# Instructions that only take operands and push results; BUILD_, MATCH_ and UNARY_ ones are too.
_ON_OPERANDS = """
    CALL CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2
    BINARY_OP COMPARE_OP CONTAINS_OP IS_OP GET_ITER GET_LEN
    BINARY_SUBSCR STORE_SUBSCR DELETE_SUBSCR BINARY_SLICE STORE_SLICE
    LOAD_ATTR STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_GLOBAL
    LIST_APPEND LIST_EXTEND LIST_TO_TUPLE SET_ADD SET_UPDATE MAP_ADD DICT_UPDATE DICT_MERGE
    UNPACK_SEQUENCE UNPACK_EX FORMAT_VALUE IMPORT_NAME IMPORT_FROM
    BEFORE_WITH WITH_EXCEPT_START CHECK_EXC_MATCH RAISE_VARARGS
"""
OPERAND_INSTRUCTIONS = frozenset(
    name
    for name in dis.opmap
    if name in _ON_OPERANDS.split() or name.startswith(("BUILD_", "MATCH_", "UNARY_"))
)

EXECUTABLE_INSTRUCTIONS = OPERAND_INSTRUCTIONS | CONDITIONAL_JUMPS | {"FOR_ITER", "LOAD_METHOD"}
"""The instructions that :func:`execute_instruction` can execute."""


def _attempt(handled_exception: BaseException | None, operation: Callable[[], Any]) -> Any:
    """What the Python function gives while `handled_exception` is being handled, or Raised."""
    try:
        if handled_exception is None:
            return call_as_caller(operation, ())
        traceback, context = handled_exception.__traceback__, handled_exception.__context__
        try:
            raise handled_exception
        except BaseException:
            handled_exception.__traceback__, handled_exception.__context__ = traceback, context
            return call_as_caller(operation, ())
    except BaseException as exception:
        # Without this function and the operation's own: the frame will be entered again.
        here = exception.__traceback__
        beyond = here and here.tb_next and here.tb_next.tb_next
        return Raised(exception.with_traceback(beyond))


# From a state to a function.


@dataclass(frozen=True, slots=True)
class _Ending:
    """What follows once the frame is restored."""

    name: str
    result_use: ResultUse | None = None
    completes: bool = False


@dataclass(frozen=True, slots=True)
class _Shape:
    """All that the code which resumes a frame depends on, but not the values."""

    offset: int
    depth: int  # of the frame's own operand stack
    size: int  # of the same with what the ending needs
    bound: tuple[int, ...]  # slots that are given a value
    unbound: tuple[int, ...]  # argument slots that must not have one
    empty: tuple[int, ...]  # places of the operand stack
    ending: _Ending


def _function(state: FrameState, ending: _Ending, extra: tuple[Any, ...]) -> FunctionType:
    if reason := is_resumable(state, generator=bool(state.code.co_flags & inspect.CO_GENERATOR)):
        raise ValueError(f"{state.where}: {reason}")
    code = state.code
    own = slot_count(code) - len(code.co_freevars)  # the function brings its free variables
    alone = ending.name == "step"
    size = len(state.stack) + len(extra)
    bound = tuple(slot for slot in range(own) if state.locals[slot] is not NULL)
    shape = _Shape(
        state.instruction.offset,
        len(state.stack),
        size,
        bound,
        tuple(slot for slot in range(_argument_count(code)) if slot not in bound),
        tuple(
            place
            for place, entry in enumerate(state.stack + extra)
            if entry is NULL and (not alone or place == _empty_operand(state))
        ),
        ending,
    )
    resumed = _resuming_code(code, shape)
    stack = state.stack
    if not alone:
        # Entering the handlers again, bottom first, brings back what was handled before.
        stack = with_current_exceptions(
            replace(state, stack=move_places(state, origins[id(resumed)].shift))
        )
    values = (*(state.locals[slot] for slot in bound), *reversed(stack + extra))
    function = state.function
    out = FunctionType(
        resumed,
        function.__globals__,
        function.__name__,
        (None,) * code.co_argcount,
        (*(function.__closure__ or ()), CellType(values)),
    )
    out.__kwdefaults__ = dict.fromkeys(
        code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    )
    out.__wrapped__ = function  # type: ignore[attr-defined]
    return out


def _argument_count(code: CodeType) -> int:
    variadic = bool(code.co_flags & inspect.CO_VARARGS) + bool(
        code.co_flags & inspect.CO_VARKEYWORDS
    )
    return code.co_argcount + code.co_kwonlyargcount + variadic


def _empty_operand(state: FrameState) -> int:
    """Where the stack has the empty slot that belongs to a call."""
    at = state.instruction
    operands = at.arg + 2 if at.name == "CALL" else 3 + (at.arg & 1)
    return len(state.stack) - operands if at.name in ("CALL", "CALL_FUNCTION_EX") else -1


# From a shape to code.

_known: dict[tuple[int, _Shape], CodeType] = {}


def _resuming_code(code: CodeType, shape: _Shape) -> CodeType:
    key = id(code), shape
    if key not in _known:
        _known[key] = _assemble(code, shape)
    return _known[key]


@dataclass(slots=True)
class _Prefix:
    """Instructions in front of the body, and the exception table rows for them."""

    raw: bytes = b""
    rows: list[Handler] = field(default_factory=list)

    def add(self, name: str, arg: int = 0) -> None:
        self.raw += _encode(name, arg)

    def cover(self, start: int, target: int, depth: int) -> None:
        """Exceptions from `start` up to here go to `target`, which lies in the prefix."""
        self.rows.append(Handler(start, len(self.raw), target, depth, False))


def _encode(name: str, arg: int = 0) -> bytes:
    prefixes = b"".join(
        bytes((dis.EXTENDED_ARG, arg >> shift & 255)) for shift in (24, 16, 8) if arg >> shift
    )
    number = dis.opmap[name]
    return prefixes + bytes((number, arg & 255)) + bytes(2 * _CACHES[number])


def _encode_call(arguments: int) -> bytes:
    before = _encode("PRECALL", arguments) if "PRECALL" in dis.opmap else b""
    return before + _encode("CALL", arguments)


_SPACER = _encode("NOP")  # between prefix and body; never executed


def _assemble(code: CodeType, shape: _Shape) -> CodeType:
    at = instructions(code)[shape.offset]
    prefix = _Prefix()
    _restore(prefix, code, shape)
    begin = len(prefix.raw)
    _ENDINGS[shape.ending.name](prefix, code, shape, at)
    prefix.raw += _SPACER
    shift = len(prefix.raw)

    rows = prefix.rows
    if (covered := handler_of(code, at)) and shape.ending.name in ("raise", "wait", "yield"):
        rows += _rest(begin, shift, rows, covered, shift)
    rows = sorted(rows, key=lambda row: row.start) + [
        Handler(row.start + shift, row.end + shift, row.target + shift, row.depth, row.lasti)
        for row in exception_table(code)
    ]
    position = list(code.co_positions())[at.at // 2]
    resumed = code.replace(
        co_code=prefix.raw + _body(code),
        co_consts=(*code.co_consts, StopIteration),
        co_freevars=(*code.co_freevars, _STATE),
        co_stacksize=max(code.co_stacksize, len(shape.bound) + shape.size) + 4,
        co_exceptiontable=encode_exception_table(rows),
        co_linetable=_locations(shift // 2, position, code.co_firstlineno) + code.co_linetable,
    )
    origins[id(resumed)] = Origin(code, shape.offset, shape.depth, shift, shape.ending.result_use)
    return resumed


def _rest(
    begin: int, end: int, taken: list[Handler], covered: Handler, shift: int
) -> list[Handler]:
    """Rows to the body's handler for what of the prefix has none of its own."""
    out = []
    for row in [*taken, Handler(end, end, 0, 0, False)]:
        if begin < row.start:
            target = covered.target + shift
            out.append(Handler(begin, row.start, target, covered.depth, covered.lasti))
        begin = row.end
    return out


def _body(code: CodeType) -> bytes:
    """The code itself; the prefix has set up all free variables, one more than it knows of."""
    raw = bytearray(code.co_code)
    for at in instructions(code).values():
        if at.name == "COPY_FREE_VARS":
            raw[at.offset : at.end] = _SPACER * ((at.end - at.offset) // 2)
    return bytes(raw)


def _restore(prefix: _Prefix, code: CodeType, shape: _Shape) -> None:
    """Fill slots and operand stack from the tuple in the extra free variable, and forget that."""
    state = slot_count(code)
    # Not executed, but whoever asks for the frame's locals looks for a MAKE_CELL before the place
    # that the frame has reached; and before RESUME, where tracing does not rewrite it (3.12).
    makes = b"".join(_encode("MAKE_CELL", slot) for slot in _cell_slots(code))
    prefix.add("JUMP_FORWARD", len(makes) // 2)
    prefix.raw += makes
    prefix.add("COPY_FREE_VARS", len(code.co_freevars) + 1)
    if code.co_flags & inspect.CO_GENERATOR:
        prefix.add("RETURN_GENERATOR")
        prefix.add("POP_TOP")
    prefix.add("RESUME")
    prefix.add("LOAD_DEREF", state)
    prefix.add("DELETE_DEREF", state)
    prefix.add("UNPACK_SEQUENCE", len(shape.bound) + shape.size)
    # A slot of a cell is given the cell itself: the body's MAKE_CELL has run long ago.
    for slot in shape.bound:
        prefix.add("STORE_FAST", slot)
    for slot in shape.unbound:
        prefix.add("DELETE_FAST", slot)
    for place in shape.empty:
        prefix.add("PUSH_NULL")
        prefix.add("SWAP", shape.size - place + 1)
        prefix.add("POP_TOP")
    if shape.ending.name == "step":
        return
    for place, kind in enumerate(stack_kinds(code)[shape.offset][: shape.depth]):
        if kind is EntryKind.PREVIOUS_EXCEPTION:
            prefix.add("COPY", shape.size - place)
            prefix.add("PUSH_EXC_INFO")
            prefix.add("POP_TOP")
            prefix.add("SWAP", shape.size - place + 1)
            prefix.add("POP_TOP")


def _cell_slots(code: CodeType) -> list[int]:
    return [at.arg for at in instruction_list(code) if at.name == "MAKE_CELL"]


def _end_resume(prefix: _Prefix, code: CodeType, shape: _Shape, at: Instruction) -> None:
    prefix.raw += _jump(entry_offset(code, at.offset))


def _jump(target: int, between: int = 0) -> bytes:
    """A jump into the body over `between` bytes of the prefix and the spacer."""
    return _encode("JUMP_FORWARD", (between + len(_SPACER) + target) // 2)


# [what was handled before, the exception]: back to before the handler, with the exception.
_RAISE_ON = _encode("SWAP", 2) + _encode("POP_EXCEPT") + _encode("RERAISE")


def _end_raise(prefix: _Prefix, code: CodeType, shape: _Shape, at: Instruction) -> None:
    # Raising sets __context__ to what is being handled, unless that is the exception itself: so
    # let that be so for the moment. RERAISE neither does that nor extends the traceback.
    prefix.add("PUSH_EXC_INFO")
    start = len(prefix.raw)
    prefix.add("RAISE_VARARGS", 1)
    prefix.cover(start, len(prefix.raw), shape.depth + 1)
    prefix.raw += _RAISE_ON


def _end_wait(prefix: _Prefix, code: CodeType, shape: _Shape, at: Instruction) -> None:
    start = len(prefix.raw)
    prefix.raw += _encode_call(0)
    called = len(prefix.raw)
    if shape.ending.completes:
        prefix.raw += _encode_call(1)
    match shape.ending.result_use:
        case ResultUse.DROP:
            prefix.add("POP_TOP")
        case ResultUse.PUSH_UNBOUND:
            prefix.add("PUSH_NULL")
            prefix.add("SWAP", 2)
        case ResultUse.TEST:
            prefix.raw += _jump(at.offset)
            return
        case ResultUse.TEST_AND_KEEP:
            # [operand, bool]: the operand stays where the jump is taken
            leave = _encode("POP_TOP") + _jump(at.end)
            assert at.target is not None
            if "IF_TRUE" in at.name:
                taken = _jump(at.target, between=len(leave))
                prefix.add(_IF_FALSE, len(taken) // 2)
                prefix.raw += taken + leave
            else:
                taken = _jump(at.target)
                leave = _encode("POP_TOP") + _jump(at.end, between=len(taken))
                prefix.add(_IF_FALSE, len(leave) // 2)
                prefix.raw += leave + taken
            return
        case ResultUse.ITERATE:
            exhaustion_target = _jump(at.exhaustion_target, between=len(_RAISE_ON))
            leave = (
                _encode("POP_TOP") + _encode("POP_EXCEPT") + _encode("POP_TOP") + exhaustion_target
            )
            handler = (
                _encode("PUSH_EXC_INFO")
                + _encode("LOAD_CONST", len(code.co_consts))  # StopIteration
                + _encode("CHECK_EXC_MATCH")
                + _encode(_IF_FALSE, len(leave) // 2)
                + leave
                + _RAISE_ON
            )
            after = _jump(at.end, between=len(handler))
            prefix.rows.append(Handler(start, called, len(prefix.raw + after), shape.depth, False))
            prefix.raw += after + handler
            return
        case _:
            pass
    prefix.raw += _jump(at.end)


def _end_yield(prefix: _Prefix, code: CodeType, shape: _Shape, at: Instruction) -> None:
    prefix.raw += code.co_code[at.offset : at.end]
    prefix.raw += _jump(at.end)


def _end_step(prefix: _Prefix, code: CodeType, shape: _Shape, at: Instruction) -> None:
    prefix.raw += code.co_code[entry_offset(code, at.offset) : at.end]
    prefix.add("BUILD_TUPLE", shape.depth + stack_effect(at))
    prefix.add("RETURN_VALUE")


_ENDINGS = {
    "resume": _end_resume,
    "raise": _end_raise,
    "wait": _end_wait,
    "yield": _end_yield,
    "step": _end_step,
}

_Position = tuple[int | None, int | None, int | None, int | None]


def _locations(units: int, position: _Position, first_line: int) -> bytes:
    """Line table rows that put `units` instructions at one place of the source.

    CPython, Objects/locations.md: lines are told as differences from one row to the next, starting
    from the function's first line, so the last unit, the spacer, takes the difference back.
    """
    line, end_line, column, end_column = position
    rows = bytearray()
    if line is None:
        for done in range(0, units, 8):
            rows.append(_row(15, min(8, units - done)))
        return bytes(rows)
    difference = line - first_line
    for done in range(0, units - 1, 8):
        count = min(8, units - 1 - done)
        if column is None or end_column is None or end_line is None:
            rows.append(_row(13, count))
            rows += _signed(difference)
        else:
            rows.append(_row(14, count))
            rows += _signed(difference)
            rows += _number(end_line - line) + _number(column + 1) + _number(end_column + 1)
        difference = 0
    rows.append(_row(13, 1))
    rows += _signed(first_line - line)
    return bytes(rows)


def _row(form: int, units: int) -> int:
    return 128 | form << 3 | units - 1


def _signed(value: int) -> bytes:
    return _number(-value << 1 | 1 if value < 0 else value << 1)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 63:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)
    return bytes(out)
