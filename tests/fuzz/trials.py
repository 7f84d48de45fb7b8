"""A program's calls in both modes, and the verdict."""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import magpy_like as magpy
from magpy_like.control_flow.loops import loop_plan
from tests.fuzz.generation import Program
from tests.fuzz.observations import (
    DETACHED,
    Observation,
    Unsupported,
    find_difference,
    kind_of,
    observe,
    reading_autograd_state,
    saves_less,
)
from tests.fuzz.overlapping_writes import has_overlapping_writes

MODULE = "generated_program"
TOLERANCE = {
    "float32": {"rtol": 1e-4, "atol": 1e-4},
    "float64": {"rtol": 1e-7, "atol": 1e-7},
    "bfloat16": {"rtol": 3e-2, "atol": 3e-2},
}
"""Of a compiler that rounds otherwise than eager."""
EXACT = {"rtol": 0.0, "atol": 0.0}
OTHER_ORDER = {
    "float32": {"rtol": 1e-6, "atol": 1e-6},
    "float64": {"rtol": 1e-14, "atol": 1e-14},
    "bfloat16": {"rtol": 1e-2, "atol": 1e-2},
}
"""Of gradients whose parts autograd adds in another order, as it may after merged branches."""
_numbers = itertools.count()


@dataclass
class Verdict:
    """What became of a program: ``kind`` is "same", or how it differs from eager."""

    kind: str = "same"
    call: int = -1
    detail: str = ""
    calls: int = 0
    raised: int = 0
    hits: int = 0
    misses: int = 0
    graphs: int = 0
    splits: int = 0
    native: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.kind not in PASSED


PASSED = (
    "same", "nondeterministic", "rounding", "unsupported gradient", "overlapping write",
    "read autograd state", "detached view", "written view", "detached saved tensor",
    "loop counted once",
)  # fmt: skip
"""Verdicts that are no failures: eager differs from itself, or from float64 by as much, or the
documentation names the limitation."""


class Loaded:
    """The source text of a program in a file, to be loaded several times."""

    def __init__(self, text: str) -> None:
        folder = tempfile.gettempdir()
        self.path = os.path.join(folder, f"generated_{os.getpid()}_{next(_numbers)}.py")
        with open(self.path, "w") as file:
            file.write(text)
        self._code = compile(text, self.path, "exec")

    def load(self) -> types.ModuleType:
        """A module with globals and classes of its own; its code objects are common to all."""
        module = types.ModuleType(MODULE)
        module.__file__ = self.path
        # While a class of it is made, ``dataclasses`` finds the module by its name.
        sys.modules[MODULE] = module
        try:
            exec(self._code, vars(module))
        finally:
            del sys.modules[MODULE]
        return module

    def remove(self) -> None:
        os.unlink(self.path)
        linecache.cache.pop(self.path, None)


def check(program: Program, backend: str) -> Verdict:
    """Run all calls of a program eagerly and compiled, and compare them."""
    loaded = Loaded(program.text())
    try:
        verdict = _check(loaded, len(program.calls), program.dtype, backend)
        if verdict.failed:
            _excuse(verdict, program, loaded, backend)
        return verdict
    finally:
        loaded.remove()


def run_natively(program: Program) -> Verdict:
    """Run all calls of a program without compiling it: they may end the process."""
    loaded = Loaded(program.text())
    try:
        module = loaded.load()
        for number in range(len(program.calls)):
            observe(module, module.program, number, exact=True)
        return Verdict(calls=len(program.calls))
    finally:
        loaded.remove()


def _check(
    loaded: Loaded, calls: int, dtype: str, backend: str, *, reads_state: bool = False
) -> Verdict:
    """``reads_state``: eager mode runs as if a debugger read the autograd nodes of tensors."""
    exact = backend == "eager"
    eager, target = loaded.load(), loaded.load()
    native = reading_autograd_state(eager.program, loaded.path) if reads_state else eager.program
    compiled = magpy.compile(target.program, backend=backend)
    verdict = Verdict()
    for number in range(calls):
        verdict.calls += 1
        expected = observe(eager, native, number, exact=exact)
        verdict.raised += expected["error"] is not None
        difference: str | None
        try:
            actual = observe(target, compiled, number, exact=exact)
            if not exact and saves_less(actual, expected):
                actual |= {"backward": expected["backward"], "gradients": []}
            difference = find_difference(actual, expected, EXACT if exact else TOLERANCE[dtype])
        except Unsupported as error:
            verdict.kind, verdict.detail = "unsupported gradient", str(error)
            break
        except Exception as error:
            verdict.kind = f"raises {type(error).__name__}"
            verdict.call, verdict.detail = number, "".join(traceback.format_exception(error)[-6:])
            break
        if difference is not None:
            verdict.kind, verdict.call, verdict.detail = kind_of(difference), number, difference
            if exact and difference.startswith(("gradients", "backward")):
                if find_difference(actual, expected, OTHER_ORDER[dtype]) is None:
                    verdict.kind = "rounding"
            refused = exact and difference.startswith("backward") and not actual["backward"]
            if refused and DETACHED in str(expected["backward"]):
                verdict.kind = "detached saved tensor"
            if not exact and difference.startswith("error"):
                verdict.kind = _error_of_view(actual, expected) or verdict.kind
            if difference.startswith("error") and actual["error"]:
                verdict.detail += f"\nactual: {actual['error']}\nexpected: {expected['error']}"
            break
    _count(verdict, compiled)
    magpy.reset(compiled)
    return verdict


def _error_of_view(actual: Observation, expected: Observation) -> str | None:
    """A verdict if eager mode alone refuses to detach a view, or to write to it. A compiled graph
    returns the only view of a new tensor as no view, as is documented."""
    for message, verdict in _ERRORS_OF_VIEWS.items():
        if message in str(expected["error"]) and message not in str(actual["error"]):
            return verdict
    return None


_ERRORS_OF_VIEWS = {
    "Can't detach views in-place": "detached view",
    "A view was created in no_grad mode and is being modified": "written view",
}


def _count(verdict: Verdict, compiled: Any) -> None:
    info = magpy.cache_info(compiled)
    dispatcher = magpy.api._dispatcher(compiled)
    verdict.hits, verdict.misses = info.hits + info.uncompiled, info.misses
    verdict.graphs = info.graphs
    verdict.splits = len(dispatcher.split_points)
    verdict.native = bool(info.misses) and not info.records


def _excuse(verdict: Verdict, program: Program, loaded: Loaded, backend: str) -> None:
    """Change the verdict if eager does not reproduce itself, rounds as much itself, reads memory
    that it writes, or depends on a reader of autograd's state; and for the documented single count
    of a loop's writes."""
    first, second = loaded.load(), loaded.load()
    for number in range(verdict.call + 1):
        pair = [observe(m, m.program, number, exact=True) for m in (first, second)]
        if find_difference(*pair, EXACT) is not None:
            verdict.kind = "nondeterministic"
            return
    is_value = verdict.kind.endswith(": value") and not verdict.kind.startswith("versions")
    if is_value and backend != "eager" and _writes_to_what_it_reads(loaded, verdict.call):
        verdict.kind = "overlapping write"
    elif (is_value or backend != "eager") and _is_ill_conditioned(program, verdict.call):
        verdict.kind = "rounding"
    elif verdict.kind == "versions: value" and _loop_counts_once(loaded, verdict, program, backend):
        verdict.kind = "loop counted once"
    elif not _check(loaded, verdict.call + 1, program.dtype, backend, reads_state=True).failed:
        verdict.kind = "read autograd state"


def _loop_counts_once(loaded: Loaded, verdict: Verdict, program: Program, backend: str) -> bool:
    """True if versions are right where no loop that writes to tensors becomes an operator."""
    with mock.patch.object(loop_plan, "is_unshared", lambda *_: False):
        return not _check(loaded, verdict.call + 1, program.dtype, backend).failed


def _writes_to_what_it_reads(loaded: Loaded, call: int) -> bool:
    module = loaded.load()

    def run() -> None:
        for number in range(call + 1):
            observe(module, module.program, number, exact=True)

    return has_overlapping_writes(run)


def _is_ill_conditioned(program: Program, call: int) -> bool:
    """True if eager itself is far from the program's values in float64, in one of its calls up to
    ``call``. Some of these roundings decide comparisons: random values whose last bits differ tell.

    Two results as far from these values, to either side, are twice as far from each other.
    """
    text, plain_type = program.text(), f"D = torch.{program.dtype}"
    precise = text.replace(plain_type, "D = torch.float64", 1).replace(".float()", ".double()")
    noisy = [precise.replace("NOISE = 0", f"NOISE = {k} * 2**-52", 1) for k in range(8)]
    plain = _observe_calls(text, call + 1)
    tolerance = {name: value / 2 for name, value in TOLERANCE[program.dtype].items()}
    return any(
        find_difference(mine, precise, tolerance) is not None
        for other in noisy
        for mine, precise in zip(plain, _observe_calls(other, call + 1), strict=True)
    )


def _observe_calls(text: str, calls: int) -> list[Observation]:
    """What some calls of a program do in eager mode, with values in float64."""
    loaded = Loaded(text)
    try:
        module = loaded.load()
        return [
            _as_double(observe(module, module.program, number, exact=True))
            for number in range(calls)
        ]
    finally:
        loaded.remove()


def _as_double(observation: dict[str, Any]) -> dict[str, Any]:
    """The floating point tensors of an observation as float64, in a fixed order, and how much
    the program has logged, and the whole numbers of that."""
    from tests.programs import tensors_in

    order = [
        observation[k] for k in ("result", "arguments", "globals", "gradients") if k in observation
    ]
    tensors = [t.detach().clone() for t in tensors_in(order)]  # later calls may write to them
    values = [t.double() if t.is_floating_point() else t for t in tensors]
    log = observation["globals"]["log"]
    logged = [len(log), *(value for value in log if isinstance(value, int))]
    return {**observation, "result": values, "arguments": (), "globals": {"log": logged},
            "gradients": [], "versions": [], "error": observation["error"] is None}  # fmt: skip


def failing_like(verdict: Verdict, backend: str) -> Callable[[Program], bool]:
    """A test whether a program fails in the way of ``verdict``."""

    def fails(program: Program) -> bool:
        try:
            found = check(program, backend)
        except Exception:  # the simplified text is no program
            return False
        finally:
            magpy.reset()
        return found.failed and found.kind == verdict.kind

    return fails


def script(program: Program, verdict: Verdict, backend: str) -> str:
    """The program as a script of its own, which prints the first difference."""
    return f"""# seed {program.seed}: {verdict.kind}
{program.text()}

if __name__ == "__main__":
    from tests.fuzz.trials import check_text

    print(check_text(open(__file__).read(), {len(program.calls)}, {program.dtype!r}, {backend!r}))
"""


def check_text(text: str, calls: int, dtype: str, backend: str) -> Verdict:
    """:func:`check` for the text of a program."""
    loaded = Loaded(text)
    try:
        return _check(loaded, calls, dtype, backend)
    finally:
        loaded.remove()
