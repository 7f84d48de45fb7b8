"""Verification of operator facts on the samples of torch's OpInfo database.

A fact is one property that ``annotations/operators.yaml`` declares for one operator. Each check
runs the operator on inputs that could refute the property, and returns a verdict. A default is a
claim too where a wrong one is unsafe: an operator without ``repeatable: false`` must repeat, and
one without ``shares_memory`` must count writes to shared memory on both sides.
"""

from __future__ import annotations

import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from magpy_like.annotation.loader import is_pattern
from magpy_like.annotation.operator_facts import (
    Entry,
    Narrows,
    OperatorFacts,
    Raises,
    Results,
    operator_facts,
    shipped_entries,
)
from magpy_like.annotation.verify.claim_checks import Verdict
from magpy_like.annotation.verify.verification import Job, Result, run_jobs
from magpy_like.torch_compat import pytree

SAMPLES = 4
"""Samples of the database per operator and dtype."""
EXTREMES = (0.0, 1.0, -1.0, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
"""Elements with which inputs are filled."""
FLOATS = (0.0, -1.0, 1e-30, 3e38, -3e38)
"""Numbers in place of a sample's float arguments: all within the range of float32."""

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def verify_facts(only: Callable[[str], bool] = lambda name: True) -> Iterator[Result]:
    """Verify the facts of every operator of the database whose name ``only`` accepts.

    Each operator runs in a child process. The operators that ``operators.yaml`` names and the
    database lacks have a result without verdicts.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from magpy_like.torch_compat.operator_samples import op_db

    infos = _by_family(op_db)
    sources = _sources(shipped_entries(), infos)
    yield from run_jobs(
        [
            Job(name, sources.get(name, ""), functools.partial(_verify, name, found, sources))
            for name, found in sorted(infos.items())
            if only(name)
        ]
    )
    for name in sorted(_named(shipped_entries()) - infos.keys()):
        if only(name):
            yield Result(name, sources[name], (), 0, "not in the OpInfo database")


def _by_family(database: Iterable[Any]) -> dict[str, list[_Variant]]:
    """All variants of the database's operators by family name: functions, methods, aliases,
    in-place forms and Python's operators."""
    found: dict[str, list[_Variant]] = {}
    for info in database:
        variants = {info.name.rpartition(".")[2]: _without_seed(info)}
        variants.update((alias.name.rpartition(".")[2], alias.op) for alias in info.aliases)
        for function in (info.operator_variant, info.inplace_operator_variant):
            if function is not None:
                variants[function.__name__] = function
        for name, function in variants.items():
            found.setdefault(name.strip("_"), []).append(_Variant(info, function))
    for name in _named(shipped_entries()) & {*dir(torch.Tensor)}:
        facts = operator_facts(name)
        if not (facts.reads_sizes and facts.guarded):
            found.setdefault(name, []).append(_Variant(None, getattr(torch.Tensor, name)))
    return found


def _without_seed(info: Any) -> Any:
    """The operator itself: the database wraps random ones in a function that sets a seed."""
    if (getattr(info.op, "__module__", None) or "").startswith("torch.testing"):
        try:
            found = operator.attrgetter(info.name)(torch)
        except AttributeError:
            return info.op
        return found if callable(found) else info.op  # torch.half is a dtype
    return info.op


class _Variant(NamedTuple):
    """One function of an operator's family; ``info`` is None for metadata of tensors."""

    info: Any
    op: Any

    @property
    def name(self) -> str:
        return getattr(self.op, "__name__", str(self.op))

    def samples(self) -> list[Any]:
        """Samples of the database: float32 before int64."""
        if self.info is None:
            return [None]
        found: list[Any] = []
        for dtype in (torch.float32, torch.int64):
            if dtype in self.info.dtypes:
                try:
                    sampled = self.info.sample_inputs("cpu", dtype)
                    found += itertools.islice(sampled, SAMPLES)
                except Exception:  # functions of the database need libraries that may be absent
                    continue
        return found


def _named(entries: Iterable[Entry]) -> set[str]:
    return {name for entry in entries for name in entry.names if not is_pattern(name)}


def _sources(entries: Iterable[Entry], names: Iterable[str]) -> dict[str, str]:
    listed = [*names, *_named(entries)]
    return {name: e.source for e in entries for name in listed if e.matches(name)}


def _verify(name: str, variants: list[_Variant], sources: dict[str, str]) -> Result:
    facts = operator_facts(name)
    samples = [(variant, sample) for variant in variants for sample in variant.samples()]
    verdicts = tuple(
        Verdict(claim, *_outcome(check, facts, samples))
        for claim, applies, check in _CHECKS
        if applies(facts)
    )
    return Result(name, sources.get(name, ""), verdicts, len(samples))


def _outcome(
    check: Callable[[OperatorFacts, Any, Any], str | None], facts: OperatorFacts, samples: list[Any]
) -> tuple[bool | None, str]:
    """False with the first refutation, None where no sample could be tried."""
    tried = 0
    for info, sample in samples:
        if (sample is None) != (check is _reads_sizes):
            continue
        try:
            problem = check(facts, info, sample)
        except _NotTried:
            continue
        tried += 1
        if problem is not None:
            return False, f"{info.name}: {problem}"
    return (True if tried else None), ""


class _NotTried(Exception):
    """A sample says nothing about a claim."""


# --- checks --------------------------------------------------------------------------------------


def _raises(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    """Elements that could be out of range: zeros, infinities, NaN, the smallest integers."""
    if facts.raises is Raises.GIVEN_TENSORS and _tensors(sample):
        raise _NotTried
    if facts.raises is Raises.BOUNDS:
        raise _NotTried  # no sample is on a GPU
    if facts.raises is Raises.ROUNDING and sample.kwargs.get("rounding_mode") is not None:
        raise _NotTried
    _call(info, _cloned(sample))  # an in-place form may not admit the sample's sizes
    for extreme in EXTREMES:
        try:
            _run(info, _filled(sample, extreme))
        except Exception as error:
            return f"elements {extreme}: {type(error).__name__}: {error}"
    return None


def _float_scalars(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    changed = [_with_floats(sample, number) for number in FLOATS]
    if changed[0] is None:
        raise _NotTried
    for number, other in zip(FLOATS, changed, strict=True):
        try:
            _run(info, other)
        except Exception as error:
            return f"number {number}: {type(error).__name__}: {error}"
    return None


def _shape_from_numbers(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    shapes = _shapes(_call(info, sample))
    tried = False
    for where, number in [*enumerate(sample.args), *sample.kwargs.items()]:
        if type(number) not in (int, float):
            continue
        for other in (number + 1, number * 3, -number):
            args = tuple(other if i == where else v for i, v in enumerate(sample.args))
            kwargs = {key: other if key == where else v for key, v in sample.kwargs.items()}
            try:
                result = _shapes(info.op(sample.input, *args, **kwargs))
            except Exception:  # the number is not admitted
                continue
            tried = True
            if result != shapes:
                return f"argument {where} = {other}: shapes {result}, not {shapes}"
    if not tried:
        raise _NotTried
    return None


def _result_count(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    """FIXED: doubling a dimension of the first input leaves the number of results.

    A size that another tensor has is not doubled. Not every operator checks that sizes agree:
    native_batch_norm writes past the end of running statistics that are too short.
    """
    result = _call(info, sample)
    if not isinstance(sample.input, torch.Tensor) or not isinstance(result, tuple | list):
        raise _NotTried
    shared = {size for tensor in _tensors(sample)[1:] for size in tensor.shape}
    counts = set()
    for dim, size in enumerate(sample.input.shape):
        if size in shared:
            continue
        larger = torch.cat([sample.input, sample.input], dim)
        try:
            counts.add(len(info.op(larger, *sample.args, **sample.kwargs)))
        except Exception:  # the other arguments do not fit
            continue
    if not counts:
        raise _NotTried
    if counts != {len(result)}:
        return f"{len(result)} results, and {sorted(counts)} for a larger input"
    return None


def _saves_result(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    """Hooks on saved tensors see every tensor that autograd saves."""
    if not info.info.supports_autograd or not isinstance(sample.input, torch.Tensor):
        raise _NotTried
    if not sample.input.is_floating_point():
        raise _NotTried
    given = sample.input.detach().requires_grad_() * 1  # no leaf: in-place forms may write to it
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        try:
            result = info.op(given, *sample.args, **sample.kwargs)
        except Exception as error:
            raise _NotTried from error
    memory = {t.untyped_storage().data_ptr() for t in pytree.tree_leaves(result)}
    return "the result is saved" if memory & {*saved} else None


def _new_memory(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    inputs = {t.untyped_storage().data_ptr() for t in _tensors(sample)}
    results = [t for t in pytree.tree_leaves(_call(info, sample)) if isinstance(t, torch.Tensor)]
    shared = [t for t in results if t.numel() and t.untyped_storage().data_ptr() in inputs]
    return "a result shares memory with an input" if shared else None


def _repeatable(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    before = torch.get_rng_state()
    first = _call(info, _cloned(sample))
    drew = not torch.equal(before, torch.get_rng_state())
    torch.manual_seed(int(torch.randint(1 << 30, ()).item()))
    second = _call(info, _cloned(sample))
    torch.set_rng_state(before)
    if drew:
        return "it advances the random generator"
    for one, other in zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True):
        if isinstance(one, torch.Tensor) and one.layout is torch.strided:
            if not torch.allclose(one, other, rtol=0, atol=0, equal_nan=True):
                return "two runs differ"
    return None


def _counts_writes(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    """A write to a result that shares an input's memory advances the input's version counter."""
    given = _cloned(sample)
    inputs = [t for t in _tensors(given) if t.layout is torch.strided]
    tried = False
    for result in pytree.tree_leaves(_call(info, given)):
        if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
            continue
        memory = result.untyped_storage().data_ptr()
        for tensor in inputs:
            if result.numel() and tensor.untyped_storage().data_ptr() == memory:
                version = tensor._version
                try:
                    result.zero_()
                except RuntimeError:  # an expanded or conjugated view
                    continue
                tried = True
                if tensor._version == version:
                    return "a write to the result is not counted for the input"
    if not tried:
        raise _NotTried
    return None


def _narrows(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    """Without a dtype argument no floating-point result has a smaller range than the inputs."""
    asked = [v for v in (*sample.args, *sample.kwargs.values()) if isinstance(v, torch.dtype)]
    inputs = [t.dtype for t in _tensors(sample) if t.dtype.is_floating_point]
    if asked or not inputs:
        raise _NotTried
    least = min(torch.finfo(dtype).max for dtype in inputs)
    for result in pytree.tree_leaves(_call(info, sample)):
        if isinstance(result, torch.Tensor) and result.dtype.is_floating_point:
            if torch.finfo(result.dtype).max < least:
                return f"a result has dtype {result.dtype}"
    return None


def _reads_sizes(facts: OperatorFacts, info: Any, sample: Any) -> str | None:
    """Metadata without sizes is the same for tensors that differ in their sizes alone."""
    if facts.reads_sizes:
        raise _NotTried
    values = []
    for shape in ((2, 3), (5, 7), (1, 1)):
        value: Any = getattr(torch.zeros(shape), info.name)
        values.append(value() if callable(value) else value)
    return None if values[0] == values[1] == values[2] else f"values {values}"


_CHECKS: tuple[tuple[str, Callable[[OperatorFacts], bool], Callable[..., str | None]], ...] = (
    ("raises", lambda facts: facts.raises is not Raises.MAYBE, _raises),
    ("float_scalars", lambda facts: facts.float_scalars, _float_scalars),
    ("shape_from_numbers", lambda facts: not facts.shape_from_numbers, _shape_from_numbers),
    ("results", lambda facts: facts.results is Results.FIXED, _result_count),
    ("saves_result", lambda facts: not facts.saves_result, _saves_result),
    ("new_memory", lambda facts: facts.new_memory, _new_memory),
    ("repeatable", lambda facts: facts.repeatable, _repeatable),
    ("shares_memory", lambda facts: not facts.shares_memory, _counts_writes),
    ("narrows", lambda facts: facts.narrows is Narrows.NONE, _narrows),
    ("reads_sizes", lambda facts: not facts.reads_sizes, _reads_sizes),
)
"""Per property: when it is a claim, and the check that could refute it."""


# --- inputs --------------------------------------------------------------------------------------


def _run(info: Any, sample: Any) -> Any:
    return info.op(sample.input, *sample.args, **sample.kwargs)


def _call(info: Any, sample: Any) -> Any:
    """The result, where the claim is not about exceptions."""
    try:
        return _run(info, sample)
    except Exception as error:
        raise _NotTried from error


def _tensors(sample: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _mapped(sample: Any, function: Callable[[Any], Any]) -> Any:
    first, args, kwargs = pytree.tree_map(function, (sample.input, sample.args, sample.kwargs))
    return type(sample)(first, args=args, kwargs=kwargs)


def _cloned(sample: Any) -> Any:
    """The sample with memory of its own, laid out alike."""

    def clone(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        memory = value.detach().untyped_storage().clone()
        empty = torch.empty(0, dtype=value.dtype)
        return empty.set_(memory, value.storage_offset(), value.shape, value.stride())

    return _mapped(sample, clone)


def _filled(sample: Any, extreme: float) -> Any:
    def fill(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        filled = torch.empty_like(value.detach())
        if filled.dtype is torch.bool:
            return filled.fill_(extreme > 0)
        if filled.dtype.is_floating_point or filled.dtype.is_complex:
            return filled.fill_(extreme)
        return filled.fill_(int(extreme) if abs(extreme) <= 1 else torch.iinfo(filled.dtype).min)

    return _mapped(sample, fill)


def _with_floats(sample: Any, number: float) -> Any:
    """The sample with ``number`` for each float argument; None if there is none."""
    floats = [v for v in (*sample.args, *sample.kwargs.values()) if type(v) is float]
    floating = isinstance(sample.input, torch.Tensor) and sample.input.is_floating_point()
    if not floats or not floating:
        return None
    return _mapped(sample, lambda v: number if type(v) is float else v)


def _shapes(result: Any) -> list[Any]:
    return [v.shape if isinstance(v, torch.Tensor) else None for v in pytree.tree_leaves(result)]
