"""Comparison of a program's compiled calls with eager calls of an equal program.

A test of one construct is then a few lines: the program, its inputs, inputs that must miss, and
changes of the program's state that must miss.
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
    """Inputs of a program with one tensor argument."""
    return lambda: (tensor(*(values or (1.0, -2.0, 3.0))),)


class Twins:
    """Two copies of one program with its state: one runs in eager, one is compiled."""

    def __init__(self, make: Callable[[], Callable[..., Any]], **settings: Any) -> None:
        self.eager, self.target = make(), make()
        self.compiled = magpy.compile(self.target, **{"backend": "eager", **settings})
        self.eager_results: list[Any] = []
        self.compiled_results: list[Any] = []

    def change(self, change: Callable[[Any], Any]) -> None:
        """Applies a change of state to both programs; ``change`` takes a program."""
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
        """Calls both programs with equal inputs and compares all observable effects.

        Args:
            inputs: creates the positional arguments.
            hit: whether the compiled call must hit or miss; None to accept both.
            backward: whether to run backward through the outputs and compare gradients.
            keyword: keyword arguments.
            why: label of the call in assertion messages.

        Returns:
            The result of the eager call.
        """
        keyword = keyword or {}
        seed(0)
        eager_args = inputs()
        eager = _outcome(self.eager, eager_args, keyword)
        eager_random = torch.rand(1)
        seed(0)
        args = inputs()
        before = magpy.cache_info(self.compiled)
        actual = _outcome(self.compiled, args, keyword)
        assert torch.equal(eager_random, torch.rand(1)), f"{why}: the random state differs"
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
            now = magpy.cache_info(self.compiled)
            was = now.hits + now.uncompiled > before.hits + before.uncompiled
            assert was == hit, f"{why}: {self._why_not() if hit else 'no guard missed'}"
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
    """:func:`check_stateful` for a program without state."""
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
    """Asserts that the program is recorded, hits, misses where it must, and always equals eager.

    Args:
        make: creates the program, with fresh state.
        inputs: creates the positional arguments of the recorded call.
        other: further inputs, each of which must miss.
        changes: changes of the program's state, each of which must miss.
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
    """Asserts that every call equals eager, whether or not it can be recorded."""
    twins = Twins(make)
    for _ in range(2):
        for i, inputs in enumerate(calls):
            twins.call(inputs, why=f"call {i}")
    return twins


def load(source: str, name: str = "program") -> Callable[[], Callable[..., Any]]:
    """A factory of the function ``name`` of a source text, with separate globals each time."""
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
    """The globals of a loaded program, without the implicit ones."""
    names = program.__globals__
    return {k: v for k, v in names.items() if not k.startswith("__") and v is not program}


class Raised:
    """The outcome of a call that raised: type and text of the exception."""

    def __init__(self, error: BaseException) -> None:
        self.kind, self.text = type(error), str(error)


def _outcome(program: Callable[..., Any], args: tuple[Any, ...], keyword: dict[str, Any]) -> Any:
    try:
        return program(*args, **keyword)
    except Exception as error:
        return Raised(error)


def tensors_in(value: Any, seen: set[int] | None = None) -> list[torch.Tensor]:
    """The tensors reachable from a result, arguments or a program, in a fixed order."""
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
        parts = [_contents(cell) for cell in value.__closure__ or ()]
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
        parts = list(vars(value).values())
    return [found for part in parts for found in tensors_in(part, seen)]


def _contents(cell: types.CellType) -> Any:
    """What a closure's cell holds; None for one without a value."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


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
