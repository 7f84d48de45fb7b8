"""Runs a program eagerly and compiled, side by side, and holds the compiled run to eager's.

A specification of one construct is then a few lines: the program, its inputs, inputs that an
honest guard must turn away, and changes to what the program reads that it must notice.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

import magpy_like as magpy
from tests.compare import assert_same
from tests.seeding import seed

Inputs = Callable[[], tuple[Any, ...]]


def tensor(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, requires_grad=grad)


def matrix(rows: int = 2, columns: int = 3, *, grad: bool = False) -> torch.Tensor:
    values = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
    return (values - 2).requires_grad_(grad)


def one(*values: float) -> Inputs:
    """The inputs of a program of one tensor."""
    return lambda: (tensor(*(values or (1.0, -2.0, 3.0))),)


class Twins:
    """Two copies of one program with the state it closes over: one eager, one compiled."""

    def __init__(self, make: Callable[[], Callable[..., Any]], **settings: Any) -> None:
        self.eager, self.target = make(), make()
        self.compiled = magpy.compile(self.target, **{"backend": "eager", **settings})
        self.eager_results: list[Any] = []
        self.compiled_results: list[Any] = []

    def change(self, change: Callable[[Any], Any]) -> None:
        """Alter what the program will find; a callable that takes the program."""
        change(self.eager)
        change(self.target)

    def call(
        self,
        inputs: Inputs,
        *,
        hit: bool | None = None,
        backward: bool = False,
        keyword: dict[str, Any] | None = None,
        why: str = "",
    ) -> Any:
        """Call both on inputs of their own and compare all that can be seen afterwards."""
        keyword = keyword or {}
        seed(0)
        eager_args = inputs()
        eager = _outcome(self.eager, eager_args, keyword)
        eager_random = torch.rand(1)
        seed(0)
        args = inputs()
        before = magpy.cache_info(self.compiled)
        actual = _outcome(self.compiled, args, keyword)
        assert torch.equal(eager_random, torch.rand(1)), f"{why}: another random state is left"
        if backward:
            _backward(eager)
            _backward(actual)
        self.eager_results.append(eager)
        self.compiled_results.append(actual)
        assert_same(
            (actual, args, self.target), (eager, eager_args, self.eager), what=why or "call"
        )
        assert_same(
            _gradients(actual, args, self.target), _gradients(eager, eager_args, self.eager)
        )
        if hit is not None:
            was = magpy.cache_info(self.compiled).hits > before.hits
            assert was == hit, f"{why}: {self._why_not() if hit else 'no guard noticed'}"
        return eager

    def _why_not(self) -> str:
        dispatcher = magpy.api._dispatcher(self.compiled)
        points = [str(point) for point in dispatcher.split_points]
        return f"not a hit; split points: {points}" if points else "not a hit"


def check(
    program: Callable[..., Any],
    inputs: Inputs,
    *,
    other: Sequence[Inputs] = (),
    keyword: dict[str, Any] | None = None,
    backward: bool = False,
) -> Twins:
    """:func:`check_stateful` for a program that keeps no state of its own."""
    return check_stateful(lambda: program, inputs, other=other, keyword=keyword, backward=backward)


def check_stateful(
    make: Callable[[], Callable[..., Any]],
    inputs: Inputs,
    *,
    other: Sequence[Inputs] = (),
    changes: Iterable[Callable[[Any], Any]] = (),
    keyword: dict[str, Any] | None = None,
    backward: bool = False,
    max_recordings: int = 1,
) -> Twins:
    """The program is recorded, hits, and misses where it must; every call gives what eager gives.

    Args:
        make: makes the program, with fresh state.
        inputs: makes the positional arguments that are recorded.
        other: further inputs, each of which must miss.
        changes: alterations of the program's state, each of which must miss.
        keyword: keyword arguments of every call.
        backward: whether to run backward through the outputs and compare gradients.
        max_recordings: calls that may need a monitor run before the first hit.
    """
    twins = Twins(make)
    options: dict[str, Any] = {"keyword": keyword, "backward": backward}
    for i in range(max_recordings):
        twins.call(inputs, hit=False if i == 0 else None, why=f"call {i}", **options)
    for i in range(2):
        twins.call(inputs, hit=True, why=f"repeated call {i}", **options)
    for i, others in enumerate(other):
        twins.call(others, hit=False, why=f"other inputs {i}", **options)
        twins.call(others, why=f"other inputs {i} again", **options)
    for i, change in enumerate(changes):
        twins.change(change)
        twins.call(inputs, hit=False, why=f"change {i}", **options)
        twins.call(inputs, why=f"change {i} again", **options)
    twins.call(inputs, why="last call", **options)
    return twins


def check_results(make: Callable[[], Callable[..., Any]], *calls: Inputs) -> Twins:
    """Only that every call gives what eager gives, whether or not it can be recorded."""
    twins = Twins(make)
    for _ in range(2):
        for i, inputs in enumerate(calls):
            twins.call(inputs, why=f"call {i}")
    return twins


def load(source: str, name: str = "program") -> Callable[[], Callable[..., Any]]:
    """A maker of the function ``name`` of some source text, with globals of its own each time."""
    code = compile(source, "<program>", "exec")

    def make() -> Callable[..., Any]:
        module = types.ModuleType("loaded")
        exec(code, module.__dict__)
        function: Callable[..., Any] = module.__dict__[name]
        _keep.append(module)
        return function

    return make


_keep: list[types.ModuleType] = []


def namespace(program: Callable[..., Any]) -> dict[str, Any]:
    """The globals that a loaded program sees, without those that Python puts there."""
    names = program.__globals__
    return {k: v for k, v in names.items() if not k.startswith("__") and v is not program}


class Raised:
    """How a call ended that raised."""

    def __init__(self, error: BaseException) -> None:
        self.kind, self.text = type(error), str(error)


def _outcome(program: Callable[..., Any], args: tuple[Any, ...], keyword: dict[str, Any]) -> Any:
    try:
        return program(*args, **keyword)
    except Exception as error:
        return Raised(error)


def tensors_in(value: Any, seen: set[int] | None = None) -> list[torch.Tensor]:
    """The tensors that can be reached from a result, arguments or program, in a fixed order."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, torch.nn.Module):
        return [t for t in (*value.parameters(), *value.buffers()) if id(t) not in seen]
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, types.MethodType):
        parts = [value.__self__]
    elif isinstance(value, types.FunctionType):
        parts = [cell.cell_contents for cell in value.__closure__ or ()]
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
        parts = list(vars(value).values())
    return [found for part in parts for found in tensors_in(part, seen)]


def _backward(result: Any) -> None:
    losses = [t.sum() for t in tensors_in(result) if t.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()


def _gradients(*roots: Any) -> list[Any]:
    found = []
    for tensor_ in tensors_in(list(roots)):
        found.append(tensor_.grad if tensor_.is_leaf else None)
    return found


def collect() -> None:
    for _ in range(3):
        gc.collect()
