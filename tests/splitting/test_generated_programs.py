"""Generated programs, suspended at any instruction and resumed."""

import itertools
import textwrap

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.splitting.grammar import Grammar
from tests.splitting.programs import MANAGERS
from tests.splitting.suspension import Program, resume, step_and_resume, suspensions

EXPRESSIONS = (
    "{n}",
    "{i}",
    "effect({e})",
    "effect({e})",
    "({e} + {e})",
    "({e} and {e})",
    "(10 // {e} if {e} else 1)",
    "sum([{n} + {e} for {n} in range(2)])",
    "({n} := {e})",
    "helper({e}, k={e})",
)
STATEMENTS = (
    "{n} = {e}",
    "{n} += {e}",
    "effect({e})",
    "return {e}",
    "del {n}",
    "raise ValueError('own')",
    "if {e}:\n{b}\nelse:\n{b}",
    "for {n} in range(2):\n{b}\n    if {n}: continue\n    break",
    "try:\n{b}\nexcept (ValueError, ArithmeticError) as e:\n    effect(str(e))\n{b}\n"
    "finally:\n    effect('f')\n{b}",
    "try:\n{b}\nexcept NameError:\n    effect('unbound')\n    raise",
    "with Quiet('q') as q:\n{b}",
)


GRAMMAR = Grammar(EXPRESSIONS, STATEMENTS, ends=4)


@st.composite
def programs(draw):
    return (
        MANAGERS
        + f"""
def helper(x, *, k=0):
    a = b = c = x
    with Loud('h'):
        return effect(x) + k
def part(a, b):
    c = 2
    get = lambda: c
{textwrap.indent(GRAMMAR.block(draw, 3), "    ")}
    return a, b, get()
def main():
    try:
        return part(1, 0)
    finally:
        log.append('end')
"""
    )


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(programs(), st.none() | st.integers(0, 4), st.integers(0, 6))
def test_generated_program_resumes_at_any_instruction(text, fails, first):
    program = Program(text, fails)
    expected = program.run_natively()
    for action in (resume, step_and_resume):
        states = suspensions(program, action, stride=11, first=first + 1)
        for number, outcome in itertools.islice(states, 10):
            if outcome != "not a step":
                assert outcome == expected, f"suspended at instruction {number}"
