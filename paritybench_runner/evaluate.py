"""Evaluation of one test: in eager mode, and through a compiler in lockstep with eager mode.

Lockstep: in each of three calls, the compiled module and an eager copy receive arguments of equal
values and random generators in equal states; then everything that the two calls leave behind is
compared. The second call repeats the values of the first, the third has new ones.
"""

import contextlib
import copy
import dataclasses
import gc
import random
import re
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from magpy_like.torch_compat import pytree
from paritybench_runner import rounding
from paritybench_runner.compilers import (
    Capture,
    Compiler,
    Refused,
    find_raise_site,
    summarize_error,
)
from paritybench_runner.corpus import Case
from paritybench_runner.dynamism import ValueReads
from paritybench_runner.result_comparison import collect_tensors, find_difference

CALL_SEEDS = (1337, 1337, 4242)
_BUILD_SEED = 1337
_ADDRESS = re.compile(r"0x[0-9a-f]+")

Call = tuple[list[Any], dict[str, Any]]


def seed_everything(seed: int) -> None:
    """Seeds PyTorch, Python and NumPy; not by `torch.manual_seed`, which `shims.pin_seed` pins."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def _random_state(device: str) -> tuple[Any, ...]:
    on_device = torch.cuda.get_rng_state() if device == "cuda" else None
    return torch.get_rng_state(), on_device, random.getstate(), numpy.random.get_state()


def _torch_modes() -> tuple[Any, ...]:
    """Returns the torch modes that a call may leave changed."""
    return (
        *(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()),
        *(torch.is_autocast_enabled(), torch.are_deterministic_algorithms_enabled()),
    )


class Program:
    """A test's module and arguments, and equal copies of them.

    Attributes:
        rebuild: copy the module by building it anew.
        needs_saved_tensors: the program's results need what autograd saves for a backward pass.
    """

    def __init__(self, case: Case, device: str = "cpu", train: bool = False) -> None:
        self.case = case
        self.device = device
        self.train = train
        self.rebuild = False
        self.needs_saved_tensors = train
        self._original = self._build()
        self._drawn_arguments: dict[int, Call] = {}

    def _build(self) -> torch.nn.Module:
        seed_everything(_BUILD_SEED)
        args, kwargs = self.case.init_arguments()
        module = self.case.build(*args, **kwargs)
        # Some programs override these methods with ones that raise.
        with contextlib.suppress(Exception):
            module.train(self.train)
        with contextlib.suppress(Exception):
            module.to(self.device)
        return module

    @property
    def has_forward(self) -> bool:
        """False for modules with other methods only."""
        forward = getattr(self._original, "forward", None)
        return getattr(forward, "__name__", "") != "_forward_unimplemented"

    def copy_module(self) -> torch.nn.Module:
        """Returns a module equal to the first one built, sharing nothing with other copies.

        A deep copy, unless functions among its attributes refer to the original
        (`self.f = lambda x: self.conv(x)`): with `rebuild` the module is built anew.
        """
        if not self.rebuild:
            with contextlib.suppress(Exception):
                return copy.deepcopy(self._original)
        module = self._build()
        with contextlib.suppress(Exception):
            # Uninitialised parameters differ from one build to the next.
            module.load_state_dict(self._original.state_dict())
        return module

    def draw_arguments(self, seed: int) -> Call:
        """Returns arguments drawn with `seed`, in new objects each time."""
        if seed not in self._drawn_arguments:
            self._drawn_arguments[seed] = self._draw_anew(seed)
        try:
            return copy.deepcopy(self._drawn_arguments[seed])
        except Exception:
            return self._draw_anew(seed)

    def _draw_anew(self, seed: int) -> Call:
        seed_everything(seed)
        args, kwargs = self.case.forward_arguments()
        args, kwargs = pytree.tree_map_only(
            (torch.Tensor, torch.nn.Module), lambda value: value.to(self.device), (args, kwargs)
        )
        return list(args), kwargs

    def fresh_call(self) -> tuple[torch.nn.Module, list[Any], dict[str, Any]]:
        """Returns a new module and new arguments of the first call, and seeds the generators.

        An earlier call initialises lazy parameters, as torch recommends: an initialisation that
        runs once says nothing about the capture of later calls.
        """
        module, (args, kwargs) = self.copy_module(), self.draw_arguments(CALL_SEEDS[0])
        seed_everything(CALL_SEEDS[0])
        if _has_lazy_parameters(module):
            module(*args, **kwargs)
            args, kwargs = self.draw_arguments(CALL_SEEDS[0])
            seed_everything(CALL_SEEDS[0])
        return module, args, kwargs


def _has_lazy_parameters(module: torch.nn.Module) -> bool:
    # Methods of the base class: a program may override the module's own.
    tensors = (*torch.nn.Module.parameters(module), *torch.nn.Module.buffers(module))
    return any(map(torch.nn.parameter.is_lazy, tensors))


@dataclasses.dataclass
class Outcome:
    """Result and duration of a call."""

    result: Any = None
    error: Exception | None = None
    where: str = ""
    random_state: tuple[Any, ...] = ()
    modes: tuple[Any, ...] = ()
    seconds: float = 0.0

    def comparable_result(self) -> Any:
        """Returns the result, or type and message (without addresses) of the exception."""
        if self.error is None:
            return self.result
        return type(self.error).__name__, _ADDRESS.sub("0x", str(self.error))


def run_call(function: Callable[..., Any], call: Call, seed: int, program: Program) -> Outcome:
    """Runs one call; with `program.train` also a backward pass from the sum of the results."""
    seed_everything(seed)
    outcome = Outcome()
    gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    _synchronize_device(program.device)
    start = time.perf_counter()
    try:
        outcome.result = function(*call[0], **call[1])
        _synchronize_device(program.device)
        outcome.seconds = time.perf_counter() - start
        if program.train:
            _backward(outcome.result)
    except Exception as error:
        # The traceback would keep the frames' objects alive as long as the outcome.
        outcome.where = find_raise_site(error)
        outcome.error = error.with_traceback(None)
    outcome.random_state, outcome.modes = _random_state(program.device), _torch_modes()
    torch.set_grad_enabled(gradients)
    torch.set_default_dtype(dtype)
    return outcome


class _SavedTensor:
    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor


@contextlib.contextmanager
def _release_saved_tensors() -> Iterator[None]:
    """Releases, at the end of its block, the tensors that operators saved for a backward pass.

    A result lives until it is compared; its autograd graph would keep the activations of a whole
    model out of the memory that the next run may use.
    """
    saved: weakref.WeakSet[_SavedTensor] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> _SavedTensor:
        box = _SavedTensor(tensor)
        saved.add(box)
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        yield
    for box in saved:
        box.tensor = None


def _save_no_tensors() -> torch.autograd.graph.saved_tensors_hooks:
    """Discards the tensors that operators save for a backward pass."""

    def fail(_: None) -> torch.Tensor:
        raise RuntimeError("nothing was saved for a backward pass")

    return torch.autograd.graph.saved_tensors_hooks(lambda _: None, fail)


def _synchronize_device(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _backward(result: Any) -> None:
    tensors = pytree.tree_leaves(dict(enumerate(collect_tensors(result).values())))
    sums = [
        tensor.sum()
        for tensor in tensors
        if tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
    ]
    if sums:
        torch.stack(
            [total.abs() if total.is_complex() else total for total in sums]
        ).sum().backward()


@dataclasses.dataclass
class LockstepResult:
    """Result of calls in lockstep.

    Attributes:
        seconds: duration of each compiled call.
        difference: the first difference from eager mode.
        error: exception of a compiled call where the eager one returned.
        where: file, line and function that raised `error`.
        eager_error: exception of the first eager call.
    """

    seconds: list[float] = dataclasses.field(default_factory=list)
    difference: str | None = None
    error: Exception | None = None
    where: str = ""
    eager_error: Exception | None = None


def run_in_lockstep(
    program: Program,
    compiled: Callable[..., Any],
    module: torch.nn.Module,
    state: Callable[[torch.nn.Module], Any] = lambda module: module,
    *,
    compiler_attributes: dict[str, Any] | None = None,
    compare: bool = True,
) -> LockstepResult:
    """Calls `compiled` and an eager copy of the module three times and compares after each call.

    Args:
        program: the test.
        compiled: the compiled callable.
        module: the module whose state `compiled` changes.
        state: returns the part of a module's state that is compared.
        compiler_attributes: attributes that the compiler, not the program, set on the module.
        compare: False runs the calls only.
    """
    lockstep = LockstepResult()
    eager = program.copy_module()
    expected_first = program.draw_arguments(CALL_SEEDS[0])
    actual_first = program.draw_arguments(CALL_SEEDS[0])
    vars(eager).update(compiler_attributes or {})
    for number, seed in enumerate(CALL_SEEDS, start=1):
        expected_call = _with_modules_of(expected_first, program.draw_arguments(seed))
        actual_call = _with_modules_of(actual_first, program.draw_arguments(seed))
        if program.train:
            eager.zero_grad()
            module.zero_grad()
        with contextlib.nullcontext() if program.needs_saved_tensors else _release_saved_tensors():
            expected = run_call(eager, expected_call, seed, program)
        if expected.error is not None and number == 1:
            lockstep.eager_error = expected.error
            return lockstep
        actual = run_call(compiled, actual_call, seed, program)
        lockstep.seconds.append(actual.seconds)
        if actual.error is not None and expected.error is None:
            lockstep.error, lockstep.where = actual.error, actual.where
            return lockstep
        if compare:
            lockstep.difference = _compare_final_states(
                (expected, expected_call, state(eager)),
                (actual, actual_call, state(module)),
                _LazySpreads(program, number, state, (expected, expected_call, eager)),
            )
        if lockstep.difference is not None:
            lockstep.difference = f"call {number}: {lockstep.difference}"
            return lockstep
        del expected, actual
    return lockstep


def _with_modules_of(first: Call, call: Call) -> Call:
    """Returns `call` with the modules of the first call: modules persist between calls."""
    modules, as_first = pytree.tree_flatten(first)
    leaves, as_call = pytree.tree_flatten(call)
    if as_first != as_call:
        return call
    kept = [
        old if isinstance(old, torch.nn.Module) else new
        for old, new in zip(modules, leaves, strict=True)
    ]
    return pytree.tree_unflatten(kept, as_call)


FinalState = tuple[Outcome, Call, Any]  # after a call: outcome, arguments, module state


def _compare_final_states(
    eager: FinalState, compiled: FinalState, spread: Callable[[str], Iterator[torch.Tensor]]
) -> str | None:
    # A single comparison also checks aliasing between results, arguments and the module.
    found = find_difference(
        _collect_final_state(*eager), _collect_final_state(*compiled), "", spread
    )
    if found is not None:
        return re.sub(r"^\['(\w+)'\]", r"\1", found)
    found = find_difference(eager[0].random_state, compiled[0].random_state, "random state")
    return found or find_difference(eager[0].modes, compiled[0].modes, "modes")


def _collect_final_state(outcome: Outcome, call: Call, state: Any) -> dict[str, Any]:
    args, kwargs = call
    return {"result": outcome.comparable_result(), "args": args, "kwargs": kwargs, "module": state}


class _LazySpreads:
    """Spreads of the tensors that a call leaves behind, under other rounding; measured lazily."""

    def __init__(
        self,
        program: Program,
        number: int,
        state: Callable[[torch.nn.Module], Any],
        eager: tuple[Outcome, Call, torch.nn.Module],
    ) -> None:
        self._program = program
        self._number = number
        self._state = state
        self._eager = eager
        self._known: rounding.Spreads | None = None

    def __call__(self, path: str) -> Iterator[torch.Tensor]:
        if self._known is None:
            self._known = rounding.Spreads(self._tensors(*self._eager), self._rerun)
        return self._known.iterate(path)

    def _tensors(
        self, outcome: Outcome, call: Call, module: torch.nn.Module
    ) -> dict[str, torch.Tensor]:
        return collect_tensors(_collect_final_state(outcome, call, self._state(module)), "")

    def _rerun(self, mode: rounding.Mode) -> dict[str, torch.Tensor] | None:
        # Nothing is saved for a backward pass, unless the program itself runs one.
        found = None if self._program.needs_saved_tensors else self._run(mode, _save_no_tensors())
        return found or self._run(mode, contextlib.nullcontext())

    def _run(
        self, mode: rounding.Mode, saved_tensors: rounding.Mode
    ) -> dict[str, torch.Tensor] | None:
        program, module = self._program, self._program.copy_module()
        for seed in CALL_SEEDS[: self._number]:
            if program.train:
                module.zero_grad()
            call = program.draw_arguments(seed)
            with mode, saved_tensors:
                outcome = run_call(module, call, seed, program)
        if (outcome.error is None) != (self._eager[0].error is None):
            return None
        return self._tensors(outcome, call, module)


def evaluate_eager(case: Case, device: str, train: bool) -> tuple[Program | None, dict[str, Any]]:
    """Runs a test in eager mode only.

    Returns:
        The program, or None if it does not run; and its eager results as in `results.jsonl`:
        class, whether two runs agree ("deterministic"), reads of tensor values.
    """
    try:
        program = Program(case, device, train)
        if not program.has_forward:
            return None, {"class": "no forward"}
        repetition = _compare_with_itself(program)
        if "saved tensor hooks" in str(repetition.eager_error):
            program.needs_saved_tensors = True  # torch.func supports no such hooks
            repetition = _compare_with_itself(program)
        if (repetition.eager_error is None and repetition.difference) or repetition.error:
            program.rebuild = True
            repetition = _compare_with_itself(program)
    except Exception as error:
        return None, {"class": "fails", "error": summarize_error(error)}
    if repetition.eager_error is not None:
        return None, {"class": "fails", "error": summarize_error(repetition.eager_error)}
    result = {
        "class": "ok",
        "deterministic": repetition.difference is None and repetition.error is None,
        "rebuild": program.rebuild,
        "seconds": repetition.seconds,
        "reads": _find_value_reads(program),
    }
    if not result["deterministic"]:
        result["difference"] = repetition.difference or summarize_error(
            repetition.error or Exception()
        )
    return program, result


def _compare_with_itself(program: Program) -> LockstepResult:
    module = program.copy_module()
    return run_in_lockstep(program, module, module)


def _find_value_reads(program: Program) -> list[str]:
    reads = ValueReads()
    module, args, kwargs = program.fresh_call()
    # A program that inspects torch's modes may fail while it is watched.
    with contextlib.suppress(Exception), reads.watch():
        module(*args, **kwargs)
    return sorted(set(reads.sites))


@contextlib.contextmanager
def _reset_after(compiler: Compiler) -> Iterator[None]:
    try:
        yield
    finally:
        compiler.reset()
        gc.collect()


def evaluate_compiler(
    program: Program, eager: dict[str, Any], compiler: Compiler
) -> dict[str, Any]:
    """Runs a test through a compiler in lockstep with eager mode, then captures it.

    Args:
        program: a program that runs in eager mode.
        eager: its eager results.
        compiler: the compiler.

    Returns:
        The compiler's results as in `results.jsonl`.
    """
    with _reset_after(compiler):
        module = program.copy_module()
        attributes = set(vars(module))
        start = time.perf_counter()
        try:
            compiled = compiler.compile(module)
        except Refused as refusal:
            return {"class": "eager", "error": str(refusal)}
        except Exception as error:
            return _describe_crash(error)
        compile_seconds = time.perf_counter() - start
        added = set(vars(module)) - attributes
        lockstep = run_in_lockstep(
            program,
            compiled,
            compiled.module,
            compiler.state,
            compiler_attributes={name: vars(module)[name] for name in added},
            compare=eager["deterministic"],
        )
        if lockstep.error is not None:
            text = summarize_error(lockstep.error)
            return {"class": "crashed", "error": text, "where": lockstep.where}
        if lockstep.difference is not None:
            return {"class": "wrong", "error": lockstep.difference}
        hits = compiled.hits()
        result = {"hits": hits, "first_s": compile_seconds + lockstep.seconds[0]}
        if hits:
            result["matched_s"] = min(lockstep.seconds[1:])
        compiler.reset()
        return _describe_capture(program, compiler, result)


def _describe_capture(
    program: Program, compiler: Compiler, result: dict[str, Any]
) -> dict[str, Any]:
    try:
        capture = compiler.capture(program.fresh_call)
    except Exception as error:
        return _describe_crash(error, "while explaining: ")
    return {
        "class": _classify(capture),
        **result,
        "graphs": capture.graphs,
        "splits": [dataclasses.asdict(split) for split in capture.splits],
    }


def _describe_crash(error: Exception, context: str = "") -> dict[str, Any]:
    text = f"{context}{summarize_error(error)}"
    return {"class": "crashed", "error": text, "where": find_raise_site(error)}


def _classify(capture: Capture) -> str:
    if capture.whole:
        return "one_graph"
    return "split" if capture.graphs else "eager"
