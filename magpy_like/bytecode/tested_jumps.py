"""The jumps by which truth tests decide.

Up to Python 3.12, a conditional jump itself tests the truth of its operand. From 3.13 on, the
instruction before it does: TO_BOOL, or the comparison whose result is tested.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType

from magpy_like.bytecode.instruction_stream import Instruction, instructions

CONDITIONAL_JUMPS = frozenset(
    name for name in dis.opmap if "JUMP" in name and ("_IF_TRUE" in name or "_IF_FALSE" in name)
)
"""The instructions that jump on the truth of their operand."""
TESTS = frozenset(("TO_BOOL",)) & dis.opmap.keys() or CONDITIONAL_JUMPS
"""The instructions that test the truth of their operand in order to jump."""
_RESULT_IS_TESTED = 16 if sys.version_info >= (3, 13) else 0
"""The flag in the argument of COMPARE_OP by which it converts its result to a ``bool``."""
_SHIFT = {11: 0, 12: 4}.get(sys.version_info.minor, 5)


def comparison(arg: int) -> str:
    """The symbol of the comparison that COMPARE_OP makes."""
    return dis.cmp_op[arg >> _SHIFT]


def tests_result(name: str, arg: int) -> bool:
    """True for a comparison that converts its result to a ``bool``."""
    return name == "COMPARE_OP" and bool(arg & _RESULT_IS_TESTED)


def tested_jump(code: CodeType, offset: int) -> Instruction | None:
    """The conditional jump by which the test at ``offset`` decides; None for any other instruction,
    and for a test whose result is used as a value."""
    table = instructions(code)
    at = table[offset]
    if at.name == "TO_BOOL" or tests_result(at.name, at.arg):
        at = table[at.end]
    return at if at.name in CONDITIONAL_JUMPS else None
