"""A whole program from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.arguments import PLAIN, draw_argument
from tests.fuzz.expressions import EXPRESSIONS, LEAVES
from tests.fuzz.fragments import Block, Expansion, Fragment, Production, Scope
from tests.fuzz.prelude import CLASSES, IMPORTS, MAKERS, STATE
from tests.fuzz.statements import CHANGES, PARAMETERS, SIGNATURES, STATEMENTS, WRITES

MODULES = """
net = make_net(1)
other_net = make_net(2)
scaled = make_net(3, Scaled)
leaves_of_modules = len(leaves)
"""
NAMES = {
    "vec": "v", "mat": "m", "row": "r", "sq": "w", "sc": "c", "num": "n", "flt": "f", "flag": "b",
}  # fmt: skip
RESULTS = (
    "vec",
    "vec",
    "mat",
    "sc",
    "num",
    "tl",
    "td",
    "tup",
    "node",
    "nest",
    "item",
    "pair",
    "nl",
)


@dataclass
class Function:
    """A function of the program's own: ``def name(parameters)``, a block, ``return result``."""

    name: str
    parameters: str
    body: Block
    result: Fragment

    def text(self) -> str:
        body = (self.body.text() + f"\nreturn {self.result.text()}").replace("\n", "\n    ")
        return f"def {self.name}({self.parameters}):\n    global counter\n    {body}\n"


@dataclass
class Call:
    """The arguments of a call as assignments, a change of state before it, and a write between it
    and its backward pass."""

    arguments: dict[str, str]
    passed: str
    change: str = "pass"
    write: str = "pass"

    def text(self, number: int) -> str:
        lines = [f"{name} = {value}" for name, value in self.arguments.items()]
        lines.append(f"return {self.passed}")
        return f"def call_{number}():\n    " + "\n    ".join(lines) + "\n"


@dataclass
class Program:
    """A generated program; ``text`` is a module with ``program``, ``call_0``, ``call_1`` ..."""

    seed: int
    dtype: str
    backward: str
    """"none", "first" or "second": the order of the gradients that are compared."""
    functions: list[Function] = field(default_factory=list)
    main: Function | None = None
    calls: list[Call] = field(default_factory=list)

    def text(self) -> str:
        assert self.main is not None
        functions = "\n".join(f.text() for f in self.functions)
        calls = "\n".join(call.text(k) for k, call in enumerate(self.calls))
        changes = [call.change for call in self.calls]
        writes = [call.write for call in self.calls]
        return (
            f"{IMPORTS.format(dtype=self.dtype)}{STATE}{CLASSES}{MAKERS}{MODULES}\n{functions}\n"
            f"{self.main.text()}\n{calls}\nCHANGES = {changes!r}\nWRITES = {writes!r}\n"
            f"BACKWARD = {self.backward!r}\n"
        )


def generate(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    dtype = rng.choices(("float32", "float64", "bfloat16"), (8, 2, 0.7))[0]
    backward = rng.choices(("none", "first", "second"), (5, 4, 0.7))[0]
    program = Program(seed, dtype, backward)
    expressions = {kind: _emphasised(rng, table) for kind, table in EXPRESSIONS.items()}
    expansion = Expansion(rng, expressions, LEAVES, _emphasised(rng, STATEMENTS), NAMES)
    for k in range(rng.choice((0, 1, 1, 2))):
        parameters, calls = rng.choice(list(SIGNATURES.items()))
        scope = Scope(PARAMETERS[parameters])
        body = expansion.block(scope, rng.randint(1, 4), 1)
        result = expansion.expression("vec", scope, 2)
        program.functions.append(Function(f"helper{k}", parameters, body, result))
        expansion.functions.setdefault("vec", []).extend(f"helper{k}{call}" for call in calls)
    kinds = _parameter_kinds(rng)
    defaults = dict(list(kinds.items())[rng.randint(1, len(kinds)) :])
    defaults = {
        name: kind for name, kind in defaults.items() if kind in ("num", "flag", "flt", "nl")
    }
    extra = rng.choice(("", "", "*rest", "*, key=1", "**options"))
    scope = Scope(kinds)
    scope.kinds.update({"*, key=1": {"key": "num"}, "**options": {"options": "nd"}}.get(extra, {}))
    body = expansion.block(scope, rng.randint(4, 14), 2)
    program.main = Function(
        "program", _signature(kinds, defaults, extra), body, _result(rng, expansion, scope)
    )
    for _ in range(rng.randint(3, 6)):
        program.calls.append(_draw_call(rng, program, kinds, defaults, extra))
    return program


def _emphasised(rng: random.Random, table: Sequence[Production]) -> list[Production]:
    """The productions with other weights in each program: what a few programs do often finds more
    than what all do seldom."""
    return [(weight * rng.choice((0.1, 0.5, 1, 4)), template) for weight, template in table]


def _parameter_kinds(rng: random.Random) -> dict[str, str]:
    kinds = {"x": "vec"}
    for name in "yzabc"[: rng.randint(1, 5)]:
        pool = [*PLAIN, "vec", "vec", "mat", "mat", "num", "num", "nl", "node", "net"]
        kinds[name] = rng.choice(pool)
    return kinds


def _signature(kinds: dict[str, str], defaults: dict[str, str], extra: str) -> str:
    values = {"num": "2", "flag": "True", "flt": "0.5", "nl": "[1]"}
    plain = [name for name in kinds if name not in defaults]
    parts = plain + [f"{name}={values[kind]}" for name, kind in defaults.items()]
    return ", ".join([*parts, extra] if extra else parts)


def _result(rng: random.Random, expansion: Expansion, scope: Scope) -> Fragment:
    count = rng.choice((1, 1, 2, 3))
    parts: list[str | Fragment | Block] = []
    for k in range(count):
        kind = rng.choice((*RESULTS, *scope.kinds.values()))
        parts += [", "] if k else []
        parts.append(expansion.expression(kind, scope, 1))
    return Fragment("", ["(", *parts, ",)" if count > 1 else ")"])


def _draw_call(
    rng: random.Random,
    program: Program,
    kinds: dict[str, str],
    defaults: dict[str, str],
    extra: str,
) -> Call:
    n = rng.choice((4, 4, 4, 3, 5, 1))
    before = program.calls[-1] if program.calls else None
    change = rng.choice(CHANGES) if rng.random() < 0.12 and before else "pass"
    gradients = program.backward != "none"
    write = rng.choice(WRITES) if gradients and rng.random() < 0.2 else "pass"
    if before is not None and rng.random() < 0.55:
        return Call(dict(before.arguments), before.passed, change, write)
    arguments: dict[str, str] = {}
    for name, kind in kinds.items():
        earlier = {k: v for k, v in kinds.items() if k in arguments}
        shares = rng.random() < 0.25
        arguments[name] = draw_argument(rng, kind, earlier, n, gradients=gradients, shares=shares)
    given = [name for name in kinds if name not in defaults]
    keywords = [name for name in defaults if rng.random() < 0.7]
    more = {"*, key=1": "key=3", "**options": "mode=2, more=1"}.get(extra, "")
    named = ", ".join(
        [f"{name}={name}" for name in keywords] + ([more] if more and rng.random() < 0.5 else [])
    )
    rest = ["x, 3"] if extra == "*rest" and len(given) == len(kinds) and rng.random() < 0.5 else []
    return Call(arguments, f"({', '.join([*given, *rest])},), dict({named})", change, write)
