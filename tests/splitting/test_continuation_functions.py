"""A program suspended at any of its instructions and resumed behaves as if never suspended."""

import traceback
from dataclasses import replace

import pytest

from magpy_like.bytecode.instruction_stream import instruction_list
from magpy_like.bytecode.live_locals import live_locals
from magpy_like.bytecode.stack_entry_kinds import EntryKind, stack_kinds
from magpy_like.native import NULL
from magpy_like.splitting.continuation_functions import run_chain
from magpy_like.splitting.native_instruction import Raised, execute_instruction
from tests.splitting.programs import MANAGERS, PROGRAMS, UNRESUMABLE, extended
from tests.splitting.suspension import (
    Program,
    frame_chain,
    observe,
    resume,
    step_and_resume,
    suspensions,
)


def resume_with_live_locals(states, log):
    """Action: as ``resume``, but with empty slots for locals that are not live."""
    chain = frame_chain(states)
    if isinstance(chain, str):
        return chain
    chain = [replace(state, locals=only_live(state)) for state in chain]
    return observe(lambda: run_chain(chain), log)


def only_live(state):
    live = live_locals(state.code, state.offset)
    return tuple(value if slot in live else NULL for slot, value in enumerate(state.locals))


def check(program, action, reasons=(), stride=1):
    expected = program.run_natively()
    resumed = 0
    for number, outcome in suspensions(program, action, stride):
        if isinstance(outcome, str):
            assert outcome == "not a step" or any(r in outcome for r in reasons), (number, outcome)
        else:
            assert outcome == expected, f"suspended at instruction {number}"
            resumed += 1
    return resumed


@pytest.mark.parametrize("action", [resume, step_and_resume, resume_with_live_locals])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_resumes_at_every_instruction(name, action):
    assert check(Program(PROGRAMS[name]), action, UNRESUMABLE.get(name, ()))


@pytest.mark.parametrize("action", [resume, step_and_resume])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_resumes_when_an_operation_raises(name, action):
    effects = len(Program(PROGRAMS[name]).run_natively().log)
    for fails in range(min(effects, 4)):
        check(Program(PROGRAMS[name], fails), action, UNRESUMABLE.get(name, ()), stride=5)


@pytest.mark.parametrize("action", [resume, step_and_resume, resume_with_live_locals])
def test_functions_with_extended_arguments_resume(action):
    assert check(Program(extended(), fails=0), action, stride=37)


def chain_at(text, number, fails=None):
    """The frame chain at call ``number`` of ``effect``, and the log; that run is abandoned."""
    return abandon_at(Program(text, fails), number)


def abandon_at(program, number):
    kept = []

    def keep(states, log):
        at = states[0].instruction
        if at.name == "CALL" and any("effect" in repr(v) for v in states[0].stack):
            kept.append((frame_chain(states), log, list(log)))
        return "found" if len(kept) == number else None

    program.suspend(None, keep)
    program.ended = False
    if len(kept) < number:
        return None, []
    chain, log, done = kept[-1]
    log[:] = done
    return chain, log


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("instruction", [1, 9, 30])
def test_continuation_can_be_suspended_again(name, instruction):
    expected = Program(PROGRAMS[name]).run_natively()
    # Frames of the package, such as that of ``_initialise``, stand between these while they run.
    reasons = ("native code lies between", *UNRESUMABLE.get(name, ()))
    for number in range(1, 8, 2):
        program = Program(PROGRAMS[name])
        chain, log = abandon_at(program, number)
        if chain is None:
            break
        if isinstance(chain, str):
            assert any(r in chain for r in reasons)
            continue
        outcome = program.suspend(instruction, resume, lambda: run_chain(chain), log)
        if isinstance(outcome, str):
            assert any(r in outcome for r in reasons)
        elif outcome is not None:
            assert outcome == expected, f"suspended at effect {number}"


def test_generator_on_the_operand_stack_continues():
    chain, log = chain_at(
        """
def numbers():
    for i in range(4):
        yield i
def main():
    return [effect(x) for x in numbers()]
""",
        3,
    )
    assert run_chain(chain) == [0, 1, 2, 3]
    assert log == ["0 NoneType", "1 NoneType", "2 NoneType", "3 NoneType"]


def test_value_lives_no_longer_than_in_the_program():
    chain, log = chain_at(
        """
import weakref
class Big: pass
def use(big):
    seen = weakref.ref(big)
    effect("here")
    del big
    return seen
def main():
    big = Big()
    seen = use(big)
    before = seen() is big
    del big
    return before, seen()
""",
        1,
    )
    assert run_chain(chain) == (True, None)


def test_exception_raised_at_a_call_reaches_its_handlers():
    chain, log = chain_at(
        """
def low():
    try:
        effect("low")
    except KeyError:
        return "wrong"
    finally:
        log.append("finally")
def main():
    try:
        low()
    except OSError as e:
        return str(e), e.__context__
""",
        1,
    )
    assert run_chain(chain, OSError("disk")) == ("disk", None)
    assert log == ["finally"]


def test_single_instruction_that_raises_keeps_the_inner_traceback():
    chain, _ = chain_at("def main():\n    return effect(1)\n", 1, fails=0)
    raised = execute_instruction(chain[0])
    assert isinstance(raised, Raised)
    names = [entry.name for entry in traceback.extract_tb(raised.exception.__traceback__)]
    assert names == ["effect"]
    with pytest.raises(ValueError, match="failed at 1") as info:
        run_chain(chain, raised.exception)
    assert [entry.name for entry in info.traceback][-2:] == ["main", "effect"]


def test_generator_frame_is_refused_with_a_reason():
    chain, _ = chain_at("def main():\n    return sum(effect(x) for x in range(2))\n", 1)
    assert "generator" in chain


def test_instruction_with_native_code_below_it_is_reported():
    chain, _ = chain_at("def main():\n    return list(map(lambda x: effect(x), [1]))\n", 1)
    assert "CALL at <program>:2 in main" in chain
    assert "native code" in chain


def test_invalid_chain_is_refused_before_it_runs():
    chain, log = chain_at("def main():\n    effect(1)\n", 1)
    wrong = [replace(chain[0], stack=())]
    with pytest.raises(ValueError, match="operands"):
        run_chain(wrong)
    with pytest.raises(ValueError, match="innermost"):
        run_chain([chain[0], chain[0]])
    assert log == []


def test_frame_states_of_continuations_refer_to_the_users_code():
    text = "def low(x):\n    return effect(x)\ndef main():\n    return [low(1), low(2)]\n"
    program = Program(text)
    first, log = abandon_at(program, 1)
    second, _ = chain_at(text, 2)
    seen = []
    program.suspend(
        None, lambda states, _: seen.append(frame_chain(states)), lambda: run_chain(first), log
    )
    location = second[0].offset, second[0].locals
    [again] = [c for c in seen if (c[0].offset, c[0].locals) == location]
    assert [state.pending for state in again] == [state.pending for state in second]
    for now, native in zip(again, second, strict=True):
        assert (now.offset, now.locals) == (native.offset, native.locals)
        assert now.function.__name__ == native.function.__name__
        assert len(now.stack) == len(native.stack)


def test_offsets_on_the_operand_stack_refer_to_the_users_code():
    text = (
        MANAGERS
        + """
def main():
    with Loud("x"):
        raise KeyError(effect(1))
"""
    )
    program = Program(text)
    first, log = abandon_at(program, 2)
    second, _ = chain_at(text, 3)
    assert EntryKind.LASTI in second[1].kinds
    offsets = []

    def inspect(states, _):
        if states[0].offset == second[0].offset and states[0].code.co_name == "__exit__":
            offsets.append(states[1].stack[states[1].kinds.index(EntryKind.LASTI)])

    program.suspend(None, inspect, lambda: run_chain(first), log)
    assert offsets == [second[1].stack[second[1].kinds.index(EntryKind.LASTI)]]


def test_handler_extends_to_the_end_of_its_cleanup():
    def f(a):
        try:
            a()
        except KeyError:
            return 1

    kinds = stack_kinds(f.__code__)
    ends = [
        at for at in instruction_list(f.__code__) if at.name == "POP_EXCEPT" and at.offset in kinds
    ]
    assert len(ends) == 2
    assert all(EntryKind.PREVIOUS_EXCEPTION in kinds[at.offset] for at in ends)


def test_only_locals_that_may_be_read_are_live():
    def f(a, b, c):
        d = a + 1
        while d:
            d -= b
        return lambda: c

    code = f.__code__
    names = (*code.co_varnames, *(n for n in code.co_cellvars if n not in code.co_varnames))
    live = {
        at.name + str(at.arg): {names[i] for i in live_locals(code, at.offset)}
        for at in instruction_list(code)
        if at.name.startswith(("BINARY_OP", "MAKE_FUNCTION"))
    }
    assert live["BINARY_OP0"] == {"b", "c"}
    assert live["BINARY_OP23"] == {"b", "c"}
    assert [v for k, v in live.items() if k.startswith("MAKE_FUNCTION")] == [set()]


def test_local_read_by_a_handler_is_live_before_its_assignment():
    def f(a):
        try:
            a = int("1")
        except ValueError:
            return a

    call = next(at for at in instruction_list(f.__code__) if at.name == "CALL")
    assert live_locals(f.__code__, call.offset) == {0}
