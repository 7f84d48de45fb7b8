"""A program cut at any of its instructions and run on from there behaves as if never cut."""

import traceback
from dataclasses import replace

import pytest

from magpy_like.bytecode.instruction_stream import instruction_list
from magpy_like.bytecode.live_locals import live_locals
from magpy_like.bytecode.operand_kinds import EntryKind, stack_kinds
from magpy_like.native import NULL
from magpy_like.splitting.resumption import run_chain
from magpy_like.splitting.single_instruction import Raised, execute_instruction
from tests.splitting.cutting import Program, chain_of, every_cut, observe, resume, step_and_resume
from tests.splitting.programs import MANAGERS, PROGRAMS, UNRESUMABLE, extended


def resume_with_live_locals(states, log):
    """Act: as `resume`, but with nothing in the slots that are not live."""
    chain = chain_of(states)
    if isinstance(chain, str):
        return chain
    chain = [replace(state, locals=only_live(state)) for state in chain]
    return observe(lambda: run_chain(chain), log)


def only_live(state):
    live = live_locals(state.code, state.offset)
    return tuple(value if slot in live else NULL for slot, value in enumerate(state.locals))


def check(program, act, reasons=(), stride=1):
    expected = program.natively()
    resumed = 0
    for at, outcome in every_cut(program, act, stride):
        if isinstance(outcome, str):
            assert outcome == "not a step" or any(r in outcome for r in reasons), (at, outcome)
        else:
            assert outcome == expected, f"cut at instruction {at}"
            resumed += 1
    return resumed


@pytest.mark.parametrize("act", [resume, step_and_resume, resume_with_live_locals])
@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_on_from_every_instruction(name, act):
    assert check(Program(PROGRAMS[name]), act, UNRESUMABLE.get(name, ()))


@pytest.mark.parametrize("act", [resume, step_and_resume])
@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_on_when_an_operation_fails(name, act):
    effects = len(Program(PROGRAMS[name]).natively().log)
    for fails in range(min(effects, 4)):
        check(Program(PROGRAMS[name], fails), act, UNRESUMABLE.get(name, ()), stride=5)


@pytest.mark.parametrize("act", [resume, step_and_resume, resume_with_live_locals])
def test_runs_on_in_functions_that_need_extended_arguments(act):
    assert check(Program(extended(), fails=0), act, stride=37)


def states_at(text, number, fails=None):
    """The chain at the call of `effect` number `number`, and the log; that run is given up."""
    return give_up_at(Program(text, fails), number)


def give_up_at(program, number):
    kept = []

    def keep(states, log):
        at = states[0].instruction
        if at.name == "CALL" and any("effect" in repr(v) for v in states[0].stack):
            kept.append((chain_of(states), log, list(log)))
        return "found" if len(kept) == number else None

    program.cut(None, keep)
    program.over = False
    if len(kept) < number:
        return None, []
    chain, log, done = kept[-1]
    log[:] = done
    return chain, log


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("again", [1, 9, 30])
def test_a_continuation_can_be_cut_again(name, again):
    expected = Program(PROGRAMS[name]).natively()
    # `_initialise` and its like stand between frames while they run.
    reasons = ("native code lies between", *UNRESUMABLE.get(name, ()))
    for number in range(1, 8, 2):
        program = Program(PROGRAMS[name])
        chain, log = give_up_at(program, number)
        if chain is None:
            break
        if isinstance(chain, str):
            assert any(r in chain for r in reasons)
            continue
        outcome = program.cut(again, resume, lambda: run_chain(chain), log)
        if isinstance(outcome, str):
            assert any(r in outcome for r in reasons)
        elif outcome is not None:
            assert outcome == expected, f"cut at effect {number}"


def test_a_generator_on_the_operand_stack_goes_on_where_it_was():
    chain, log = states_at(
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


def test_a_value_lives_no_longer_than_in_the_program():
    chain, log = states_at(
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


def test_an_exception_raised_at_a_call_reaches_the_handlers_around_it():
    chain, log = states_at(
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


def test_a_step_that_raises_keeps_the_traceback_below_the_frame():
    chain, _ = states_at("def main():\n    return effect(1)\n", 1, fails=0)
    raised = execute_instruction(chain[0])
    assert isinstance(raised, Raised)
    names = [entry.name for entry in traceback.extract_tb(raised.exception.__traceback__)]
    assert names == ["effect"]
    with pytest.raises(ValueError, match="failed at 1") as info:
        run_chain(chain, raised.exception)
    assert [entry.name for entry in info.traceback][-2:] == ["main", "effect"]


def test_says_why_a_generator_cannot_be_run_on():
    chain, _ = states_at("def main():\n    return sum(effect(x) for x in range(2))\n", 1)
    assert "generator" in chain


def test_says_which_instruction_has_native_code_below_it():
    chain, _ = states_at("def main():\n    return list(map(lambda x: effect(x), [1]))\n", 1)
    assert "CALL at <program>:2 in main" in chain
    assert "native code" in chain


def test_a_chain_is_refused_before_anything_ran():
    chain, log = states_at("def main():\n    effect(1)\n", 1)
    wrong = [replace(chain[0], stack=())]
    with pytest.raises(ValueError, match="operands"):
        run_chain(wrong)
    with pytest.raises(ValueError, match="innermost"):
        run_chain([chain[0], chain[0]])
    assert log == []


def test_states_of_continuations_are_told_in_terms_of_the_users_code():
    text = "def low(x):\n    return effect(x)\ndef main():\n    return [low(1), low(2)]\n"
    program = Program(text)
    first, log = give_up_at(program, 1)
    second, _ = states_at(text, 2)
    seen = []
    program.cut(
        None, lambda states, _: seen.append(chain_of(states)), lambda: run_chain(first), log
    )
    place = second[0].offset, second[0].locals
    [told] = [c for c in seen if (c[0].offset, c[0].locals) == place]
    assert [state.pending for state in told] == [state.pending for state in second]
    for now, native in zip(told, second, strict=True):
        assert (now.offset, now.locals) == (native.offset, native.locals)
        assert now.function.__name__ == native.function.__name__
        assert len(now.stack) == len(native.stack)


def test_places_of_exceptions_on_the_stack_are_told_in_terms_of_the_users_code():
    text = (
        MANAGERS
        + """
def main():
    with Loud("x"):
        raise KeyError(effect(1))
"""
    )
    program = Program(text)
    first, log = give_up_at(program, 2)
    second, _ = states_at(text, 3)
    assert EntryKind.LASTI in second[1].kinds
    places = []

    def look(states, _):
        if states[0].offset == second[0].offset and states[0].code.co_name == "__exit__":
            places.append(states[1].stack[states[1].kinds.index(EntryKind.LASTI)])

    program.cut(None, look, lambda: run_chain(first), log)
    assert places == [second[1].stack[second[1].kinds.index(EntryKind.LASTI)]]


def test_a_handler_is_known_up_to_the_end_of_its_clean_up():
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


def test_only_what_may_be_read_is_live():
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


def test_a_local_that_a_handler_reads_is_live_before_it_is_written():
    def f(a):
        try:
            a = int("1")
        except ValueError:
            return a

    call = next(at for at in instruction_list(f.__code__) if at.name == "CALL")
    assert live_locals(f.__code__, call.offset) == {0}
